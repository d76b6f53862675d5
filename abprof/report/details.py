"""One cell in detail: both sides' turns over time, their distribution, and every number side by side."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from abprof.records import SUSTAINED, Block, Observation, Run
from abprof.report import ceilings, kernels, numbers, pictures, timing, words
from abprof.report.failures import LONGEST, log_path
from abprof.report.lines import Line, own_interval, time_text
from abprof.report.view import Group, Row

POINTS = 60  # turns drawn a cell, all arms together
QUANTILES = (5, 25, 50, 75, 95)
ALL_UP_TO = 300  # rows in a run: above it only rows that need a person have a detail,
FLAGGED_UP_TO = 300  # and of those the first so many


@dataclass(frozen=True)
class Detail:
    """What the page says of one row beyond its line in the table."""

    id: str
    line: Line
    picture: Markup
    rows: tuple[tuple[str, ...], ...]  # label, then a text per arm
    logs: tuple[str, ...]
    epochs: int
    command: str


@dataclass(frozen=True)
class Choice:
    """Which rows have a detail, by (workload, target, model, index in the group), and what is said of the others."""

    ids: Mapping[tuple[str, str, str, int], str]
    left_out: str

    def of(self, group: Group, index: int) -> str | None:
        """The detail's id on the page; None for a row without one."""
        return self.ids.get((*key(group), index))


def choose(groups: Sequence[Group], every: Mapping[tuple[str, str, str], Sequence[Line]]) -> Choice:
    """All rows of a small run; of a large one those that need a person, the groups' first ones first."""
    found = [(*key(group), i, line) for group in groups for i, line in enumerate(every[key(group)])]
    kept = found if len(found) <= ALL_UP_TO else [one for one in found if not one[4].folded][:FLAGGED_UP_TO]
    said = ""
    if len(kept) < len(found):
        said = (
            f"Of {len(found)} rows {len(kept)} have a detail: those that changed, broke or are not decided"
            f"{f', the first {FLAGGED_UP_TO} of them' if len(kept) == FLAGGED_UP_TO else ''}. "
            "cells.csv and rounds.jsonl hold the numbers of all."
        )
    return Choice({one[:4]: f"c{number}" for number, one in enumerate(kept, 1)}, said)


def key(group: Group) -> tuple[str, str, str]:
    """What tells a group from the others of its run."""
    return group.workload.name, group.target.id if group.target else "", group.machine


def details(
    run: Run, group: Group, every: Sequence[Line], chosen: Choice, blocks: Mapping[str, Sequence[Block]]
) -> Iterator[Detail]:
    """Of each chosen row of the group. `blocks`: those of a cell, in the order they were measured."""
    for i, line in enumerate(every):
        id = chosen.of(group, i)
        if id is None:
            continue
        row = line.row
        arms = _arms(group, row)
        tracks = _tracks(blocks.get(row.cell.id, ()), arms)
        sides = [row.base, row.target] if group.target else [row.base]
        logs = dict.fromkeys(log_path(seen.log) for seen in sides if seen and seen.log)
        asked = shlex.join(("abprof", "rerun", f"runs/{run.id}", "--only", row.cell.id))
        epochs = max((seen.epochs for seen in sides if seen), default=0)
        picture = pictures.turns(tracks)
        clocks = _clocks(blocks.get(row.cell.id, ()), arms)
        rows = (*_rows(run, row, sides, clocks), *kernels.rows(run, row))
        yield Detail(id, line, picture, rows, tuple(logs), epochs, words.clean(asked, LONGEST))


def by_cell(blocks: Sequence[Block]) -> dict[str, list[Block]]:
    """Cell -> the blocks that verdicts rest on, in the order they were measured."""
    found: dict[str, list[Block]] = {}
    for block in sorted(blocks, key=lambda block: (block.epoch, block.began)):
        if block.rounds and block.judged:
            found.setdefault(block.cell, []).append(block)
    return found


def _arms(group: Group, row: Row) -> dict[str, str]:
    """How an arm is drawn -> its id in the blocks."""
    tail = f":{row.variant}" if row.variant else ""
    return {"base": f"base{tail}"} | ({"target": f"{group.target.id}{tail}"} if group.target else {})


