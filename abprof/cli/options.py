"""From the command line's loose values to Options: command line over ABPROF_* over abprof.toml over defaults."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from abprof.evidence.probes import KNOWN
from abprof.measure.matrix import id_parts
from abprof.records.errors import AbprofError
from abprof.records.options import Options
from abprof.records.quantities import percent, seconds

TIMERS = ("", "auto", "events", "graph", "cupti", "cpu")
_FAIL_ON = ("slower", "broken", "unclear", "never")


def config_from(options: Mapping[str, Any], argv: Sequence[str]) -> Options:
    """The Options of a `run`. Raises AbprofError naming the option."""
    repo = options["repo"]
    if not os.path.exists(repo):  # noqa: PTH110 - pathlib raises on names that no file can have
        raise AbprofError("no such folder", where=f"--repo {repo}")
    if options["quick"] and options["epochs"] is not None:
        raise AbprofError("--quick is one epoch", where="--epochs", advice="leave one of them out")
    budget = options["budget"]
    workloads, judges = _judges(options)
    executor = _executor(options.get("executor", "local"))
    return Options(
        specs=tuple(options["refs"]),
        repo=repo,
        kernels=_names(options, "kernels"),
        workloads=workloads or _workloads_of(options),
        workloads_from=judges,
        preset=options["preset"],
        only=tuple(options["only"]),
        set=tuple(options["set_"]),
        cell=tuple(options["cell"]),
        device=tuple(options["device"]),
        devices=_devices(options.get("devices", "")),
        executor=executor,
        executor_options=_executor_options(options.get("executor_option", ()), executor),
        python=_pythons(options["python"]),
        threshold=_percent(options, "threshold"),
        margin=_percent(options, "margin"),
        precision=_percent(options, "precision") or None,
        budget=seconds(budget, "--budget") if budget else 0.0,
        quick=options["quick"],
        epochs=options["epochs"],
        timer=choice(options["timer"], "--timer", TIMERS),
        sustained=options["sustained"],
        probe=_probes(options),
        allow_wrong=options["allow_wrong"],
        all=options["all_"],
        fail_on=_fail_on(options["fail_on"]),
        runs_dir=options["runs_dir"],
        seed=seed(options["seed"]),
        timeout=seconds(options["timeout"], "--timeout"),
        build_timeout=seconds(options["build_timeout"], "--build-timeout"),
        env=choice(options["env"], "--env", ("", "user", "clean")),
        autotune=choice(options["autotune"], "--autotune", ("pinned", "each-epoch")),
        check=choice(options["check"], "--check", ("inside", "outside")),
        contain=choice(options["contain"], "--contain", ("auto", "always", "never")),
        rebuild=options["rebuild"],
        keep_worktrees=options["keep_worktrees"],
        dry_run=options["dry_run"],
        no_wait=options["no_wait"],
        no_peers=not options["peers"],
        peer=_asked_peers(options),
        command=tuple(options.get("command", ())),
        arguments=tuple(argv),
    )


def _split(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(part for value in values for part in value.split(",") if part)


def _names(options: Mapping[str, Any], name: str) -> tuple[str, ...]:
    for value in options[name]:
        if not _split([value]):
            raise AbprofError("an empty text is no name", where=f"--{name}")
    return _split(options[name])


def _judges(options: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    """--workloads as names, and where they are: it takes names, or the path of a workload's file or of a folder."""
    places = [value for value in options["workloads"] if "/" in value or value in {".", ".."} or value.endswith(".py")]
    names = _names({"workloads": [value for value in options["workloads"] if value not in places]}, "workloads")
    if not places:
        return names, options["workloads_from"]
    place = Path(places[0]).expanduser()
    if len(places) > 1 or options["workloads_from"]:
        raise AbprofError("more than one place of workloads", where="--workloads", advice="name one file or folder")
    if not (place.is_dir() or (place.is_file() and place.suffix == ".py")):
        what = "not a Python file" if place.is_file() else "no such file or folder"
        raise AbprofError(what, where=f"--workloads {place}")
    return names, str(place.absolute())


def _workloads_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Those of the cells that were asked for by id."""
    if options["cell"] and options["set_"]:
        raise AbprofError("a cell's id has its values", where="--set", advice="leave one of --cell, --set out")
    try:
        return tuple(dict.fromkeys(id_parts(id)[0] for id in options["cell"]))
    except AbprofError as error:
        raise AbprofError(error.what, where=f"--cell {error.where}", advice=error.advice) from error


def _probes(options: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(choice(name, "--probe", KNOWN) for name in dict.fromkeys(_names(options, "probe")))


def _asked_peers(options: Mapping[str, Any]) -> tuple[str, ...]:
    if options["peer"] and not options["peers"]:
        raise AbprofError("--no-peers leaves all of them out", where="--peer", advice="give one of the two")
    return _names(options, "peer")


def _devices(text: str) -> int | None:
    """--devices: a number, or None for all; one where nothing was said."""
    if text == "all":
        return None
    if text and not (text.isdecimal() and int(text)):
        raise AbprofError(f"{text!r} is neither all nor a number of devices", where="--devices")
    return int(text or 1)


def _executor(text: str) -> str:
    """--executor: "" for this host's own devices."""
    if not re.fullmatch(r"local|slurm|ray(://[^/\s]+)?", text):
        raise AbprofError(f"no executor {text!r}", where="--executor", advice="local, ray, ray://HOST:PORT or slurm")
    return "" if text == "local" else text


def seed(number: int) -> int:
    """The value of --seed. Raises AbprofError for one that no generator takes."""
    if not -(2**63) <= number < 2**63:
        raise AbprofError(f"{number} has more than 64 bits", where="--seed", advice="torch takes no larger seed")
    return number


def _executor_options(words: Sequence[str], executor: str) -> dict[str, str]:
    if words and not executor:
        what = "this host's own devices are asked for nothing"
        raise AbprofError(what, where="--executor-option", advice="it goes with --executor ray or slurm")
    for word in words:
        if not all(word.partition("=")[:2]):
            raise AbprofError(f"{word!r} is not KEY=VALUE", where="--executor-option")
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _percent(options: Mapping[str, Any], name: str) -> float:
    text = options[name]
    return percent(text, f"--{name}") if text else 0.0


def choice(value: str, name: str, known: Sequence[str]) -> Any:
    """The value of an option that has a few. Raises AbprofError for another."""
    if value not in known:
        raise AbprofError(f"{value!r} is not one of {', '.join(k for k in known if k)}", where=name)
    return value


def _fail_on(text: str) -> tuple[str, ...]:
    chosen = _split([text])
    for word in chosen or ("",):
        choice(word, "--fail-on", _FAIL_ON)
    if "never" in chosen and len(chosen) > 1:
        raise AbprofError(f"{text!r}: never goes with nothing else", where="--fail-on")
    return chosen


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
