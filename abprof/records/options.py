"""The options of a run, and the tables of abprof.toml, which hold defaults for them."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from abprof.records.base import Record, Timer
from abprof.records.cells import Package, PackageTable
from abprof.records.errors import AbprofError, place_of
from abprof.records.messages import Judge
from abprof.records.quantities import seconds

GPU_THRESHOLD, GPU_MARGIN, CPU_THRESHOLD, CPU_MARGIN = 1.5, 0.5, 5.0, 5.0  # per cent (docs/MEASUREMENT.md)
DEFAULT_BUDGET = "10m"


class Threshold(Record, frozen=True):
    """A `[[threshold]]` entry. For a cell, the first entry whose pattern matches the cell's id applies."""

    cells: str
    percent: float


class Defaults(Record, frozen=True):
    """The `[defaults]` table: values of options that the command line does not give."""

    threshold: float | None = None
    margin: float | None = None
    preset: str = ""
    budget: str = ""
    timer: Timer | Literal[""] = ""


class Environment(Record, frozen=True):
    """The `[environment]` table: variables to set for workers, and names of variables to pass to them."""

    set: dict[str, str] = {}
    allow: tuple[str, ...] = ()


class CommandEntry(Record, frozen=True):
    """The `[command]` table: build command and environment variables of `abprof BASE TARGET -- COMMAND`."""

    build: tuple[str, ...] = ()
    env: dict[str, str] = {}
    network: bool = False


class Tables(Record, frozen=True):
    """The content of abprof.toml, or of [tool.abprof] in pyproject.toml."""

    schema: int = 1
    kernels: dict[str, PackageTable] = {}
    workloads: str = ""  # folder of the workloads, relative to the file
    benchmarks: tuple[str, ...] = ()  # files and folders that workloads wrap, relative to the file
    defaults: Defaults = Defaults()
    environment: Environment = Environment()
    command: CommandEntry = CommandEntry()
    executor: dict[str, dict[str, str | bool | int | float]] = {}  # kind -> its options
    python: dict[str, str] = {}
    threshold: tuple[Threshold, ...] = ()


class File(Tables, frozen=True):
    """The content of abprof.toml, with the file's name."""

    name: str = "abprof.toml"  # for messages: a path, or COMMIT:abprof.toml

    def at(self, key: str) -> str:
        """Return where `key` stands, for messages: `abprof.toml, defaults.preset`."""
        return place_of(key, self.name)

    def of(self, root: Path) -> Self:
        """Return a copy whose `[python]` table has absolute paths. Relative paths start at `root`; bare names stay."""
        whole = {
            side: str(root.absolute() / os.path.expanduser(name)) if "/" in name else name  # noqa: PTH111 - an unknown ~user stays as it is
            for side, name in self.python.items()
        }
        return msgspec.structs.replace(self, python=whole)

    def package(self, name: str) -> Package:
        """Return the settings of the package `name`: those of its table, or defaults if there is no table."""
        return Package(name=name, **msgspec.structs.asdict(self.kernels.get(name, PackageTable())))


class Night(Record, frozen=True, kw_only=True):
    """A nightly run's number in its series, and what the run compares (abprof/extras/nightly/)."""

    series: str  # the watched branch, or the name given to the series
    number: int  # 1, 2, ... in the order of runs
    kind: Literal["first", "step", "against"]  # HEAD alone; with the last judged commit; with a fixed release
    asked: str  # hash of the requested matrix and of the workloads
    machine: dict[str, str]  # fingerprint: times of two nights are compared only if equal


