"""The executors, by the kind that `--executor` names. An explicit table."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from abprof.builds import environment
from abprof.fleet.executor import Executor
from abprof.measure.plan import Plan
from abprof.measure.run_context import RunContext
from abprof.records.errors import AbprofError
from abprof.store.record import Record


def cluster_of(place: RunContext, plan: Plan, record: Record) -> contextlib.AbstractContextManager[Executor | None]:
    """What carries the run's shards elsewhere; None for a run on this host. Raises AbprofError for options that it has not."""
    kind = place.options.executor.partition(":")[0]
    return _KINDS[kind](place, plan, record) if kind else contextlib.nullcontext()


def asked(place: RunContext) -> Any:
    """What the cluster is asked for; None for a run on this host. Raises AbprofError for what it has no word for, with the line
    of abprof.toml that has it."""
    config = place.options
    kind = config.executor.partition(":")[0]
    if not kind:
        return None
    try:
        return _OPTIONS[kind](config.executor_options)
    except AbprofError:
        for name, value in place.file.options_of(kind).items():
            if config.executor_options[name] == value:  # no --executor-option went before it
                _of_the_file(kind, name, value, place.file.at(f"executor.{kind}.{name}"))
        raise


def _of_the_file(kind: str, name: str, value: str, where: str) -> None:
    try:
        _OPTIONS[kind]({name: value})
    except AbprofError as error:
        raise AbprofError(error.what, where=where, advice=error.advice) from None


def _slurms(given: Mapping[str, str]) -> Any:
    from abprof.fleet.slurm_jobs import WHERE, options

    return options(given, WHERE)


def _rays(given: Mapping[str, str]) -> Any:
    from abprof.fleet.ray import read_options

    return read_options(given)


_OPTIONS: dict[str, Callable[[Mapping[str, str]], Any]] = {"slurm": _slurms, "ray": _rays}


def pool_of(place: RunContext, plan: Plan, record: Record) -> Executor:
    """This host's own devices."""
    from abprof.fleet.pool import Pool

    folder = plan.shop.scratch.parent / "shards"  # goes with the run's worktrees
    return Pool(place, record.folder.logs, folder)


def _slurm(place: RunContext, plan: Plan, record: Record) -> Executor:
    del plan
    from abprof.fleet.slurm import SlurmExecutor
    from abprof.fleet.slurm_jobs import WHERE

    found = asked(place)
    if place.device.kind == "cpu" and found.gres:
        what = f"jobs with gres={found.gres} are to measure a GPU, and this machine has none to plan and build with"
        advice = "start abprof on a node with one (srun --gres=gpu:1 --pty abprof ...); gres= measures processors"
        raise AbprofError(what, where=WHERE, advice=advice)
    _, secrets = environment.clean(os.environ, "user", place.file.environment.allow)
    here = {*secrets, "CUDA_VISIBLE_DEVICES"}  # which GPU it is, Slurm says there
    names = sorted(name for name in os.environ if name not in here and re.fullmatch(r"[A-Za-z_]\w*", name))
    return SlurmExecutor(found, Path(place.repository.path), record.folder.logs, names, record.view.say)


def _ray(place: RunContext, plan: Plan, record: Record) -> Executor:
    from abprof.fleet import bundle
    from abprof.fleet.ray import RayExecutor

    config, options = place.options, asked(place)
    file = plan.shop.scratch / "cargo"
    judge = Path(next(iter(plan.shop.workloads.values()))).parent
    cargo = bundle.load(place, list(plan.checkouts.values()), judge, file)
    address = config.executor.partition("://")[2]
    return RayExecutor(
        address, options, gpu=place.device.kind == "cuda", cargo=cargo, bundle=file, logs=record.folder.logs
    )


_KINDS: dict[str, Callable[[RunContext, Plan, Record], Executor]] = {"slurm": _slurm, "ray": _ray}
