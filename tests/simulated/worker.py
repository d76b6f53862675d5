"""The simulated worker's process: `python -P worker.py --in FD --out FD`, ABPROF_SIMULATED=/path/scenario.json. With `--fork FD` it
forks workers on request.

It speaks abprof/wire like the real worker and imports neither torch nor anything of the kernel packages, whose
files it only hashes. Standard output and error are the log.
"""

import argparse
import ctypes
import gc
import hashlib
import json
import math
import os
import signal
import sys
import types
from dataclasses import dataclass
from fnmatch import fnmatchcase as fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

if __name__ == "__main__":  # as in a worker's bundle: the messages without the records beside them, which need msgspec
    records = sys.modules["abprof.records"] = types.ModuleType("abprof.records")
    records.__path__ = [str(ROOT / "abprof" / "records")]


from abprof.records import messages as wire  # noqa: E402
from tests.simulated.clock import Clock  # noqa: E402
from tests.simulated.faults import Faults, Typed, line, write  # noqa: E402
from tests.simulated.forking import fork_on_request  # noqa: E402
from tests.simulated.scenario import Fault, Noise, Scenario, Workload  # noqa: E402

CHECKED = 1.0  # a sampled output's first value; wrong outputs have another


@dataclass
class Arm:
    """An open arm of the present cell."""

    label: str  # variant, "peer:NAME", or ""
    ns: float
    noise: Noise | None
    seed: int
    turns: int = 0


