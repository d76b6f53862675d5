"""abprof.toml, or [tool.abprof] of pyproject.toml: its tables, and an error with key and line for what they cannot mean."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec

from abprof.records import Timer
from abprof.records.errors import AbprofError
from abprof.records.options import CommandEntry, Defaults, Environment, File, PackageEntry, Tables, Threshold
from abprof.records.quantities import percent, seconds
from abprof.system import config_errors as complaints
from abprof.system import toml

_KEYS = [
    field.encode_name
    for table in (Tables, PackageEntry, Defaults, Environment, CommandEntry, Threshold)
    for field in msgspec.structs.fields(table)
]
_EXECUTORS = ("slurm", "ray")


def read_file(root: Path) -> File | None:
    """abprof.toml or [tool.abprof] under `root`, None where neither stands. Raises AbprofError with key and line."""
    path, table = place(root)
    if not os.path.lexists(path):
        return None
    if not path.is_file():
        raise AbprofError("is no file", where=str(path), advice="docs/CONFIG.md has what stands in it")
    return parse_file(toml.read(path), str(path), table).of(root)


def place(root: Path) -> tuple[Path, tuple[str, ...]]:
    """The file that has the configuration, or would have it, and the table in it under which all of it stands. Raises
    AbprofError."""
    path = root / "pyproject.toml"
    if not os.path.lexists(root / "abprof.toml") and path.is_file() and "[tool.abprof" in toml.read(path):
        return path, ("tool", "abprof")
    return root / "abprof.toml", ()


def file_above(folder: Path) -> File | None:
    """The configuration of the repository that `folder` lies in, found without git."""
    for place in (folder.absolute(), *folder.absolute().parents):
        file = read_file(place)
        if file or (place / ".git").exists():
            return file
    return None


def parse_file(text: str, where: str, table: tuple[str, ...] = ()) -> File:
    """The typed file. Raises AbprofError naming key and line."""
    loose: Any = toml.loads(text, where)
    for name in table:
        loose = loose.get(name, {}) if isinstance(loose, dict) else {}
    within = "".join(f"{name}." for name in table)
    lines = {key.removeprefix(within): line for key, line in toml.lines(text).items() if key.startswith(within)}
    nul = _with_nul(loose)
    if nul is not None:
        raise AbprofError("a text with a NUL character", where=File(name=where, lines=lines).at(nul))
    try:
        tables = msgspec.convert(loose, Tables)
    except msgspec.ValidationError as error:
        is_timer = "enum value" in str(error)  # the one key that has a few values
        advice = f"there are {', '.join(get_args(Timer))}" if is_timer else "docs/CONFIG.md has every key"
        raise complaints.refused(error, loose, where, lines, _KEYS, advice) from error
    file = File(**{name: getattr(tables, name) for name in Tables.__struct_fields__}, name=where, lines=lines)
    if file.schema != 1:
        raise AbprofError(f"schema = {file.schema}, this abprof reads schema = 1", where=file.at("schema"))
    _below_root(file)
    _sensible(file)
    _known_names(file)
    _nameable(file)
    _fillable(file)
    return file


def _with_nul(loose: Any) -> str | None:
    """The key at which a text holds a NUL, which no path, word or variable can; None where none does."""
    texts = ((key, value if isinstance(value, str) else "") for key, value in toml.values(loose))
    return next((key for key, text in texts if "\0" in key + text), None)


def _sensible(file: File) -> None:
    """Raises AbprofError, with its line, for a value that has the right type and cannot be meant."""
    default = file.defaults
    if default.budget:
        seconds(default.budget, file.at("defaults.budget"))
    for name, value in (("threshold", default.threshold), ("margin", default.margin)):
        if value is not None:
            percent(str(value), file.at(f"defaults.{name}"))
    if default.threshold is not None and default.margin is not None and default.margin > default.threshold:
        what = f"a margin of {default.margin:g} % is wider than the threshold of {default.threshold:g} %"
        raise AbprofError(what, where=file.at("defaults.margin"))
    for number, rule in enumerate(file.threshold):
        if not 0 < rule.percent < 1000:
            what = f"threshold of {rule.percent} per cent for {rule.cells!r}"
            raise AbprofError(what, where=file.at(f"threshold.{number}.percent"), advice="above 0 and below 1000")


def _known_names(file: File) -> None:
    """Raises AbprofError, with its line, for a side, an executor or a module that no run could have."""
    for kind in file.executor:
        if kind not in _EXECUTORS:
            where = file.at(f"executor.{kind}")
            raise AbprofError(f"no executor {kind!r} has options", where=where, advice=", ".join(_EXECUTORS))
    for name, entry in file.kernels.items():
        if entry.import_ and not all(map(str.isidentifier, entry.import_.split("."))):
            where = file.at(f"kernels.{name}.import")
            raise AbprofError(f"{entry.import_!r} is no name that Python imports", where=where, advice="like mylib.ffa")
    for side in file.python:
        if not re.fullmatch(r"all|base|target(?:[2-9]|[1-9]\d+)?", side):
            where = file.at(f"python.{side}")
            raise AbprofError(f"no side {side!r}", where=where, advice="all, base, target, target2, ...")


def _below_root(file: File) -> None:
    """Raises AbprofError, with its line, for a place that must lie in the repository and does not."""
    for name in file.benchmarks:
        if not name or name.startswith(("/", "~")) or ".." in Path(name).parts:
            raise AbprofError(f"{name!r} is not below the repository's root", where=file.at("benchmarks"))
    for name, entry in file.kernels.items():
        for key, place in (("path", entry.path), *(("inputs", pattern) for pattern in entry.inputs)):
            if place.startswith(("/", "~/")) or os.path.normpath(place).split("/")[0] == "..":
                what = f"{place!r} is not below the repository's root"
                raise AbprofError(what, where=file.at(f"kernels.{name}.{key}"), advice="each side has its own files")


def _fillable(file: File) -> None:
    """Raises AbprofError, with its line, for a `{name}` that nothing is filled in for."""
    places = dict.fromkeys(("worktree", "build_dir", "side"), "")
    for name, entry in file.kernels.items():
        recipe = {f"part {number}": part for number, part in enumerate(entry.build, 1)}
        fill(recipe, file.at(f"kernels.{name}.build"), **places)
        fill(entry.env, file.at(f"kernels.{name}.env"), **places)
    fill(file.command.env, file.at("command.env"), **places)


def _nameable(file: File) -> None:
    """Raises AbprofError, with its line, for a variable that no process can be given."""
    entries = [(f"kernels.{name}.env", entry.env) for name, entry in file.kernels.items()]
    for key, env in (*entries, ("command.env", file.command.env), ("environment.set", file.environment.set)):
        for name in env:
            if not name or "=" in name:
                raise AbprofError(f"no variable can be called {name!r}", where=file.at(key))


def fill(extra: Mapping[str, str], where: str, **places: str) -> dict[str, str]:
    """Fill {worktree}, {build_dir} and {side} into configured values. Raises AbprofError for any other name in braces."""
    filled = {}
    for name, value in extra.items():
        parts = []
        try:
            for text, place, width, conversion in string.Formatter().parse(value):
                if width or conversion:
                    raise ValueError(value)
                parts += [text, "" if place is None else places[place]]
        except (KeyError, ValueError) as error:
            what = f"{name} = {value!r}: only {', '.join(f'{{{place}}}' for place in places)} are filled in"
            raise AbprofError(what, where=where, advice="write {{ and }} for braces") from error
        filled[name] = "".join(parts)
    return filled
