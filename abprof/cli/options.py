"""Declare the options of all subcommands, and build Options from their values (`options_from`).

The decorator `@takes("device", flag("--check", "..."))` adds options to a subcommand: shared options by name, and its
own. The subcommand receives the values as keyword arguments; an option not given is None, () or False. A shared option
with a value is also read from the environment: ABPROF_THRESHOLD for --threshold.
"""

from __future__ import annotations

import functools
import inspect
import keyword
import os
import re
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abprof.cli.app import variable_of
from abprof.records import CellHistory, Run, join_spec, quantities
from abprof.records.errors import AbprofError
from abprof.records.filters import nearest
from abprof.records.names import id_parts
from abprof.records.options import (
    CPU_MARGIN,
    CPU_THRESHOLD,
    DEFAULT_BUDGET,
    GPU_MARGIN,
    GPU_THRESHOLD,
    Options,
    judged_by_base,
)  # fmt: skip

if TYPE_CHECKING:
    from abprof.session import Past
    from abprof.system.console import View

Read = Callable[[Any, str], Any]  # (text or texts of an option, name of the option) -> value; raises AbprofError
_REFS = "Refs, `.`, BASE...TARGET (merge base), releases (dist:NAME==VERSION); after -- a command that times itself."
Refs = Annotated[list[str], typer.Argument(metavar="BASE [TARGET]... [-- COMMAND]", help=_REFS)]
RunOrRefs = Annotated[list[str], typer.Argument(metavar="RUN | BASE [TARGET]...", help="A run folder, or refs.")]


@dataclass(frozen=True)
class Option:
    """An option of a subcommand. `kind`: bool for a flag, str, or list[str] if it may be given several times."""

    option: str
    kind: Any
    metavar: str | None
    help: str
    read: Read | None = None
    default: Any = None  # `...`: the option is required
    spellings: tuple[str, ...] = ()
    panel: str | None = None  # heading in the help; only options with a heading are also read from the environment

    @property
    def name(self) -> str:
        """Return the name of the keyword argument that passes this option's value to the subcommand."""
        name = self.option.removeprefix("--").replace("-", "_")
        return f"{name}_" if keyword.iskeyword(name) else name

    def parameter(self, default: Any) -> inspect.Parameter:
        """Return the parameter that declares this option to Typer. `default`: whether a flag is on by default."""
        made = typer.Option(
            *(self.spellings or (self.option,)),
            help=self.help,
            metavar=self.metavar or "",
            rich_help_panel=self.panel,
            envvar=variable_of(self.option) if self.panel and self.metavar else None,
            show_default=False,
            show_envvar=False,
        )
        first = default if self.kind is bool or default is ... else [] if self.kind == list[str] else None
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(self.name, kind, default=first, annotation=Annotated[self.kind, made])

    def value(self, given: Any) -> Any:
        """Convert `given`, Typer's value, for the subcommand. None means not given. Raises AbprofError if invalid."""
        if given is None:
            return self.default
        if self.read and given != []:
            return self.read(given, self.option)
        return tuple(given) if isinstance(given, list) else given


def flag(option: str, help: str, *spellings: str, default: bool = False) -> Option:
    """Declare an option without a value."""
    return Option(option, bool, None, help, None, default, spellings)


def text(option: str, metavar: str, help: str, read: Read | None = None, default: Any = None) -> Option:
    """Declare an option with one value; `read` converts the text to the value."""
    return Option(option, str, metavar, help, read, default)


def number(option: str, metavar: str, help: str, least: int, default: int | None = None) -> Option:
    """Declare an option whose value is a whole number, at least `least`."""

    def read(text: str, option: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,19}", text) or not least <= int(text) < 2**63:  # JSON readers have 64 bits
            bound = f"of {least} or more" if least >= 0 else "of 64 bits"
            raise AbprofError(f"{text!r} is not a whole number {bound}", where=option)
        return int(text)

    return Option(option, str, metavar, help, read, default)


def many(option: str, metavar: str, help: str, read: Read | None = None) -> Option:
    """Declare an option that may be given several times; its value is a tuple."""
    return Option(option, list[str], metavar, help, read)


def worded(option: str, help: str) -> Option:
    """Return a shared option with the help text of a subcommand that has another default."""
    return replace(_SHARED[option], help=help)


