"""The history index: every night of a runs folder in one SQLite file beside the runs, built from their run.json alone.

Opening the index updates it: run folders that are new, changed or gone are recognised by size and time of their run.json.
An index that is corrupt or of another version is rebuilt; one that cannot be written is built in memory.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from abprof.records import GPU_GRAPH, GPU_KERNELS, UNREADABLE, Arm, Night
from abprof.records.errors import AbprofError, Exit
from abprof.store import RUN
from abprof.system.files import content

FILE = "history.sqlite"
METRICS = ("gpu_span", GPU_GRAPH, GPU_KERNELS, "wall", "peak_mem_bytes")  # metrics of an observation that are indexed
_TIMES = METRICS[:4]
_VERSION = 5
_ANSWERS = (
    "ok",
    "identical",
    "build_failed",
    "wrong",
    "unsupported",
    "missing",
)  # statuses that measuring again repeats
_LOCK_WAIT = 60.0  # seconds
_TABLES = """
CREATE TABLE IF NOT EXISTS folder (name TEXT PRIMARY KEY, stamp TEXT NOT NULL, problem TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS night (folder TEXT NOT NULL, series TEXT NOT NULL, number INTEGER NOT NULL, kind TEXT NOT NULL,
  matrix TEXT NOT NULL, machine TEXT NOT NULL, began TEXT NOT NULL, base TEXT NOT NULL, head TEXT NOT NULL,
  subject TEXT NOT NULL, exit_code INTEGER NOT NULL, sentence TEXT NOT NULL, heads INTEGER NOT NULL,
  settled INTEGER NOT NULL, id INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS trend (id INTEGER PRIMARY KEY, cell TEXT NOT NULL, variant TEXT NOT NULL, metric TEXT NOT NULL,
  judged INTEGER NOT NULL, UNIQUE (cell, variant, metric, judged));
CREATE TABLE IF NOT EXISTS value (trend INTEGER NOT NULL, night INTEGER NOT NULL, verdict TEXT NOT NULL, pct REAL, low_pct REAL,
  high_pct REAL, base REAL, head REAL, base_status TEXT NOT NULL, head_status TEXT NOT NULL,
  PRIMARY KEY (trend, night)) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class NightRow:
    """One night: a run of `abprof nightly`."""

    folder: str
    series: str
    number: int
    kind: str  # first, step or against
    matrix: str  # hash of the options and workloads that choose the cells
    machine: str  # JSON object with sorted keys: equal texts are equal machines
    began: str  # ISO 8601, UTC
    base: str  # commit; "" on a night that profiled the head alone
    head: str  # commit
    subject: str
    exit_code: int  # 0 on a first night that measured anything
    sentence: str
    heads: int  # cells and variants whose head ran, or whose code was the base's
    settled: int = 1  # 0: nothing could run, not because of the head, or files changed meanwhile: to be tried again

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """What the night compared; a night with an equal key is not measured again."""
        return self.kind, self.base, self.head, self.matrix, self.machine


class Value(NamedTuple):
    """One metric of a cell (of one variant) on one night: times in ns, memory in bytes, changes in per cent."""

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
class Query:
    """Which values to select; "" and () select all. Raises AbprofError for an unknown metric."""

    cells: tuple[str, ...] = ()  # globs over cell ids; any of them
    metric: str = ""  # "": the judged one
    series: str = ""
    since: str = ""  # ISO 8601 date or time, UTC
    kinds: tuple[str, ...] = ("first", "step")

    def __post_init__(self) -> None:
        if self.metric not in ("", *METRICS):
            raise AbprofError(f"unknown metric {self.metric!r}", where="--metric", advice=f"use {', '.join(METRICS)}")


_NIGHT = ", ".join(f"n.{field.name}" for field in fields(NightRow))
_VALUE = "t.cell, t.variant, t.metric, t.judged, v.verdict, v.pct, v.low_pct, v.high_pct, v.base, v.head, v.base_status"
_TABLE = """n.series, n.number AS night, n.kind, n.began, n.base AS base_commit, n.head AS head_commit, n.subject,
  t.cell, t.variant, t.metric, CASE t.metric WHEN 'peak_mem_bytes' THEN 'bytes' ELSE 'ns' END AS unit,
  v.base, v.head, v.base_status, v.head_status, v.verdict, v.pct, v.low_pct, v.high_pct, n.machine, n.folder AS run"""
_COLUMNS = len(fields(NightRow))


class Index:
    """An open index. `notes` lists the folders that could not be read, and whether the index was rebuilt."""

    def __init__(self, database: sqlite3.Connection, notes: Sequence[str]) -> None:
        self._database = database
        self.notes = tuple(notes)

    def nights(self, series: str = "") -> list[NightRow]:
        """The nights, ordered by series and number."""
        select = f"SELECT {_NIGHT} FROM night n WHERE n.series = ? OR ? = '' ORDER BY n.series, n.number, n.id"  # noqa: S608
        return [NightRow(*row) for row in self._database.execute(select, (series, series))]

    def values(self, query: Query) -> Iterator[tuple[NightRow, Value]]:
        """The selected values, cell by cell and each cell's in the order of its nights."""
        known: dict[str, NightRow] = {}
        for row in self._select(f"{_NIGHT}, {_VALUE}, v.head_status", query):
            night = known.get(row[0]) or known.setdefault(row[0], NightRow(*row[:_COLUMNS]))
            yield night, Value(*row[_COLUMNS:])

    def table(self, query: Query) -> tuple[list[str], Iterator[tuple[str | float | None, ...]]]:
        """Columns and rows of `abprof history query`: times in ns, memory in bytes, None if not recorded."""
        rows = self._select(_TABLE, query)
        return [name for name, *_ in rows.description], rows

    def _select(self, columns: str, query: Query) -> sqlite3.Cursor:
        where = {  # user input is passed as parameters
            " OR ".join("t.cell GLOB ? OR t.cell = ?" for _ in query.cells): [
                it for cell in query.cells for it in (cell, cell)
            ],
            "t.metric = ?" if query.metric else "t.judged = 1": [query.metric] if query.metric else [],
            f"n.kind IN ({', '.join('?' for _ in query.kinds)})": list(query.kinds),
            "n.series = ? OR ? = ''": [query.series] * 2,
            "n.began >= ?": [query.since],
        }
        return self._database.execute(
            f"SELECT {columns} FROM trend t"  # noqa: S608
            " CROSS JOIN value v ON v.trend = t.id CROSS JOIN night n ON n.id = v.night"  # joined in this order
            f" WHERE {' AND '.join(f'({text})' for text in where if text)}"
            " ORDER BY t.cell, t.variant, t.metric, n.series, n.number, n.id",
            [value for values in where.values() for value in values],
        )

    def series(self) -> list[str]:
        """Names of all series."""
        return [name for (name,) in self._database.execute("SELECT DISTINCT series FROM night ORDER BY series")]

    def cells(self, glob: str = "*") -> list[str]:
        """Ids of the cells with a trend that match."""
        rows = self._database.execute("SELECT DISTINCT cell FROM trend WHERE cell GLOB ? ORDER BY cell", [glob])
        return [cell for (cell,) in rows]


@contextmanager
def open_index(runs_dir: Path, *, rebuild: bool = False) -> Iterator[Index]:
    """The index of a runs folder, updated first; with `rebuild` from scratch.

    Raises AbprofError if there is no such folder, if another process holds the index for a minute, or if it turns out to
    be corrupt while it is read.
    """
    if not runs_dir.is_dir():
        raise AbprofError(
            "no such folder", where=str(runs_dir), advice="--runs-dir names the folder that holds the runs"
        )
    file, notes = runs_dir / FILE, list[str]()
    try:
        database = _updated(str(file), runs_dir, rebuild=rebuild)
    except (sqlite3.OperationalError, OSError) as error:
        if "locked" in str(error):
            raise AbprofError("another abprof is writing the index", where=str(file), advice="try again") from None
        notes = [f"{file}: {error}; the index is built in memory"]
        database = _updated(":memory:", runs_dir)
    except sqlite3.DatabaseError as error:
        notes = [f"{FILE} could not be read ({error}): it was rebuilt from the run folders"]
        database = _updated(str(file), runs_dir, rebuild=True)
    with closing(database):
        try:
            rows = database.execute("SELECT name, problem FROM folder WHERE problem != '' ORDER BY name")
            yield Index(database, [*notes, *(f"{name}: {problem}; left out" for name, problem in rows)])
        except sqlite3.DatabaseError as error:
            raise AbprofError(f"corrupt: {error}", where=str(file), advice="remove it: it is made again") from None


def _updated(name: str, runs_dir: Path, *, rebuild: bool = False) -> sqlite3.Connection:
    """A connection to the index, which agrees with the folder."""
    if rebuild:
        for old in (name, f"{name}-journal"):
            Path(old).unlink(missing_ok=True)
    database = sqlite3.connect(name, timeout=_LOCK_WAIT, isolation_level=None)
    try:
        # SQLite's default journal works on network file systems; what a power failure destroys is rebuilt.
        database.execute("PRAGMA synchronous = OFF")
        database.execute("PRAGMA cache_size = -262144")  # KiB: a thousand nights of 500 cells take 91 MB
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise sqlite3.DatabaseError("made by another version of abprof")
        found, known = _stamps(runs_dir), "SELECT name, stamp FROM folder"
        if not version or dict(database.execute(known).fetchall()) != found:
            database.execute("BEGIN IMMEDIATE")
            for statement in _TABLES.split(";"):
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {_VERSION}")
            stamps = dict(database.execute(known).fetchall())
            trends = {tuple(key): trend for trend, *key in database.execute("SELECT * FROM trend")}
            for folder in sorted(stamps.keys() | found.keys()):
                if stamps.get(folder) != found.get(folder):
                    _replace(database, runs_dir / folder, found.get(folder), trends)
            database.execute("COMMIT")
    except BaseException:
        database.close()  # which rolls back
        raise
    return database


def _stamps(runs_dir: Path) -> dict[str, str]:
    """Folder name -> size, time and inode of its run.json."""
    found = {}
    with os.scandir(runs_dir) as entries:
        for entry in entries:
            with suppress(OSError):
                facts = Path(entry.path, RUN).stat()
                found[entry.name] = f"{facts.st_size} {facts.st_mtime_ns} {facts.st_ino}"
    return found


def _replace(database: sqlite3.Connection, folder: Path, stamp: str | None, trends: dict[tuple[Any, ...], Any]) -> None:
    """Remove what the index has of a run folder, and read the folder again unless `stamp` is None."""

    def remove() -> None:
        database.execute("DELETE FROM value WHERE night IN (SELECT id FROM night WHERE folder = ?)", (folder.name,))
        database.execute("DELETE FROM night WHERE folder = ?", (folder.name,))
        database.execute("DELETE FROM folder WHERE name = ?", (folder.name,))

    remove()
    if stamp is None:
        return
    problem = ""
    try:
        if found := read_night(folder / RUN):
            night, values = found
            marks = ", ".join("?" * _COLUMNS)
            id = database.execute(f"INSERT INTO night VALUES ({marks}, NULL)", astuple(night)).lastrowid  # noqa: S608
            for value in values:
                if value[:4] not in trends:
                    row = database.execute("INSERT INTO trend VALUES (NULL, ?, ?, ?, ?)", value[:4])
                    trends[value[:4]] = row.lastrowid
            lines = [(trends[value[:4]], id, *value[4:]) for value in values]
            database.executemany("INSERT OR REPLACE INTO value VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", lines)
    except (OSError, ValueError, OverflowError) as error:  # unreadable, not a run, or beyond what SQLite can hold
        remove()
        problem = " ".join(str(error).split())[:300] or "cannot be read"
    database.execute("INSERT INTO folder VALUES (?, ?, ?)", (folder.name, stamp, problem))


# ---------------------------------------------------------------- reading run.json


class _Side(msgspec.Struct):
    id: str
    commit: str
    subject: str = ""


class _Metric(msgspec.Struct):
    value: float


class _Observation(msgspec.Struct):
    cell: str
    arm: str
    status: str
    metrics: dict[str, _Metric] = {}


class _Comparison(msgspec.Struct, rename={"from_": "from"}):
    cell: str
    from_: str
    to: str
    metric: str
    verdict: str
    pct: float | None = None
    low_pct: float | None = None
    high_pct: float | None = None
    reasons: tuple[str, ...] = ()


class _Header(msgspec.Struct):
    sentence: str = ""
    exit_code: int = 0
    counts: dict[str, int] = {}


class _Run(msgspec.Struct):
    """The part of run.json that trends need, so that a thousand nights are read in seconds."""

    status: str
    began: str
    sides: tuple[_Side, ...]
    night: Night | None = None
    header: _Header | None = None
    observations: tuple[_Observation, ...] = ()
    comparisons: tuple[_Comparison, ...] = ()


_DECODER = msgspec.json.Decoder(_Run)


def read_night(file: Path) -> tuple[NightRow, list[Value]] | None:
    """The night in a run.json; None if the run is not a night, or did not finish.

    Raises OSError, and ValueError for a file that is not a run.
    """
    try:
        run = _DECODER.decode(content(file))
    except UNREADABLE as error:
        raise ValueError(f"not a run of this abprof: {error}") from None
    if run.night is None or run.status != "complete":
        return None
    if not run.sides:
        raise ValueError("a night without a side")
    about, header, head = run.night, run.header or _Header(), run.sides[-1]
    tampered = header.counts.get("tampered", 0) > 0
    values = [] if tampered else list(_values(run))
    heads = sum(value.judged and value.head_status in ("ok", "identical") for value in values)
    first = about.kind == "first" and heads and header.exit_code == Exit.UNTRUSTED  # it has nothing to compare with
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
        settled=int(ran and not tampered),
    )
    return night, values


def _values(run: _Run) -> Iterator[Value]:
    seen = {(item.cell, item.arm): item for item in run.observations}
    if len(run.sides) == 1:
        for (cell, arm), item in seen.items():
            named = Arm.of(arm)
            if named.side == "base" and not named.peer:
                judged = next((name for name in _TIMES if name in item.metrics), "wall")
                alone = _Comparison(cell, "", arm, judged, "")
                yield from _metrics(alone, named.variant, None, item)
        return
    for row in run.comparisons:
        target = Arm.of(row.to)
        if row.from_.startswith("base") and target.side == "target":
            yield from _metrics(row, target.variant, seen.get((row.cell, row.from_)), seen.get((row.cell, row.to)))


def _metrics(
    row: _Comparison, variant: str, before: _Observation | None, after: _Observation | None
) -> Iterator[Value]:
    """The value of the judged metric, and of others that were recorded."""
    statuses = (before.status if before else "", after.status if after else "")
    for metric in METRICS:
        base, head = (
            item.metrics[metric].value if item and metric in item.metrics else None for item in (before, after)
        )
        if metric == row.metric:
            pct = 0.0 if row.pct is None and "identical_code" in row.reasons else row.pct
            judged = (True, row.verdict, pct, row.low_pct, row.high_pct)
        elif base is None and head is None:
            continue
        else:
            judged = (False, "", (head / base - 1) * 100 if base and head else None, None, None)
        yield Value(row.cell, variant, metric, *judged, base, head, *statuses)
