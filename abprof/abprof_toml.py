"""abprof.toml, or [tool.abprof] of pyproject.toml: its tables, and an error with key and line for what they cannot mean."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Literal

import msgspec

from abprof import toml
from abprof.errors import AbprofError
from abprof.model import Package, Record, Timer
from abprof.quantities import percent, seconds


class Threshold(Record, frozen=True):
    """A `[[threshold]]` entry: the first pattern that matches a cell's id holds."""

    cells: str
    percent: float


class PackageEntry(Record, frozen=True, rename={"import_": "import"}):
    """A `[kernels.NAME]` table."""

    path: str = ""
    import_: str = ""
    inputs: tuple[str, ...] = ()
    build: tuple[str, ...] = ()
    env: dict[str, str] = {}
    submodules: bool = False


class Defaults(Record, frozen=True):
    """The `[defaults]` table."""

    threshold: float | None = None
    margin: float | None = None
    preset: str = ""
    budget: str = ""
    timer: Timer | Literal[""] = ""


class Environment(Record, frozen=True):
    """The `[environment]` table: more variables for the workers, and names that are let through."""

    set: dict[str, str] = {}
    allow: tuple[str, ...] = ()


class CommandEntry(Record, frozen=True):
    """The `[command]` table: what `-- COMMAND` needs on each side."""

    build: tuple[str, ...] = ()
    env: dict[str, str] = {}


class File(Record, frozen=True):
    """abprof.toml, or [tool.abprof] of pyproject.toml."""

    schema: int = 1
    kernels: dict[str, PackageEntry] = {}
    workloads: str = ""  # folder of the workloads, relative to the file
    benchmarks: tuple[str, ...] = ()  # files and folders that workloads wrap, likewise
    defaults: Defaults = Defaults()
    environment: Environment = Environment()
    command: CommandEntry = CommandEntry()
    executor: dict[str, dict[str, str | bool | int | float]] = {}  # kind -> its options
    python: dict[str, str] = {}
    threshold: tuple[Threshold, ...] = ()

    def package(self, name: str) -> Package:
        """The package as configured, or by the conventional layout."""
        entry = self.kernels.get(name)
        if entry is None:
            return Package(name=name)
        return Package(
            name=name,
            path=entry.path,
            module=entry.import_,
            inputs=entry.inputs,
            build=entry.build,
            env=entry.env,
            submodules=entry.submodules,
        )

    def options_of(self, executor: str) -> dict[str, str]:
        """The `[executor.KIND]` table of "ray", "ray://ADDRESS" or "slurm", as words of a command line."""
        words = {True: "true", False: "false"}
        table = self.executor.get(executor.partition(":")[0], {})
        return {name: words[v] if isinstance(v, bool) else f"{v}" for name, v in table.items()}


def read_file(root: Path) -> File | None:
    """abprof.toml or [tool.abprof] under `root`, None where neither stands. Raises AbprofError with key and line."""
    path, table = place(root)
    if not os.path.lexists(path):
        return None
    if not path.is_file():
        raise AbprofError("is no file", where=str(path), advice="docs/CONFIG.md has what stands in it")
    return parse_file(_text(path), str(path), table)


def place(root: Path) -> tuple[Path, tuple[str, ...]]:
    """The file that has the configuration, or would have it, and the table in it under which all of it stands. Raises
    AbprofError."""
    path = root / "pyproject.toml"
    if not os.path.lexists(root / "abprof.toml") and path.is_file() and "[tool.abprof" in _text(path):
        return path, ("tool", "abprof")
    return root / "abprof.toml", ()


def file_above(folder: Path) -> File | None:
    """The configuration of the repository that `folder` lies in, as far as it is known before git is asked."""
    for place in (folder.absolute(), *folder.absolute().parents):
        file = read_file(place)
        if file or (place / ".git").exists():
            return file
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AbprofError(f"cannot be read: {error}", where=str(path)) from error