def takes(*options: str | Option, **defaults: bool) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return a decorator that adds `options` to a subcommand. `defaults`: name of a flag -> whether the flag is on by
    default."""

    def decorate(verb: Callable[..., int]) -> Callable[..., int]:
        own = inspect.signature(verb, eval_str=True).parameters.values()
        kept = [p.replace(kind=p.KEYWORD_ONLY) for p in own if p.kind is not p.VAR_KEYWORD]
        added = [_SHARED[option] if isinstance(option, str) else option for option in options]

        @functools.wraps(verb)
        def called(**values: Any) -> int:
            return verb(**values | {option.name: option.value(values[option.name]) for option in added})

        parameters = [*kept, *(option.parameter(defaults.get(option.name, option.default)) for option in added)]
        called.__doc__ = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(verb) or "")  # Typer would keep the line breaks
        vars(called).update(__signature__=inspect.Signature(parameters), __annotations__={})
        return called

    return decorate


# ---------------------------------------------------------------- values


def one_of(*known: str) -> Read:
    """Return a `read` function for an option that accepts only the `known` texts."""

    def read(text: str, option: str) -> str:
        if text not in known:
            raise AbprofError(f"{text!r} is not one of {', '.join(known)}", where=option)
        return text

    return read


def _devices(text: str, option: str) -> int:
    if text != "all" and not (text.isdecimal() and int(text)):
        raise AbprofError(f"{text!r} is neither a number of devices nor all", where=option)
    return 0 if text == "all" else int(text)


def _executor(text: str, option: str) -> str:
    if not re.fullmatch(r"local|slurm|ray(://[^/\s]+)?", text):
        raise AbprofError(f"unknown executor {text!r}", where=option, advice="use local, ray, ray://HOST:PORT or slurm")
    return "" if text == "local" else text


def _fail_on(text: str, option: str) -> tuple[str, ...]:
    chosen = tuple(one_of("slower", "broken", "unclear", "never")(word, option) for word in text.split(","))
    if "never" in chosen and len(chosen) > 1:
        raise AbprofError(f"{text!r}: 'never' excludes other values", where=option, advice="give never alone")
    return chosen


def _names(texts: Sequence[str], option: str) -> tuple[str, ...]:
    """Return the names in `texts`. A text is one name, or several names separated by commas."""
    if not all(text.strip(",") for text in texts):
        raise AbprofError("a name is empty", where=option)
    return tuple(name for text in texts for name in text.split(",") if name)


def _probes(texts: Sequence[str], option: str) -> tuple[str, ...]:
    known = one_of("torch", "ncu", "perf")
    return tuple(dict.fromkeys(known(name, option) for name in _names(texts, option)))


def _pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    for text in texts:
        if not all(text.partition("=")[:2]):
            raise AbprofError(f"{text!r} is not KEY=VALUE", where=option)
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def _pythons(texts: Sequence[str], option: str) -> dict[str, str]:
    """Return side -> path of its interpreter, from texts [SIDE=]PATH. The side "" stands for all sides."""
    found = {}
    for text in texts:
        side, equals, path = text.partition("=")
        if not equals or "/" in side:
            side, path = "", text
        if not path or text.startswith("="):
            raise AbprofError(f"{text!r} is not [SIDE=]PATH", where=option)
        found[side] = path
    return found


# ---------------------------------------------------------------- the shared options

_BEYOND = f"Larger changes are slower or faster; default: {GPU_THRESHOLD:g} % on a GPU, {CPU_THRESHOLD:g} % on a CPU."
_WITHIN = f"Changes of time within PCT are `same`; default: {GPU_MARGIN:g} % on a GPU, {CPU_MARGIN:g} % on a CPU."
_FOR = f"Longest time for measuring, e.g. 90s, 1.5h; default: abprof.toml's, or {DEFAULT_BUDGET}."
_OUTSIDE = "Check outputs inside each side's process (default), or outside: also in a process without any side's code."
_FAILS = "Verdicts that fail a run: slower,broken (exit code 1; default), unclear (exit code 4); never: exit code 0."
_REGIME = "Judge calls with pauses (burst) or without; auto (default): burst; cells at the power limit show both."
_PROBE = "After timing, profile changed cells: with torch.profiler, Nsight Compute or perf."
_SANDBOX = "Run code under test in bubblewrap; auto (default): with --env clean, if bubblewrap starts."
_HOSTILE = "Treat code under test as hostile: sandbox, clean environment, new inputs for each call, outputs checked by another process."
_VARIABLES = "Environment of the workers: yours, or a short list of variables; default: user, in CI clean."
_AUTOTUNE = "When Triton's autotuner runs: once, while building (pinned, default), or in each epoch."
_TOOLS = "Packages that a side has of its own (by uv); give it once for all refs or once per ref. One ref: a side per --with."
_TIMERS = ("auto", "events", "graph", "cupti", "cpu")
_TIMED = f"{', '.join(_TIMERS)}: how to time calls; auto (default): CUDA events on a GPU, the clock on a CPU."

_PANELS = {
    "Matrix": (
        many("--kernels", "NAME", "Only these kernel packages.", _names),
        many("--workloads", "NAME|PATH", "Only these workloads, or the workloads of a file or folder."),
        text("--workloads-from", "base|target|PATH", "Side or folder to take workloads from; default: working tree."),
        text("--preset", "NAME", "Matrix of cells: smoke, default, full, ..."),
        many("--only", "AXIS=VALUE|GLOB", "Only these cells; of a finished run also by verdict: slower,unclear."),
        many("--set", "AXIS=V1,V2", "Replace the values of an axis."),
        many("--cell", "ID", "Exactly these cells, even if the preset lacks them."),
        flag("--peers", "Also measure peers (library functions); default: yes.", "--peers/--no-peers", default=True),
        many("--peer", "NAME|all", "Only these peers, not a workload's DEFAULT_PEERS; all: every peer.", _names),
        flag("--all", "Also measure and show cells whose code is unchanged."),
    ),
    "Measuring": (
        text("--threshold", "PCT", _BEYOND, quantities.percent),
        text("--margin", "PCT", _WITHIN, quantities.percent),
        text("--precision", "PCT", "Measure until each interval is within +/- PCT.", quantities.percent),
        text("--budget", "TIME", _FOR, quantities.seconds),
        number("--epochs", "N", "Measure exactly N epochs of every cell; default: until its verdict is clear.", 1),
        flag("--quick", "Measure one epoch of every cell: a first look, without verdicts."),
        text("--timer", "NAME", _TIMED, one_of(*_TIMERS)),
        number("--lock-clocks", "MHZ", "Hold the GPU's graphics clock during the run; needs the permission to.", 1),
        text("--regime", "auto|burst|sustained", _REGIME, one_of("auto", "burst", "sustained")),
        many("--probe", "torch|ncu|perf", _PROBE, _probes),
        flag("--allow-wrong", "Also time cells with wrong outputs; reports carry a warning."),
        flag("--watch", "Measure one epoch after every save of a file, until ^C."),
        number("--seed", "N", "Seed of inputs and of the order of turns; default: random (recorded).", -(2**63)),
        text("--timeout", "TIME", "Longest wait for a worker's answer; default: 120s.", quantities.seconds),
    ),
    "Place": (
        text("--repo", "PATH", "Git repository; default: the current folder's.", default="."),
        many("--device", "NAME", "Measure on cpu, cuda, cuda:N or a GPU's UUID; default: cuda if there is a GPU."),
        text("--devices", "all|N", "Use all of the host's GPUs (default), or at most N.", _devices),
        text("--executor", "NAME", "Where to measure: local (default), ray, ray://HOST:PORT or slurm.", _executor),
        many("--executor-option", "KEY=VALUE", "Set an option of the cluster's job.", _pairs),
        many("--python", "[SIDE=]PATH", "Interpreter of the workers; default: abprof's own.", _pythons),
        many("--with", "REQUIREMENT,...", _TOOLS),
        text("--env", "user|clean", _VARIABLES, one_of("user", "clean")),
        text("--autotune", "pinned|each-epoch", _AUTOTUNE, one_of("pinned", "each-epoch")),
        text("--check", "inside|outside", _OUTSIDE, one_of("inside", "outside")),
        text("--contain", "auto|always|never", _SANDBOX, one_of("auto", "always", "never")),
        flag("--untrusted", _HOSTILE),
        text("--build-timeout", "TIME", "Longest time for a build; default: 30m.", quantities.seconds),
        flag("--rebuild", "Build again, even if the build is cached."),
        flag("--no-wait", "Fail if the device is busy, instead of waiting."),
    ),
    "Output": (
        text("--runs-dir", "PATH", "Parent of run folders; default: runs/ of the repository."),
        text("--history", "PATH", "Folder of nightly runs, for the rows' history; default: the run's own."),
        text("--fail-on", "VERDICT,...|never", _FAILS, _fail_on),
        flag("--dry-run", "Show what would be done; change nothing."),
        flag("--json", "Print JSON."),
        flag("--quiet", "Print only warnings and the result.", "--quiet", "-q"),
        flag("--verbose", "Print all build output.", "--verbose", "-v"),
    ),
}
_SHARED = {one.name: replace(one, panel=panel) for panel, options in _PANELS.items() for one in options}
_JSON = "Print the run as JSON; summary: verdict, interval and cause of each cell, 4 KB for 20 cells."
RESULT_JSON = text("--json", "[=summary]", _JSON, one_of("full", "summary"))  # in the place of the flag

MATRIX = ("kernels", "workloads", "workloads_from", "preset", "only", "set", "cell")
PEERS = ("peers", "peer")
WORKERS = ("device", "python", "with_", "seed", "timeout", "build_timeout", "env", "rebuild", "no_wait")
VIEW = ("quiet", "verbose")
RUN = (
    *("repo", *MATRIX, *PEERS, "all", "threshold", "margin", "precision", "budget", "epochs", "quick", "timer"),
    *("regime", "lock_clocks", "probe", "allow_wrong", *WORKERS, "devices", "executor", "executor_option"),
    *("autotune", "check", "contain", "untrusted", "runs_dir", "history", "fail_on", *VIEW),
)
COMPARE = (
    *("threshold", "margin", "precision", "budget", "epochs", "quick", "timer", "allow_wrong", "device", "seed"),
    *("timeout", "no_wait", "fail_on", *VIEW),
)


# ---------------------------------------------------------------- Options


Given = str | float | bool | Sequence[str] | Mapping[str, str] | None  # an option's value, from Python


def values_of(names: Sequence[str], given: Mapping[str, Given], where: str) -> dict[str, Any]:
    """Return a subcommand's values for the shared options `names`, `given` from Python. Raises AbprofError."""
    if unknown := [name for name in given if name not in names]:
        raise AbprofError(f"no option {unknown[0]!r}", where=where, advice=nearest(unknown[0], names))
    values = {}
    for name in names:
        option, value = _SHARED[name], given.get(name)
        several, text = option.kind == list[str], os.environ.get(variable_of(option.option))
        if value is None:
            value = (text.split() if several else text) if text and option.metavar else option.default
        elif isinstance(value, Mapping):
            value = [f"{key}={text}" for key, text in value.items()]
        if several:
            value = list(map(str, [value] if isinstance(value, str | float | int) else value or ()))
        values[name] = option.value(value if value is None or several or option.kind is bool else str(value))
    return values


