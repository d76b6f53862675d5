"""The index: every night of a folder of runs in one SQLite file beside them, made from their run.json and from nothing else.

Asking brings it up to date: folders that are new, changed or gone are seen by their run.json's size and time. One that
is corrupt, of another abprof, or not there is made anew. Where it cannot be written it is made in memory.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from abprof.extras.history.night import Told, Value, read
from abprof.records.errors import AbprofError, Exit
from abprof.store.runfolder import RUN

FILE = "history.sqlite"
VERSION = 4
_OF_THE_HEAD = ("ok", "identical", "build_failed", "wrong", "unsupported", "missing")  # the same every night
_WAIT = 60.0  # seconds for another process that writes
_TABLES = """
CREATE TABLE folder (name TEXT PRIMARY KEY, stamp TEXT NOT NULL, problem TEXT NOT NULL);
CREATE TABLE night (id INTEGER PRIMARY KEY, folder TEXT NOT NULL UNIQUE, series TEXT NOT NULL, number INTEGER NOT NULL,
  kind TEXT NOT NULL, asked TEXT NOT NULL, machine TEXT NOT NULL, began TEXT NOT NULL, base TEXT NOT NULL,
  head TEXT NOT NULL, subject TEXT NOT NULL, exit_code INTEGER NOT NULL, sentence TEXT NOT NULL, heads INTEGER NOT NULL,
  settled INTEGER NOT NULL);
CREATE TABLE trend (id INTEGER PRIMARY KEY, cell TEXT NOT NULL, variant TEXT NOT NULL, metric TEXT NOT NULL,
  judged INTEGER NOT NULL, UNIQUE (cell, variant, metric, judged));
CREATE TABLE value (trend INTEGER NOT NULL, night INTEGER NOT NULL, verdict TEXT NOT NULL, pct REAL, low_pct REAL,
  high_pct REAL, base REAL, head REAL, base_status TEXT NOT NULL, head_status TEXT NOT NULL,
  PRIMARY KEY (trend, night)) WITHOUT ROWID;
"""
_STATEMENTS = tuple(statement.strip() for statement in _TABLES.split(";") if statement.strip())
_NIGHT = "n.folder, n.series, n.number, n.kind, n.asked, n.machine, n.began, n.base, n.head, n.subject, n.exit_code,"
_NIGHT += " n.sentence, n.heads, n.settled"
_COLUMNS = 14  # of them
_VALUE = "v.verdict, v.pct, v.low_pct, v.high_pct, v.base, v.head, v.base_status, v.head_status"


@dataclass(frozen=True)
class Row:
    """A night as the index has it."""

    folder: str
    series: str
    number: int
    kind: str
    asked: str
    machine: str  # JSON object with sorted keys: equal texts are equal machines
    began: str
    base: str
    head: str
    subject: str
    exit_code: int
    sentence: str
    heads: int  # cells and variants whose head ran, or whose code was the base's
    settled: int = 1  # 0: nothing could run, not because of the head, or what it rests on changed: tried again


_NIGHT_TYPES = tuple[str, str, int, str, str, str, str, str, str, str, int, str, int, int]
_VALUE_TYPES = tuple[
    str, str, str, int, str, float | None, float | None, float | None, float | None, float | None, str, str
]


@dataclass(frozen=True)
class Question:
    """Which values are asked for; "" and () ask for all."""

    cells: tuple[str, ...] = ()  # globs over cell ids; any of them
    metric: str = ""  # "": what was judged
    series: str = ""
    since: str = ""  # ISO 8601 date or time, UTC
    kinds: tuple[str, ...] = ("first", "step")


class Index:
    """An open index, up to date when it was opened. `notes` says which folders could not be read, and what was done."""

    def __init__(self, database: sqlite3.Connection, notes: Sequence[str]) -> None:
        self._database = database
        self.notes = tuple(notes)

    def nights(self, series: str = "", kinds: Sequence[str] = ("first", "step", "against")) -> list[Row]:
        """The nights in their order: by series and number."""
        where, values = _where(Question(series=series, kinds=tuple(kinds)))
        rows = self._database.execute(
            f"SELECT {_NIGHT} FROM night n WHERE {where} ORDER BY n.series, n.number, n.id",  # noqa: S608 - our own words
            values,
        )
        return [Row(*_fits(row, _NIGHT_TYPES)) for row in rows]

    def values(self, asked: Question) -> Iterator[tuple[Row, Value]]:
        """Every value that fits, cell by cell and each cell's in the order of its nights."""
        where, given = _where(asked)
        cells = " OR ".join("t.cell GLOB ? OR t.cell = ?" for _ in asked.cells) or "1"
        metric = "t.metric = ?" if asked.metric else "t.judged = 1"
        order = "t.cell, t.variant, t.metric, n.series, n.number, n.id"
        found = self._database.execute(  # what was typed goes in as parameters
            f"SELECT {_NIGHT}, t.cell, t.variant, t.metric, t.judged, {_VALUE} FROM trend t"  # noqa: S608
            f" CROSS JOIN value v ON v.trend = t.id CROSS JOIN night n ON n.id = v.night"  # in this order
            f" WHERE ({cells}) AND {metric} AND {where} ORDER BY {order}",
            [cell for each in asked.cells for cell in (each, each)] + ([asked.metric] if asked.metric else []) + given,
        )
        known: dict[str, Row] = {}
        for line in found:
            row = known.get(line[0]) or known.setdefault(line[0], Row(*_fits(line[:_COLUMNS], _NIGHT_TYPES)))
            cell, variant, name, judged, *rest = _fits(line[_COLUMNS:], _VALUE_TYPES)
            yield row, Value(cell, variant, name, bool(judged), *rest)

    def series(self) -> list[str]:
        """What nights there are of."""
        found = self._database.execute("SELECT DISTINCT series FROM night ORDER BY series")
        return [name for (name,) in (_fits(row, tuple[str]) for row in found)]

    def cells(self, glob: str = "*") -> list[str]:
        """Ids of the cells that have a trend, and fit."""
        found = self._database.execute("SELECT DISTINCT cell FROM trend WHERE cell GLOB ? ORDER BY cell", [glob])
        return [cell for (cell,) in (_fits(row, tuple[str]) for row in found)]