def parse_file(text: str, where: str, table: tuple[str, ...] = ()) -> File:
    """The typed file. Raises AbprofError naming key and line."""
    loose: Any = toml.loads(text, where)
    for name in table:
        loose = loose.get(name, {}) if isinstance(loose, dict) else {}
    nul = _with_nul(loose)
    if nul is not None:
        raise AbprofError("a text with a NUL character", where=f"{where}:{_line_of(text, nul)}")
    try:
        file = msgspec.convert(loose, File)
    except msgspec.ValidationError as error:
        key = _key(str(error))
        raise AbprofError(
            _plain(str(error)),
            where=f"{where}:{_line_of(text, key)}",
            advice="docs/CONFIG.md has every key",
        ) from error
    if file.schema != 1:
        place = f"{where}:{_line_of(text, 'schema')}"
        raise AbprofError(f"schema = {file.schema}, this abprof reads schema = 1", where=place)
    _sensible(file, text, where)
    _nameable(file, text, where)
    return file


def _with_nul(loose: Any, key: str = "") -> str | None:
    """The key at which a text holds a NUL, which no path, word or variable can; None where none does."""
    if isinstance(loose, dict):
        found = (name if "\0" in name else _with_nul(value, name) for name, value in loose.items())
    elif isinstance(loose, list):
        found = (_with_nul(value, key) for value in loose)
    else:
        return key if isinstance(loose, str) and "\0" in loose else None
    return next((name for name in found if name is not None), None)


def _sensible(file: File, text: str, where: str) -> None:
    """Raises AbprofError, with its line, for a value that has the right type and cannot be meant."""
    for name in file.benchmarks:
        if not name or name.startswith(("/", "~")) or ".." in Path(name).parts:
            line = f"{where}:{_line_of(text, 'benchmarks')}"
            raise AbprofError(f"{name!r} is not below the repository's root", where=line)
    default = file.defaults
    if default.budget:
        seconds(default.budget, f"{where}:{_line_in(text, 'defaults', 'budget')}")
    for name, value in (("threshold", default.threshold), ("margin", default.margin)):
        if value is not None:
            percent(str(value), f"{where}:{_line_in(text, 'defaults', name)}")
    if default.threshold is not None and default.margin is not None and default.margin > default.threshold:
        what = f"a margin of {default.margin:g} % is wider than the threshold of {default.threshold:g} %"
        raise AbprofError(what, where=f"{where}:{_line_in(text, 'defaults', 'margin')}")
    for place, rule in enumerate(file.threshold):
        if not 0 < rule.percent < 1000:
            line = f"{where}:{_line_in(text, 'threshold', 'percent', place)}"
            raise AbprofError(f"threshold of {rule.percent} per cent for {rule.cells!r}", where=line)
    for side in file.python:
        if not re.fullmatch(r"all|base|target(?:[2-9]|[1-9]\d+)?", side):
            line = f"{where}:{_line_in(text, 'python', side)}"
            raise AbprofError(f"no side {side!r}", where=line, advice="all, base, target, target2, ...")


def _nameable(file: File, text: str, where: str) -> None:
    """Raises AbprofError, with its line, for a variable that no process can be given."""
    entries = [(f"kernels.{name}", "env", entry.env) for name, entry in file.kernels.items()]
    for head, key, env in (
        *entries,
        ("command", "env", file.command.env),
        ("environment", "set", file.environment.set),
    ):
        for name in env:
            if not name or "=" in name:
                line = f"{where}:{_line_in(text, re.escape(head), key)}"
                raise AbprofError(f"no variable can be called {name!r}", where=line)


def _key(message: str) -> str:
    unknown = re.search(r"unknown field `([^`]+)`", message)
    if unknown:
        return unknown[1]
    parts = re.findall(r"[A-Za-z_][\w-]*", message.split("`$", 1)[-1]) if "`$" in message else []
    return parts[-1] if parts else ""


def _plain(message: str) -> str:
    return re.sub(r" - at `\$\.?([^`]*)`", r" (at \1)", message).replace(" (at )", "")


def _line_of(text: str, key: str) -> int:
    if key:
        for number, line in enumerate(text.splitlines(), 1):
            if re.match(rf"\s*(\[+.*\b{re.escape(key)}\b|[\"']?{re.escape(key)}[\"']?\s*=)", line):
                return number
    return 1


def _line_in(text: str, table: str, key: str, place: int = 0) -> int:
    """The line of a key in a [table], or in the [[table]] of that place; where it is written otherwise, the first."""
    lines = text.splitlines()
    heads = [i for i, line in enumerate(lines) if re.match(rf"\s*\[+\s*([\w.]+\.)?{table}\s*\]", line)]
    above = heads[place] if place < len(heads) else 0
    return above + _line_of("\n".join(lines[above + 1 :]), key) + 1 if heads else _line_of(text, key)