_UNTRUSTED = {"env": "clean", "check": "outside", "contain": "always"}  # what --untrusted implies


def options_from(refs: Sequence[str], values: Mapping[str, Any], **more: Any) -> Options:
    """Return the Options of a run of `refs`, from a subcommand's `values`. Raises AbprofError for an invalid option."""
    value = {**dict.fromkeys(_SHARED), "repo": ".", "peers": True, **values}
    if not os.path.exists(value["repo"]):  # noqa: PTH110 - pathlib raises on names that no file can have
        raise AbprofError("no such folder", where=f"--repo {value['repo']}")
    one = "leave one of them out"
    for clash, option, what, advice in (
        (value["quick"] and value["epochs"], "--epochs", "--quick measures exactly one epoch", one),
        (value["cell"] and value["set"], "--set", "a cell's id sets its values", "leave one of --cell, --set out"),
        (value["peer"] and not value["peers"], "--peer", "--no-peers leaves out all peers", "give one of the two"),
        (value["executor_option"] and not value["executor"], "--executor-option",
         "has no effect without --executor", "add --executor ray or slurm"),
        *((value["untrusted"] and value[name] not in {None, needed}, f"--{name} {value[name]}",
           f"--untrusted needs --{name} {needed}", "leave one of the two out") for name, needed in _UNTRUSTED.items()),
        (value["untrusted"] and value["allow_wrong"], "--allow-wrong", "--untrusted times no wrong outputs", one),
        (value["untrusted"] and value["timer"] in {"graph", "cupti"}, f"--timer {value['timer']}",
         "--untrusted changes the inputs before each call, and checks what timed calls returned", one),
        (value["untrusted"] and value["regime"] == "sustained", "--regime sustained",
         "--untrusted changes the inputs before each call, and sustained calls have no pauses", one),
    ):  # fmt: skip
        if clash:
            raise AbprofError(what, where=option, advice=advice)
    value |= _UNTRUSTED if value["untrusted"] else {}
    by_base = judged_by_base(untrusted=bool(value["untrusted"]))
    names, source = _workloads(value["workloads"] or (), value["workloads_from"] or "", by_base)
    if value["cell"]:
        names = names or tuple(dict.fromkeys(id_parts(id)[0] for id in value["cell"]))
    value |= {"workloads": names, "workloads_from": source}
    value["seed"] = secrets.randbits(31) if value["seed"] is None else value["seed"]  # a new order in every run
    value |= {"specs": _sides(tuple(refs), value["with_"] or ())}
    value |= {"executor_options": value["executor_option"], "no_peers": not value["peers"]}
    chosen = {name: value[name] for name in Options.__struct_fields__ if value.get(name)}
    return Options(**{**chosen, "arguments": tuple(sys.argv[1:]), **more})


