"""`abprof memory`: memory traffic per kernel and call."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from abprof.errors import AbprofError, Exit

_FORMATS = ("md", "csv", "json")


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("memory", help=memory.__doc__, short_help="DRAM, L2, L1 traffic from ncu's CSV files.")(memory)


def memory(
    from_: Annotated[
        list[str], typer.Option("--from", metavar="FILE.csv", help="What `ncu --csv` wrote; the first is base.")
    ],
    warmup: Annotated[list[int], typer.Option(metavar="CALLS", help="Warm-up calls of a shape; once, or per file.")],
    runs: Annotated[list[int], typer.Option(metavar="CALLS", help="Calls after them; once, or per file.")],
    kernel: Annotated[
        list[str], typer.Option(metavar="NAME|GLOB", help="Kernel under test: must be there; others are `other`.")
    ] = [],  # noqa: B006
    out: Annotated[list[str], typer.Option(metavar="FILE.csv|.md|.json", help="Write it there as well.")] = [],  # noqa: B006
    format: Annotated[str, typer.Option(metavar="|".join(_FORMATS), help="Print this instead of a table.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """DRAM, L2 and L1 bytes of each kernel, per launch and per call, from files that Nsight Compute's `ncu --csv` wrote.

    Each file holds warm-up + runs calls of each shape; the warm-ups are dropped. Several files are compared with the
    first. A count that is no multiple of warm-up + runs is refused (exit code 2). docs/MEMORY.md has the rules.
    """
    from abprof import runfolder
    from abprof.cli.guard import while_read
    from abprof.memory import measured
    from abprof.report import memory as tables

    format = _format(format, json=json)
    targets = [(Path(name), _suffix(name)) for name in out]
    warmups, counts = _per_file(warmup, len(from_), "--warmup"), _per_file(runs, len(from_), "--runs")
    made = [
        measured(Path(name), warmup=before, runs=after, kernels=kernel)
        for name, before, after in zip(from_, warmups, counts, strict=True)
    ]
    for path, suffix in targets:
        runfolder.put(path, tables.FORMATS[suffix](made).encode())
    with while_read():
        if format:
            sys.stdout.write(tables.FORMATS[format](made))
        else:
            tables.show(made)
    return Exit.OK


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
