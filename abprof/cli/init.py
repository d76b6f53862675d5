"""`abprof init`: what a repository needs so that machines run abprof there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from abprof.cli.given import given
from abprof.records.errors import AbprofError, Exit


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("init", help=init.__doc__, short_help="Begin with a repository: abprof.toml and a workload.")(init)


_FILES = {"abprof.yml": ".github/workflows/abprof.yml", "abprof-bot.toml": ".github/abprof-bot.toml"}
_OF_A_WORKLOAD = ("kernel", "workload", "function", "workloads_dir", "yes")


def init(
    ctx: typer.Context,
    github: Annotated[bool, typer.Option("--github", help="The bot on GitHub's pull requests.")] = False,
    repo: Annotated[str, typer.Option(help="The git repository.")] = ".",
    kernel: Annotated[str, typer.Option(metavar="NAME", help="Begin kernels/NAME and its workload.")] = "",
    workload: Annotated[str, typer.Option(metavar="NAME", help="A workload for the kernel package of that name.")] = "",
    function: Annotated[str, typer.Option(metavar="[FILE:]NAME", help="What to measure first.")] = "",
    workloads_dir: Annotated[str, typer.Option(metavar="PATH", help="Where workloads lie, also elsewhere.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Take the first choice of every question.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there and differ.")] = False,
) -> int:
    """Propose abprof.toml and a first workload for this repository, by reading its files and running none: docs/ADOPT.md.

    --kernel and --workload begin in abprof's own layout; --github writes the bot's workflow and the list of users who may
    start it. A file that is there and differs is not replaced (exit code 2) without --overwrite.
    """
    if not github:
        from abprof.cli.adopt import Wanted, adopt

        adopt(Wanted(repo, yes, overwrite, function, kernel, workload, workloads_dir))
        return Exit.OK
    if others := [option for name, option in given(ctx).items() if name in _OF_A_WORKLOAD]:
        raise AbprofError("does not go with --github", where=others[0])
    _write_bot(Path(repo).absolute(), overwrite=overwrite)
    return Exit.OK


def _write_bot(root: Path, *, overwrite: bool) -> None:
    """Write the bot's workflow and its list of users. Raises AbprofError for a file that differs, without --overwrite."""
    from abprof.system import files as disk
    from abprof.system.bundled import bundled
    from abprof.system.config_file import read_file

    if not (root / ".git").exists():
        raise AbprofError("not the top of a git repository", where=f"--repo {root}")
    read_file(root)  # the bot's runs would refuse a broken abprof.toml
    made = {root / place: (bundled("templates") / "github" / name).read_bytes() for name, place in _FILES.items()}
    for path, content in made.items():
        if path.exists() and path.read_bytes() != content and not overwrite:
            advice = "--overwrite replaces it; nothing was written"
            raise AbprofError("is there and differs", where=str(path), advice=advice)
    for path, content in made.items():
        print(disk.put(path, content))
    print("Read both, fill in the lines marked FILL IN, and commit them to the default branch: docs/BOT.md")
