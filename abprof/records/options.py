"""What a run is asked to do. Command line over ABPROF_* over abprof.toml over defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

import msgspec

from abprof.records import UNREADABLE, Judge, Night, Record, Settings, Timer
from abprof.records.errors import AbprofError
from abprof.records.quantities import seconds
from abprof.system.config_file import File


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
    devices: int | None = (
        1  # that the run may be spread over, at most; None: all of a host's GPUs, or all that are named
    )
    executor: str = ""  # "": this host's own devices; ray, ray://ADDRESS, slurm
    executor_options: dict[str, str] = {}
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
    timer: Timer | Literal[""] = ""  # "": the file's, or auto
    sustained: bool = False
    probe: tuple[
        str, ...
    ] = ()  # names of abprof/evidence/probes/: what looks at the cells that changed, after all timing
    against: tuple[str, ...] = ()  # protocols of abprof/measure/sequential.py that time the same cells as well
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
    filled: frozenset[str] = frozenset()  # which of [defaults] stand here, for want of an option

    def under(self, file: File) -> Config:
        """The same with a file, whose defaults stand where nothing else was asked for."""
        default = file.defaults
        budget = self.budget or seconds(default.budget or "10m", "budget")
        preset, timer = self.preset or default.preset or "default", self.timer or default.timer
        options = {**file.options_of(self.executor), **self.executor_options}
        filled = {name for name in ("preset", "timer") if not getattr(self, name) and getattr(default, name)}
        return msgspec.structs.replace(
            self,
            file=file,
            preset=preset,
            budget=budget,
            timer=timer,
            executor_options=options,
            filled=self.filled | filled,
        )

    def asked_by(self, option: str) -> str:
        """Who asked for the value of this option, for an error's `where`: the option, or the line of abprof.toml."""
        name = option.removeprefix("--")
        return self.file.at(f"defaults.{name}") if self.file and name in self.filled else option

    @property
    def by_timer(self) -> Timer:
        """The timer that was asked for; a command times itself, whatever abprof.toml says."""
        return "auto" if self.command else self.timer or "auto"

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
            timer=self.by_timer,
            sustained="always" if self.sustained else "never",
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


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)


def worker_argv(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """$ABPROF_WORKER, a JSON list: the worker's argv, for a simulated worker. Empty: the real one."""
    text = environ.get("ABPROF_WORKER")
    if not text:
        return ()
    try:
        return msgspec.json.decode(text, type=tuple[str, ...])
    except UNREADABLE as error:
        raise AbprofError(f"ABPROF_WORKER is not a JSON list of strings: {error}") from error