class Worker:
    """One simulated worker: a method per verb. Raises Typed where the real one answers with a status."""

    def __init__(self, scenario: Scenario, faults: Faults) -> None:
        self.scenario = scenario
        self.faults = faults
        self.begun: wire.Start | None = None
        self.clock = Clock("", scenario.clock_ns)
        self.cell = ""
        self.workload: Workload | None = None
        self.arms: dict[str, Arm] = {}
        self.compiles = 0
        self.read: dict[str, Any] | None = None

    @property
    def start_(self) -> wire.Start:
        if self.begun is None:
            raise Typed("crash", "the first request must be start")
        return self.begun

    def faults_for(self, verb: str, args: Any) -> list[Fault]:
        """The faults that strike this request."""
        begun = args if verb == "start" else self.start_
        verb = "trace" if verb == "phases" and args.keep else verb
        kernel = begun.mount.name if begun.mount else ""
        place, label = self.cell, ""
        if verb in ("start", "build", "prove", "stop"):
            place = kernel
        elif verb in ("describe", "screen"):
            place = args.workload
        elif verb in ("open", "examine"):
            place, label = wire.cell_id(args.workload, args.case), _label(args) if verb == "open" else ""
        elif verb not in ("close", "reach", "inventory"):
            label = self.arms[args.arm].label if args.arm in self.arms else ""
        return self.faults.strike(verb, begun.side, begun.epoch, place, label, begun.device)

    def start(self, args: wire.Start, faults: list[Fault]) -> wire.Ready:
        self.begun = args
        self.clock = Clock(args.scratch, self.scenario.clock_ns)
        self.faults.note(os.getpid(), f"worker {args.side} {args.epoch}")
        print(f"simulated worker: {args.side}, epoch {args.epoch}", flush=True)
        return wire.Ready(self.scenario.versions, self.scenario.facts | _capability(args.device))

    def describe(self, args: wire.Describe, faults: list[Fault]) -> wire.Described:
        load = self._find(args.workload)
        presets = load.axes()
        axes = dict.fromkeys(axis for rows in presets.values() for names, _ in rows for axis in names)
        return wire.Described(
            name=args.workload, kernel=load.kernel, suite=load.suite, axes=tuple(axes), variants=tuple(load.variants),
            peers=tuple(load.peers), phases=tuple(wire.Phase(name, span, text) for name, span, text, _ in load.phases),
            seed_columns=tuple(load.seed_columns), ladder=tuple(load.ladder), text=load.text, presets=presets,
            checked="sides" if load.checked == "sides" else "reference", declared_judge=load.judge,
            default_peers=load.default_peers,
        )  # fmt: skip

    def screen(self, args: wire.Screen, faults: list[Fault]) -> wire.Screened:
        load, many = self._find(args.workload), len(args.cases)
        skips = [load.skip(wire.cell_id(args.workload, case)) for case in args.cases]
        return wire.Screened(skips, [load.flops] * many, [load.bytes] * many, [load.convention] * many)

    def reach(self, args: wire.Reach, faults: list[Fault]) -> wire.Ceilings:
        tflops, gbps = self.scenario.ceilings or (None, None)
        found = "simulated products" if tflops else "", "simulated copies" if gbps else ""
        return wire.Ceilings(tflops, found[0], gbps, found[1], "" if tflops and gbps else "not simulated")

    def inventory(self, args: wire.Inventory, faults: list[Fault]) -> wire.Listed:
        return wire.Listed(self.scenario.packages)

    def build(self, args: wire.Build, faults: list[Fault]) -> wire.Built:
        if "build" in self.own():
            raise Typed("crash", str(self.own()["build"]))
        mount = self.start_.mount
        variants = self.scenario.variants_of(self.start_.side, mount.name) if mount else []
        return wire.Built(has_build=True, variants=variants)

    def open(self, args: wire.Open, faults: list[Fault]) -> wire.Opened:
        workload, cell, label = self._find(args.workload), wire.cell_id(args.workload, args.case), _label(args)
        if args.variant and args.variant not in self.scenario.variants_of(self.start_.side, workload.kernel):
            raise Typed("missing", f"no variant {args.variant!r}")
        if args.peer and args.peer not in workload.peers:
            raise Typed("missing", f"no peer {args.peer!r}")
        if cell != self.cell:
            self.cell, self.arms = cell, {}
        ns = self.scenario.ns(self.start_.side, cell, label) * self.factor(cell)
        self.workload = workload
        self.arms[args.arm] = Arm(label, ns, self.scenario.noise_of(self.start_.side, cell), args.seed)
        self.clock.advance(ns)
        return wire.Opened(ns, 0.0, workload.peak_mem_bytes, workload.host_ns)

    def capture(self, args: wire.Capture, faults: list[Fault]) -> wire.Captured:
        """With the fault `uncaptured` it cannot be done, and with a number after a colon the process is spoiled."""
        arm, _ = self._arm(args.arm)
        for fault in faults:
            if fault.word == "uncaptured":
                return wire.Captured("host_sync", fault.text, spoiled=bool(fault.number(0)))
        ns = self.scenario.ns(self.start_.side, self.cell, arm.label, "cuda_graph") * self.factor(self.cell)
        return wire.Captured("", "", ns, 1e6)

    def check(self, args: wire.Check, faults: list[Fault]) -> wire.Checked:
        arm, workload = self._arm(args.arm)
        wrong = next((fault for fault in faults if fault.word == "wrong"), None)
        expected = self._scratch(args.expected)
        if not expected.exists():
            expected.write_text(f"{CHECKED}")
        output = 2 * CHECKED if wrong else CHECKED
        self._scratch(args.sample).write_text(f"{output}")
        against = self._scratch(args.against) if args.against else None
        base = float(against.read_text()) if against and against.exists() else None
        error = abs(output - float(expected.read_text()))
        digest = hashlib.sha256(f"{self.cell} {arm.seed} {output}".encode()).hexdigest()
        return wire.Checked(
            ok=not wrong,
            reason=(wrong.text or "output 0: largest error 1, allowed 1e-6") if wrong else "",
            max_abs=error or workload.max_abs,
            max_rel=error or workload.max_rel,
            digest=digest,
            base_max_abs=None if base is None else abs(output - base),
        )

    def hand(self, args: wire.Hand, faults: list[Fault]) -> wire.Done:
        """Outputs are the seeds that they follow: with the fault `kept` of the first call alone, with `packed` of what it
        was prepared on, with `wrong` of none."""
        words = {fault.word for fault in faults}
        old = "kept" in words or ("packed" in words and not args.anew)
        follows = [] if "wrong" in words else [args.seed] if old else [args.seed, args.again]
        self._scratch(args.outputs).write_text(json.dumps(follows))
        return wire.Done()

    def examine(self, args: wire.Examine, faults: list[Fault]) -> wire.CheckResult:
        found = json.loads(self._scratch(args.outputs).read_text())
        if args.draw:
            return wire.CheckResult(found == args.draw, "" if found == args.draw else "output 0: largest error 1")
        follows = found[:1] == [args.seed] and (args.again is None or found[1:] == [args.again])
        return wire.CheckResult(follows, "" if follows else "output 0: largest error 1, allowed 1e-6")

    def turn(self, args: wire.Turn, faults: list[Fault]) -> wire.Turned:
        if not args.calls:
            return wire.Turned(0.0, 0.0, *self.clock.advance(0.0))
        arm, _ = self._arm(args.arm)
        begun = self.start_
        value = self.scenario.ns(begun.side, self.cell, arm.label, args.timer) * self.factor(self.cell)
        if arm.noise:
            who = f"{begun.side}{self.own().get('content', '')}"  # other code scatters otherwise
            value = self.scenario.scatter(value, arm.noise, who, begun.epoch, self.cell, arm.label, arm.turns)
        arm.turns += 1
        if args.outputs:
            self._scratch(args.outputs).write_text(
                json.dumps([] if any(fault.word == "wrong" for fault in faults) else args.draw)
            )
        for fault in faults:
            value = {"negative": -value, "zero": 0.0}.get(fault.word, value)
            value += fault.number(0) * 1e9 / args.calls if fault.word == "jump" else 0.0
        start, end = self.clock.advance(value * args.calls)
        return wire.Turned(value=value, wall=value, start=start, end=end, compiles=self.compiles)

    def phases(self, args: wire.Phases, faults: list[Fault]) -> wire.Phased:
        arm, workload = self._arm(args.arm)
        if args.keep:
            return self._traced(args, arm, faults)
        shares = {name: share for name, _, _, share in workload.phases}
        times = {name: None if share is None else share * arm.ns for name, share in shares.items()}
        if any(fault.word == "never_launched" for fault in faults):
            return wire.Phased(times, 0.0, wire.Census(on_device=True))
        return wire.Phased(times, arm.ns)

    def _traced(self, args: wire.Phases, arm: Arm, faults: list[Fault]) -> wire.Phased:
        launches = (wire.Launch(f"simulated {self.start_.side}", 1, arm.ns), wire.Launch("shared", 2, arm.ns / 2))
        broken = any(fault.word == "torn_trace" for fault in faults)
        events = [{"name": launch.name, "ph": "X", "ts": 0, "dur": launch.ns / 1e3} for launch in launches]
        text = json.dumps({"traceEvents": events})
        self._scratch(args.keep).write_text(text[:-5] if broken else text)
        return wire.Phased({}, arm.ns, wire.Census(launches))

    def close(self, args: wire.Close, faults: list[Fault]) -> wire.Done:
        self.cell, self.arms = "", {}
        return wire.Done()

    def prove(self, args: wire.Prove, faults: list[Fault]) -> wire.Proved:
        mount, foreign = self.start_.mount, [fault for fault in faults if fault.word == "foreign_path"]
        artefacts = _artefacts(mount) if mount else []
        if foreign:
            name = mount.module if mount else "module"
            artefacts.append(wire.Artefact("module", name, "/elsewhere/module.py", "0" * 64))
        outside = [item.path for item in artefacts if not (mount and _inside(item.path, mount.allowed))]
        for fault in faults:
            self.compiles += int(fault.number(1)) if fault.word == "compile" else 0
        reason = f"loaded from outside its own tree: {', '.join(outside)}" if outside else ""
        return wire.Proved(ok=not outside, reason=reason, artefacts=artefacts, compiles=self.compiles)

    def stop(self, args: wire.Stop, faults: list[Fault]) -> wire.Done:
        return wire.Done()

    def own(self) -> dict[str, Any]:
        """What the mounted package says of itself in its file `simulated.json`: "factors" of times by a glob over cells, how
        its "build" fails, any "content". So commits differ as those of a real kernel do, by what they hold."""
        if self.read is None:
            mount = self.start_.mount
            file = Path(mount.root) / mount.name / "simulated.json" if mount else Path()
            self.read = dict(json.loads(file.read_text())) if file.is_file() else {}
        return self.read

    def factor(self, cell: str) -> float:
        factors: dict[str, float] = self.own().get("factors", {})
        return math.prod(value for glob, value in factors.items() if fnmatch(cell, glob)) * self.layout()

    def layout(self) -> float:
        """The factor by which this build's layout makes calls longer: drawn by its files and the folder's name without the
        key, which differs between machines."""
        mount = self.start_.mount
        if not (mount and self.scenario.layout):
            return 1.0
        name = Path(mount.build_dir).parents[1].name.partition("-")[2]
        drawn = self.scenario.uniform("layout", name, *(item.sha256 for item in _artefacts(mount)))
        return 1.0 + self.scenario.layout * (drawn < 0.5)

    def _find(self, name: str) -> Workload:
        if name not in self.scenario.workloads:
            raise Typed("crash", f"ModuleNotFoundError: the scenario has no workload {name!r}")
        return self.scenario.workloads[name]

    def _arm(self, arm: str) -> tuple[Arm, Workload]:
        if arm not in self.arms or self.workload is None:
            raise Typed("crash", f"KeyError: the arm {arm!r} is not open")
        return self.arms[arm], self.workload

    def _scratch(self, name: str) -> Path:
        return Path(self.start_.scratch) / name


