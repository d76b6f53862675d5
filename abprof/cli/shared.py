"""The options of a run, each written once: other verbs take some of them."""

from __future__ import annotations

from typing import Annotated

import typer

MATRIX, MEASURING, OUTPUT, PLACE = "Matrix", "Measuring", "Output", "Place"
Many = list[str]

Kernels = Annotated[Many, typer.Option(help="Only these kernel packages.", rich_help_panel=MATRIX)]
Workloads = Annotated[
    Many,
    typer.Option(metavar="NAME|PATH", help="Only these workloads; or their file or folder.", rich_help_panel=MATRIX),
]
WorkloadsFrom = Annotated[
    str,
    typer.Option(metavar="base|target|PATH", help="Where the workloads are taken from.", rich_help_panel=MATRIX),
]
Preset = Annotated[str, typer.Option(help="Matrix: smoke, default, full, ...", rich_help_panel=MATRIX)]
Only = Annotated[Many, typer.Option(metavar="AXIS=VALUE|GLOB", help="Only these cells.", rich_help_panel=MATRIX)]
Set = Annotated[
    Many, typer.Option("--set", metavar="AXIS=V1,V2", help="Other values for an axis.", rich_help_panel=MATRIX)
]
Cell = Annotated[
    Many, typer.Option(metavar="ID", help="Exactly these cells, whatever the preset.", rich_help_panel=MATRIX)
]
Peers = Annotated[bool, typer.Option("--peers/--no-peers", help="Measure library peers too.", rich_help_panel=MATRIX)]
Peer = Annotated[
    Many, typer.Option(metavar="NAME|all", help="Only these peers, slow ones too.", rich_help_panel=MATRIX)
]
All = Annotated[bool, typer.Option("--all", help="Measure and show unchanged cells too.", rich_help_panel=MATRIX)]

Threshold = Annotated[str, typer.Option(metavar="PCT", help="A change counts beyond this.", rich_help_panel=MEASURING)]
Margin = Annotated[str, typer.Option(metavar="PCT", help="`same` means inside this.", rich_help_panel=MEASURING)]
Precision = Annotated[
    str, typer.Option(metavar="PCT", help="Go on until intervals are this narrow.", rich_help_panel=MEASURING)
]
Budget = Annotated[str, typer.Option(metavar="TIME", help="Time for measuring, e.g. 10m.", rich_help_panel=MEASURING)]
Epochs = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="So many epochs of every cell.", rich_help_panel=MEASURING),
]
Quick = Annotated[bool, typer.Option("--quick", help="One epoch: a screen, not a verdict.", rich_help_panel=MEASURING)]
Sustained = Annotated[
    bool,
    typer.Option(
        "--sustained",
        help="After the verdict also time each cell without pauses, at the GPU's power limit.",
        rich_help_panel=MEASURING,
    ),
]
Probe = Annotated[
    Many,
    typer.Option(
        metavar="torch|proton|ncu|perf",
        help="Look at the cells that changed, after timing: traces, Triton's profile; a GPU's counters; samples of a CPU.",
        rich_help_panel=MEASURING,
    ),
]
AllowWrong = Annotated[
    bool, typer.Option("--allow-wrong", help="Time wrong answers too, watermarked.", rich_help_panel=MEASURING)
]
Watch = Annotated[
    bool, typer.Option("--watch", help="Again at every save, one epoch each, until ^C.", rich_help_panel=MEASURING)
]
Timer = Annotated[
    str,
    typer.Option(
        metavar="auto|events|graph|cupti|cpu",
        help="What reads the time: by rules, or one for all cells.",
        rich_help_panel=MEASURING,
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of inputs and orders.", rich_help_panel=MEASURING)]
Timeout = Annotated[str, typer.Option(metavar="TIME", help="One answer of a worker.", rich_help_panel=MEASURING)]

Repo = Annotated[str, typer.Option(help="The git repository.", rich_help_panel=PLACE)]
Device = Annotated[Many, typer.Option(help="cpu, cuda, cuda:N or a GPU's UUID.", rich_help_panel=PLACE)]
Devices = Annotated[
    str,
    typer.Option(
        metavar="all|N", help="Spread over all of the host's GPUs (default), or at most N.", rich_help_panel=PLACE
    ),
]
Executor = Annotated[
    str,
    typer.Option(
        metavar="local|ray[://ADDRESS]|slurm",
        help="Where cells are measured: a cluster's devices.",
        rich_help_panel=PLACE,
    ),
]
ExecutorOption = Annotated[
    Many, typer.Option(metavar="KEY=VALUE", help="What the cluster is asked for.", rich_help_panel=PLACE)
]
Python = Annotated[Many, typer.Option(metavar="[SIDE=]PATH", help="The workers' interpreter.", rich_help_panel=PLACE)]
Env = Annotated[str, typer.Option(metavar="user|clean", help="The workers' environment.", rich_help_panel=PLACE)]
Autotune = Annotated[
    str,
    typer.Option(metavar="pinned|each-epoch", help="Triton's autotuning.", rich_help_panel=PLACE),
]
Check = Annotated[
    str,
    typer.Option(
        metavar="inside|outside",
        help="Check outputs in each side's process, or (code that you do not trust) in one without it as well.",
        rich_help_panel=PLACE,
    ),
]
Contain = Annotated[
    str,
    typer.Option(
        metavar="auto|always|never",
        help="Start code under test in bubblewrap; auto: with --env clean, where it starts.",
        rich_help_panel=PLACE,
    ),
]
BuildTimeout = Annotated[str, typer.Option(metavar="TIME", help="One build.", rich_help_panel=PLACE)]
Rebuild = Annotated[bool, typer.Option("--rebuild", help="Build even what is cached.", rich_help_panel=PLACE)]
KeepWorktrees = Annotated[
    bool, typer.Option("--keep-worktrees", help="Leave the worktrees for debugging.", rich_help_panel=PLACE)
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait for a busy device.", rich_help_panel=PLACE)]

RunsDir = Annotated[str, typer.Option(metavar="PATH", help="Where run folders are made.", rich_help_panel=OUTPUT)]
FailOn = Annotated[
    str, typer.Option(metavar="WHAT", help="slower,broken (default), unclear, never.", rich_help_panel=OUTPUT)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and an estimate.", rich_help_panel=OUTPUT)]
RunJson = Annotated[bool, typer.Option("--json", help="Print run.json's content.", rich_help_panel=OUTPUT)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings and the result.", rich_help_panel=OUTPUT)]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="All of the builds' output.", rich_help_panel=OUTPUT)]
