"""Profile calls with torch's profiler, to time phases and list launches, and mark calls with NVTX ranges."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import statistics
import tempfile
import traceback
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from abprof.records import messages as wire
from abprof.worker.api import Op
from abprof.worker.clocks import Clock
from abprof.worker.compiles import Watch

T = TypeVar("T")
_CALL = wire.CALL_RANGE
_SHOWN = "abprof_shown"  # range with a test kernel of abprof: a profiler that misses this kernel does not work
UNSEEN = "the profiler recorded no kernel of this process, not even abprof's own test kernel"
DIFFER = "calls of one pass did not launch the same"


@dataclass(frozen=True)
class Ran:
    """An event in a profile: a range on the host, an operation of torch on a CPU, or a GPU's kernel, copy or fill."""

    name: str
    at: int  # when the host entered the range, or launched the kernel
    start: int
    ns: int
    details: tuple[Any, ...] = ((), (), None, None)  # grid, block, registers, shared memory
    key: str = ""  # of the compiled kernel
    phases: tuple[str, ...] | None = None  # that it was launched in, the outermost first; None: not looked up


def phases(
    op: Op, ranges: dict[str, str], request: wire.Phases, clock: Clock, watch: Watch, target: Path | None = None
) -> wire.Phased:
    """Profile calls of `op`. Return the median ns of each phase and of the whole call, and the launches of a call.

    `ranges`: phase -> name of its `record_function` range. `target`: file for a Chrome trace, or None. If the profile
    cannot be read, raise an exception if there is a `target`; otherwise return the reason.
    """
    on_device = clock.kind == "cuda"
    # torch.profiler.profile uses this class too, but imports torch's compiler first, 2 s.
    torchs = torch.autograd.profiler.profile(use_kineto=True, use_device="cuda" if on_device else None)
    clock.profiled = clock.profiled or on_device
    with watch.launches() as launched, torchs as profiler:
        if on_device:
            with torch.profiler.record_function(_SHOWN):
                torch.zeros(256, device=clock.device)
                clock.sync()
        for _ in range(request.discarded + request.calls):
            op.restore()
            clock.sync()
            with torch.profiler.record_function(_CALL):
                op.call()
                clock.sync()
    try:
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            if on_device or target:
                profiler.export_chrome_trace(file.name)
            text = Path(file.name).read_text(errors="replace")  # by name: torch replaces the file
        trace = json.loads(text or "{}", parse_constant=lambda _: None)
        if on_device:
            marked, ran = _device_events(profiler.kineto_results.events(), launched, ranges, trace)
        else:
            marked, ran = _host_events(profiler.function_events, ranges)
        phased = read(marked, ran, ranges, request.discarded, on_device=on_device)
        return replace(phased, left_out=write_chrome(trace, target, request.most_bytes)) if target else phased
    except Exception as error:  # a failed profile must not fail the cell
        if target:
            raise
        traceback.print_exc()
        why = f"the profiled pass could not be read: {type(error).__name__}: {error}"
        return wire.Phased({}, 0.0, wire.Census(missing=why[:300]))


def _device_events(
    events: Sequence[Any], launched: Sequence[tuple[str, str]], ranges: Mapping[str, str], trace: Mapping[str, Any]
) -> tuple[list[Ran], list[Ran]]:
    """Split a GPU's profile into the host's ranges and the device's kernels, copies and fills."""
    known = {_CALL, _SHOWN, *ranges.values()}  # the device's timeline repeats host ranges
    host = [e for e in events if e.device_type() == torch.autograd.DeviceType.CPU]
    launches = {e.correlation_id(): e.start_ns() for e in host if e.name().startswith("cu")}
    kernels = [e["args"] for e in trace["traceEvents"] if e.get("cat") == "kernel" and isinstance(e.get("args"), dict)]
    known_args = {args.get("correlation"): args for args in kernels}
    ran = list[Ran]()
    for e in events:
        if e.device_type() != torch.autograd.DeviceType.CPU and not _is_range(e, e.name(), known):
            start, args = e.start_ns(), known_args.get(e.correlation_id(), {})
            geometry = (tuple(args.get(name) or ()) for name in ("grid", "block"))
            details = (*geometry, args.get("registers per thread"), args.get("shared memory"))
            ran.append(Ran(e.name(), launches.get(e.correlation_id(), start), start, e.duration_ns(), details))
    marked = [Ran(e.name(), e.start_ns(), e.start_ns(), e.duration_ns()) for e in host if _is_range(e, e.name(), known)]
    return marked, identified(ran, launched)


def _host_events(events: Iterable[Any], ranges: Mapping[str, str]) -> tuple[list[Ran], list[Ran]]:
    """Split a CPU's profile into ranges and torch's outermost operations."""
    known = {_CALL, *ranges.values()}
    marked, ran = list[Ran](), list[Ran]()
    for event in events:
        start, end = (round(1e3 * us) for us in (event.time_range.start, event.time_range.end))
        parent, is_range = event.cpu_parent, _is_range(event, event.name, known)
        while parent is not None and _is_range(parent, parent.name, known):
            parent = parent.cpu_parent
        if is_range or parent is None:
            (marked if is_range else ran).append(Ran(event.name, start, start, end - start))
    return marked, ran


