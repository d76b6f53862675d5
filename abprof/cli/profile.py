"""`abprof profile`: what each side's kernels do, by Nsight Compute."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abprof.cli import shared
from abprof.cli.completion import refs as complete_refs
from abprof.cli.given import given
from abprof.cli.guard import while_read
from abprof.records.errors import AbprofError, Exit

if TYPE_CHECKING:
    from abprof.extras.profiling import Profiled

_BESIDE_RUN = {"words", "repo", "only", "json", "quiet", "verbose"}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("profile", help=profile.__doc__, short_help="Both sides' kernels under Nsight Compute.")(profile)


def profile(
    ctx: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(metavar="RUN | BASE [TARGET]...", help="A run folder, or refs.", autocompletion=complete_refs),
    ],
    repo: shared.Repo = ".",
    kernels: shared.Kernels = [],  # noqa: B006
    workloads: shared.Workloads = [],  # noqa: B006
    workloads_from: shared.WorkloadsFrom = "",
    preset: shared.Preset = "",
    only: shared.Only = [],  # noqa: B006
    set_: shared.Set = [],  # noqa: B006
    cell: shared.Cell = [],  # noqa: B006
    peers: shared.Peers = False,
    peer: shared.Peer = [],  # noqa: B006
    device: shared.Device = [],  # noqa: B006
    python: shared.Python = [],  # noqa: B006
    seed: shared.Seed = 0,
    timeout: shared.Timeout = "120s",
    build_timeout: shared.BuildTimeout = "30m",
    env: shared.Env = "",
    runs_dir: shared.RunsDir = "",
    rebuild: shared.Rebuild = False,
    no_wait: shared.NoWait = False,
    json: shared.RunJson = False,
    quiet: shared.Quiet = False,
    verbose: shared.Verbose = False,
) -> int:
    """Metrics of each kernel with their differences between the sides: bytes and rates of DRAM, L2 and L1, hit rates, tensor
    cores and issue slots, occupancy, what warps wait for, bank conflicts, efficiency of global loads and stores.

    `abprof profile RUN` looks at the cells of a run that changed (or those of --only) and adds them to it; `abprof profile
    BASE TARGET` at every cell of the matrix, in a run folder in which nothing is timed. Each arm runs alone, in a process of
    its own, and its .ncu-rep is kept. Needs Nsight Compute, and its permission to read counters.
    """
    options = dict(locals())
    from abprof.evidence.ncu.capture import PROFILE
    from abprof.extras import profiling
    from abprof.system.console import View

    view = View(quiet=quiet, verbose=verbose)
    if _is_run(words[0]):
        _nothing_else(ctx, words)
        looked = profiling.run(Path(words[0]), only, repo, PROFILE, view)
    else:
        looked = profiling.refs(_config(options), PROFILE, view)
    _show(looked, json=json)
    view.say(f"kept in {os.path.relpath(looked.folder)}: report.html, profiles.csv, memory.csv, ncu/*.ncu-rep")
    if looked.interrupted:
        return Exit.INTERRUPTED
    ok = any(one.status == "ok" for one in looked.made)
    failed = any(one.status not in ("ok", "unsupported") for one in looked.made)
    return Exit.OK if ok and not failed else Exit.CANNOT_RUN


def _is_run(word: str) -> bool:
    from abprof.store import RUN

    return (Path(word) / RUN).is_file() or Path(word).name == RUN


def _nothing_else(ctx: typer.Context, words: list[str]) -> None:
    """Raises AbprofError for what would not be followed: a run has its refs and its matrix."""
    if len(words) > 1:
        raise AbprofError(
            "a run has its refs", where=words[1], advice="abprof profile RUN, or abprof profile BASE TARGET"
        )
    for name, option in given(ctx).items():
        if name not in _BESIDE_RUN:
            raise AbprofError("a run has its own", where=option, advice="leave it out; --only chooses cells")


def _config(options: Mapping[str, Any]) -> Any:
    from abprof.cli.options import config_from
    from abprof.cli.run import defaults

    peers = bool(options["peers"] or options["peer"])
    return config_from({**defaults(), **options, "peers": peers, "refs": options["words"]}, sys.argv[1:])


def _show(looked: Profiled, *, json: bool) -> None:
    """The tables of the arms of this invocation alone: others were shown by theirs."""
    import msgspec

    from abprof.cli.run import run_as_json
    from abprof.report import probes, terminal

    with while_read():
        if json:
            print(run_as_json(looked.run, looked.folder))
            return
        parts = probes.counters(msgspec.structs.replace(looked.run, profiles=looked.made))
        made = [replace(t, caption=f"{part.title}: {t.caption}") for part in parts for t in part.tables]
        notes = [f"{part.title}: {line}" for part in parts for line in part.notes]
        cells = len({one.cell for one in looked.made if one.status == "ok"})
        terminal.print_tables(made, notes, f"{cells} cell{'s' * (cells != 1)} under Nsight Compute")