def answer(worker: Worker, out: int, text: bytes) -> bool:
    """Read one request and write its reply. Returns whether the worker lives on."""
    message = json.loads(text)
    request, verb = int(message["id"]), str(message["do"])
    due: list[Fault] = []
    try:
        args = wire.unpack(wire.VERBS[verb][0], message["args"])
        due = worker.faults_for(verb, args)
        if worker.faults.gone and verb not in ("stop", "close"):
            raise Typed("crash", "the simulated device has disappeared")
        for fault in due:
            worker.faults.before(fault, out, request)
        reply = wire.pack(getattr(worker, verb)(args, due))
        if any(fault.word == "null" for fault in due):
            reply = dict.fromkeys(reply)
        write(out, line(request, reply, due))
    except Typed as error:
        write(out, wire.dump({"id": request, "fault": wire.pack(wire.Fault(error.status, error.reason))}))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        write(out, wire.dump({"id": request, "fault": wire.pack(wire.Fault("crash", reason))}))
    return verb != "stop"


def serve(requests: int, replies: int, parent: int = 0) -> int:
    """Answer requests until `stop` or the end of the input: a worker never outlives its parent on purpose. `parent`: abprof's
    process, if that is not the process that started this one."""
    _die_with_parent()
    path = Path(os.environ["ABPROF_SIMULATED"])
    scenario = Scenario.from_json(path.read_text())
    worker = Worker(scenario, Faults(scenario.faults, path, parent or os.getppid()))
    with os.fdopen(requests, "rb") as lines:
        for text in lines:
            if not answer(worker, replies, text):
                break
    return 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--in", dest="input", type=int)
    parser.add_argument("--out", type=int)
    parser.add_argument("--fork", type=int)
    parser.add_argument("--no-preload", action="store_true")  # there is nothing to preload
    options = parser.parse_args()
    if options.fork is None:
        return serve(options.input, options.out)
    _die_with_parent()
    parent = os.getppid()
    gc.freeze()
    return fork_on_request(options.fork, lambda requests, replies: serve(requests, replies, parent))