def _is_range(event: Any, name: str, known: Iterable[str]) -> bool:
    flag = getattr(event, "is_user_annotation", False)  # a method of Kineto's events, an attribute of torch's
    return name in known or bool(flag() if callable(flag) else flag)


def identified(ran: Sequence[Ran], launched: Sequence[tuple[str, str]]) -> list[Ran]:
    """Return the events, each compiled kernel with its key. `launched`: (name, key) of Triton's launches, in order.

    If a name has several keys, its kernels get the keys in order of launch. They get none if kernels and launches
    differ in number, as in a replayed graph.
    """
    keys: dict[str, list[str]] = {}
    for name, key in launched:
        keys.setdefault(name, []).append(key)
    times, found = Counter(one.name for one in ran), []
    in_order = {name: iter(known) for name, known in keys.items() if len(known) == times[name]}
    for one in sorted(ran, key=lambda one: one.at):
        known = set(keys.get(one.name, ()))
        key = known.pop() if len(known) == 1 else next(in_order.get(one.name, iter(())), "")
        found.append(replace(one, key=key))
    return found


def read(
    marked: Sequence[Ran], ran: Sequence[Ran], ranges: Mapping[str, str], discarded: int, *, on_device: bool = False
) -> wire.Phased:
    """Return the times of phases and the launches in a profile, without its first `discarded` calls.

    `marked`: ranges on the host; `ran`: all other events. The time of a range is host time on a CPU; on a GPU it is the
    time of the kernels launched in the range.
    """

    def timed(label: str) -> list[tuple[int, int]]:
        if not on_device:
            return [(one.start, one.ns) for one in marked if one.name == label]
        spans = [(one.start, one.start + one.ns) for one in marked if one.name == label]
        return [(one.at, one.ns) for one in ran if any(start <= one.at <= end for start, end in spans)]

    def median(times: Iterable[tuple[int, int]]) -> float:
        return statistics.median(sum(each, 0.0) for each in _by_call(times, spans))

    spans = sorted((one.start, one.start + one.ns) for one in marked if one.name == _CALL)[discarded:]
    known = {one.name for one in marked}
    found = {name: median(timed(label)) if label in known else None for name, label in ranges.items()}
    total = median([(one.at, one.ns) for one in ran] if on_device else timed(_CALL))
    if on_device and not timed(_SHOWN):
        return wire.Phased(found, total, wire.Census(missing=UNSEEN))
    own = ranges_of([one for one in marked if one.name not in (_CALL, _SHOWN)], spans, ran if on_device else None)
    launched = census(placed(ran, marked, ranges), spans)
    if launched.missing:  # another thread may launch the same kernels in another phase each time
        launched = census(ran, spans)
    return wire.Phased(found, total, replace(launched, on_device=on_device, ranges=own))


def placed(ran: Iterable[Ran], marked: Iterable[Ran], ranges: Mapping[str, str]) -> list[Ran]:
    """Return the events `ran`, each with the phases that it was launched in. `ranges`: phase -> name of its range."""
    names = {label: name for name, label in ranges.items()}
    waiting = sorted((one for one in marked if one.name in names), key=lambda one: (-one.start, one.ns))
    found, around = [], list[Ran]()
    for one in sorted(ran, key=lambda one: one.at):
        while waiting and waiting[-1].start <= one.at:
            around.append(waiting.pop())
        around = [span for span in around if one.at <= span.start + span.ns]
        found.append(replace(one, phases=tuple(dict.fromkeys(names[span.name] for span in around))))
    return found


def _by_call(timed: Iterable[tuple[int, T]], spans: Sequence[tuple[int, int]]) -> list[list[T]]:
    """Group `timed`, pairs (start, item), by call: return a list of items for each call's (start, end) in `spans`."""
    ordered = sorted(timed, key=lambda pair: pair[0])
    starts = [start for start, _ in ordered]
    return [[thing for _, thing in ordered[bisect_left(starts, a) : bisect_right(starts, b)]] for a, b in spans]


def census(ran: Sequence[Ran], spans: Sequence[tuple[int, int]]) -> wire.Census:
    """Return the launches of a call, or a note that calls differ. `spans`: (start, end) of each call."""
    calls = _by_call(((one.at, one) for one in ran), spans)
    counts = [Counter(map(_kind, call)) for call in calls]
    if not calls or any(count != counts[0] for count in counts):
        return wire.Census(missing=DIFFER if calls else "no call was profiled")
    launches = []
    for kind, number in counts[0].items():
        name, key, phases, grid, block, registers, shared = kind
        ns = statistics.median(sum(one.ns for one in call if _kind(one) == kind) for call in calls)
        launches.append(wire.Launch(name, number, ns, key, "", "", grid, block, registers, shared, phases))
    return wire.Census(tuple(launches), statistics.median(map(hidden, calls)))


def _kind(one: Ran) -> tuple[Any, ...]:
    return one.name, one.key, one.phases, *one.details


