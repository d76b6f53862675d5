"""One night read from its run.json: only what trends need, so that a thousand nights are read in seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from abprof.records import GPU_GRAPH, GPU_KERNELS, UNREADABLE, Arm, Night
from abprof.store.runfolder import RUN
from abprof.system.files import content

METRICS = (
    "gpu_span",
    GPU_GRAPH,
    GPU_KERNELS,
    "wall",
    "peak_mem_bytes",
)  # of an observation's metrics: those that have a trend
JUDGED = ("gpu_span", GPU_GRAPH, GPU_KERNELS, "wall")


class _Loose(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a record of model.py: keys that are not named here are passed over."""


class _Side(_Loose, frozen=True, kw_only=True):
    id: str
    commit: str
    label: str = ""
    subject: str = ""


class _Metric(_Loose, frozen=True, kw_only=True):
    value: float


class _Observation(_Loose, frozen=True, kw_only=True):
    cell: str
    arm: str
    status: str
    metrics: dict[str, _Metric] = {}


class _Comparison(_Loose, frozen=True, kw_only=True, rename={"from_": "from"}):
    cell: str
    from_: str
    to: str
    metric: str
    verdict: str
    pct: float | None = None
    low_pct: float | None = None
    high_pct: float | None = None
    reasons: tuple[str, ...] = ()


class _Header(_Loose, frozen=True, kw_only=True):
    sentence: str = ""
    exit_code: int = 0
    counts: dict[str, int] = {}


class _Run(_Loose, frozen=True, kw_only=True):
    status: str
    began: str
    sides: tuple[_Side, ...]
    night: Night | None = None
    header: _Header | None = None
    observations: tuple[_Observation, ...] = ()
    comparisons: tuple[_Comparison, ...] = ()


@dataclass(frozen=True)
class Value:
    """What one night says of one metric of a cell (of one variant): times in ns, memory in bytes, changes in per cent."""

    cell: str
    variant: str
    metric: str
    judged: bool
    verdict: str  # "" for a metric that is not judged, and on a night that profiled the head alone
    pct: float | None
    low_pct: float | None
    high_pct: float | None
    base: float | None
    head: float | None
    base_status: str  # "" where the night had no base
    head_status: str


@dataclass(frozen=True)
class Told:
    """One night, whole."""

    night: Night
    began: str
    base: str  # commit; "" on a night that profiled the head alone
    head: str
    subject: str
    exit_code: int
    sentence: str
    values: tuple[Value, ...]
    tampered: bool = False  # files that the night rests on changed while it ran: it has no values, and is no answer


def read(file: Path) -> Told | None:
    """The night that a run.json tells of; None when it is of no night, or of one that did not end.

    Raises OSError, and ValueError when the file is no run.
    """
    try:
        run = _DECODER.decode(content(file))
    except UNREADABLE as error:
        raise ValueError(f"not a run of this abprof: {error}") from None
    if run.night is None or run.status != "complete":
        return None
    if not run.sides:
        raise ValueError("a night without a side")
    head = run.sides[-1]
    base = run.sides[0].commit if len(run.sides) > 1 else ""
    header = run.header or _Header()
    tampered = header.counts.get("tampered", 0) > 0
    values = () if tampered else tuple(_values(run))
    code, said = header.exit_code, header.sentence
    return Told(run.night, run.began, base, head.commit, head.subject, code, said, values, tampered)


_LATEST = 20  # run folders that may hold a night which was killed: the newest, since it is gone on with on the next


def begun(runs_dir: Path, night: Night, commits: Sequence[str]) -> Path | None:
    """The newest run folder in which this very night was begun and did not end; None where there is none."""
    files = sorted(runs_dir.glob(f"*/{RUN}"), key=_changed, reverse=True)
    for file in files[:_LATEST]:
        with suppress(OSError, *UNREADABLE):
            run = _DECODER.decode(content(file))
            same = run.night == night and [side.commit for side in run.sides] == list(commits)
            if same and run.status != "complete":
                return file.parent
    return None


def _changed(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


_DECODER = msgspec.json.Decoder(_Run)


def _values(run: _Run) -> Iterator[Value]:
    seen = {(item.cell, item.arm): item for item in run.observations}
    if len(run.sides) == 1:
        for (cell, arm), item in seen.items():
            named = Arm.of(arm)
            if named.side == "base" and not named.peer:
                judged = next((name for name in JUDGED if name in item.metrics), "wall")
                yield from _of(_Pair(cell, named.variant, judged, None, None, item))
        return
    for row in run.comparisons:
        target = Arm.of(row.to)
        if row.from_.startswith("base") and target.side == "target":
            before, after = seen.get((row.cell, row.from_)), seen.get((row.cell, row.to))
            yield from _of(_Pair(row.cell, target.variant, row.metric, row, before, after))


@dataclass(frozen=True)
class _Pair:
    cell: str
    variant: str
    judged: str
    row: _Comparison | None
    base: _Observation | None
    head: _Observation | None


def _of(pair: _Pair) -> Iterator[Value]:
    """The judged metric's value, always; of others those that were recorded."""
    row = pair.row
    for metric in METRICS:
        base, head = _metric(pair.base, metric), _metric(pair.head, metric)
        judged, verdict, low, high = metric == pair.judged, "", None, None
        pct = (head / base - 1) * 100 if base and head else None
        if judged and row:
            same = 0.0 if row.pct is None and "identical_code" in row.reasons else None
            pct = row.pct if row.pct is not None else same
            verdict, low, high = row.verdict, row.low_pct, row.high_pct
        if judged or (base, head) != (None, None):
            base_status, head_status = (item.status if item else "" for item in (pair.base, pair.head))
            yield Value(
                pair.cell, pair.variant, metric, judged, verdict, pct, low, high, base, head, base_status, head_status
            )


def _metric(item: _Observation | None, name: str) -> float | None:
    return item.metrics[name].value if item and name in item.metrics else None
