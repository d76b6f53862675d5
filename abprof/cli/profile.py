"""Define `abprof profile` and `abprof memory`, which read hardware counters of each kernel with Nsight Compute."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from abprof.cli.app import app, refuse
from abprof.cli.options import MATRIX, PEERS, VIEW, WORKERS, RunOrRefs, many, number, options_from, takes, view_of
from abprof.cli.run import run_as_json
from abprof.records import Profile, ncu
from abprof.records.errors import AbprofError, Exit
from abprof.records.quantities import plural
from abprof.system import files as disk

if TYPE_CHECKING:
    from abprof.extras.profiling import Profiled

_OF_REFS = ("repo", *MATRIX, *PEERS, *WORKERS, "runs_dir", "json", *VIEW)
_OF_FILES = ("warmup", "runs", "out", "json", "from_", "kernel")


@app.command("profile", short_help="Profile both sides' kernels with Nsight Compute.")
@takes(*_OF_REFS, peers=False)
def profile(ctx: typer.Context, words: RunOrRefs, **values: Any) -> int:
    """Print metrics of each kernel and their differences between the sides: bytes and rates of DRAM, L2 and L1, hit
    rates, tensor cores and issue slots, occupancy, stall reasons of warps, bank conflicts, efficiency of loads and
    stores.

    `abprof profile RUN` profiles the changed cells of a run (or those of --only) and adds the profiles to the run.
    `abprof profile BASE TARGET` profiles every cell of the matrix in a new run folder, without timing. Each arm runs
    alone in its process; its .ncu-rep is saved. Needs Nsight Compute and permission to read the GPU's counters.
    """
    from abprof.evidence import PROFILE
    from abprof.extras import profiling
    from abprof.store import RUN

    view, word = view_of(values), Path(words[0])
    if word.name == RUN or (word / RUN).is_file():
        if len(words) > 1:
            advice = "abprof profile RUN, or abprof profile BASE TARGET"
            raise AbprofError("a ref cannot follow a run folder", where=words[1], advice=advice)
        beside = ("words", "repo", "only", "json", *VIEW)
        refuse(ctx, "a run keeps its own options", but=beside, advice="leave it out; --only chooses cells")
        looked = profiling.run(word, values["only"], values["repo"], PROFILE, view)
    else:
        values["peers"] = values["peers"] or bool(values["peer"])
        looked = profiling.refs(options_from(words, values), PROFILE, view)
    _show_profiles(looked, json=values["json"])
    view.say(f"saved in {os.path.relpath(looked.folder)}: report.html, memory.csv, ncu/*.ncu-rep")
    if looked.interrupted:
        return Exit.INTERRUPTED
    states = {one.status for one in looked.made}
    return Exit.OK if "ok" in states and states <= {"ok", "unsupported"} else Exit.CANNOT_RUN


def _show_profiles(looked: Profiled, *, json: bool) -> None:
    from abprof.report import probes, terminal

    if json:
        print(run_as_json(looked.run, looked.folder))
        return
    parts = list(probes.counters(msgspec.structs.replace(looked.run, profiles=looked.made)))
    made = [replace(t, caption=f"{part.title}: {t.caption}") for part in parts for t in part.tables]
    notes = [f"{part.title}: {line}" for part in parts for line in part.text]
    cells = len({one.cell for one in looked.made if one.status == "ok"})
    terminal.print_tables(made, notes, f"{plural(cells, 'cell')} under Nsight Compute")


@app.command("memory", short_help="Count DRAM, L2 and L1 bytes of each kernel with Nsight Compute.")
@takes(
    many("--from", "FILE.csv", "Output of `ncu --csv`, once per side, base first."),
    number("--warmup", "CALLS", "Warm-up calls per arm; default for refs: 10.", 0),
    number("--runs", "CALLS", "Calls after the warm-up; default for refs: 50.", 1),
    many("--kernel", "NAME|GLOB", "Count only these kernels; fails if one is missing."),
    many("--out", "FILE.csv|.json", "Also write the table to this file."),
    *_OF_REFS,
)
def memory(
    ctx: typer.Context,
    refs: Annotated[list[str], typer.Argument(metavar="[BASE [TARGET]...]", help="Refs.")] = [],  # noqa: B006
    **values: Any,
) -> int:
    """Count DRAM, L2 and L1 bytes of each kernel, per launch and per call.

    `abprof memory BASE TARGET` runs every cell, side, variant and peer under Nsight Compute, each in its own process;
    `--from` reads files written by `ncu --csv`. Each process or file has --warmup calls, which are not counted, and
    then --runs calls. The exit code is 2 if a kernel's number of launches is not a multiple of the number of calls
    (docs/NCU.md).
    """
    from abprof.evidence import measured
    from abprof.extras import profiling
    from abprof.report.probes import memory_tables

    files, warmup, runs, view = values["from_"], values["warmup"], values["runs"], view_of(values)
    if bool(refs) == bool(files):
        what = "refs with --from" if refs else "no refs and no files"
        raise AbprofError(what, advice="abprof memory BASE TARGET, or abprof memory --from FILE.csv")
    for name in values["out"]:
        if not name.endswith((".csv", ".json")):
            raise AbprofError(f"{name!r} does not end in .csv or .json", where="--out")
    if not files:
        refuse(ctx, "has no effect with refs", only=("kernel",))
        warmup, runs = 10 if warmup is None else warmup, runs or 50
        ordered = Profile(cell="", arm="", purpose="memory", warmup=warmup, runs=runs)
        looked = profiling.refs(options_from(refs, values), ordered, view)
        _show_traffic(memory_tables(looked.run), values)
        view.say(f"saved in {os.path.relpath(looked.folder)}: memory.csv, report.html, ncu/*.ncu-rep")
        header = looked.run.header
        return Exit.INTERRUPTED if looked.interrupted else header.exit_code if header else Exit.CANNOT_RUN
    refuse(ctx, "has no effect with --from", but=_OF_FILES)
    for name, value in (("--warmup", warmup), ("--runs", runs)):
        if value is None:
            raise AbprofError("needed with --from", where=name, advice=f"add {name} N, the number of calls in a file")
    made = [measured(Path(name), warmup=warmup, runs=runs, kernels=values["kernel"]) for name in files]
    _show_traffic([made], values)
    return Exit.OK


def _show_traffic(groups: Sequence[Sequence[ncu.Table]], values: dict[str, Any]) -> None:
    from abprof.report import probes, terminal

    for name in values["out"]:
        disk.put(Path(name), probes.FORMATS[name.rpartition(".")[2]](groups).encode())
    if values["json"]:
        print(probes.FORMATS["json"](groups), end="")
    else:
        tables = [table for group in groups for table in probes.traffic_tables(group)]
        terminal.print_tables(tables, probes.memory_notes(groups), probes.memory_sentence(groups))
