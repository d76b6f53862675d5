"""One cell in detail: both sides' turns over time, every number side by side, and what each side launched and compiled."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from abprof.evidence.causes.sides import Part, Sides
from abprof.evidence.causes.wording import dims, ns
from abprof.records import HOST, SUSTAINED, Block, Census, Kernel, Launch, Observation, Run
from abprof.records.quantities import plural
from abprof.report import charts, facts, sentences
from abprof.report.rows import (
    Group,
    Line,
    Row,
    arm,
    breakdown,
    gbps,
    log_path,
    metric,
    own_interval,
    tflops,
    time_text,
    value,
)
from abprof.report.text import LONGEST, NOT_RECORDED, clean, duration, interval, rate, signed, size

POINTS = 60  # turns drawn a cell, all arms together
UP_TO = 300  # rows of a run that have a detail; a larger run has those of rows that need a person
Texts = tuple[str, ...]  # a label, then one text for all sides or one per side


@dataclass(frozen=True)
class Detail:
    """What the page says of one row beyond its line in the table."""

    id: str
    line: Line
    picture: Markup
    rows: tuple[Texts, ...]
    logs: tuple[str, ...]
    epochs: int
    command: str
    counted: bool  # whether a cause rests on Nsight Compute's counters


def choose(groups: Sequence[tuple[Group, Sequence[Line]]]) -> tuple[dict[tuple[object, ...], str], str]:
    """(group's key and index -> the detail's id, what is left out): all rows of a small run, else those that need a person."""
    found = [((*group.key, i), line) for group, lines in groups for i, line in enumerate(lines)]
    kept = found if len(found) <= UP_TO else [one for one in found if not one[1].folded][:UP_TO]
    left_out = ""
    if len(kept) < len(found):
        first = f", the first {UP_TO} of them" if len(kept) == UP_TO else ""
        left_out = (
            f"Of {len(found)} rows {len(kept)} have a detail: those that changed, broke or are not decided{first}. "
        )
        left_out += "cells.csv and rounds.jsonl hold the numbers of all."
    return {key: f"c{number}" for number, (key, _) in enumerate(kept, 1)}, left_out


def details(
    run: Run,
    group: Group,
    lines: Sequence[Line],
    ids: Mapping[tuple[object, ...], str],
    blocks: Mapping[str, list[Block]],
) -> Iterator[Detail]:
    """Of each chosen row of the group. `blocks`: those of a cell that verdicts rest on, in the order they were measured."""
    for i, line in enumerate(lines):
        id = ids.get((*group.key, i))
        if id is None:
            continue
        row = line.row
        tail = f":{row.variant}" if row.variant else ""
        arms = {"base": f"base{tail}"} | ({"target": f"{group.target.id}{tail}"} if group.target else {})
        sides = [row.base, row.target] if group.target else [row.base]
        turns = [
            {block.arms[turn.arm]: turn for turn in played}
            for block in blocks.get(row.cell.id, ())
            for number, played in enumerate(block.rounds)
            if number not in block.rejected
        ]
        clocks = [[r[one].mhz for r in turns if one in r and r[one].mhz > 0] for one in arms.values()]
        yield Detail(
            id=id,
            line=line,
            picture=charts.turns(_tracks(turns, arms)),
            rows=(*_rows(run, row, sides, clocks), *_code(run, row)),
            logs=tuple(dict.fromkeys(log_path(seen.log) for seen in sides if seen and seen.log)),
            epochs=max((seen.epochs for seen in sides if seen), default=0),
            command=clean(shlex.join(("abprof", "rerun", f"runs/{run.id}", "--only", row.cell.id)), LONGEST),
            counted=any("ncu" in cause.evidence for cause in (row.comparison and row.comparison.causes) or ()),
        )


def by_cell(blocks: Sequence[Block]) -> dict[str, list[Block]]:
    """Cell -> the blocks that verdicts rest on, in the order they were measured."""
    found: dict[str, list[Block]] = {}
    for block in sorted(blocks, key=lambda block: (block.epoch, block.began)):
        if block.rounds and block.judged:
            found.setdefault(block.cell, []).append(block)
    return found


def _tracks(turns: Sequence[Mapping[str, object]], arms: Mapping[str, str]) -> list[charts.Track]:
    """As many turns as POINTS allows, the same rounds of both arms, with the quantiles of all."""
    tracks = []
    for kind, id in arms.items():
        values = [row[id].value for row in turns if id in row]  # type: ignore[attr-defined]
        if values:
            places = np.linspace(0, len(values) - 1, min(len(values), POINTS // len(arms))).round().astype(int)
            quantiles = tuple(map(float, np.percentile(values, (5, 25, 50, 75, 95))))
            tracks.append(charts.Track(kind, tuple(values[place] for place in places), quantiles))
    return tracks


def _rows(run: Run, row: Row, sides: Sequence[Observation | None], clocks: Sequence[list[float]]) -> Iterator[Texts]:
    """Label and a text per side; nothing of what no side has."""
    cell, judged = row.cell, row.comparison
    times = [row.ns(seen) for seen in sides]
    sentence = [time_text(seen, row.metric) for seen in sides]
    around = [own_interval(seen, row.metric) for seen in sides]
    yield from _shown(
        "time", [s if t is None else f"{s} ({a})" for s, t, a in zip(sentence, times, around, strict=True)]
    )
    reasons = [clean(seen.reason) if seen else "" for seen in sides]
    yield from _shown("why", [reason or "–" for reason in reasons] if any(reasons) else [])
    yield from _shown("clock", [mhz and f"{sum(mhz) / len(mhz):.0f} MHz" for mhz in clocks])
    timers = [metric(seen, row.metric) for seen in sides]
    yield from _shown("timer", [clean(one.protocol, 100) if one else "" for one in timers])
    yield from _shown("host, to enqueue", _times(sides, HOST))
    if judged is not None and judged.cycles_pct is not None and judged.clock_pct is not None:
        more, faster = ("more", "fewer")[judged.cycles_pct < 0], ("faster", "slower")[judged.clock_pct < 0]
        clock = f"the clock was {abs(judged.clock_pct):.2f} % {faster}"
        yield "in cycles", f"{abs(judged.cycles_pct):.2f} % {more} (time x clock); {clock} in the target’s turns"
    if judged is not None and judged.read_pct is not None and judged.clock_pct is not None:
        yield "at one clock", f"all times here; {signed(judged.read_pct, 2)} as read"
    if judged is not None and judged.sustained_low_pct is not None and judged.sustained_high_pct is not None:
        yield "without a pause", interval(judged.sustained_low_pct, judged.sustained_high_pct)
        yield from _shown("– time", _times(sides, SUSTAINED))
    if row.metric != "wall":
        yield from _shown("wall clock", _times(sides, "wall"))
    for unit, of in (("TFLOP/s", tflops), ("GB/s", gbps)):
        best = facts.peak(run, unit)
        label = f"{unit} of {rate(best)}" if best else unit
        yield from _shown(label, [facts.share_of_peak(run, unit, of(cell, time)) for time in times])
    peaks = [value(seen, "peak_mem_bytes") for seen in sides]
    yield from _shown("memory", [peak and size(peak) for peak in peaks])
    parts = [breakdown(cell, seen) for seen in sides]
    for name in dict.fromkeys(name for part in parts for name in part.all):
        yield from _shown(f"– {clean(name, 40)}", [_ns(part.all.get(name)) for part in parts])
    yield from _shown("– residual", [_ns(part.residual) for part in parts])
    yield from _shown("profiled", [_ns(part.total) for part in parts])
    digests = {seen.check.digest if seen and seen.check else "" for seen in sides}
    equal = len(sides) > 1 and len(digests) == 1 and "" not in digests
    yield from _shown("error", [_error(seen, equal=equal) for seen in sides])
    known = [seen.facts if seen else {} for seen in sides]
    for name in dict.fromkeys(name for known in known for name in known):
        yield from _shown(clean(name, 40), [sentences.fact(known[name]) if name in known else None for known in known])


def _times(sides: Sequence[Observation | None], name: str) -> list[str | None]:
    return [_ns(value(seen, name)) for seen in sides]


def _ns(time: float | None) -> str | None:
    return None if time is None else duration(time)


def _error(seen: Observation | None, *, equal: bool) -> str:
    """The largest error against the reference, and from base's output unless the outputs are `equal`."""
    check = seen.check if seen else None
    if check is not None and not check.compared:
        return "not known: nothing was compared"
    if check is None or check.max_abs is None:
        return ""
    sentence = f"{check.max_abs:.2g}" + ("" if check.max_rel is None else f" ({check.max_rel:.2g} relative)")
    if equal:
        return f"{sentence}; sides bit-equal"
    return sentence + ("" if check.base_max_abs is None else f"; {check.base_max_abs:.2g} from base’s output")


