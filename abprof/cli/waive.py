"""`abprof waive`: accept a slow-down, for a while."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import typer

from abprof.records.errors import AbprofError, Exit


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("waive", help=waive.__doc__, short_help="Accept a slow-down, for a while.")(waive)


def waive(
    cells: Annotated[str, typer.Argument(metavar="GLOB", help="Cells by their ids, e.g. 'dense/*direction=bwd*'.")],
    most: Annotated[str, typer.Option(metavar="PCT", help="The largest slow-down that is accepted.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why.")],
    owner: Annotated[str, typer.Option(metavar="NAME", help="Who answers for it.")],
    until: Annotated[str, typer.Option(metavar="DATE", help="Its last day, e.g. 2026-12-31.")],
    repo: Annotated[str, typer.Option(help="The git repository.")] = ".",
) -> int:
    """Add a waiver to abprof-waivers.toml in the working tree.

    Runs read that file from the commit they compare with: it holds once it is on the base branch. A waived row is still
    `slower`; it counts as nothing to act on while it is within the accepted change and the date.
    """
    from abprof.records import Waiver
    from abprof.records.quantities import percent
    from abprof.system import files as disk
    from abprof.system import toml, waiver_file
    from abprof.verdict import waivers

    made = Waiver(cells=cells, most_pct=percent(most, "--most"), reason=reason, owner=owner, expires=_day(until))
    path = _root(Path(repo)) / waivers.FILE
    try:
        text = toml.decoded(disk.content(path), str(path)) if path.exists() else ""
    except OSError as error:
        raise AbprofError(f"cannot be read: {error}", where=str(path)) from None
    disk.put(path, waiver_file.with_one_more(text, made, str(path)).encode())
    print(f"{path}: {waivers.describe(made)}")
    loads = [file.stem for file in sorted(path.parent.glob("workloads/*.py")) if not file.name.startswith("_")]
    if loads and not waiver_file.matches_workload(cells, loads):
        print(f"No workload in {path.parent / 'workloads'} has such cells: there are {', '.join(loads)}.")
    print("It holds for comparisons with a base that has it: commit it there.")
    return Exit.OK


def _day(text: str) -> str:
    try:
        day = datetime.date.fromisoformat(text)
    except ValueError:
        raise AbprofError(f"{text!r} is no date", where="--until", advice="write 2026-12-31") from None
    if day < datetime.datetime.now(datetime.UTC).date():
        raise AbprofError(f"{text} has passed", where="--until")
    return day.isoformat()


def _root(folder: Path) -> Path:
    for place in (folder.absolute(), *folder.absolute().parents):
        if (place / ".git").exists():
            return place
    raise AbprofError("no git repository here", where=f"--repo {folder}")
