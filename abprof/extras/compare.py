"""Compare two callables of this process (`abprof.compare`) with the turns, clocks, checks and verdicts of a run.

Workers are forks of this process, new ones for each epoch. CUDA, and some libraries, do not survive a fork: then the
callables take turns in this process. `abprof.report.sentences` has the guarantee that is missing.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import multiprocessing
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast
from warnings import catch_warnings, simplefilter

import msgspec
import torch
from torch.utils import _device as mode

from abprof import session
from abprof.builds import WorkerFactory, WorkerSpec, environment
from abprof.devices import Device, lease, several
from abprof.measure import Plan, epochs, matrix
from abprof.records import SCHEMA, VERSION, Block, Build, Cell, Checkout, Machine, Options, Package, Run, Side, Workload
from abprof.records import messages as wire
from abprof.records.errors import AbprofError
from abprof.records.options import File
from abprof.records.run import Advice
from abprof.report import sentences
from abprof.system import paths
from abprof.system.console import View
from abprof.system.processes import Worker, WorkerDied, WorkerFault
from abprof.verdict import CellCache, undecided
from abprof.worker import drawn
from abprof.worker import main as worker
from abprof.worker.api import Check, Op, Unsupported
from abprof.worker.bench import Bench, versions
from abprof.worker.faults import classify


@dataclass(frozen=True)
class Question:
    """What is compared: callables by side, and the arguments of `abprof.compare`."""

    calls: Mapping[str, Callable[..., Any]]
    inputs: Any = None
    check: Callable[[Any, Any], Any] | None = None
    reset: Callable[..., Any] | None = None
    name: str = ""
    guessed: bool = False  # whether a GPU is taken only because there is one


def compared(question: Question, options: Options, view: View) -> tuple[Run, list[Block]]:
    """Measure until the verdict is clear or the budget is spent. Return the judged run and its blocks (rounds)."""
    here, anywhere = torch.cuda.is_initialized(), next(drawn.held(question.inputs), None) is None
    guessed = anywhere and not options.device and (not here or callable(question.inputs))
    question = replace(question, guessed=guessed)
    device = _device(question, options.device, started=here)
    options.require_timer(device.kind)
    options = options.under(File()).resolved(device.kind, matrix.judge(options.by_timer, device.kind))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="abprof-")))
        for side in ("base", "target", "control"):
            (folder / side).mkdir()
        places: dict[str, Any] = {"cache": folder, "logs": folder, "scratch": folder, "workers": {}, "env": {}}
        places |= {"device": device.worker, "timeout": options.timeout, "build_timeout": 0.0}
        factory = _Factory(**places, question=question, here=here)
        wait = not options.no_wait
        stack.enter_context(lease(paths.state_dir(), device.lease, wait=wait, label="abprof.compare", say=view.say))
        if here or not _computes(factory):
            factory = replace(factory, here=True)
            if device.kind == "cuda":  # forks would have had no other GPU; here cuda:0 must be this one
                _device(question, (device.lease,), started=True)
            stack.enter_context(_restored(device.kind))
        run = _head(question, options, device.machine(), sentences.HERE if factory.here else sentences.FORKED)
        view.say(sentences.weaker(run)[0])
        checkouts = {side.id: Checkout(side=side, path="") for side in run.sides}
        builds = tuple(Build(side=id, kernel="", key=id) for id in checkouts)  # for the plan: there are none
        planned, arms = msgspec.structs.replace(run, builds=builds), {run.cells[0].id: run.arms}
        plan = Plan(factory, device, planned, run.cells, checkouts, {"": Package(name="fork")}, {}, arms)
        blocks = list[Block]()
        wanted = partial(undecided, run, blocks, cache=CellCache())
        try:
            with view.working(f"comparing {run.cells[0].id}", options.budget):
                for item in epochs(plan, wanted, first=1, budget=options.budget):
                    blocks += [item] if isinstance(item, Block) else []  # nothing is proved
            status: Literal["complete", "interrupted"] = "complete"
        except KeyboardInterrupt:
            status = "interrupted"
    for number, block in enumerate(blocks):  # logs are removed
        outcomes = {id: msgspec.structs.replace(outcome, log="") for id, outcome in block.outcomes.items()}
        blocks[number] = msgspec.structs.replace(block, outcomes=outcomes)
    ended = datetime.now(UTC).isoformat(timespec="seconds")
    run = session.judge_run(msgspec.structs.replace(run, status=status, ended=ended), blocks)
    return msgspec.structs.replace(run, warnings=tuple(map(_advised, run.warnings))), blocks


def _advised(one: Advice) -> Advice:
    """Return the warning without advice on refs, logs and commands: there is no run folder."""
    known = {
        "broken": "",
        "base_not_ok": "",
        "worth_confirming": "compare again without quick",
    }  # the texts have reasons
    again = "compare again, with a larger budget" if "abprof r" in one.advice else one.advice
    return msgspec.structs.replace(one, advice=known.get(one.kind, again))


@contextlib.contextmanager
def _restored(kind: str) -> Iterator[None]:
    """Restore this process's random states and garbage collector, but CUDA's state only if CUDA still works."""
    python, cpu, cuda = random.getstate(), torch.get_rng_state(), torch.cuda.get_rng_state() if kind == "cuda" else None
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(cpu)
        gc.unfreeze()
        with contextlib.suppress(RuntimeError):
            if cuda is not None:
                torch.cuda.set_rng_state(cuda)


def _device(question: Question, names: tuple[str, ...], *, started: bool) -> Device:
    """Return the device in `names`, else that of the inputs' tensors, else a GPU if there is one. `started`: whether this
    process uses CUDA. Raises AbprofError if the device is not clear, or cannot be timed in this process."""
    found = {tensor.device for tensor in drawn.held(question.inputs)}
    here = f"GPU-{torch.cuda.get_device_properties(0).uuid}" if started and names != ("cpu",) else ""
    if not names and {device.type for device in found} == {"cpu"}:
        if started:
            what = "the inputs are on the CPU, but CUDA has started in this process"
            raise AbprofError(what, where="abprof.compare", advice='give device="cpu" or device="cuda"')
        names = ("cpu",)
    (device, *_), _ = several(names or ((here,) if here else ()))
    if device.kind == "cpu" and any(of.type == "cuda" for of in found):
        raise AbprofError("the inputs are on a GPU", where="abprof.compare", advice='leave out device="cpu"')
    if here and (device.lease != here or torch.cuda.current_device() or any(device.index for device in found)):
        raise AbprofError("only cuda:0 can be timed", where="abprof.compare", advice="set CUDA_VISIBLE_DEVICES")
    return device


def _head(question: Question, options: Options, machine: Machine, how: str) -> Run:
    labels = {side: str(getattr(call, "__name__", type(call).__name__)) for side, call in question.calls.items()}
    sides = tuple(Side(id=id, spec=id, kind="commit", commit="", tree=id, label=labels[id]) for id in labels)
    name = question.name or labels["target"]
    load = Workload(name=name, kernel="", suite=name, axes=(), judge=options.judge, checked="sides")
    cell = Cell(id=name, workload=name, kernel="", suite=name, params={})
    control = bool(matrix.controls((cell,), sides, quick=options.quick))
    arms = matrix.arms(load, sides, (), control=control, peers=False)
    began, known = datetime.now(UTC).isoformat(timespec="seconds"), {"abprof": VERSION, **versions()}
    return Run(schema=SCHEMA, id="compare", status="running", began=began, options=options, sides=sides, workloads=(load,),
               workloads_from=how, arms=arms, cells=(cell,), machine=machine, versions=known)  # fmt: skip


@dataclass(frozen=True)
class _Factory(WorkerFactory):
    """Starts workers as forks of this process or, with `here`, in this process."""

    question: Question = Question({})
    here: bool = False

    def servers(self, *_: Any) -> int:
        return 1

    def preload(self, *_: Any) -> None:
        pass

    def worker(self, spec: WorkerSpec, log: Path, **_: Any) -> Worker:
        return self.of_side(spec.id, log)

    def of_side(self, side: str, log: Path) -> Worker:
        """Start the worker of a side's callable. Raises WorkerDied."""
        if self.here:
            self.own.add(os.getpid())
            return cast("Worker", _Here(self.question))
        env = environment.shared({"TRITON_CACHE_AUTOTUNING": "1"}, self.device)
        fork = cast("Any", [_Fork(self.question)])
        return Worker([side], env=env, cwd=self.scratch, log=log, started=self.own.add, servers=fork)