def _shown(label: str, texts: Sequence[object], mark: str = "") -> Iterator[Texts]:
    """A row, unless no side has anything; once where all sides say the same, else with the mark."""
    known = ["" if text is None else str(text) for text in texts]
    if any(known):
        sentence = [text or NOT_RECORDED for text in known]
        yield (label, sentence[0]) if len(set(sentence)) == 1 else (f"{mark}{label}", *sentence)


# ---------------------------------------------------------------- kernels of both sides

_MOST = 4  # kernels of a row that the page shows, those that differ first
_DIFFERENT = "≠ "


def _instructions(classes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in classes.items() if count)


def _missing(kernel: Kernel) -> str:
    return f"{NOT_RECORDED}: {clean(kernel.missing, 80)}" if kernel.missing else ""


_OF_KERNEL: dict[str, Callable[[Kernel], str | None]] = {
    "stack": lambda k: None if k.stack_bytes is None else f"{k.stack_bytes} B",
    "shared memory": lambda k: None if k.shared_bytes is None else f"{k.shared_bytes} B",
    "warps, stages": lambda k: ", ".join("-" if n is None else str(n) for n in (k.warps, k.stages)).strip("-, "),
    "constants": lambda k: clean(" ".join(f"{name}={of}" for name, of in sorted(k.constants.items())), 200),
    "instructions": lambda k: _instructions(k.classes) if k.classes is not None else _missing(k),
    "machine code": lambda k: k.code[:8],
    "compiled in": lambda k: None if k.seconds is None else f"{k.seconds:.2f} s",
}
_OF_OBJECT: dict[str, Callable[[Kernel], str | None]] = {
    "compiler": lambda k: clean(k.compiler, 80),
    "flags": lambda k: clean(k.flags, 200),
    "functions": _missing,
}