def _die_with_parent() -> None:
    """Be killed when the parent is, also while hanging, as the real worker is."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _label(args: wire.Open) -> str:
    return f"peer:{args.peer}" if args.peer else args.variant


def _capability(device: str) -> dict[str, str]:
    """Of a simulated device of a model: simulated:N:MODEL."""
    model = device.partition(":")[2].partition(":")[2]
    return {"capability": model} if model else {}


def _artefacts(mount: wire.Mount) -> list[wire.Artefact]:
    """The package's modules, and the shared objects of its build folder, by content."""
    private = mount.module.startswith("abprof_side.")
    folder = Path(mount.root) / (mount.name if private else mount.module.replace(".", "/"))
    module = mount.module
    found = [
        wire.Artefact("module", _dotted(module, folder, p), str(p), _sha256(p)) for p in sorted(folder.rglob("*.py"))
    ]
    objects = sorted(Path(mount.build_dir).rglob("*.so")) if mount.build_dir else []
    return found + [wire.Artefact("object", _dotted(p.name, folder, p), str(p), _sha256(p)) for p in objects]


def _dotted(name: str, folder: Path, path: Path) -> str:
    if path.suffix != ".py":
        return name
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join((name, *(part for part in parts if part != "__init__")))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _inside(path: str, allowed: list[str]) -> bool:
    real = Path(path).resolve()
    return any(real.is_relative_to(Path(folder).resolve()) for folder in allowed)


if __name__ == "__main__":
    sys.exit(main())