def _sides(refs: tuple[str, ...], tools: tuple[str, ...]) -> tuple[str, ...]:
    """Return a spec for each side. One ref is a side for each of `tools`, the values of --with."""
    if not (refs and tools):
        return refs
    if len(refs) > 1 and len(tools) not in {1, len(refs)}:
        advice = "give it once, or once for each ref"
        raise AbprofError(f"given {len(tools)} times for {len(refs)} refs", where="--with", advice=advice)
    count = max(len(refs), len(tools))
    pairs = zip(refs * (count // len(refs)), tools * (count // len(tools)), strict=True)
    return tuple(join_spec(ref, (tool,)) for ref, tool in pairs)


def past_of(values: Mapping[str, Any]) -> Past:
    """Return the function that reads the nights of a run's cells, from --history or the folder of the run.

    Raises AbprofError if --history is not a folder.
    """
    folder = Path(values["history"]).absolute() if values.get("history") else None
    if folder and not folder.is_dir():
        raise AbprofError("no such folder", where=f"--history {values['history']}")

    def past(run: Run, runs_dir: Path) -> tuple[CellHistory, ...]:
        from abprof.extras.nightly import cell_history

        return cell_history(folder or runs_dir, run)

    return past


def view_of(values: Mapping[str, Any]) -> View:
    """Return a view that prints as much as --quiet and --verbose ask for."""
    from abprof.system.console import View

    return View(quiet=values["quiet"], verbose=values.get("verbose", False))


def _workloads(values: Sequence[str], source: str, by_base: str) -> tuple[tuple[str, ...], str]:
    """Split `values` of --workloads into names and a path, and return both; without a path return `source` instead.
    `by_base`: why workloads come from base."""
    places = [value for value in values if "/" in value or value in {".", ".."} or value.endswith(".py")]
    names = _names([value for value in values if value not in places], "--workloads")
    if not places:
        return names, source
    if by_base:  # the value may be a pull request's, and so may the file
        advice = "name workloads, which are taken from base; --workloads-from names another folder"
        raise AbprofError(f"a path, and {by_base}", where=f"--workloads {places[0]}", advice=advice)
    place = Path(places[0]).expanduser()
    if len(places) > 1 or source:
        raise AbprofError("more than one source of workloads", where="--workloads", advice="name one file or folder")
    if not (place.is_dir() or (place.is_file() and place.suffix == ".py")):
        raise AbprofError("no such folder or Python file", where=f"--workloads {place}")
    return names, str(place.absolute())