def _fits(row: tuple[Any, ...], types: Any) -> tuple[Any, ...]:
    """The row, once its columns hold what they are declared with: SQLite does not look. Raises sqlite3.DatabaseError."""
    try:
        return cast("tuple[Any, ...]", msgspec.convert(row, types))
    except msgspec.ValidationError as error:
        raise sqlite3.DatabaseError(f"a column holds what it should not: {error}") from None


def _where(asked: Question) -> tuple[str, list[str]]:
    parts = [f"n.kind IN ({', '.join('?' for _ in asked.kinds)})"]
    values = list(asked.kinds)
    for text, value in (("n.series = ?", asked.series), ("n.began >= ?", asked.since)):
        if value:
            parts.append(text)
            values.append(value)
    return " AND ".join(parts), values


@contextmanager
def opened(runs_dir: Path, *, anew: bool = False) -> Iterator[Index]:
    """The index of a folder of runs, brought up to date first; `anew` makes it again from nothing.

    Raises AbprofError when there is no such folder, or another process has been writing the index for a minute.
    """
    if not runs_dir.is_dir():
        raise AbprofError(
            "no such folder", where=str(runs_dir), advice="--runs-dir names the folder that holds the runs"
        )
    file, notes = runs_dir / FILE, list[str]()
    if anew:
        _forget(file)
    try:
        database = _usable(file, runs_dir, notes)
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise AbprofError("another abprof is writing the index", where=str(file), advice="try again") from None
        notes = [f"{file}: {error}; the index is made in memory"]
        database = _connect(":memory:")
        _update(database, runs_dir, notes)
    with closing(database):
        try:
            yield Index(database, notes)
        except sqlite3.DatabaseError as error:
            raise AbprofError(f"spoilt: {error}", where=str(file), advice="abprof history rebuild") from None


def _usable(file: Path, runs_dir: Path, notes: list[str]) -> sqlite3.Connection:
    """A connection whose tables hold what the folder does. What cannot be read as an index is made again, once."""
    for last in (False, True):
        database = _connect(str(file))
        try:
            _update(database, runs_dir, notes)
        except sqlite3.OperationalError:
            database.close()
            raise
        except sqlite3.DatabaseError as error:
            database.close()
            if last:
                raise
            notes[:] = [f"{file.name} could not be read ({error}): it was made again from the run folders"]
            _forget(file)
        else:
            return database
    raise AssertionError("unreachable")


def _forget(file: Path) -> None:
    for name in (file.name, f"{file.name}-journal"):
        with suppress(FileNotFoundError):
            (file.parent / name).unlink()


def _connect(name: str) -> sqlite3.Connection:
    return sqlite3.connect(name, timeout=_WAIT, isolation_level=None)