def _tracks(blocks: Sequence[Block], arms: Mapping[str, str]) -> list[pictures.Track]:
    """Rounds that count, in order, as many of them as POINTS allows; the same ones of both arms."""
    rows = [
        {block.arms[turn.arm]: turn.value for turn in row}
        for block in blocks
        for number, row in enumerate(block.rounds)
        if number not in block.rejected
    ]
    tracks = []
    for kind, arm in arms.items():
        values = [row[arm] for row in rows if arm in row]
        if values:
            places = np.linspace(0, len(values) - 1, min(len(values), POINTS // len(arms))).round().astype(int)
            drawn = tuple(values[place] for place in places)
            tracks.append(pictures.Track(kind, drawn, tuple(map(float, np.percentile(values, QUANTILES)))))
    return tracks


def _clocks(blocks: Sequence[Block], arms: Mapping[str, str]) -> list[float]:
    """MHz, the device's mean clock over each arm's turns that count; 0 where they did not read it."""
    read: dict[str, list[float]] = {arm: [] for arm in arms.values()}
    for block in blocks:
        for number, row in enumerate(block.rounds):
            for turn in row if number not in block.rejected else ():
                if block.arms[turn.arm] in read and turn.mhz > 0:
                    read[block.arms[turn.arm]].append(turn.mhz)
    return [sum(mhz) / len(mhz) if mhz else 0.0 for mhz in read.values()]


def _rows(
    run: Run, row: Row, sides: Sequence[Observation | None], clocks: Sequence[float]
) -> Iterator[tuple[str, ...]]:
    """Label and a text per side; nothing of what no side has."""
    cell = row.cell
    times = [numbers.time_ns(seen, row.metric) for seen in sides]
    yield from _shown("time", [_timed(seen, row.metric) for seen in sides])
    reasons = [words.clean(seen.reason) if seen else "" for seen in sides]
    yield from _shown("why", [reason or "–" for reason in reasons] if any(reasons) else [])
    yield from _shown("clock", [mhz and f"{mhz:.0f} MHz" for mhz in clocks])
    for label, texts in timing.rows(row, sides):
        yield from _shown(label, texts)
    yield from _cycles(row)
    yield from _at_one_clock(row)
    yield from _without_a_pause(row, sides)
    if row.metric != "wall":
        walls = [numbers.time_ns(seen, "wall") for seen in sides]
        yield from _shown("wall clock", [_ns(ns) for ns in walls])
    for unit, rate in ceilings.RATES:
        yield from _shown(ceilings.label(run, unit), [ceilings.beside(run, unit, rate(cell, ns)) for ns in times])
    peaks = [numbers.time_ns(seen, "peak_mem_bytes") for seen in sides]
    yield from _shown("memory", [peak and words.size(peak) for peak in peaks])
    parts = [numbers.breakdown(cell, seen) for seen in sides]
    for name in dict.fromkeys(name for part in parts for name in part.all):
        yield from _shown(f"– {words.clean(name, 40)}", [_ns(part.all.get(name)) for part in parts])
    yield from _shown("– residual", [_ns(part.residual) for part in parts])
    yield from _shown("profiled", [_ns(part.total) for part in parts])
    yield from _shown("error", [_error(seen, equal=_bit_equal(sides)) for seen in sides])
    told = [seen.facts if seen else {} for seen in sides]
    for name in dict.fromkeys(name for facts in told for name in facts):
        yield from _shown(words.clean(name, 40), [words.fact(facts[name]) if name in facts else None for facts in told])


def _cycles(row: Row) -> Iterator[tuple[str, ...]]:
    """What remains of the change when the device's clock is taken out of it."""
    judged = row.comparison
    if judged is not None and judged.cycles_pct is not None and judged.clock_pct is not None:
        more = "more" if judged.cycles_pct >= 0 else "fewer"
        faster = "faster" if judged.clock_pct >= 0 else "slower"
        clock = f"the clock was {abs(judged.clock_pct):.2f} % {faster}"
        yield "in cycles", f"{abs(judged.cycles_pct):.2f} % {more} (time x clock); {clock} in the target’s turns"


def _at_one_clock(row: Row) -> Iterator[tuple[str, ...]]:
    """What the turns read, where the times shown are those at one clock of the device for all sides."""
    judged = row.comparison
    if judged is not None and judged.read_pct is not None and judged.clock_pct is not None:
        yield "at one clock", f"all times here; {words.signed(judged.read_pct, 2)} as read"


def _without_a_pause(row: Row, sides: Sequence[Observation | None]) -> Iterator[tuple[str, ...]]:
    """The change and the times at the power limit, where they were measured (abprof/measure/sustained.py)."""
    judged = row.comparison
    if judged is not None and judged.sustained_low_pct is not None and judged.sustained_high_pct is not None:
        yield "without a pause", words.interval(judged.sustained_low_pct, judged.sustained_high_pct)
        yield from _shown("– time", [_ns(numbers.time_ns(seen, SUSTAINED)) for seen in sides])


def _error(seen: Observation | None, *, equal: bool) -> str:
    """The largest error against the reference, and the largest difference from base's output, if they are not `equal`."""
    check = seen.check if seen else None
    if check is not None and not check.compared:
        return "not known: nothing was compared"
    if check is None or check.max_abs is None:
        return ""
    said = f"{check.max_abs:.2g}" + ("" if check.max_rel is None else f" ({check.max_rel:.2g} relative)")
    if equal:
        return f"{said}; sides bit-equal"
    return said + ("" if check.base_max_abs is None else f"; {check.base_max_abs:.2g} from base’s output")


def _bit_equal(sides: Sequence[Observation | None]) -> bool:
    """Whether the sides' outputs are the same bytes."""
    digests = {seen.check.digest if seen and seen.check else "" for seen in sides}
    return len(sides) > 1 and len(digests) == 1 and "" not in digests


def _shown(label: str, texts: Sequence[object]) -> Iterator[tuple[str, ...]]:
    """A row, unless no side has anything; where all sides say the same it is said once."""
    if any(texts):
        told = [str(text) if text else words.NOT_RECORDED for text in texts]
        yield (label, told[0]) if len(set(told)) == 1 else (label, *told)


def _timed(seen: Observation | None, metric: str) -> str:
    """The time with its interval, or what became of the arm."""
    said = time_text(seen, metric)
    return said if numbers.time_ns(seen, metric) is None else f"{said} ({own_interval(seen, metric)})"


def _ns(ns: float | None) -> str | None:
    return None if ns is None else words.duration(ns)
