"""What one worker holds: a mounted kernel package, workloads, and the arms of the cell that is open."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import inspect
import os
import platform
import random
import subprocess
import sys
import sysconfig
import time
import types
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from abprof import wire
from abprof.kit import Op, Work
from abprof.worker import ceilings, chrome, compiles, declared, given, mount, nvtx, outputs, profile, proof
from abprof.worker.clocks import clock, mean, shortest
from abprof.worker.faults import MissingPackage

OVERWRITTEN = "the kernel overwrote its inputs, and the workload has no reset()"


@dataclass
class OpenArm:
    """One arm of the open cell. `inputs` and `pad` keep its memory alive and in its place."""

    request: wire.Open
    op: Op
    inputs: Any
    pad: object
    wall: float = 0.0


class Bench:
    """Answers every request but `start` and `stop`; each method's name is its verb."""

    def __init__(self, start: wire.Start) -> None:
        self.start = start
        self.clock = clock(start.device)
        self.kernel: types.ModuleType | None = None
        self.mounted: types.ModuleType | None = None
        self.arms: dict[str, OpenArm] = {}
        self.compiles = compiles.Watch()
        self.versions = versions()
        self.marks = (
            nvtx.around if self.clock.kind == "cuda" else nvtx.nothing
        )  # on a CPU they would be in what is read
        self.given = given.take()  # torch, Triton and the driver are loaded, and nothing of a side's or a workload's

    def ready(self) -> wire.Ready:
        """Who this worker is. The package is imported by the first request that needs it, so that its faults are typed."""
        name, uuid, memory, facts = self.clock.identity()
        return wire.Ready(
            wire.PROTOCOL,
            os.getpid(),
            self.clock.kind,
            name,
            uuid,
            memory,
            self.versions,
            facts | {"host": platform.node()} | _interpreter(),
        )

    def usable(self) -> bool:
        """Whether the device still answers this process."""
        try:
            self.clock.sync()
        except Exception:  # noqa: BLE001 - CUDA's errors have many classes
            return False
        return True

    # ------------------------------------------------------------ workloads

    def describe(self, request: wire.Describe) -> wire.Described:
        """Raises ValueError for a module that breaks the contract."""
        module = self._workload(request.workload)
        api = getattr(module, "API", None)
        if api != 1:
            raise ValueError(f"API is {api!r}; this abprof reads API = 1")
        kernel = module.KERNEL
        presets = {name: declared.preset(axes, self.clock.kind) for name, axes in module.PRESETS.items()}
        variants = getattr(module, "VARIANTS", None)
        return wire.Described(
            api=api,
            kernel=kernel,
            suite=getattr(module, "SUITE", request.workload),
            text=(inspect.getdoc(module) or "").split("\n")[0],
            judge=getattr(module, "JUDGE", ""),
            presets=presets,
            variants=list(variants or ()),
            peers=list(getattr(module, "PEERS", {})),
            phases=[(name, *spec) for name, spec in getattr(module, "PHASES", {}).items()],
            seed_columns=list(getattr(module, "SEED_COLUMNS", ())),
            scaled=declared.scaled(module, presets),
            ladder=declared.ladder(module),
            sweep=declared.sweep(module, presets),
            default_peers=declared.default_peers(module),
            checked="reference" if hasattr(module, "reference") else "sides",
        )

    def screen(self, request: wire.Screen) -> wire.Screened:
        """Which cases the workload leaves out on this device, and what each would cost."""
        module = self._workload(request.workload)
        skips, works = [], []
        ranks = getattr(module, "RANKS", 1)
        for loose in request.cases:
            case = types.MappingProxyType(loose)
            skip = str(module.skip(case, self.clock.device) or "") if hasattr(module, "skip") else ""
            skips.append(skip or (f"needs {ranks} ranks, and abprof starts one process a side" if ranks != 1 else ""))
            works.append(module.work(case) if hasattr(module, "work") else Work())
        return wire.Screened(skips, [w.flops for w in works], [w.bytes for w in works], [w.convention for w in works])

    def reach(self, request: wire.Reach) -> wire.Reached:
        """What the device does at its best."""
        return ceilings.reach(self.clock, request.seconds)

    def inventory(self, request: wire.Inventory) -> wire.Listed:
        """What is installed for this interpreter, the first of each name as an import would find it."""
        del request
        found: dict[str, str] = {}
        for one in metadata.distributions():
            found.setdefault(str(one.metadata["Name"]), str(one.version))
        return wire.Listed(dict(sorted(found.items())))

    def _workload(self, name: str) -> types.ModuleType:
        module = mount.workload(name, self.start.workloads[name])
        wrapped: types.ModuleType = getattr(
            module, "WORKLOAD", module
        )  # of abprof.adapters: an object with a module's names
        return wrapped

    # ------------------------------------------------------------ the kernel package

    def build(self, request: wire.Build) -> wire.Built:
        """Run the recipe, then the package's own build(). Output goes to the log, flags do not depend on it."""
        began = time.monotonic()
        if request.recipe:
            print("$", *request.recipe, flush=True)
            subprocess.run(request.recipe, check=True, cwd=request.recipe_cwd or None, stdin=subprocess.DEVNULL)
        kernel = self._kernel()
        has_build = hasattr(kernel, "build")
        if has_build:
            kernel.build(verbose=request.verbose)
        return wire.Built(has_build, time.monotonic() - began, list(getattr(kernel, "VARIANTS", ())))

    def _kernel(self) -> types.ModuleType:
        if self.kernel is None:
            assert self.start.mount is not None, "this worker has no kernel package"
            # Known by name before the import, so that a fault inside it is told from the workload's own.
            self.mounted = types.ModuleType(self.start.mount.module)
            self.compiles.install()
            self.kernel = self.mounted = mount.kernel_package(self.start.mount)
        return self.kernel

    def prove(self, request: wire.Prove) -> wire.Proved:
        """What is loaded now."""
        del request
        assert self.start.mount is not None
        judges = tuple({str(Path(file).parent / wire.WRAPPED) for file in self.start.workloads.values()})
        reason, artefacts = proof.prove(self.start.mount, self.given, self.compiles.kernels(), judges)
        return wire.Proved(not reason, reason, artefacts, self.compiles.count, self.compiles.facts())

    # ------------------------------------------------------------ one cell

    def open(self, request: wire.Open) -> wire.Opened:
        """Make inputs and operation, call it until it is warm. A fault is raised, and typed by the loop."""
        if self.arms.pop(request.arm, None):
            gc.collect()
        self.clock.reset_peak()
        began = time.perf_counter_ns()
        arm = self.make(request, request.placement)
        opened = time.perf_counter_ns() - began
        first = self.clock.wall(arm.op)  # compiles what was not compiled
        peak = self.clock.peak_bytes()
        if peak is not None:
            peak -= getattr(arm.pad, "nbytes", 0)  # not the kernel's doing
        self.arms[request.arm] = arm
        return wire.Opened("ok", "", self._warm(arm, first), float(opened), peak)

    def _warm(self, arm: OpenArm, first: float) -> float:
        """How long a warm call takes, ns; 0 where the clock does not say. A long one, the `first` call's time says so
        too, is made once more and no oftener; not even that where an earlier epoch told its time."""
        if arm.request.usual_ns >= wire.LONG_CALL:
            arm.wall = first
            return arm.request.usual_ns
        arm.wall = self.clock.wall(arm.op)
        if min(first, arm.wall) >= wire.LONG_CALL:
            return arm.wall
        arm.wall = shortest([arm.wall, self.clock.wall(arm.op)])
        return shortest([self.clock.turn(arm.op, 1, cold=False, arm=arm.request.arm) for _ in range(2)])

    def make(self, request: wire.Open, placement: int) -> OpenArm:
        """Inputs and operation of an arm; nothing of it was called yet."""
        pad = self.clock.pad(placement)
        inputs = self._inputs(request)
        return OpenArm(request, self._prepared(request, inputs), inputs, pad)

    def _prepared(self, request: wire.Open, inputs: Any) -> Op:
        module, case = self._workload(request.workload), types.MappingProxyType(request.case)
        op: Op
        if request.peer:
            op = module.PEERS[request.peer](case, inputs)
        else:
            kernel = self._kernel()
            if request.variant and request.variant not in getattr(kernel, "VARIANTS", ()):
                raise MissingPackage(f"this side has no variant {request.variant}")
            op = module.prepare(kernel, request.variant or None, case, inputs)
        self.clock.sync()
        return op

    def _inputs(self, request: wire.Open) -> Any:
        """Inputs that nothing was called on yet: the same bytes each time."""
        torch.manual_seed(request.seed)
        random.seed(request.seed)
        return self._workload(request.workload).inputs(
            types.MappingProxyType(request.case), self.clock.device, request.seed
        )

    def check(self, request: wire.Check) -> wire.Checked:
        """The first call on fresh inputs, against the reference of inputs no kernel saw, and the base's sampled outputs.

        The fresh arm takes the open one's place: its memory is given up first, so that there are never two of it. A
        kernel that changes its inputs while the operation has no reset() fails: its later calls are of other values.
        """
        wall = self.arms[request.arm].wall
        opened = self.arms.pop(request.arm).request  # should this raise, nothing is left that could be timed
        gc.collect()
        module = self._workload(opened.workload)
        case = types.MappingProxyType(opened.case)
        scratch = Path(self.start.scratch)
        alone = not hasattr(
            module, "reference"
        )  # then the first that comes here, base, says what the others are to agree with
        expected = None
        if not alone:
            expected = outputs.expected(
                scratch / request.expected, lambda: module.reference(case, self._inputs(opened))
            )
        arm = self.make(opened, opened.placement)
        before = None if arm.op.reset else outputs.input_digests(arm.inputs)
        if arm.op.reset:
            arm.op.reset()
        results = arm.op.call()
        self.clock.sync()
        if alone:
            outputs.refuse_incomparable(results)
            results = list(outputs.held(results))
            expected = outputs.agreed(scratch / request.expected, lambda: outputs.on_host(results))
        verdict = declared.check(module, case, results, expected)
        if verdict.ok and before is not None and before != outputs.input_digests(arm.inputs):
            verdict = dataclasses.replace(verdict, ok=False, reason=OVERWRITTEN)
        digest, base_max_abs = outputs.sample(
            results, scratch / request.sample, scratch / request.against if request.against else None
        )
        arm.wall = wall if wall >= wire.LONG_CALL else self.clock.wall(arm.op)
        self.arms[request.arm] = arm
        return wire.Checked(
            bool(verdict.ok),
            verdict.reason,
            outputs.finite(verdict.max_abs),
            outputs.finite(verdict.max_rel),
            digest,
            base_max_abs,
            declared.facts(module, case, arm.inputs, arm.op) | declared.unchecked(results),
        )

    def hand(self, request: wire.Hand) -> wire.Handed:
        """Outputs on inputs of other seeds, kept for a judge; then the arm is opened as it was before."""
        wall = self.arms[request.arm].wall
        opened = self.arms.pop(request.arm).request
        gc.collect()
        arm = self.make(dataclasses.replace(opened, seed=request.seed), opened.placement)
        if request.again is not None:
            arm.op.call()
            outputs.overwrite(arm.inputs, self._inputs(dataclasses.replace(opened, seed=request.again)))
        if request.anew:
            arm.op = self._prepared(opened, arm.inputs)
        if arm.op.reset:
            arm.op.reset()
        outputs.keep(arm.op.call(), Path(self.start.scratch) / request.outputs)
        del arm
        gc.collect()
        arm = self.make(opened, opened.placement)
        arm.wall = wall if wall >= wire.LONG_CALL else self.clock.wall(arm.op)
        self.arms[request.arm] = arm
        return wire.Handed()

    def examine(self, request: wire.Examine) -> wire.Checked:
        """What another worker handed over, against the reference of inputs made here."""
        asked = wire.Open(request.workload, request.case, "", seed=request.seed)
        inputs = self._inputs(asked)
        if request.again is not None:
            outputs.overwrite(inputs, self._inputs(dataclasses.replace(asked, seed=request.again)))
        module, case = self._workload(request.workload), types.MappingProxyType(request.case)
        results = outputs.handed(Path(self.start.scratch) / request.outputs, self.clock.device)
        verdict = module.check(case, results, module.reference(case, inputs))
        return wire.Checked(
            bool(verdict.ok), verdict.reason, outputs.finite(verdict.max_abs), outputs.finite(verdict.max_rel)
        )

    def turn(self, request: wire.Turn) -> wire.Turned:
        """Some calls of one arm, ended by a device synchronise."""
        arm = self.arms[request.arm]
        if request.placement is not None:
            self._replace(arm, request.placement)
        start, mhz = time.monotonic_ns(), 0.0
        if request.timer == "do_bench":
            value = self.clock.do_bench(arm.op)
        elif request.timer == "sustained":
            value = self.clock.sustained(arm.op, request.calls)
        elif request.timer == "wall_clock":
            value = mean([self.clock.wall(arm.op) for _ in range(request.calls)])
        else:
            value = self.clock.turn(arm.op, request.calls, cold=request.cold, arm=request.arm)
            mhz = self.clock.mhz()
        end = time.monotonic_ns()
        host = self.clock.kind == "cpu" or request.timer == "wall_clock"
        empty = self.clock.empty(request.empties, cold=request.cold) if request.empties else 0.0
        return wire.Turned(value, value if host else arm.wall, start, end, empty, mhz)

    def _replace(self, arm: OpenArm, placement: int) -> None:
        """Fresh inputs of the same values at other addresses, and one untimed call, whose wall time is kept."""
        arm.inputs = arm.pad = None
        arm.op = Op(lambda: None)
        fresh = self.make(arm.request, placement)
        arm.op, arm.inputs, arm.pad = fresh.op, fresh.inputs, fresh.pad
        arm.wall = self.clock.wall(arm.op)

    def phases(self, request: wire.Phases) -> wire.Phased:
        """A profiled pass of its own, so that instrumentation never touches the timing: phases, and what is launched."""
        arm = self.arms[request.arm]
        module = self._workload(arm.request.workload)
        ranges = {name: spec[0] for name, spec in getattr(module, "PHASES", {}).items()}
        with self.marked(arm.request):
            phased = profile.phases(
                arm.op, ranges, request.calls, self.clock, discarded=request.discarded, watch=self.compiles
            )
        if self.mounted is None or phased.census.missing:
            return phased
        launches = compiles.chosen(phased.census.launches, self.mounted.__name__)
        return dataclasses.replace(phased, census=dataclasses.replace(phased.census, launches=launches))

    def trace(self, request: wire.Trace) -> wire.Traced:
        """A profiled pass that is kept as a Chrome trace."""
        arm = self.arms[request.arm]
        module = self._workload(arm.request.workload)
        ranges = {name: spec[0] for name, spec in getattr(module, "PHASES", {}).items()}
        with self.marked(arm.request):
            profiler, launched = profile.profiled(arm.op, request.calls, self.clock, request.discarded, self.compiles)
        target = Path(self.start.scratch) / request.name
        with profile.exported(profiler) as raw:
            counted = profile.counted_calls(profiler, launched, ranges, self.clock, request.discarded, raw)
            try:
                return wire.Traced(counted, chrome.write(raw, target, request.most_bytes))
            except ValueError as error:
                return wire.Traced(counted, missing=f"{type(error).__name__}: {error}")

    def marked(self, of: wire.Open) -> contextlib.AbstractContextManager[None]:
        """NVTX ranges around this arm's calls: the cell's id, the arm's, and what the workload's users call a call."""
        module, case = self._workload(of.workload), types.MappingProxyType(of.case)
        return self.marks(
            [wire.cell_id(of.workload, of.case), of.arm], declared.nvtx(module, case, of.variant or of.peer)
        )

    def load(self, request: wire.Load) -> wire.Loaded:
        """Kernels that Triton compiled for this process."""
        del request
        return wire.Loaded(self.compiles.compiled())

    def close(self, request: wire.Close) -> wire.Closed:
        """Forget the cell."""
        del request
        peak = self.clock.peak_bytes()
        self.arms.clear()
        gc.collect()
        gc.freeze()  # what outlives a cell stays for good: walking torch's objects at every cell took 70 ms each time
        self.clock.reset_peak()
        return wire.Closed(peak)


def _interpreter() -> dict[str, str]:
    """Which installation this is, by whatever name it was called."""
    return {
        "prefix": os.path.realpath(sys.prefix),
        "base_prefix": os.path.realpath(sys.base_prefix),
        "soabi": str(sysconfig.get_config_var("SOABI") or ""),
    }


@functools.cache
def versions() -> dict[str, str]:
    """Of the interpreter and what decides a build. Imports Triton, and touches no device."""
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "implementation": sys.implementation.name,
    }
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    if getattr(torch.version, "hip", None):
        found["hip"] = torch.version.hip
    with contextlib.suppress(ImportError):
        import triton

        found["triton"] = triton.__version__
    with contextlib.suppress(Exception):
        found["cudnn"] = str(torch.backends.cudnn.version() or "")
    return {name: value for name, value in found.items() if value}
