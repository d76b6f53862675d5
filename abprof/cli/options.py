"""Every option that more than one verb takes, declared once, and the step from their values to Options.

A verb lists what it takes: `@takes(*MATRIX, "device", ...)` adds these parameters to its own, and passes their values as
keywords. Options with a value are also read from the environment: ABPROF_THRESHOLD for --threshold.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from abprof.records.errors import AbprofError
from abprof.records.options import (
    CPU_MARGIN,
    CPU_THRESHOLD,
    DEFAULT_BUDGET,
    GPU_MARGIN,
    GPU_THRESHOLD,
    Options,
)
from abprof.records.quantities import percent, seconds

_PROBES = ("torch", "proton", "ncu", "perf")
_FAIL_ON = ("slower", "broken", "unclear", "never")
_DECLARED: dict[str, inspect.Parameter] = {}


def _declare(
    panel: str, option: str, kind: Any, default: Any, help: str, *, name: str = "", short: str = "", **more: Any
) -> None:
    """Declare `option`, the parameter `name` of verbs (by default the option's own name)."""
    name = name or option.removeprefix("--").replace("-", "_")
    if kind is not bool:
        more |= {"envvar": f"ABPROF_{option.removeprefix('--').replace('-', '_').upper()}", "show_envvar": False}
    spellings = [f"--{name}/--no-{name}" if kind is bool and default else option, *([short] if short else [])]
    made = typer.Option(*spellings, help=help, rich_help_panel=panel, show_default=False, **more)
    _DECLARED[name] = inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, made]
    )


def takes(*names: str, **defaults: Any) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Add declared options to a verb, after its own parameters; `defaults` are the verb's own defaults of some."""

    def decorate(verb: Callable[..., int]) -> Callable[..., int]:
        own = inspect.signature(verb, eval_str=True).parameters.values()
        shared = [_DECLARED[name] for name in names]
        shared = [p.replace(default=defaults.get(p.name, p.default)) for p in shared]
        kept = [p.replace(kind=p.KEYWORD_ONLY) for p in own if p.kind is not p.VAR_KEYWORD]

        @functools.wraps(verb)
        def called(**values: Any) -> int:
            return verb(**values)

        vars(called).update(__signature__=inspect.Signature([*kept, *shared]), __annotations__={})
        return called

    return decorate


# ---------------------------------------------------------------- values


def _parsed(read: Callable[[str], Any]) -> Callable[[Any], Any]:
    """A parser for Typer: text is read, a default is taken as it is."""
    return lambda value: read(value) if isinstance(value, str) else value


def _percent(option: str) -> Callable[[Any], Any]:
    return _parsed(lambda text: percent(text, option) if text else 0.0)


def _seconds(option: str) -> Callable[[Any], Any]:
    return _parsed(lambda text: seconds(text, option) if text else 0.0)


def _devices(text: str) -> int | None:
    if text in ("", "all"):
        return 0 if text == "" else None
    if not (text.isdecimal() and int(text)):
        raise AbprofError(f"{text!r} is neither all nor a number of devices", where="--devices")
    return int(text)


def _executor(text: str) -> str:
    if text in ("", "local"):
        return ""
    if not re.fullmatch(r"slurm|ray(://[^/\s]+)?", text):
        raise AbprofError(f"no executor {text!r}", where="--executor", advice="local, ray, ray://HOST:PORT or slurm")
    return text


