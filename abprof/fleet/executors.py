"""The executors that `--executor` names, and the local pool."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from abprof.builds import environment
from abprof.fleet.executor import Executor
from abprof.measure import Plan, RunContext
from abprof.records.errors import AbprofError
from abprof.store import Record


def cluster_of(place: RunContext, plan: Plan, record: Record) -> contextlib.AbstractContextManager[Executor | None]:
    """The cluster that --executor names; None for a run on this host. Raises AbprofError for invalid options."""
    kind, options = place.options.executor.partition(":")[0], executor_options(place)
    if not kind:
        return contextlib.nullcontext()
    return _slurm(place, record, options) if kind == "slurm" else _ray(place, plan, record, options)


def executor_options(place: RunContext) -> Any:
    """The options of the run's executor, None without one. Raises AbprofError for invalid ones, naming their line of abprof.toml."""
    kind, given = place.options.executor.partition(":")[0], place.options.executor_options
    read_options: Callable[[Mapping[str, str]], Any]
    if kind == "slurm":
        from abprof.fleet import slurm

        read_options = slurm.read_options
    elif kind == "ray":
        from abprof.fleet import ray

        read_options = ray.read_options
    else:
        return None
    try:
        return read_options(given)
    except AbprofError:
        for name, value in place.file.options_of(kind).items():
            if given[name] == value:  # not overridden by --executor-option
                try:
                    read_options({name: value})
                except AbprofError as error:
                    where = place.file.at(f"executor.{kind}.{name}")
                    raise AbprofError(error.what, where=where, advice=error.advice) from None
        raise


def pool_of(place: RunContext, plan: Plan, record: Record) -> Executor:
    """The executor of this host's own devices."""
    from abprof.fleet.local import LocalPool

    folder = plan.factory.scratch.parent / "shards"  # goes with the run's worktrees
    return LocalPool(place, record.folder.logs, folder)


def _slurm(place: RunContext, record: Record, options: Any) -> Executor:
    from abprof.fleet.slurm import WHERE, SlurmExecutor

    if place.device.kind == "cpu" and options.gres:
        what = f"jobs with gres={options.gres} are to measure a GPU, and this machine has none to plan and build with"
        advice = "start abprof on a node with one (srun --gres=gpu:1 --pty abprof ...); gres= measures processors"
        raise AbprofError(what, where=WHERE, advice=advice)
    _, secrets = environment.clean(os.environ, "user", place.file.environment.allow)
    here = {*secrets, "CUDA_VISIBLE_DEVICES"}  # Slurm chooses the GPU there
    names = sorted(name for name in os.environ if name not in here and re.fullmatch(r"[A-Za-z_]\w*", name))
    return SlurmExecutor(options, Path(place.repository.path), record.folder.logs, names, record.view.say)


def _ray(place: RunContext, plan: Plan, record: Record, options: Any) -> Executor:
    from abprof.fleet import bundle
    from abprof.fleet.ray import RayExecutor

    file = plan.factory.scratch / "bundle"
    workloads = Path(next(iter(plan.factory.workloads.values()))).parent
    packed = bundle.pack(list(plan.checkouts.values()), workloads, file)
    address = place.options.executor.partition("://")[2] or "auto"
    return RayExecutor(
        address, options, gpu=place.device.kind == "cuda", bundle=packed, file=file, logs=record.folder.logs
    )