class Options(Record, frozen=True):
    """The options of a run: from the command line, else from ABPROF_* variables, else abprof.toml, else defaults.

    Percentages are per cent of time, durations seconds. `under` fills in values of abprof.toml; `resolved` fills in
    values that depend on the device. run.json and bisect.json store the options without `file`.
    """

    specs: tuple[str, ...] = ()  # the refs: base, then targets
    repo: str = "."
    kernels: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    workloads_from: str = ""  # "", base, target, or a folder
    preset: str = ""  # "": from abprof.toml, or `default`
    only: tuple[str, ...] = ()
    set: tuple[str, ...] = ()
    cell: tuple[str, ...] = ()  # ids of the only cells to measure; (): those of the preset
    device: tuple[str, ...] = ()  # (): a CUDA device if there is one, else the CPU
    devices: int | None = 1  # most devices to use at once; None: all GPUs, or all of `device`
    executor: str = ""  # "" (this host's devices), ray, ray://ADDRESS or slurm
    executor_options: dict[str, str] = {}
    python: dict[str, str] = {}  # side id -> interpreter; "" for all sides
    threshold: float = 0.0  # 0 until resolved
    thresholds: tuple[tuple[str, float], ...] | None = None  # (cell pattern, per cent); None: from abprof.toml
    margin: float = 0.0  # 0 until resolved
    precision: float | None = None
    budget: float = 0.0  # seconds of measuring; 0: from abprof.toml, or ten minutes
    quick: bool = False
    timer: Timer | Literal[""] = ""  # "": from abprof.toml, or auto
    judge: Judge = "wall"  # the judged time of workloads that declare no JUDGE; depends on device and timer
    regime: Literal["auto", "burst", "sustained"] = "auto"  # calls with pauses, without, or both at the power limit
    probe: tuple[str, ...] = ()  # names of abprof/evidence/probes.py, run on changed cells after all timing
    lock_clocks: int | None = None  # MHz of the GPU's application clock during the run; None: unchanged
    epochs: int | None = None  # number of epochs of each cell; None: until each cell is decided
    timed: bool = True  # False: nothing is timed or judged (`abprof profile`, `abprof memory`)
    allow_wrong: bool = False
    all: bool = False  # also measure cells whose code is identical on all sides
    fail_on: tuple[str, ...] = ("slower", "broken")
    runs_dir: str = ""
    seed: int = 0
    timeout: float = 120.0  # for one reply of a worker
    build_timeout: float = 1800.0
    env: Literal["", "user", "clean"] = ""
    autotune: Literal["pinned", "each-epoch"] = "pinned"
    check: Literal["inside", "outside"] = "inside"
    contain: Literal["auto", "always", "never"] = "auto"
    untrusted: bool = False  # code under test may be hostile: implies env clean, check outside, contain always
    sandbox: str = ""  # sandbox of the code under test, "bubblewrap 0.8.0"; "": none
    rebuild: bool = False
    dry_run: bool = False
    no_wait: bool = False
    no_peers: bool = False
    peer: tuple[str, ...] = ()  # names of peers to measure, or "all"; (): the workloads' DEFAULT_PEERS
    command: tuple[str, ...] = ()  # argv of a command that prints its own times, instead of workloads
    arguments: tuple[str, ...] = ()  # the command line
    night: Night | None = None  # of a nightly run; run.json stores it in Run.night instead
    file: File | None = None  # abprof.toml; not in run.json
    filled: tuple[str, ...] = ()  # options whose value comes from [defaults]

    def under(self, file: File) -> Options:
        """Return the options. Options that were not given take their values from abprof.toml (`file`)."""
        default, table = file.defaults, file.executor.get(self.executor.partition(":")[0], {})
        words = {name: str(v).lower() if isinstance(v, bool) else f"{v}" for name, v in table.items()}
        return msgspec.structs.replace(
            self,
            file=file,
            preset=self.preset or default.preset or "default",
            budget=self.budget or seconds(default.budget or DEFAULT_BUDGET, "budget"),
            timer=self.timer or default.timer,
            executor_options=words | self.executor_options,
            filled=(*self.filled, *(n for n in ("preset", "timer") if not getattr(self, n) and getattr(default, n))),
        )

    def resolved(self, kind: str, judge: Judge) -> Options:
        """Return the options as run.json stores them, with defaults for the `kind` of device (cpu, cuda, simulated)."""
        threshold, margin = self.percents(kind)
        rules = (self.file or File()).threshold
        return msgspec.structs.replace(
            self,
            threshold=threshold,
            margin=margin,
            thresholds=tuple((r.cells, r.percent) for r in rules) if self.thresholds is None else self.thresholds,
            timer=self.by_timer,
            judge=judge,
            night=None,
            file=None,
        )

    def asked_by(self, option: str) -> str:
        """Return where an option's value comes from, for messages: the option itself, or a key of abprof.toml."""
        name = option.removeprefix("--")
        return self.file.at(f"defaults.{name}") if self.file and name in self.filled else option

    @property
    def by_timer(self) -> Timer:
        """Return the value of --timer, or `auto`. It is always `auto` for a command that prints its own times."""
        return "auto" if self.command else self.timer or "auto"

    def require_timer(self, kind: str) -> None:
        """Raise AbprofError if --timer cannot time a device of `kind`."""
        if kind == "cpu" and self.by_timer not in {"auto", "cpu"}:
            what = f"{self.by_timer} times a GPU, and this run is of a CPU"
            raise AbprofError(what, where=self.asked_by("--timer"), advice="choose cpu or auto")

    def threshold_of(self, cell: str) -> float:
        """Return a cell's threshold in per cent: that of the first matching `[[threshold]]` entry, else the run's."""
        return next((pct for pattern, pct in self.thresholds or () if fnmatchcase(cell, pattern)), self.threshold)

    def percents(self, kind: str) -> tuple[float, float]:
        """Return (threshold, margin) in per cent. Raises AbprofError if --margin is above the threshold."""
        noisy, default = kind == "cpu", (self.file or File()).defaults
        threshold = self.threshold or default.threshold or (CPU_THRESHOLD if noisy else GPU_THRESHOLD)
        if self.margin > threshold:
            what = f"{self.margin:g} % is wider than the threshold of {threshold:g} %"
            raise AbprofError(what, where="--margin", advice="a narrower margin, or a wider --threshold")
        return threshold, min(self.margin or default.margin or (CPU_MARGIN if noisy else GPU_MARGIN), threshold)