def _seed(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise AbprofError(f"{text!r} is not a whole number", where="--seed") from None
    if not -(2**63) <= number < 2**63:
        raise AbprofError(f"{number} has more than 64 bits", where="--seed", advice="torch takes no larger seed")
    return number


def _fail_on(text: str) -> tuple[str, ...]:
    chosen = tuple(part for part in text.split(",") if part)
    for word in chosen or ("",):
        if word not in _FAIL_ON:
            raise AbprofError(f"{word!r} is not one of {', '.join(_FAIL_ON)}", where="--fail-on")
    if "never" in chosen and len(chosen) > 1:
        raise AbprofError(f"{text!r}: never goes with nothing else", where="--fail-on")
    return chosen


def _names(values: Sequence[str], option: str) -> tuple[str, ...]:
    """Names given one by one or parted by commas."""
    found = [[part for part in value.split(",") if part] for value in values]
    if not all(found):
        raise AbprofError("an empty text is no name", where=option)
    return tuple(name for names in found for name in names)


def _pairs(words: Sequence[str], option: str) -> dict[str, str]:
    for word in words:
        if not all(word.partition("=")[:2]):
            raise AbprofError(f"{word!r} is not KEY=VALUE", where=option)
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _pythons(values: Sequence[str]) -> dict[str, str]:
    """`PATH` for all sides, `target=PATH` for one. A path may hold a `=`, a side's name no `/`."""
    found = {}
    for value in values:
        side, equals, path = value.partition("=")
        if not equals or "/" in side:
            side, path = "", value
        if not path or (equals and value.startswith("=")):
            raise AbprofError(f"{value!r} is not [SIDE=]PATH", where="--python")
        found[side] = path
    return found


# ---------------------------------------------------------------- declarations

_MATRIX, _MEASURING, _OUTPUT, _PLACE = "Matrix", "Measuring", "Output", "Place"
Many = list[str]
_BUDGET = f"Time for measuring: {DEFAULT_BUDGET}, unless abprof.toml says another, e.g. 90s, 1.5h."

_declare(_MATRIX, "--kernels", Many, [], "Only these kernel packages.", metavar="NAME")
_declare(_MATRIX, "--workloads", Many, [], "Only these workloads; or their file or folder.", metavar="NAME|PATH")
_declare(_MATRIX, "--workloads-from", str, "", "Source of the workloads.", metavar="base|target|PATH")
_declare(_MATRIX, "--preset", str, "", "Matrix: smoke, default, full, ...", metavar="NAME")
_declare(_MATRIX, "--only", Many, [], "Only these cells; of a run also by verdict.", metavar="AXIS=VALUE|GLOB")
_declare(_MATRIX, "--set", Many, [], "Other values for an axis.", metavar="AXIS=V1,V2", name="set_")
_declare(_MATRIX, "--cell", Many, [], "Exactly these cells, whatever the preset.", metavar="ID")
_declare(_MATRIX, "--peers", bool, True, "Measure library peers too.")
_declare(_MATRIX, "--peer", Many, [], "Only these peers, slow ones too.", metavar="NAME|all")
_declare(_MATRIX, "--all", bool, False, "Measure and show unchanged cells too.", name="all_")

_declare(
    _MEASURING,
    "--threshold",
    float,
    0.0,
    f"A change counts beyond this: {GPU_THRESHOLD:g} % on a GPU, {CPU_THRESHOLD:g} % on a CPU.",
    metavar="PCT",
    parser=_percent("--threshold"),
)
_declare(
    _MEASURING,
    "--margin",
    float,
    0.0,
    f"`same` means inside this: {GPU_MARGIN:g} % on a GPU, {CPU_MARGIN:g} % on a CPU.",
    metavar="PCT",
    parser=_percent("--margin"),
)
_declare(
    _MEASURING,
    "--precision",
    float,
    0.0,
    "Go on until intervals are this narrow.",
    metavar="PCT",
    parser=_percent("--precision"),
)
_declare(_MEASURING, "--budget", float, 0.0, _BUDGET, metavar="TIME", parser=_seconds("--budget"))
_declare(_MEASURING, "--epochs", int, None, "Exactly so many epochs of every cell.", metavar="N", min=1)
_declare(_MEASURING, "--quick", bool, False, "One epoch: a screen, not a verdict.")
_declare(
    _MEASURING,
    "--timer",
    Literal["auto", "events", "graph", "cupti", "cpu"],
    None,
    "Timer of all cells; auto: by rules.",
)
_declare(_MEASURING, "--sustained", bool, False, "Then time cells without pauses too, at the GPU's power limit.")
_declare(
    _MEASURING,
    "--probe",
    Many,
    [],
    "Profile the changed cells after timing: traces, Triton's profile, a GPU's counters, samples of a CPU.",
    metavar="|".join(_PROBES),
)
_declare(_MEASURING, "--allow-wrong", bool, False, "Time wrong answers too, watermarked.")
_declare(_MEASURING, "--watch", bool, False, "Again at every save, one epoch each, until ^C.")
_declare(_MEASURING, "--seed", int, 0, "Seed of inputs and orders.", metavar="N", parser=_parsed(_seed))
_declare(
    _MEASURING,
    "--timeout",
    float,
    120.0,
    "One answer of a worker: 120s.",
    metavar="TIME",
    parser=_seconds("--timeout"),
)

_declare(_PLACE, "--repo", str, ".", "The git repository.", metavar="PATH")
_declare(_PLACE, "--device", Many, [], "cpu, cuda, cuda:N or a GPU's UUID.", metavar="NAME")
_declare(
    _PLACE, "--devices", int, 0, "Spread over all of the host's GPUs (default), or at most N.", metavar="all|N",
    parser=_parsed(_devices),
)  # fmt: skip
_declare(
    _PLACE, "--executor", str, "", "Where cells are measured: a cluster's devices.", metavar="local|ray[://ADDRESS]|slurm",
    parser=_parsed(_executor),
)  # fmt: skip
_declare(_PLACE, "--executor-option", Many, [], "An option of the cluster's job.", metavar="KEY=VALUE")
_declare(_PLACE, "--python", Many, [], "The workers' interpreter.", metavar="[SIDE=]PATH")
_declare(_PLACE, "--env", Literal["user", "clean"], None, "The workers' environment.")
_declare(_PLACE, "--autotune", Literal["pinned", "each-epoch"], "pinned", "Triton's autotuning.")
_declare(
    _PLACE,
    "--check",
    Literal["inside", "outside"],
    "inside",
    "Check outputs in each side's process; outside: also in a process without it, for untrusted code.",
)
_declare(
    _PLACE,
    "--contain",
    Literal["auto", "always", "never"],
    "auto",
    "Start code under test in bubblewrap; auto: with --env clean, where it starts.",
)
_declare(
    _PLACE, "--build-timeout", float, 1800.0, "One build: 30m.", metavar="TIME", parser=_seconds("--build-timeout")
)
_declare(_PLACE, "--rebuild", bool, False, "Build even what is cached.")
_declare(_PLACE, "--keep-worktrees", bool, False, "Leave the worktrees for debugging.")
_declare(_PLACE, "--no-wait", bool, False, "Do not wait for a busy device.")

_declare(_OUTPUT, "--runs-dir", str, "", "Where run folders are made; runs/ of the repository.", metavar="PATH")
_declare(
    _OUTPUT,
    "--fail-on",
    str,
    ("slower", "broken"),
    "slower,broken (default), unclear, never.",
    metavar="WHAT",
    parser=_parsed(_fail_on),
)
_declare(_OUTPUT, "--dry-run", bool, False, "Show the plan and an estimate; measure nothing.")
_declare(_OUTPUT, "--json", bool, False, "Print JSON.")
_declare(_OUTPUT, "--quiet", bool, False, "Only warnings and the result.", short="-q")
_declare(_OUTPUT, "--verbose", bool, False, "All of the builds' output.", short="-v")

MATRIX = ("kernels", "workloads", "workloads_from", "preset", "only", "set_", "cell")
PEERS = ("peers", "peer")
WORKERS = ("device", "python", "seed", "timeout", "build_timeout", "env", "rebuild", "no_wait")
VIEW = ("quiet", "verbose")
RUN = (
    *("repo", *MATRIX, *PEERS, "all_", "threshold", "margin", "precision", "budget", "epochs", "quick", "timer"),
    *("sustained", "probe", "allow_wrong", *WORKERS, "devices", "executor", "executor_option", "autotune", "check"),
    *("contain", "keep_worktrees", "runs_dir", "fail_on", "json", *VIEW),
)


# ---------------------------------------------------------------- Options


def options_from(refs: Sequence[str], values: Mapping[str, Any], **more: Any) -> Options:
    """Options of a run of `refs` with a verb's values. Raises AbprofError naming the option that cannot be."""
    value = {name: parameter.default for name, parameter in _DECLARED.items()} | dict(values) | more
    if not os.path.exists(value["repo"]):  # noqa: PTH110 - pathlib raises on names that no file can have
        raise AbprofError("no such folder", where=f"--repo {value['repo']}")
    if value["quick"] and value["epochs"] is not None:
        raise AbprofError("--quick is one epoch", where="--epochs", advice="leave one of them out")
    if value["cell"] and value["set_"]:
        raise AbprofError("a cell's id has its values", where="--set", advice="leave one of --cell, --set out")
    if value["peer"] and not value["peers"]:
        raise AbprofError("--no-peers leaves all of them out", where="--peer", advice="give one of the two")
    if value["executor_option"] and not value["executor"]:
        advice = "it goes with --executor ray or slurm"
        raise AbprofError("this host's own devices take no options", where="--executor-option", advice=advice)
    workloads, source = _workloads(value["workloads"], value["workloads_from"])
    return Options(
        specs=tuple(refs),
        repo=value["repo"],
        kernels=_names(value["kernels"], "--kernels"),
        workloads=workloads or _workloads_of(value["cell"]),
        workloads_from=source,
        preset=value["preset"],
        only=tuple(value["only"]),
        set=tuple(value["set_"]),
        cell=tuple(value["cell"]),
        device=tuple(value["device"]),
        devices=1 if value["devices"] == 0 else value["devices"],
        executor=value["executor"],
        executor_options=_pairs(value["executor_option"], "--executor-option"),
        python=_pythons(value["python"]),
        precision=value["precision"] or None,
        timer=value["timer"] or "",
        probe=tuple(dict.fromkeys(_known(name, "--probe", _PROBES) for name in _names(value["probe"], "--probe"))),
        all=value["all_"],
        fail_on=tuple(value["fail_on"]),
        env=value["env"] or "",
        no_peers=not value["peers"],
        peer=_names(value["peer"], "--peer"),
        command=tuple(value.get("command") or ()),
        arguments=tuple(sys.argv[1:]),
        **{name: value[name] for name in _AS_THEY_ARE},
    )


_AS_THEY_ARE = (
    *("threshold", "margin", "budget", "quick", "epochs", "sustained", "allow_wrong", "runs_dir", "seed", "timeout"),
    *("build_timeout", "autotune", "check", "contain", "rebuild", "keep_worktrees", "dry_run", "no_wait"),
)


def _known(value: str, option: str, known: Sequence[str]) -> str:
    if value not in known:
        raise AbprofError(f"{value!r} is not one of {', '.join(known)}", where=option)
    return value


def _workloads(values: Sequence[str], source: str) -> tuple[tuple[str, ...], str]:
    """--workloads as names, and their source: the option takes names, or the path of a workload's file or of a folder."""
    places = [value for value in values if "/" in value or value in {".", ".."} or value.endswith(".py")]
    names = _names([value for value in values if value not in places], "--workloads")
    if not places:
        return names, source
    place = Path(places[0]).expanduser()
    if len(places) > 1 or source:
        raise AbprofError("more than one place of workloads", where="--workloads", advice="name one file or folder")
    if not (place.is_dir() or (place.is_file() and place.suffix == ".py")):
        what = "not a Python file" if place.is_file() else "no such file or folder"
        raise AbprofError(what, where=f"--workloads {place}")
    return names, str(place.absolute())


def _workloads_of(cells: Sequence[str]) -> tuple[str, ...]:
    from abprof.measure.matrix import id_parts

    try:
        return tuple(dict.fromkeys(id_parts(id)[0] for id in cells))
    except AbprofError as error:
        raise AbprofError(error.what, where=f"--cell {error.where}", advice=error.advice) from error


def complete_refs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Branches and tags of the repository, also behind `BASE...`; nothing where there is none."""
    from abprof import sides as repo
    from abprof.system import paths

    try:
        names = repo.open_repository(Path(ctx.params.get("repo") or "."), cache=paths.cache_dir()).ref_names()
    except AbprofError:
        return []
    base, dots, begun = incomplete.rpartition("...")
    return [f"{base}{dots}{name}" for name in names if name.startswith(begun)]


Refs = Annotated[
    Many,
    typer.Argument(
        metavar="BASE [TARGET]... [-- COMMAND]",
        help="Refs, `.`, BASE...TARGET (merge base), releases (dist:NAME==VERSION); behind -- a command that times itself.",
        autocompletion=complete_refs,
    ),
]
RunOrRefs = Annotated[
    Many,
    typer.Argument(metavar="RUN | BASE [TARGET]...", help="A run folder, or refs.", autocompletion=complete_refs),
]
RunFolder = Annotated[str, typer.Argument(metavar="RUN", help="A run folder.")]
