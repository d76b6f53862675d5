"""Read abprof.toml, or the table [tool.abprof] of pyproject.toml. Error messages name the key."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from abprof.records import PackageTable
from abprof.records.errors import AbprofError
from abprof.records.options import CommandEntry, Defaults, Environment, File, Tables, Threshold
from abprof.records.quantities import percent, seconds
from abprof.system import toml

_TABLES = (PackageTable, Defaults, Environment, CommandEntry, Threshold)
_KEYS = "docs/CONFIG.md lists every key"


def read_file(root: Path) -> File | None:
    """Return the configuration in the folder `root`; None if there is none. Raises AbprofError for an invalid file."""
    path, table = place(root)
    if not os.path.lexists(path):
        return None
    if not path.is_file():
        raise AbprofError("not a file", where=str(path), advice="remove this, or put a file here (docs/CONFIG.md)")
    return parse_file(toml.read(path), str(path), table).of(root)


def place(root: Path) -> tuple[Path, tuple[str, ...]]:
    """Return the path of the configuration file, which may not exist yet, and the keys that lead to abprof's table in
    the file: ("tool", "abprof") in pyproject.toml, () in abprof.toml. Raises AbprofError."""
    path = root / "pyproject.toml"
    if not os.path.lexists(root / "abprof.toml") and path.is_file() and "[tool.abprof" in toml.read(path):
        return path, ("tool", "abprof")
    return root / "abprof.toml", ()


def file_above(folder: Path) -> File | None:
    """Return the first configuration in `folder` or above, up to the repository's root; None if there is none."""
    for place in (folder.absolute(), *folder.absolute().parents):
        file = read_file(place)
        if file or (place / ".git").exists():
            return file
    return None


def parse_file(text: str, where: str, table: tuple[str, ...] = ()) -> File:
    """Parse `text`, the content of the file `where`. `table`: keys that lead to abprof's table. Raises AbprofError."""
    loose: Any = toml.loads(text, where)
    for name in table:
        loose = loose.get(name, {}) if isinstance(loose, dict) else {}
    tables = toml.converted(loose, Tables, *_TABLES, where=where, advice=_KEYS)
    file = File(**{name: getattr(tables, name) for name in Tables.__struct_fields__}, name=where)
    at = file.at
    for bad, key, what in _checks(file):
        if bad:
            raise AbprofError(what, where=at(key))
    places = dict.fromkeys(("worktree", "build_dir", "side"), "")
    for name, entry in file.kernels.items():
        recipe = {f"part {number}": part for number, part in enumerate(entry.build, 1)}
        fill(recipe, at(f"kernels.{name}.build"), **places)
        fill(entry.env, at(f"kernels.{name}.env"), **places)
    fill(file.command.env, at("command.env"), **places)
    return file


def _checks(file: File) -> Iterator[tuple[bool, str, str]]:
    at = file.at
    yield file.schema != 1, "schema", f"schema = {file.schema}, this abprof reads schema = 1"
    default = file.defaults
    if default.budget:
        seconds(default.budget, at("defaults.budget"))
    for name, value in (("threshold", default.threshold), ("margin", default.margin)):
        if value is not None:
            percent(str(value), at(f"defaults.{name}"))
    wide = (default.margin or 0) > (default.threshold or 1000)
    yield wide, "defaults.margin", f"{default.margin} % is wider than the threshold of {default.threshold} %"
    for number, rule in enumerate(file.threshold):
        percent(str(rule.percent), at(f"threshold.{number}.percent"))
    outside = "{!r} is not below the repository's root"
    for name in file.benchmarks:
        bad = not name or name.startswith(("/", "~")) or ".." in Path(name).parts
        yield bad, "benchmarks", outside.format(name)
    variables = [("command.env", file.command.env), ("environment.set", file.environment.set)]
    for name, entry in file.kernels.items():
        variables.append((f"kernels.{name}.env", entry.env))
        for key, path in (("path", entry.path), *(("inputs", pattern) for pattern in entry.inputs)):
            bad = path.startswith(("/", "~/")) or os.path.normpath(path).split("/")[0] == ".."
            yield bad, f"kernels.{name}.{key}", outside.format(path)
        bad = bool(entry.module) and not all(map(str.isidentifier, entry.module.split(".")))
        yield bad, f"kernels.{name}.import", f"{entry.module!r} is not a name that Python can import"
    for key, env in variables:
        for name in env:
            yield not name or "=" in name, key, f"{name!r} is not a valid name of an environment variable"
    for kind in file.executor:
        yield kind not in ("slurm", "ray"), f"executor.{kind}", f"unknown executor {kind!r}, expected slurm or ray"
    for side in file.python:
        bad = not re.fullmatch(r"all|base|target(?:[2-9]|[1-9]\d+)?", side)
        yield bad, f"python.{side}", f"unknown side {side!r}, expected all, base, target, target2, ..."


def fill(extra: Mapping[str, str], where: str, **places: str) -> dict[str, str]:
    """Replace {worktree}, {build_dir} and {side} in the values of `extra`. Other placeholders raise AbprofError."""
    filled = {}
    for name, value in extra.items():
        try:
            fields = [field for field in string.Formatter().parse(value) if field[1] is not None]
            if any(field not in places or spec or conversion for _, field, spec, conversion in fields):
                raise ValueError(value)
            filled[name] = value.format(**places)
        except ValueError as error:
            what = f"{name} = {value!r}: the only placeholders are {', '.join(f'{{{place}}}' for place in places)}"
            raise AbprofError(what, where=where, advice="write {{ and }} for literal braces") from error
    return filled