def _update(database: sqlite3.Connection, runs_dir: Path, notes: list[str]) -> None:
    """Make the tables agree with the folder, in one transaction."""
    # The journal is SQLite's plain one, which works on network file systems; what a power cut loses is made again.
    database.execute("PRAGMA synchronous = OFF")
    database.execute("PRAGMA cache_size = -262144")  # KiB: a thousand nights of 500 cells are 91 MB
    found = _stamps(runs_dir)
    _refuse_foreign(database)
    if _version(database) == VERSION and _known(database) == found:
        notes += _problems(database)
        return
    database.execute("BEGIN IMMEDIATE")
    try:
        if _version(database) != VERSION:
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                database.execute(f'DROP TABLE "{name}"')
            for statement in _STATEMENTS:
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {VERSION}")
        known = _known(database)
        for name in known.keys() - found.keys() | {
            name for name in found.keys() & known.keys() if found[name] != known[name]
        }:
            _remove(database, name)
        trends = {tuple(key): trend for trend, *key in database.execute("SELECT * FROM trend")}
        for name in sorted(name for name in found if found[name] != known.get(name)):
            _add(database, runs_dir / name / RUN, found[name], trends)
        database.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        raise
    notes += _problems(database)


def _refuse_foreign(database: sqlite3.Connection) -> None:
    """Raises sqlite3.DatabaseError for what is none of this or of an older abprof's: other tables, views, triggers."""
    there = set(database.execute("SELECT type, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"))
    ours = {("table", statement) for statement in _STATEMENTS}
    older = 0 < _version(database) < VERSION and all(kind == "table" for kind, _ in there)
    if there not in (set(), ours) and not older:
        raise sqlite3.DatabaseError("its tables are another program's")


def _version(database: sqlite3.Connection) -> int:
    return int(database.execute("PRAGMA user_version").fetchone()[0])


def _known(database: sqlite3.Connection) -> dict[str, str]:
    return dict(database.execute("SELECT name, stamp FROM folder").fetchall())


def _problems(database: sqlite3.Connection) -> list[str]:
    rows = database.execute("SELECT name, problem FROM folder WHERE problem != '' ORDER BY name")
    return [f"{name}: {problem}; left out" for name, problem in rows]


def _stamps(runs_dir: Path) -> dict[str, str]:
    """Folder -> what tells one state of its run.json from another."""
    found = {}
    with os.scandir(runs_dir) as entries:
        for entry in entries:
            with suppress(OSError):
                facts = Path(entry.path, RUN).stat()
                found[entry.name] = f"{facts.st_size} {facts.st_mtime_ns} {facts.st_ino}"
    return found


def _remove(database: sqlite3.Connection, name: str) -> None:
    database.execute("DELETE FROM value WHERE night IN (SELECT id FROM night WHERE folder = ?)", (name,))
    database.execute("DELETE FROM night WHERE folder = ?", (name,))
    database.execute("DELETE FROM folder WHERE name = ?", (name,))


def _add(database: sqlite3.Connection, file: Path, stamp: str, trends: dict[tuple[Any, ...], int | None]) -> None:
    name, problem, told = file.parent.name, "", None
    try:
        told = read(file)
    except (OSError, ValueError) as error:
        problem = " ".join(str(error).split())[:300] or "cannot be read"
    if told is not None:
        try:
            _insert(database, name, told, trends)
        except (ValueError, OverflowError) as error:  # a number or a text that SQLite does not hold
            _remove(database, name)
            problem = f"not a run of this abprof: {error}"
    database.execute("INSERT INTO folder VALUES (?, ?, ?)", (name, stamp, problem))


def _insert(database: sqlite3.Connection, name: str, told: Told, trends: dict[tuple[Any, ...], int | None]) -> None:
    about = told.night
    machine = msgspec.json.encode(dict(sorted(about.machine.items()))).decode()
    heads = sum(value.judged and value.head_status in ("ok", "identical") for value in told.values)
    ran = told.exit_code != Exit.CANNOT_RUN or any(value.head_status in _OF_THE_HEAD for value in told.values)
    settled = ran and not told.tampered
    row = Row(name, about.series, about.number, about.kind, about.asked, machine, told.began, told.base, told.head,
              told.subject, told.exit_code, told.sentence, heads, int(settled))  # fmt: skip
    id = database.execute(
        "INSERT INTO night VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", astuple(row)
    ).lastrowid
    lines = []
    for value in told.values:
        key = (value.cell, value.variant, value.metric, int(value.judged))
        if key not in trends:
            trends[key] = database.execute("INSERT INTO trend VALUES (NULL, ?, ?, ?, ?)", key).lastrowid
        lines.append((trends[key], id, value.verdict, value.pct, value.low_pct, value.high_pct, value.base, value.head,
                      value.base_status, value.head_status))  # fmt: skip
    database.executemany("INSERT OR REPLACE INTO value VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", lines)