def upgraded(run: dict[str, Any]) -> dict[str, Any]:
    """Convert a decoded run.json of an older abprof to the present schema, and drop fields that no longer exist."""
    for name in ("observations", "comparisons", "within", "controls"):
        for row in run.get(name, ()):
            for gone in ("uncaptured", "graph_pct", "graph_low_pct", "graph_high_pct"):
                row.pop(gone, None)
    if "settings" in run:
        settings, setup = {"budget": 600.0, **run.pop("settings")}, {"all": True, **run.pop("setup", {})}
        settings |= {"probe": settings.pop("probes", []), "arguments": run.pop("arguments")}
        settings["sustained"] = settings.get("sustained") == "always"
        settings.pop("protocol", None)  # a second timing protocol, which no verdict used
        specs = [side["spec"] for side in run.get("sides", ())]
        run = {**run, "schema": 2, "options": {"specs": specs, **settings, **setup}}
    options = run.get("options", {})
    options.pop("keep_worktrees", None)
    if "sustained" in options:
        options["regime"] = "auto" if options.pop("sustained") else "burst"
    options["sandbox"] = options.pop("wall", options.get("sandbox", ""))
    return run


def judged_by_base(*, untrusted: bool) -> str:
    """Return why workloads and abprof.toml come from base's commit: the working tree may be a pull request's, which must
    not change its judge. "": they come from the working tree. `untrusted`: whether --untrusted is given."""
    return "CI is set" if os.environ.get("CI") else "--untrusted is given" if untrusted else ""


def worker_argv() -> tuple[str, ...]:
    """Return the command of a simulated worker, which tests set in $ABPROF_WORKER as a JSON list; () if unset."""
    return msgspec.json.decode(os.environ.get("ABPROF_WORKER") or "[]", type=tuple[str, ...])
