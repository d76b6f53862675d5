"""Read the history of all nights from the run.json files of a runs folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from abprof.records import GPU_GRAPH, GPU_KERNELS, SUSTAINED, UNREADABLE, Arm, Header, Night, Side
from abprof.records.errors import AbprofError, Exit
from abprof.store import RUN

METRICS = ("gpu_span", GPU_GRAPH, GPU_KERNELS, "wall", SUSTAINED, "peak_mem_bytes")
# Statuses of an arm that another measurement would not change.
_ANSWERS = {"ok", "identical", "build_failed", "wrong", "unsupported", "missing"}
COLUMNS = (
    *("series", "night", "kind", "began", "base_commit", "head_commit", "subject", "cell", "variant", "metric", "unit"),
    *("base", "head", "base_status", "head_status", "verdict", "pct", "low_pct", "high_pct", "machine", "run"),
)


@dataclass(frozen=True)
class NightRow:
    """One night: a run of `abprof nightly`."""

    folder: str
    series: str
    number: int
    kind: str  # "first" (no comparison) or "step"
    matrix: str  # hash of options and workloads that determine the cells
    machine: str  # JSON object with sorted keys: equal texts are equal machines
    began: str  # ISO 8601, UTC
    base: str  # commit; "" on a night that profiled the head alone
    head: str  # commit
    subject: str
    exit_code: int  # 0 on a first night that measured anything
    sentence: str
    heads: int  # number of (cell, variant) pairs whose head ran or has the base's code
    settled: bool = True  # False: nothing ran for a reason other than the head's code, or files changed meanwhile


class Value(NamedTuple):
    """One metric of a cell in one variant on one night. Times are in ns, memory in bytes, changes in per cent."""

    cell: str
    variant: str
    metric: str
    judged: bool
    verdict: str  # "" for a metric that is not judged, and on a night without a base
    pct: float | None
    low_pct: float | None
    high_pct: float | None
    base: float | None
    head: float | None
    base_status: str  # "" on a night without a base
    head_status: str


@dataclass(frozen=True)
class History:
    """All nights of a runs folder with their values, by series and number. `notes`: why some folders were skipped."""

    found: Sequence[tuple[NightRow, Sequence[Value]]]
    notes: tuple[str, ...]

    def nights(self, series: str = "") -> list[NightRow]:
        """Return the nights of `series`, or all nights if `series` is ""."""
        return [night for night, _ in self.found if series in ("", night.series)]

    def values(
        self, series: str = "", cells: Sequence[str] = (), metric: str = "", since: str = ""
    ) -> list[tuple[NightRow, Value]]:
        """Return (night, value) pairs, grouped by cell and ordered by night. `cells`: globs, by default all. `metric`:
        by default that of the verdict. `since`: ISO 8601, UTC. Raises AbprofError if `metric` is unknown."""
        if metric not in ("", *METRICS):
            raise AbprofError(f"unknown metric {metric!r}", where="--metric", advice=f"use {', '.join(METRICS)}")
        nights = [pair for pair in self.found if series in ("", pair[0].series) and pair[0].began >= since]
        known = set(self.cells(cells or ("*",)))
        every = [(night, value) for night, values in nights for value in values if value.cell in known]
        chosen = [pair for pair in every if (pair[1].metric == metric if metric else pair[1].judged)]
        return sorted(chosen, key=lambda pair: pair[1][:3])

    def table(self, *selected: Any) -> Iterator[tuple[str | float | None, ...]]:
        """Yield a row of COLUMNS for each value that `values(*selected)` returns; None where nothing was recorded."""
        for night, it in self.values(*selected):
            unit = "bytes" if it.metric == "peak_mem_bytes" else "ns"
            about = (night.series, night.number, night.kind, night.began, night.base, night.head, night.subject)
            judged = (it.verdict, it.pct, it.low_pct, it.high_pct)
            times = (it.base, it.head, it.base_status, it.head_status)
            yield (*about, it.cell, it.variant, it.metric, unit, *times, *judged, night.machine, night.folder)

    def series(self) -> list[str]:
        """Return the names of all series."""
        return sorted({night.series for night, _ in self.found})

    def cells(self, globs: Sequence[str] = ("*",)) -> list[str]:
        """Return the ids of all cells that match any of `globs`."""
        known = {value.cell for _, values in self.found for value in values}
        return sorted(cell for cell in known if any(cell == glob or fnmatchcase(cell, glob) for glob in globs))


def read_history(runs_dir: Path) -> History:
    """Return the history of all finished nights in `runs_dir`. Raises AbprofError if the folder does not exist."""
    if not runs_dir.is_dir():
        raise AbprofError("no such folder", where=str(runs_dir), advice="name the runs' folder with --runs-dir")
    found, notes = list[tuple[NightRow, list[Value]]](), list[str]()
    for file in sorted(runs_dir.glob(f"*/{RUN}")):
        try:
            if night := read_night(file):
                found.append(night)
        except (OSError, ValueError, *UNREADABLE) as error:
            why = " ".join(str(error).split())[:300]
            notes.append(f"{file.parent.name}: left out, because its {RUN} cannot be read: {why}")
    found.sort(key=lambda pair: (pair[0].series, pair[0].number))
    return History(found, tuple(notes))


class _Metric(msgspec.Struct):
    value: float


class _Observation(msgspec.Struct):
    cell: str
    arm: str
    status: str
    metrics: dict[str, _Metric] = {}


class _Row(msgspec.Struct, rename={"from_": "from"}):
    cell: str
    from_: str
    to: str
    metric: str
    verdict: str
    pct: float | None = None
    low_pct: float | None = None
    high_pct: float | None = None
    reasons: tuple[str, ...] = ()


class _Run(msgspec.Struct):
    """The fields of run.json that trends need. Only these are decoded, so that a long history is fast to read."""

    status: str
    began: str
    sides: tuple[Side, ...]
    night: Night | None = None
    header: Header | None = None
    observations: tuple[_Observation, ...] = ()
    comparisons: tuple[_Row, ...] = ()


_Verdict = tuple[str, float | None, float | None, float | None]  # (verdict, change, low, high) of a row; in per cent
_Both = tuple[_Observation | None, _Observation | None]  # observations of base and head
_DECODER = msgspec.json.Decoder(_Run)


def read_night(file: Path) -> tuple[NightRow, list[Value]] | None:
    """Return the night in a run.json; None if the run is unfinished or not nightly. Raises if the file is invalid."""
    run = _DECODER.decode(file.read_bytes())
    if run.night is None or run.header is None or run.status != "complete" or run.night.kind == "against":
        return None
    if not run.sides:
        raise ValueError("the run has no commit")
    about, header, head = run.night, run.header, run.sides[-1]
    tampered = header.counts.get("tampered", 0) > 0
    values = [] if tampered else list(_values(run))
    heads = sum(value.judged and value.head_status in ("ok", "identical") for value in values)
    first = about.kind == "first" and heads and header.exit_code == Exit.UNTRUSTED  # a first night has no base
    ran = header.exit_code != Exit.CANNOT_RUN or any(value.head_status in _ANSWERS for value in values)
    night = NightRow(
        folder=file.parent.name,
        series=about.series,
        number=about.number,
        kind=about.kind,
        matrix=about.asked,
        machine=msgspec.json.encode(about.machine, order="sorted").decode(),
        began=run.began,
        base=run.sides[0].commit if len(run.sides) > 1 else "",
        head=head.commit,
        subject=head.subject,
        exit_code=Exit.OK if first else header.exit_code,
        sentence=header.sentence,
        heads=heads,
        settled=ran and not tampered,
    )
    return night, values


def _values(run: _Run) -> Iterator[Value]:
    seen = {(item.cell, item.arm): item for item in run.observations}
    if len(run.sides) == 1:
        for (cell, arm), item in seen.items():
            if Arm.of(arm).side == "base" and not Arm.of(arm).peer:
                judged = next((name for name in METRICS[:4] if name in item.metrics), "wall")
                yield from _metrics(cell, arm, judged, ("", None, None, None), (None, item))
    for row in run.comparisons:
        if Arm.of(row.from_).worker == "base" and Arm.of(row.to).side == "target":
            pct = 0.0 if row.pct is None and "identical_code" in row.reasons else row.pct
            both = seen.get((row.cell, row.from_)), seen.get((row.cell, row.to))
            yield from _metrics(row.cell, row.to, row.metric, (row.verdict, pct, row.low_pct, row.high_pct), both)


def _metrics(cell: str, arm: str, judged: str, verdict: _Verdict, both: _Both) -> Iterator[Value]:
    statuses = [side.status if side else "" for side in both]
    for metric in METRICS:
        base, head = (it.metrics[metric].value if it and metric in it.metrics else None for it in both)
        pct = (head / base - 1) * 100 if base and head else None
        if metric == judged or base is not None or head is not None:
            known = (True, *verdict) if metric == judged else (False, "", pct, None, None)
            yield Value(cell, Arm.of(arm).variant, metric, *known, base, head, *statuses)
