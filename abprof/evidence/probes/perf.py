"""`--probe perf`: where the C++ code of each side spends its time, sampled by Linux's perf while a worker makes calls."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from abprof.devices.protocols import Subject
from abprof.measure.epochs import Ground
from abprof.measure.pool import Crew, posts
from abprof.records import Arm, Sampled, SampledFunction
from abprof.records import messages as wire
from abprof.system import processes as proc
from abprof.system.processes import WorkerDied, WorkerFault

MOST = 200  # functions of an arm
_SAMPLED_NS = 1.5e9  # of calls
_MOST_CALLS = 100_000
_HZ = 997  # a prime: not in step with anything
_ABSENT = "perf is not installed, or not on PATH (Debian: linux-perf, Ubuntu: linux-tools-$(uname -r))"
_KERNEL = Path("/proc/sys/kernel")


def samples(ground: Ground, subjects: Sequence[Subject], folder: Path, epoch: int) -> Iterator[Sampled]:  # noqa: ARG001 - nothing of it is kept but the table
    """The functions of each arm of these cells, one arm in memory at a time, or the reason why they are not known."""
    sides = [side.id for side in ground.run.sides]
    for kernel in dict.fromkeys(subject.cell.kernel for subject in subjects):
        stand = posts(ground.checkouts, ground.packages[kernel], ground.build, sides)
        own = {post.id: (post.build.path, post.checkout.path) for post in stand}
        with Crew(ground.shop, stand, epoch) as crew:
            for subject in (subject for subject in subjects if subject.cell.kernel == kernel):
                for arm in subject.arms:
                    if arm.side in own:
                        yield _sampled(ground, crew, subject, arm, own[arm.side])


def _sampled(ground: Ground, crew: Crew, subject: Subject, arm: Arm, own: Sequence[str]) -> Sampled:
    none = Sampled(cell=subject.cell.id, arm=arm.id)
    tool, cell = shutil.which("perf"), subject.cell
    if tool is None:
        return msgspec.structs.replace(none, missing=_ABSENT)
    try:
        worker = crew.worker(arm.side)
        request = wire.Open(cell.workload, dict(cell.params), arm.id, arm.variant, seed=ground.run.options.seed)
        opened: wire.Opened = worker.call(request, ground.timeout)
        if opened.status != "ok":
            raise WorkerFault(opened.status, opened.reason)
        calls = min(_MOST_CALLS, max(1, math.ceil(_SAMPLED_NS / max(opened.call_ns, 1.0))))
        perf = Perf(tool, ground.shop.scratch)
        with perf.record(worker.pid):
            worker.call(wire.Turn(arm.id, calls, "wall_clock", cold=False), ground.timeout)
        event, seen = counted(perf.script(), own)
    except (WorkerDied, WorkerFault) as failed:
        return msgspec.structs.replace(none, missing=failed.reason)
    finally:
        crew.close()
    whole = sum(one.samples for one in seen)
    if not whole:
        return msgspec.structs.replace(none, missing="perf took no sample of its calls")
    return msgspec.structs.replace(
        none,
        calls=calls,
        hz=perf.hz,
        event=event,
        samples=whole,
        functions=tuple(seen[:MOST]),
        left_out=sum(one.samples for one in seen[MOST:]),
    )


@dataclass(frozen=True)
class Perf:
    """The tool. What it records lies in `folder`."""

    tool: str
    folder: Path

    @property
    def hz(self) -> int:
        """Samples a second: as many as the system allows, up to 997."""
        allowed = _number("perf_event_max_sample_rate")
        return _HZ if allowed is None else max(1, min(_HZ, allowed))

    def record(self, pid: int) -> proc.Watching:
        """Sample a process, all its threads, while the block runs. Raises WorkerDied where that is not permitted, or fails."""
        data, log = self.folder / "perf.data", self.folder / "perf.log"
        for path in (data, log):
            path.unlink(missing_ok=True)
        argv = [self.tool, "record", "-F", str(self.hz), "-B", "-N", "-o", str(data), "-p", str(pid)]
        return proc.Watching(
            argv,
            env=_environment(),
            log=log,
            ready=lambda: data.exists() and data.stat().st_size > 0,
            why=lambda said: refusal(said, _number("perf_event_paranoid")),
        )

    def script(self) -> str:
        """A line for each sample. Raises WorkerDied when perf cannot read what it recorded."""
        argv = [self.tool, "script", "-i", str(self.folder / "perf.data"), "-F", "event,ip,sym,dso"]
        text = proc.output(argv, timeout=120, env=_environment())
        if text is None:
            raise WorkerDied("perf could not read what it had recorded")
        return text


def refusal(said: str, paranoid: int | None) -> str:
    """Why perf did not record, from what it printed, with what the system permits."""
    lines = [line.strip() for line in said.splitlines() if line.strip() not in ("", "Error:")]
    why = f"perf could not record: {lines[0] if lines else 'it said nothing'}"
    if paranoid is None:
        return f"{why} (/proc/sys/kernel/perf_event_paranoid cannot be read)"
    if paranoid <= 2:
        return f"{why} (kernel.perf_event_paranoid is {paranoid}, which permits one's own processes)"
    return f"{why} (kernel.perf_event_paranoid is {paranoid}: `sysctl kernel.perf_event_paranoid=2` or CAP_PERFMON permits it)"


def counted(text: str, own: Sequence[str]) -> tuple[str, list[SampledFunction]]:
    """(event, functions) from the lines of `perf script -F event,ip,sym,dso`, most samples first.

    A line is `EVENT: ADDRESS SYMBOL (OBJECT)`. A symbol of C++ has blanks and brackets of its own, so the object is what
    stands in the last ones. `own`: folders of the side's own objects.
    """
    event, counts = "", Counter[tuple[str, str, bool]]()
    for line in text.splitlines():
        found = _SAMPLE.fullmatch(line.rstrip())
        if found:
            event = event or found["event"].partition(":")[0]
            path = found["object"].removesuffix(" (deleted)")
            mine = any(folder and Path(path).is_relative_to(folder) for folder in own)
            counts[found["name"], _object(path), mine] += 1
    made = [SampledFunction(name=name, object=file, samples=n, own=mine) for (name, file, mine), n in counts.items()]
    return event, sorted(made, key=lambda one: (-one.samples, one.name, one.object))


_SAMPLE = re.compile(r"\s*(?P<event>[\w/.=-]+:\w*):?\s+[0-9a-f]+ (?P<name>.*) \((?P<object>(?:/|\[|//).*)\)")


def _object(path: str) -> str:
    if re.fullmatch(r"/tmp/perf-\d+\.map", path):  # noqa: S108 - where perf looks for a just-in-time compiler's symbols
        return "[jit]"
    return path if path.startswith("[") else Path(path).name


def _number(name: str) -> int | None:
    try:
        return int((_KERNEL / name).read_text())
    except (OSError, ValueError):
        return None


def _environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C", "PERF_CONFIG": "/dev/null"}  # numbers and columns as they are by default