def hidden(call: Sequence[Ran]) -> float:
    """Return how long a call's kernels overlap, in ns: the sum of their times minus the time when any of them runs."""
    end = union = 0
    for one in sorted(call, key=lambda one: one.start):
        union += max(0, one.start + one.ns - max(one.start, end))
        end = max(end, one.start + one.ns)
    return float(sum(one.ns for one in call) - union)


def ranges_of(
    marked: Sequence[Ran], spans: Sequence[tuple[int, int]], kernels: Sequence[Ran] | None = None
) -> tuple[wire.Range, ...] | None:
    """Return how often each range occurs in a call, and its ns without the ranges inside it; None if calls differ.

    The ns are those of the `kernels` launched in the range, or host time if `kernels` is None.
    """
    ordered = sorted(marked, key=lambda one: (one.start, -one.ns))
    starts, ends = [one.start for one in ordered], [one.start + one.ns for one in ordered]

    def around(last: int, end: int) -> int:
        return next((place for place in range(last, -1, -1) if ends[place] >= end), -1)

    if kernels is None:
        own = [one.ns for one in ordered]
        parts = [(around(place - 1, ends[place]), -one.ns) for place, one in enumerate(ordered)]
    else:
        own = [0] * len(ordered)
        parts = [(around(bisect_right(starts, one.at) - 1, one.at), one.ns) for one in kernels]
    for place, ns in parts:
        if place >= 0:
            own[place] += ns
    counted = census([replace(one, ns=ns) for one, ns in zip(ordered, own, strict=True)], spans)
    return None if counted.missing else tuple(wire.Range(one.name, one.count, one.ns) for one in counted.launches)


# ---------------------------------------------------------------- the profile as a file

_KEPT = ("schemaVersion", "deviceProperties", "displayTimeUnit", "baseTimeNanoseconds")
_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[^/\s\"':]+/)+")


def write_chrome(trace: Mapping[str, Any], target: Path, most_bytes: int) -> int:
    """Write torch's trace to `target`, without this machine's folders, up to `most_bytes`. Return the number of events
    left out."""
    events = sorted(trace["traceEvents"], key=lambda e: (e.get("ph") != "M", float(e.get("ts") or 0)))
    head = json.dumps(_plain({key: trace[key] for key in _KEPT if key in trace}))
    head = (head[:-1] + ", " if len(head) > 2 else "{") + '"traceEvents": [\n'
    lines, room = list[str](), most_bytes - len(head) - len("\n]}\n")
    for event in events:
        line = json.dumps(_plain(event))
        room -= len(line) + 2
        if room < 0:
            break
        lines.append(line)
    target.write_text(head + ",\n".join(lines) + "\n]}\n")
    return len(events) - len(lines)


def _plain(value: Any) -> Any:
    """Remove the folders from absolute paths in a JSON value: `/home/somebody/x/kernel.py` becomes `kernel.py`."""
    if isinstance(value, str):
        return _FOLDERS.sub("", value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


# ---------------------------------------------------------------- NVTX ranges, for Nsight Systems and Nsight Compute


@contextlib.contextmanager
def nvtx(names: Sequence[str], calls: Sequence[str] = ()) -> Iterator[None]:
    """Put the `with` block into nested NVTX ranges called `names`, and mark its `record_function` ranges in NVTX too.

    `calls`: names of more ranges around each call. If torch has no NVTX, nothing is marked. Each range opens twice: as
    push/pop (`NAME/` in ncu's filter) and as start/end (`NAME`), which covers autograd's threads too. torch's
    `emit_nvtx` would rename ranges, and does nothing under torch's profiler.
    """
    try:
        torch.cuda.nvtx.mark("abprof")
    except (RuntimeError, AttributeError):  # torch's stub for builds without CUDA
        yield
        return
    record_function = torch.profiler.record_function
    enter, leave = record_function.__enter__, record_function.__exit__

    @functools.wraps(enter)
    def entered(self: Any) -> Any:
        # Open before the range, whose time then excludes NVTX; a list, because a decorator's range may nest in itself.
        spans = _nvtx_spans([self.name, *(calls if self.name == _CALL else ())])
        vars(self).setdefault("abprof_spans", []).append(spans)
        return enter(self)

    @functools.wraps(leave)
    def left(self: Any, *error: Any) -> Any:
        try:
            return leave(self, *error)
        finally:
            if spans := vars(self).get("abprof_spans"):  # absent if the range was entered before the block
                spans.pop().close()

    with _nvtx_spans(names):
        record_function.__enter__, record_function.__exit__ = entered, left
        try:
            yield
        finally:
            record_function.__enter__, record_function.__exit__ = enter, leave


def _nvtx_spans(names: Sequence[str]) -> contextlib.ExitStack:
    """Open nested NVTX ranges; closing the returned stack ends them."""
    stack = contextlib.ExitStack()
    for name in names:
        text = name.encode("ascii", "backslashreplace").decode()
        stack.callback(torch.cuda.nvtx.range_end, torch.cuda.nvtx.range_start(text))
        torch.cuda.nvtx.range_push(text)
        stack.callback(torch.cuda.nvtx.range_pop)
    return stack
