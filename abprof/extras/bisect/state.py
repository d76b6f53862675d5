"""bisect.json: a bisection as far as it has come. Replaced whole after each step; `--resume` goes on from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from abprof.extras.bisect.questions import Answer, Finding, Question
from abprof.measure.matrix import id_parts
from abprof.records import UNREADABLE, Record
from abprof.records.errors import AbprofError
from abprof.records.options import Options
from abprof.sides import Link
from abprof.system import files as disk

FILE = "bisect.json"
SCHEMA = 1


def step_options(asked: Options, base: str, commit: str, cells: Sequence[str], runs_dir: Path) -> Options:
    """The run of one step: these cells of a commit against another."""
    return msgspec.structs.replace(
        asked,
        specs=(base, commit),
        cell=tuple(cells),
        workloads=() if asked.command else tuple(dict.fromkeys(id_parts(cell)[0] for cell in cells)),
        runs_dir=str(runs_dir),
    )


class Row(Record, frozen=True, kw_only=True):
    """What is searched for by itself: a cell, in one variant."""

    cell: str
    variant: str = ""

    @property
    def label(self) -> str:
        """The row for people."""
        return f"{self.cell} {self.variant}".strip()


class Given(Record, frozen=True, kw_only=True):
    """A row's question in one step, and its answer. `cut`: log ratio; `error`: what this answer was allowed."""

    row: Row
    cut: float
    error: float
    answer: Answer


class Step(Record, frozen=True, kw_only=True):
    """One measurement: a commit against another, in a run folder of its own."""

    question: Question
    base: str
    commit: str
    run: str  # its folder, relative to the bisection's
    seconds: float
    rows: tuple[Given, ...]


class Found(Record, frozen=True, kw_only=True):
    """What was found for one row."""

    row: Row
    findings: tuple[Finding, ...]


class State(Record, frozen=True, kw_only=True):
    """The whole file. `links`: the commits from the good end (without it) to the bad one, parents before children."""

    schema: int = SCHEMA
    status: Literal["running", "interrupted", "complete"] = "running"
    began: str  # ISO 8601, UTC
    asked: Options
    good: str
    bad: str
    labels: dict[str, str]  # commit -> as it was asked for
    cells: tuple[str, ...]
    unchecked: tuple[str, ...] = ()  # workloads without a reference; none where nobody wrote it down
    threshold: dict[str, float]  # cell -> per cent
    kernels: dict[str, str]  # cell -> kernel package
    links: tuple[Link, ...]
    holds: dict[str, dict[str, str]]  # kernel package -> commit -> what it holds of it
    planned: int  # steps that finding one culprit takes
    step_seconds: float  # what a step may take, as estimated before the first
    steps: tuple[Step, ...] = ()
    found: tuple[Found, ...] = ()
    culprits: tuple[str, ...] = ()  # certain, and not taken back again; in the order of the history

    @property
    def pace(self) -> float:
        """Seconds that a step takes: of those done, before the first as estimated."""
        return sum(step.seconds for step in self.steps) / len(self.steps) if self.steps else self.step_seconds

    def subject(self, commit: str) -> str:
        """The first line of a commit's message; "" for what is not between the ends."""
        return next((link.subject for link in self.links if link.commit == commit), "")


def write(folder: Path, state: State) -> None:
    """Replace the file. Raises AbprofError when the disk refuses."""
    data = msgspec.json.format(msgspec.json.encode(state), indent=1)
    disk.replace(folder / FILE, data + b"\n", lambda written: msgspec.json.decode(written.read_bytes(), type=State))


def read(path: Path) -> tuple[State, Path]:
    """A bisection and its folder; `path` is the folder or the file. Raises AbprofError."""
    folder = path.parent if path.name == FILE else path
    file = folder / FILE
    try:
        data = disk.content(file)
    except OSError:
        raise AbprofError("no bisection here", where=str(folder), advice=f"its folder holds {FILE}") from None
    try:
        state = msgspec.json.decode(data, type=State)
    except UNREADABLE as error:
        raise AbprofError(f"not a bisection of this abprof: {error}", where=str(file)) from None
    if state.schema != SCHEMA:
        raise AbprofError(f"schema {state.schema}, this abprof reads {SCHEMA}", where=str(file))
    if lacking := _lacking(state):
        raise AbprofError(f"not a bisection of this abprof: {lacking}", where=str(file))
    return state, folder


def _lacking(state: State) -> str:
    """What it speaks of and says nothing of, or a history that goes in a circle; "" where all is in order."""
    for cell in (*state.cells, *(given.row.cell for step in state.steps for given in step.rows)):
        if cell not in state.threshold:
            return f"no threshold of {cell[:200]}"
        if state.kernels.get(cell) not in state.holds:
            return f"no kernel package of {cell[:200]}"
    commits, before = {link.commit for link in state.links}, set[str]()
    for link in state.links:
        if link.commit in before or not before.issuperset(commits.intersection(link.parents)):
            return f"commit {link.commit[:12]} stands before its parents"
        before.add(link.commit)
    return ""
