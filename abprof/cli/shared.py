"""Options that several verbs share, each written once."""

from __future__ import annotations

from typing import Annotated

import typer

MATRIX, MEASURING, OUTPUT, PLACE = "Matrix", "Measuring", "Output", "Place"
Many = list[str]

Repo = Annotated[str, typer.Option(help="The git repository.", rich_help_panel=PLACE)]
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
Device = Annotated[Many, typer.Option(help="cpu, cuda, cuda:N or a GPU's UUID.", rich_help_panel=PLACE)]
Python = Annotated[Many, typer.Option(metavar="[SIDE=]PATH", help="The workers' interpreter.", rich_help_panel=PLACE)]
Seed = Annotated[int, typer.Option(help="Seed of inputs and orders.", rich_help_panel=MEASURING)]
Timeout = Annotated[str, typer.Option(metavar="TIME", help="One answer of a worker.", rich_help_panel=MEASURING)]
BuildTimeout = Annotated[str, typer.Option(metavar="TIME", help="One build.", rich_help_panel=PLACE)]
RunsDir = Annotated[str, typer.Option(metavar="PATH", help="Where run folders are made.", rich_help_panel=OUTPUT)]
Env = Annotated[str, typer.Option(metavar="user|clean", help="The workers' environment.", rich_help_panel=PLACE)]
Rebuild = Annotated[bool, typer.Option("--rebuild", help="Build even what is cached.", rich_help_panel=PLACE)]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait for a busy device.", rich_help_panel=PLACE)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings and the result.", rich_help_panel=OUTPUT)]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="All of the builds' output.", rich_help_panel=OUTPUT)]
