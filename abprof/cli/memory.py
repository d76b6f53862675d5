"""`abprof memory`: memory traffic per kernel and call, of refs, of any program, or from files that exist."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abprof.cli import shared
from abprof.cli.completion import refs as complete_refs
from abprof.cli.given import given
from abprof.cli.guard import while_read
from abprof.cli.program import BeforeProgram
from abprof.cli.program import program as behind
from abprof.records.errors import AbprofError, Exit

if TYPE_CHECKING:
    from abprof.report.probes import MemoryGroup

_FORMATS = ("md", "csv", "json")
_ALWAYS = {"warmup", "runs", "out", "format", "json"}
_BESIDE = {"--from": {*_ALWAYS, "from_", "kernel"}, "-- PROGRAM": {*_ALWAYS, "kernel", "nvtx", "export", "quiet"}}
_NOT_BESIDE_REFS = {"from_", "kernel", "nvtx", "export"}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    help = "DRAM, L2, L1 traffic of each kernel, by Nsight Compute."
    app.command("memory", help=memory.__doc__, short_help=help, cls=BeforeProgram)(memory)


def memory(
    ctx: typer.Context,
    refs: Annotated[
        list[str],
        typer.Argument(
            metavar="[BASE [TARGET]... | -- PROGRAM ARGS]", help="Refs, or a program.", autocompletion=complete_refs
        ),
    ] = [],  # noqa: B006
    from_: Annotated[
        list[str], typer.Option("--from", metavar="FILE.csv", help="What `ncu --csv` wrote; the first is base.")
    ] = [],  # noqa: B006
    warmup: Annotated[
        list[int],
        typer.Option(metavar="CALLS", help="Warm-up calls of a shape; of refs 10; with --from also per file."),
    ] = [],  # noqa: B006
    runs: Annotated[
        list[int], typer.Option(metavar="CALLS", help="Calls after them; of refs 50; with --from also per file.")
    ] = [],  # noqa: B006
    kernel: Annotated[
        list[str], typer.Option(metavar="NAME|GLOB", help="Kernel under test: must be there; others are `other`.")
    ] = [],  # noqa: B006
    nvtx: Annotated[
        str, typer.Option(metavar="RANGE", help="Of a program only what is in this NVTX range (NAME/ for push/pop).")
    ] = "",
    export: Annotated[
        str, typer.Option(metavar="FILE.ncu-rep", help="Where a program's report is kept; else in this folder.")
    ] = "",
    out: Annotated[list[str], typer.Option(metavar="FILE.csv|.md|.json", help="Write it there as well.")] = [],  # noqa: B006
    format: Annotated[str, typer.Option(metavar="|".join(_FORMATS), help="Print this instead of a table.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    repo: shared.Repo = ".",
    kernels: shared.Kernels = [],  # noqa: B006
    workloads: shared.Workloads = [],  # noqa: B006
    workloads_from: shared.WorkloadsFrom = "",
    preset: shared.Preset = "",
    only: shared.Only = [],  # noqa: B006
    set_: shared.Set = [],  # noqa: B006
    cell: shared.Cell = [],  # noqa: B006
    peers: shared.Peers = True,
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
    quiet: shared.Quiet = False,
    verbose: shared.Verbose = False,
) -> int:
    """DRAM, L2 and L1 bytes of each kernel, per launch and per call.

    `abprof memory BASE TARGET` runs every cell, side, variant and peer under Nsight Compute, each in a process of its own;
    `abprof memory --warmup 10 --runs 50 -- ./main --its args` any program; `--from` reads files that `ncu --csv` wrote.
    Each shape is called warm-up + runs times, and the warm-ups are dropped. A count that is no multiple of warm-up +
    runs is refused (exit code 2). docs/MEMORY.md has the rules.
    """
    return _memory(ctx, dict(locals()))


def _memory(ctx: typer.Context, options: Mapping[str, Any]) -> int:
    program = behind(ctx)
    modes = (("BASE", options["refs"]), ("--from", options["from_"]), ("-- PROGRAM", program))
    asked = [name for name, of in modes if of]
    if len(asked) != 1:
        what = f"{asked[0]} with {asked[1]}" if asked else "of what?"
        advice = "abprof memory BASE TARGET, or --from FILE.csv, or -- PROGRAM ARGS"
        raise AbprofError(what, advice=advice)
    _nothing_else(ctx, asked[0])
    printing = _format(options["format"], json=options["json"])
    targets = [(Path(name), _suffix(name)) for name in options["out"]]
    _nothing_overwritten(options["from_"], options["out"])
    if options["refs"]:
        return _of_refs(options, printing, targets)
    for name in ("warmup", "runs"):
        if not options[name]:
            what = "how many calls does each shape make?"
            raise AbprofError(what, where=f"--{name}", advice=f"--{name} N; see --help")
    groups = _of_program(options, program) if program else _of_files(options)
    return _show(groups, printing, targets)


def _nothing_overwritten(files: Sequence[str], out: Sequence[str]) -> None:
    """Raises AbprofError where a table would take the place of the recording that it is made of."""
    for name in out:
        if any(Path(name).resolve() == Path(file).resolve() for file in files):
            raise AbprofError("this is what --from reads", where=f"--out {name}", advice="write it to another file")


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


def _of_program(options: Mapping[str, Any], program: Sequence[str]) -> list[MemoryGroup]:
    from abprof.evidence.ncu.tool import record_program
    from abprof.report.probes import MemoryGroup

    (warmup,), (runs,) = (_per_file(options[name], 1, f"--{name}") for name in ("warmup", "runs"))
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    report = Path(options["export"] or f"{Path(program[0]).name}-{stamp}.ncu-rep")

    def say(line: str) -> None:
        if not options["quiet"]:
            print(line, file=sys.stderr)

    kernels, nvtx = options["kernel"], options["nvtx"]
    return [
        MemoryGroup((record_program(program, report, warmup=warmup, runs=runs, kernels=kernels, nvtx=nvtx, say=say),))
    ]


def _of_refs(options: Mapping[str, Any], printing: str, targets: Sequence[tuple[Path, str]]) -> int:
    from abprof.cli.options import config_from
    from abprof.cli.run import defaults
    from abprof.evidence.ncu.capture import memory as order
    from abprof.extras import profiling
    from abprof.report.probes import memory_groups
    from abprof.system.console import View

    (warmup,) = _per_file(options["warmup"] or [10], 1, "--warmup")
    (runs,) = _per_file(options["runs"] or [50], 1, "--runs")
    config = config_from({**defaults(), **options}, sys.argv[1:])
    view = View(quiet=options["quiet"], verbose=options["verbose"])
    looked = profiling.refs(config, order(warmup, runs), view)
    _show(memory_groups(looked.run), printing, targets)
    view.say(f"kept in {os.path.relpath(looked.folder)}: memory.csv, memory.md, report.html, ncu/*.ncu-rep")
    header = looked.run.header
    return Exit.INTERRUPTED if looked.interrupted else header.exit_code if header else Exit.CANNOT_RUN


def _show(groups: Sequence[MemoryGroup], printing: str, targets: Sequence[tuple[Path, str]]) -> int:
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


def _nothing_else(ctx: typer.Context, mode: str) -> None:
    """Raises AbprofError for an option that would not be followed."""
    for name, option in given(ctx).items():
        follows = name in _BESIDE[mode] if mode in _BESIDE else name not in _NOT_BESIDE_REFS
        if not follows:
            raise AbprofError(f"it says nothing beside {mode}", where=option, advice="leave it out")


def _format(format: str, *, json: bool) -> str:
    if format and format not in _FORMATS:
        raise AbprofError(f"no format {format!r}", where="--format", advice=f"there are {', '.join(_FORMATS)}")
    if format and json:
        raise AbprofError(f"--format {format} with --json", advice="one thing is printed; take one of the two")
    return "json" if json else format


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