def _computes(factory: _Factory) -> bool:
    """Whether forks of this process can compute: start one, in which `Callables` tries."""
    with contextlib.suppress(WorkerDied, WorkerFault), factory.of_side("base", factory.logs / "0") as fork:
        fork.call(factory.start("base"), factory.timeout)
        return True
    return False


class _Here:
    """Answers requests in this process. Has the members of `Worker` that measuring uses."""

    forked, alive, _in = False, True, -1
    _bench: Callables | None

    def __init__(self, question: Question) -> None:
        self.pid, self._question, self._bench = os.getpid(), question, None

    def send(self, request: Any) -> None:
        self._request = request

    def receive(self, _request: Any, _timeout: float) -> Any:
        request, sent = self._request, time.perf_counter_ns()
        try:
            if isinstance(request, wire.Start):
                self._bench = Callables(request, self._question)
                return self._bench.ready()
            return getattr(self._bench, wire.NAMES[type(request)])(request)
        except Exception as error:
            fault = classify(error, None)
            if self._bench and not self._bench.usable():  # after an illegal memory access, say
                advice = "start a new process, where a function makes the inputs: CUDA then starts in forks only"
                raise AbprofError(f"CUDA has failed: {fault.reason}", where="abprof.compare", advice=advice) from error
            raise WorkerFault(fault.status, fault.reason, fault.at) from error
        finally:
            self.waited = time.perf_counter_ns() - sent

    def call(self, request: Any, timeout: float) -> Any:
        self.send(request)
        return self.receive(request, timeout)

    def kill(self) -> None:
        self.alive = False


