"""`abprof profile` and `abprof memory`: counters of each kernel, by Nsight Compute."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abprof.cli.app import app
from abprof.cli.command import one_of, refuse, while_read
from abprof.cli.options import MATRIX, PEERS, VIEW, WORKERS, Many, RunOrRefs, complete_refs, options_from, takes
from abprof.cli.run import run_as_json, view_of
from abprof.records.errors import AbprofError, Exit

if TYPE_CHECKING:
    from abprof.extras.profiling import Profiled
    from abprof.report.probes import MemoryGroup

_FORMATS = ("md", "csv", "json")
_OF_FILES = ("warmup", "runs", "out", "format", "json", "from_", "kernel")
_OF_REFS = ("repo", *MATRIX, *PEERS, *WORKERS, "runs_dir", "json", *VIEW)


@app.command("profile", short_help="Both sides' kernels under Nsight Compute.")
@takes(*_OF_REFS, peers=False)
def profile(ctx: typer.Context, words: RunOrRefs, **values: Any) -> int:
    """Metrics of each kernel with their differences between the sides: bytes and rates of DRAM, L2 and L1, hit rates, tensor
    cores and issue slots, occupancy, what warps wait for, bank conflicts, efficiency of global loads and stores.

    `abprof profile RUN` looks at the cells of a run that changed (or those of --only) and adds them to it; `abprof profile
    BASE TARGET` at every cell of the matrix, in a run folder in which nothing is timed. Each arm runs alone, in a process of
    its own, and its .ncu-rep is kept. Needs Nsight Compute, and its permission to read counters.
    """
    from abprof.evidence.ncu.capture import PROFILE
    from abprof.extras import profiling
    from abprof.store import RUN

    view, word = view_of(values), Path(words[0])
    if word.name == RUN or (word / RUN).is_file():
        if len(words) > 1:
            advice = "abprof profile RUN, or abprof profile BASE TARGET"
            raise AbprofError("a run has its refs", where=words[1], advice=advice)
        beside = ("words", "repo", "only", "json", *VIEW)
        refuse(ctx, "a run has its own", but=beside, advice="leave it out; --only chooses cells")
        looked = profiling.run(word, values["only"], values["repo"], PROFILE, view)
    else:
        options = options_from(words, values, peers=values["peers"] or bool(values["peer"]))
        looked = profiling.refs(options, PROFILE, view)
    _show_profiles(looked, json=values["json"])
    view.say(f"kept in {os.path.relpath(looked.folder)}: report.html, memory.csv, ncu/*.ncu-rep")
    if looked.interrupted:
        return Exit.INTERRUPTED
    ok = any(one.status == "ok" for one in looked.made)
    failed = any(one.status not in ("ok", "unsupported") for one in looked.made)
    return Exit.OK if ok and not failed else Exit.CANNOT_RUN


def _show_profiles(looked: Profiled, *, json: bool) -> None:
    """The tables of the arms of this invocation alone: others were shown by theirs."""
    import msgspec

    from abprof.records.quantities import plural
    from abprof.report import probes, terminal

    with while_read():
        if json:
            print(run_as_json(looked.run, looked.folder))
            return
        parts = list(probes.counters(msgspec.structs.replace(looked.run, profiles=looked.made)))
        made = [replace(t, caption=f"{part.title}: {t.caption}") for part in parts for t in part.tables]
        notes = [f"{part.title}: {line}" for part in parts for line in part.text]
        cells = len({one.cell for one in looked.made if one.status == "ok"})
        terminal.print_tables(made, notes, f"{plural(cells, 'cell')} under Nsight Compute")


@app.command("memory", short_help="DRAM, L2, L1 traffic of each kernel, by Nsight Compute.")
@takes(*_OF_REFS)
def memory(
    ctx: typer.Context,
    refs: Annotated[
        Many,
        typer.Argument(metavar="[BASE [TARGET]...]", help="Refs.", autocompletion=complete_refs),
    ] = [],  # noqa: B006
    from_: Annotated[
        Many, typer.Option("--from", metavar="FILE.csv", help="What `ncu --csv` wrote; the first is base.")
    ] = [],  # noqa: B006
    warmup: Annotated[
        list[int],
        typer.Option(metavar="CALLS", help="Warm-up calls of a shape; of refs 10; with --from also per file."),
    ] = [],  # noqa: B006
    runs: Annotated[
        list[int], typer.Option(metavar="CALLS", help="Calls after them; of refs 50; with --from also per file.")
    ] = [],  # noqa: B006
    kernel: Annotated[
        Many, typer.Option(metavar="NAME|GLOB", help="Count these kernels alone; each must be there.")
    ] = [],  # noqa: B006
    out: Annotated[Many, typer.Option(metavar="FILE.csv|.md|.json", help="Write it there as well.")] = [],  # noqa: B006
    format: Annotated[str, typer.Option(metavar="|".join(_FORMATS), help="Print this instead of a table.")] = "",
    **values: Any,
) -> int:
    """DRAM, L2 and L1 bytes of each kernel, per launch and per call.

    `abprof memory BASE TARGET` runs every cell, side, variant and peer under Nsight Compute, each in a process of its own;
    `--from` reads files that `ncu --csv` wrote.
    Each shape is called warm-up + runs times, and the warm-ups are dropped. A count that is no multiple of warm-up +
    runs is refused (exit code 2). docs/NCU.md has the rules.
    """
    own = {name: value for name, value in locals().items() if name not in ("ctx", "values")}
    if bool(refs) == bool(from_):
        what = "refs with --from" if refs else "no refs and no files"
        raise AbprofError(what, advice="abprof memory BASE TARGET, or abprof memory --from FILE.csv")
    if from_:
        refuse(ctx, "it has no effect beside --from", but=_OF_FILES)
    else:
        refuse(ctx, "it has no effect beside BASE", only=("kernel",))
    if format:
        one_of(format, "--format", _FORMATS)
    if format and values["json"]:
        raise AbprofError(f"--format {format} with --json", advice="one thing is printed; take one of the two")
    printing = "json" if values["json"] else format
    targets = [(Path(name), _suffix(name)) for name in out]
    for name in out:
        if any(Path(name).resolve() == Path(file).resolve() for file in from_):
            raise AbprofError("this is what --from reads", where=f"--out {name}", advice="write it to another file")
    if refs:
        return _of_refs(own, values, printing, targets)
    for name in ("warmup", "runs"):
        if not own[name]:
            raise AbprofError(
                "how many calls does each shape make?", where=f"--{name}", advice=f"--{name} N; see --help"
            )
    return _show_traffic(_of_files(own), printing, targets)


def _of_files(options: Mapping[str, Any]) -> list[MemoryGroup]:
    from abprof.evidence.ncu.traffic import measured
    from abprof.report.probes import MemoryGroup

    files = options["from_"]
    warmups = _per_file(options["warmup"], len(files), "--warmup")
    counts = _per_file(options["runs"], len(files), "--runs")
    made = [
        measured(Path(name), warmup=before, runs=after, kernels=options["kernel"])
        for name, before, after in zip(files, warmups, counts, strict=True)
    ]
    return [MemoryGroup(tuple(made))]


def _of_refs(own: Mapping[str, Any], values: dict[str, Any], printing: str, targets: Sequence[tuple[Path, str]]) -> int:
    from abprof.evidence.ncu.capture import memory as order
    from abprof.extras import profiling
    from abprof.report.probes import memory_groups

    (warmup,) = _per_file(own["warmup"] or [10], 1, "--warmup")
    (runs,) = _per_file(own["runs"] or [50], 1, "--runs")
    view = view_of(values)
    looked = profiling.refs(options_from(own["refs"], values), order(warmup, runs), view)
    _show_traffic(memory_groups(looked.run), printing, targets)
    view.say(f"kept in {os.path.relpath(looked.folder)}: memory.csv, memory.md, report.html, ncu/*.ncu-rep")
    header = looked.run.header
    return Exit.INTERRUPTED if looked.interrupted else header.exit_code if header else Exit.CANNOT_RUN


def _show_traffic(groups: Sequence[MemoryGroup], printing: str, targets: Sequence[tuple[Path, str]]) -> int:
    from abprof.report import probes, terminal
    from abprof.system import files as disk

    for path, suffix in targets:
        disk.put(path, probes.FORMATS[suffix](groups).encode())
    with while_read():
        if printing:
            sys.stdout.write(probes.FORMATS[printing](groups))
        else:
            tables = [table for group in groups for table in probes.traffic_tables(group.tables)]
            terminal.print_tables(tables, probes.memory_notes(groups), probes.memory_sentence(groups))
    return Exit.OK


def _suffix(name: str) -> str:
    suffix = Path(name).suffix.removeprefix(".")
    if suffix not in _FORMATS:
        raise AbprofError(f"{name!r} ends in none of .csv, .md, .json", where="--out")
    return suffix


def _per_file(values: Sequence[int], files: int, option: str) -> list[int]:
    """One value for all files, or one for each."""
    if len(values) not in (1, files):
        raise AbprofError(
            f"{len(values)} values for {files} files", where=option, advice="give one, or one for each --from"
        )
    return list(values) * files if len(values) == 1 else list(values)