def _code(run: Run, row: Row) -> Iterator[Texts]:
    """What a row launches and what it is made of. Rows that did not change have one line, one branch its launches."""
    judged = row.comparison
    censuses = row.base.census if row.base else None, row.target.census if row.target else None
    if judged is None:
        yield from _launches(censuses[0])
        return
    names = [arm(run, id).side for id in (judged.from_, judged.to)]
    before, after = (tuple(k for k in run.kernels if (k.side, k.package) == (name, row.cell.kernel)) for name in names)
    sides = Sides(row=judged, on_gpu=run.machine.kind == "cuda", base_ns=0.0, census=censuses, kernels=(before, after),
                  phases=(None, None))  # fmt: skip
    if judged.causes is None:
        own = [pair.same_code for pair in sides.pairs if pair.before.kernel or pair.after.kernel]
        if sides.on_gpu and sides.same_launches and own and all(own):
            sentence = f"{plural(len(sides.pairs), 'kernel')}, the same code and launches on both sides"
            heaviest = max(censuses[0].launches, key=lambda launch: launch.ns, default=None) if censuses[0] else None
            found = [*_resources(heaviest)] if heaviest else []
            more = ", ".join((clean(heaviest.name, 40), *found)) if heaviest and found else ""
            yield "kernels", "; ".join(filter(None, (sentence, more)))
        return
    missing = [clean(census.missing if census else "not recorded", 120) for census in censuses]
    if any(missing):
        yield "launches", *(f"{NOT_RECORDED}: {why}" if why else "recorded" for why in missing)
    ordered = sorted(sides.pairs, key=lambda p: (bool(p.same_code) and p.before.shape == p.after.shape, -p.after.ns))
    for pair in ordered[:_MOST]:
        parts = pair.before, pair.after
        noun = "kernel" if sides.on_gpu else "operation"
        yield from _shown(noun, [f"{clean(part.name, 60)}, {_launched(part)}" for part in parts], _DIFFERENT)
        yield from _shown("– registers", [part.registers for part in parts], _DIFFERENT)
        yield from _shown("– autotuned", [clean(part.choice[0], 120) for part in parts], _DIFFERENT)
        yield from _compared(_OF_KERNEL, [part.kernel for part in parts])
    for label, alone in (("only base launches", sides.gone), ("only target launches", sides.new)):
        if alone:
            sentence = ", ".join(f"{clean(part.name, 60)} ({part.count}×, {ns(part.ns)})" for part in alone[:_MOST])
            yield f"{_DIFFERENT}{label}", sentence
    if len(ordered) > _MOST:
        yield "further kernels", f"{len(ordered) - _MOST}, in run.json"
    for both in sides.objects:
        named = [f"{clean(both[0].key, 60)}, code {k.code[:8] or NOT_RECORDED}" for k in both]
        yield from _shown("object", named, _DIFFERENT)
        yield from _compared(_OF_OBJECT, both)
        known = [{f.name: f.classes for f in kernel.functions} for kernel in both]
        for name in list(dict.fromkeys(name for side in known for name in side))[:6]:
            texts = (_instructions(side[name]) if name in side else "not there" for side in known)
            yield f"{_DIFFERENT}{clean(name, 60)}", *texts


def _compared(of: Mapping[str, Callable[[Kernel], str | None]], both: Sequence[Kernel | None]) -> Iterator[Texts]:
    for label, text in of.items():
        yield from _shown(f"– {label}", [text(kernel) if kernel else None for kernel in both], _DIFFERENT)


def _launches(census: Census | None) -> Iterator[Texts]:
    """What one branch's call launches on the device, the longest first."""
    launches = sorted(census.launches, key=lambda launch: -launch.ns) if census and census.on_device else []
    for launch in launches[:_MOST]:
        parts = (_launched(Part(launch.name, (launch,), None)), ns(launch.ns), *_resources(launch))
        yield "kernel", ", ".join((clean(launch.name, 60), *parts))
    if len(launches) > _MOST:
        yield "further kernels", f"{len(launches) - _MOST}, in run.json"


def _resources(launch: Launch) -> Iterator[str]:
    if launch.registers is not None:
        yield f"{launch.registers} registers"
    if launch.shared_bytes:
        yield f"{size(launch.shared_bytes)} shared"


def _launched(part: Part) -> str:
    grids = ", ".join(dict.fromkeys(dims(launch.grid) for launch in part.launches if launch.grid))
    blocks = ", ".join(dict.fromkeys(dims(launch.block) for launch in part.launches if launch.block))
    return f"{part.count}×" + (f" grid {grids}" if grids else "") + (f" block {blocks}" if blocks else "")
