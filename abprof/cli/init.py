"""`abprof init`: what a repository needs so that machines run abprof there."""

from __future__ import annotations

import os
import shlex
import sys
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
_OF_A_TIMER = ("branch", "at")
_UNITS = "abprof-nightly"  # folder of a nightly job's files: they are this machine's, and not for git


def init(
    ctx: typer.Context,
    more: Annotated[
        list[str], typer.Argument(metavar="[-- OPTIONS]", help="With --nightly: more options of `abprof nightly`.")
    ] = [],  # noqa: B006
    github: Annotated[bool, typer.Option("--github", help="The bot on GitHub's pull requests.")] = False,
    nightly: Annotated[bool, typer.Option("--nightly", help="Timer files for `abprof nightly`.")] = False,
    branch: Annotated[
        str, typer.Option(help="With --nightly: the branch that is watched; the remote's default branch.")
    ] = "",
    at: Annotated[str, typer.Option(metavar="HH:MM", help="With --nightly: when.")] = "02:17",
    repo: Annotated[str, typer.Option(help="The git repository.")] = ".",
    kernel: Annotated[str, typer.Option(metavar="NAME", help="Begin kernels/NAME and its workload.")] = "",
    workload: Annotated[str, typer.Option(metavar="NAME", help="A workload for the kernel package of that name.")] = "",
    function: Annotated[str, typer.Option(metavar="[FILE:]NAME", help="What to measure first.")] = "",
    workloads_dir: Annotated[str, typer.Option(metavar="PATH", help="Where workloads lie, also elsewhere.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Take the first choice of every question.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there and differ.")] = False,
) -> int:
    """Propose abprof.toml and a first workload for this repository, by reading its files and running none: docs/ADOPT.md.

    --kernel and --workload begin in abprof's own layout; --github writes the bot's workflow and the list of who may ask
    it, --nightly a systemd service with its timer and a crontab's line. A file that is there and differs is not replaced
    (exit code 2) without --overwrite.
    """
    from abprof.system import files as disk
    from abprof.system.config_file import read_file

    if not nightly and (others := [option for name, option in given(ctx).items() if name in _OF_A_TIMER]):
        raise AbprofError("goes with --nightly", where=others[0])
    if not (github or nightly or more):
        from abprof.cli.adopt import Wanted, adopt

        adopt(Wanted(repo, yes, overwrite, function, kernel, workload, workloads_dir))
        return Exit.OK
    if others := [option for name, option in given(ctx).items() if name in _OF_A_WORKLOAD]:
        raise AbprofError("does not go with --github or --nightly", where=others[0])
    if more and not nightly:
        raise AbprofError(
            f"{more[0]!r} is not an option", where="abprof init", advice="nightly's are given with --nightly"
        )
    root = Path(repo).absolute()
    if not (root / ".git").exists():
        raise AbprofError("not the top of a git repository", where=f"--repo {repo}")
    read_file(root)  # a broken one would have every run refused
    if nightly:
        branch = _would_begin(ctx, root, branch, more)
    made = (_bot(root) if github else {}) | (_timer(root, branch, at, more) if nightly else {})
    for path, content in made.items():
        if path.exists() and path.read_bytes() != content and not overwrite:
            advice = "--overwrite replaces it; nothing was written"
            raise AbprofError("is there and differs", where=str(path), advice=advice)
    for path, content in made.items():
        print(disk.put(path, content))
    if github:
        print("Read both, fill in the lines marked FILL IN, and commit them to the default branch: docs/BOT.md")
    if nightly:
        print(f"{branch} is watched")
        print(_advice(root / _UNITS))
    return Exit.OK


def _would_begin(ctx: typer.Context, root: Path, branch: str, more: list[str]) -> str:
    """The branch. Raises AbprofError for what the job would refuse every night: options that are none, a branch that is not
    there."""
    from abprof import sides as repo
    from abprof.cli.nightly import check_options
    from abprof.system import paths

    assert ctx.parent
    repository = repo.open_repository(root, cache=paths.cache_dir())
    branch = branch or repo.watched_branch(repository)
    check_options(ctx.parent, ["--repo", str(root), "--branch", branch, *more])
    repo.commit_of(repository, branch)
    return branch


def _bot(root: Path) -> dict[Path, bytes]:
    from abprof.system.bundled import bundled

    return {root / place: (bundled("templates") / "github" / name).read_bytes() for name, place in _FILES.items()}


def _timer(root: Path, branch: str, at: str, more: list[str]) -> dict[Path, bytes]:
    from abprof.extras.nightly.units import Timed, units

    path = os.environ.get("PATH", os.defpath)
    made = units(Timed(root, branch, at, sys.executable, path, tuple(more)))
    return {root / _UNITS / name: text.encode() for name, text in ({".gitignore": "*\n"} | made).items()}


def _advice(folder: Path) -> str:
    copy = shlex.join(["cp", *(str(folder / name) for name in ("abprof-nightly.service", "abprof-nightly.timer"))])
    return (
        f"Either: {copy} ~/.config/systemd/user/\n"
        "        systemctl --user daemon-reload; systemctl --user enable --now abprof-nightly.timer; loginctl enable-linger\n"
        f"    or: the last two lines of {folder / 'crontab'} into `crontab -e`. Then docs/NIGHTLY.md\n"
        "Both fetch first, which moves origin/main and not main: a branch of one's own stands still, every night is nothing new."
    )
