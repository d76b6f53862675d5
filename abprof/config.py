"""What a run is asked to do. Command line over ABPROF_* over abprof.toml over defaults; a loose value dies here."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from abprof.errors import AbprofError
from abprof.model import Judge, Night, Package, Record, Settings


class Config(Record, frozen=True):
    """A whole invocation of `abprof run`. Percentages are per cent of time, durations seconds."""

    specs: tuple[str, ...]
    repo: str = "."
    kernels: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    workloads_from: str = ""  # "", base, target, or a folder
    preset: str = ""  # "": the file's, or `default`
    only: tuple[str, ...] = ()
    set: tuple[str, ...] = ()
    cell: tuple[str, ...] = ()  # ids: exactly these, in the place of a preset's
    device: tuple[str, ...] = ()  # () means: a CUDA device where there is one, otherwise the CPU
    python: dict[str, str] = {}  # side id -> interpreter; "" for all sides
    threshold: float | None = None
    thresholds: tuple[tuple[str, float], ...] | None = (
        None  # (cell pattern, per cent) of an earlier run; None: the file's
    )
    margin: float | None = None
    precision: float | None = None
    budget: float = 0.0  # 0: the file's, or ten minutes
    quick: bool = False
    protocol: Literal["abprof", "seed", "do_bench"] = "abprof"
    sustained: Literal["auto", "always", "never"] = "auto"
    probe: tuple[str, ...] = ()  # names of abprof/probes/: what looks at the cells that changed, after all timing
    against: tuple[str, ...] = ()  # protocols of abprof/sequential.py that time the same cells as well
    epochs: int | None = None
    allow_wrong: bool = False
    all: bool = False
    fail_on: tuple[str, ...] = ("slower", "broken")
    runs_dir: str = ""
    seed: int = 0
    timeout: float = 120.0  # one request to a worker
    build_timeout: float = 1800.0
    env: Literal["", "user", "clean"] = ""
    autotune: Literal["pinned", "each-epoch"] = "pinned"
    check: Literal["inside", "outside"] = "inside"
    contain: Literal["auto", "always", "never"] = "auto"
    rebuild: bool = False
    keep_worktrees: bool = False
    dry_run: bool = False
    no_wait: bool = False
    no_peers: bool = False
    peer: tuple[str, ...] = ()  # of the workloads' peers only these; "all": every one; (): those they measure unasked
    command: tuple[str, ...] = ()  # argv of one that times itself, in the place of workloads
    arguments: tuple[str, ...] = ()
    night: Night | None = None  # of a nightly job
    file: File | None = None

    def under(self, file: File) -> Config:
        """The same with a file, whose defaults stand where nothing else was asked for."""
        default = file.defaults
        budget = self.budget or seconds(default.budget or "10m", "budget")
        return msgspec.structs.replace(
            self, file=file, preset=self.preset or default.preset or "default", budget=budget
        )

    def settings(self, kind: str, judge: Judge) -> Settings:
        """The verdict's settings on this kind of device ("cpu", "cuda", "simulated")."""
        file = self.file or File()
        threshold, margin = self._percents(kind)
        thresholds = self.thresholds
        if thresholds is None:
            thresholds = tuple((rule.cells, rule.percent) for rule in file.threshold)
        return Settings(
            threshold=threshold,
            margin=min(margin, threshold),
            precision=self.precision,
            budget=self.budget,
            quick=self.quick,
            protocol=self.protocol,
            sustained=self.sustained,
            judge=judge,
            allow_wrong=self.allow_wrong,
            fail_on=self.fail_on,
            thresholds=thresholds,
            seed=self.seed,
            epochs=self.epochs,
            probes=self.probe,
        )

    def _percents(self, kind: str) -> tuple[float, float]:
        """(threshold, margin) as asked for, or by default."""
        noisy, default = kind == "cpu", (self.file or File()).defaults  # docs/DESIGN.md, Measurement, 0
        return (
            _first(self.threshold, default.threshold, 5.0 if noisy else 1.5),
            _first(self.margin, default.margin, 5.0 if noisy else 0.5),
        )

    def margin_cut(self, kind: str) -> str:
        """What is to be said of abprof.toml's margin where it is cut to the threshold, or "".

        Raises AbprofError when it is --margin that is wider: then `same` could not mean what was asked for.
        """
        threshold, margin = self._percents(kind)
        if self.margin is not None and margin > threshold:
            what = f"{margin:g} % is wider than the threshold of {threshold:g} %"
            raise AbprofError(what, where="--margin", advice="a narrower margin, or a wider --threshold")
        if (self.file or File()).defaults.margin is None or margin <= threshold:
            return ""
        return f"the margin of abprof.toml, {margin:g} %, is cut to the threshold of {threshold:g} %"

    @property
    def beside(self) -> tuple[str, ...]:
        """The protocols that time the same cells after abprof's own."""
        asked = () if self.protocol == "abprof" else (self.protocol,)
        return tuple(dict.fromkeys((*asked, *self.against)))


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


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)


# ---------------------------------------------------------------- abprof.toml


def read_file(root: Path) -> File | None:
    """abprof.toml or [tool.abprof] under `root`, None where neither stands. Raises AbprofError with key and line."""
    path, table = place(root)
    return parse_file(_text(path), str(path), table) if path.is_file() else None


def place(root: Path) -> tuple[Path, tuple[str, ...]]:
    """The file that has the configuration, or would have it, and the table in it under which all of it stands. Raises
    AbprofError."""
    path = root / "pyproject.toml"
    if not (root / "abprof.toml").is_file() and path.is_file() and "[tool.abprof" in _text(path):
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
    try:
        loose: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        raise AbprofError(str(error), where=f"{where}:{line[1]}" if line else where) from error
    for name in table:
        loose = loose.get(name, {})
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
    return file


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


# ---------------------------------------------------------------- loose values of the command line


def seconds(text: str, where: str) -> float:
    """ "90", "90s", "10m", "1.5h" as seconds. Raises AbprofError with `where`, the option or line it stands in."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h|)", text.strip())
    if not match or float(match[1]) <= 0:
        raise AbprofError(f"{text!r} is not a duration", where=where, advice="write 90s, 10m or 1.5h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def percent(text: str, where: str) -> float:
    """ "1.5" or "1.5%" as per cent. Raises AbprofError with `where`, the option or line it stands in, for anything but
    a positive, finite number below 1000."""
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 < value < 1000:
        raise AbprofError(f"{text!r} is not a positive percentage", where=where, advice="write 1.5 or 1.5%")
    return value


def worker_argv(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """$ABPROF_WORKER, a JSON list: the worker's argv, for a simulated worker. Empty: the real one."""
    text = environ.get("ABPROF_WORKER")
    if not text:
        return ()
    try:
        return msgspec.json.decode(text, type=tuple[str, ...])
    except msgspec.DecodeError as error:
        raise AbprofError(f"ABPROF_WORKER is not a JSON list of strings: {error}") from error