class _Fork:
    """Forks a worker off this process, as a fork server does; then has the methods of Popen that `Worker` uses."""

    def __init__(self, question: Question) -> None:
        self._question = question

    def fork(self, *, env: Mapping[str, str], ends: Sequence[int], output: int, **_: Any) -> _Fork:
        """Fork a worker that reads requests from ends[0], replies to ends[1] and prints to `output` (descriptors)."""
        modes = torch.is_grad_enabled(), mode.CURRENT_DEVICE
        given = env, *ends, output, modes
        self._process = multiprocessing.get_context("fork").Process(target=self._run, args=given, daemon=True)
        with catch_warnings():
            simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of a fork beside threads
            self._process.start()
        self.pid = cast("int", self._process.pid)
        with contextlib.suppress(OSError):
            os.setpgid(self.pid, self.pid)  # the worker does it, too, whichever comes first: ^C is for this process
        return self

    def _run(self, env: Mapping[str, str], source: int, sink: int, output: int, modes: tuple[bool, Any]) -> None:
        os.setpgid(0, 0)
        worker.die_with_parent()
        os.environ.update(env)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115

        def serve() -> None:
            torch.set_grad_enabled(modes[0])  # each thread has its own modes
            torch.set_default_device(modes[1])
            os._exit(worker.serve(source, sink, partial(Callables, question=self._question, forked=True)))

        # OpenMP's threads belong to the thread that started them, and are not in the fork: a parallel loop of this thread
        # would wait for them without end. A new thread starts threads of its own.
        thread = threading.Thread(target=serve)
        thread.start()
        thread.join()

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        """Return the exit code once the process has ended. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return code


class Callables(Bench):
    """Answers the requests to a worker of one callable. Raises RuntimeError in a fork that cannot compute."""

    def __init__(self, start: wire.Start, question: Question, *, forked: bool = False) -> None:
        limits = resource.getrlimit(resource.RLIMIT_DATA)
        super().__init__(replace(start, mount=None))
        resource.setrlimit(resource.RLIMIT_DATA, limits)  # a clock's limit does not count what this process holds
        self._question, self._call = question, question.calls["target" if start.side == "target" else "base"]
        if forked:
            torch.zeros(1, requires_grad=True).sum().backward()  # refused if autograd had started threads
            self.compiles.install()
        made, check, self._workload = question.inputs, question.check, types.ModuleType("abprof_callables")
        vars(self._workload)["inputs"] = lambda *_: _copied(made() if callable(made) else made, {})
        vars(self._workload)["__file__"] = getattr(getattr(check or made, "__code__", None), "co_filename", "")
        if check:
            vars(self._workload)["check"] = lambda _, results, expected: _checked(check, results, expected)

    def module(self, name: str) -> types.ModuleType:  # noqa: ARG002
        """Return a workload that makes the inputs and checks the outputs."""
        return self._workload

    def prepared(self, request: wire.Open, inputs: Any) -> Op:  # noqa: ARG002
        """Return the callable with its arguments."""
        named, reset = dict(inputs) if isinstance(inputs, Mapping) else {}, self._question.reset
        alone = () if inputs is None or isinstance(inputs, Mapping) else (inputs,)
        args = inputs if isinstance(inputs, tuple | list) else alone
        self.clock.sync()
        op = Op(partial(self._call, *args, **named), reset=partial(reset, *args, **named) if reset else None)
        if self._question.guessed and self.clock.kind == "cuda" and not _on_gpu(inputs):
            op.restore()
            if not _on_gpu(op.call()):
                what = "neither the inputs nor the outputs are on the GPU"
                raise Unsupported(f'{what}: give abprof.compare device="cpu" or device="cuda"')
        return op

    def prove(self, _request: wire.Prove) -> wire.Proved:
        """Return the number of compilations. Loaded files are not checked."""
        return wire.Proved(True, "", [], self.compiles.count, [])


def _on_gpu(values: Any) -> bool:
    return any(tensor.is_cuda for tensor in drawn.held(values))


def _copied(values: Any, memo: dict[int, Any]) -> Any:
    if isinstance(values, torch.Tensor):
        made = values.detach().clone()
        if values.layout == torch.strided and made.stride() != values.stride():  # a clone has no gaps
            made = copy.deepcopy(values.detach(), memo)
        return made.requires_grad_(values.requires_grad)
    if isinstance(values, Mapping):
        return {name: _copied(value, memo) for name, value in values.items()}
    return type(values)(_copied(value, memo) for value in values) if type(values) in (tuple, list) else values


def _checked(check: Callable[[Any, Any], Any], *outputs: Any) -> Check:
    pair = [[tensor.cpu() for tensor in each] for each in outputs]
    try:
        found = check(*(each[0] if len(each) == 1 else each for each in pair))
    except AssertionError as error:
        return Check(False, " ".join(str(error).split()) or "the check failed")
    ok = found is None or bool(found)
    return found if isinstance(found, Check) else Check(ok, "" if ok else f"the check returned {found!r}")
