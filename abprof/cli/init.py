"""`abprof init`: abprof.toml and a first workload for a repository, or the bot's workflow."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abprof.cli.app import app
from abprof.cli.command import refuse
from abprof.cli.options import takes
from abprof.records.errors import AbprofError, Exit

if TYPE_CHECKING:
    from abprof.extras.init import Function, Made
    from abprof.records.options import File

_FILES = {"abprof.yml": ".github/workflows/abprof.yml", "abprof-bot.toml": ".github/abprof-bot.toml"}
_SHOWN = 9  # choices that fit a screen


@app.command("init", short_help="Begin with a repository: abprof.toml and a workload.")
@takes("repo")
def init(
    ctx: typer.Context,
    github: Annotated[bool, typer.Option("--github", help="The bot on GitHub's pull requests.")] = False,
    kernel: Annotated[str, typer.Option(metavar="NAME", help="Begin kernels/NAME and its workload.")] = "",
    workload: Annotated[str, typer.Option(metavar="NAME", help="A workload for the kernel package of that name.")] = "",
    function: Annotated[str, typer.Option(metavar="[FILE:]NAME", help="What to measure first.")] = "",
    workloads_dir: Annotated[str, typer.Option(metavar="PATH", help="Where workloads lie, also elsewhere.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Take the first choice of every question.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there and differ.")] = False,
    **values: Any,
) -> int:
    """Propose abprof.toml and a first workload for this repository, by reading its files and running none: docs/ADOPT.md.

    --kernel and --workload begin in abprof's own layout; --github writes the bot's workflow and the list of users who may
    start it. A file that is there and differs is not replaced (exit code 2) without --overwrite.
    """
    repo = values["repo"]
    if not github:
        adopt(Wanted(repo, yes, overwrite, function, kernel, workload, workloads_dir))
        return Exit.OK
    refuse(ctx, "does not go with --github", but=("github", "repo", "overwrite"))
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


@dataclass(frozen=True)
class Wanted:
    """The options."""

    repo: str
    yes: bool = False
    overwrite: bool = False
    function: str = ""
    kernel: str = ""
    workload: str = ""
    workloads_dir: str = ""


def adopt(wanted: Wanted) -> None:
    """Look, ask, write, and say what comes next. Raises AbprofError; then nothing was written."""
    from abprof import sides as repo
    from abprof.system import paths
    from abprof.system.config_file import place, read_file

    repository = repo.open_repository(Path(wanted.repo), cache=paths.cache_dir())
    root = Path(repository.path)
    file = read_file(root)
    folder = _folder(root, wanted, file)
    files = repository.files()
    settings, _ = place(root)
    made, note = _made(wanted, files, root, file, folder)
    if made.missing:
        print("\n".join(made.missing))
        what = "is there and has no table for this package"
        raise AbprofError(what, where=str(settings), advice="add the lines above and run this again")
    _refuse_outside(root, made, folder if wanted.workloads_dir else "")
    _write(root, made, overwrite=wanted.overwrite)
    if note:
        print(note)
    _what_next(root, made, begun=bool(repository.ref_names()))


def _made(wanted: Wanted, files: Sequence[str], root: Path, file: File | None, folder: str) -> tuple[Made, str]:
    """The files to write, and a note about Python files that cannot be read."""
    from abprof.extras import init as maker
    from abprof.records.options import File
    from abprof.system.config_file import place

    name = maker.plain_name(wanted.workload, "--workload") if wanted.workload else ""
    kernel = maker.plain_name(wanted.kernel, "--kernel") if wanted.kernel else ""
    there = [path for path in files if path.startswith(f"kernels/{kernel}/") or path == f"kernels/{kernel}.py"]
    if kernel and not there and kernel not in (file or File()).kernels:
        return maker.begun(kernel, name, file, folder), ""
    if kernel and not name:
        raise AbprofError(
            "is there", where=there[0] if there else place(root)[0].name, advice="--workload NAME writes one for it"
        )
    found = maker.look(files, lambda path: maker.content(root / path))
    unread = f"no Python of this version, or no text: {', '.join(found.unread[:3])}" if found.unread else ""
    unread += f" and {len(found.unread) - 3} more" if len(found.unread) > 3 else ""
    some = maker.within(found, kernel or name, file) if name else maker.candidates(found)
    if not some:
        what = "found nothing to measure: no @triton.jit, no function of tensors"
        what += f"; {unread}" if unread else ""
        raise AbprofError(what, where=str(root), advice="abprof init --kernel NAME begins a kernel package")
    setup = root / "setup.py"
    text = setup.read_text(encoding="utf-8", errors="replace") if setup.is_file() else ""
    one = _chosen(some, wanted)
    return maker.adopted(found, one, file, folder, text, name, under=place(root)[1]), unread


def _chosen(some: Sequence[Function], wanted: Wanted) -> Function:
    """What is to be measured first: by --function, by a person, or the likeliest."""
    if wanted.function:
        file, _, name = wanted.function.rpartition(":")
        fitting = [one for one in some if one.name == name and one.path.endswith(file)]
        if not fitting:
            names = ", ".join(one.name for one in some[:_SHOWN])
            raise AbprofError(
                "no such function of tensors", where=f"--function {wanted.function}", advice=f"there is {names}"
            )
        some = fitting
    shown = [
        f"{one.name} at {one.path}:{one.line}, launches {', '.join(one.kernels) or 'no Triton kernel'}" for one in some
    ]
    advice = "--yes takes the first, --function FILE:NAME another"
    return some[_choice("Which function is to be measured first?", shown, advice, yes=wanted.yes)]


def _choice(question: str, choices: Sequence[str], advice: str, *, yes: bool) -> int:
    """The index of the user's choice. Raises AbprofError without a terminal to ask on."""
    if yes or len(choices) == 1:
        return 0
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise AbprofError(f"{question} There are {len(choices)}, and no terminal to ask on", advice=advice)
    for number, text in enumerate(choices[:_SHOWN], 1):
        print(f"{number:3}  {text}")
    if len(choices) > _SHOWN:
        print(f"     and {len(choices) - _SHOWN} more ({advice})")
    most = min(len(choices), _SHOWN)
    while True:
        answer = str(typer.prompt(f"{question} 1 to {most}", default="1"))
        if answer.isdecimal() and 1 <= int(answer) <= most:
            return int(answer) - 1


def _folder(root: Path, wanted: Wanted, file: File | None) -> str:
    """The workloads' folder, relative to the root, also where it lies beside the repository."""
    known = file.workloads if file else ""
    if not wanted.workloads_dir:
        return known or "workloads"
    folder = os.path.relpath(Path(wanted.workloads_dir).expanduser().absolute(), root)
    if file and folder != (known or "workloads"):
        advice = f"set workloads = {folder!r} there first"
        raise AbprofError(
            "the file that is there names another folder", where=f"--workloads-dir {folder}", advice=advice
        )
    return folder


def _refuse_outside(root: Path, made: Made, meant: str) -> None:
    """Raises AbprofError for a file that would lie outside of the repository, by `..` or by a link, and not in the folder
    that the person who calls this means."""
    for name in made.files:
        folder = Path(name).parent
        if (root / folder).resolve().is_relative_to(root.resolve()) or (meant and str(folder) == str(Path(meant))):
            continue
        meant_by = f"--workloads-dir {shlex.quote(os.path.normpath(root / folder))} says that it is meant"
        advice = meant_by if name == made.workload else "nothing was written"
        raise AbprofError(
            f"lies outside of the repository, at {(root / folder).resolve()}", where=str(root / folder), advice=advice
        )


def _write(root: Path, made: Made, *, overwrite: bool) -> None:
    """Raises AbprofError, before anything is written, for a file that is there and differs."""
    from abprof.system import files as disk

    for name, text in made.files.items():
        path = root / name
        if path.exists() and path.read_bytes() != text.encode() and not overwrite:
            advice = "--overwrite replaces it; nothing was written"
            raise AbprofError("is there and differs", where=str(path), advice=advice)
    for name, text in made.files.items():
        path = Path(os.path.normpath(root / name))
        if path.is_file() and path.read_bytes() == text.encode():
            print(f"unchanged {path}")
        else:
            print(f"wrote {disk.put(path, text.encode())}")


def _what_next(root: Path, made: Made, *, begun: bool) -> None:
    """The commands that follow. `begun`: the repository has a commit, which every side stands on."""
    from abprof import devices

    one = made.function
    guessed = sum(text.count("GUESSED") + text.count("# WRITE") for text in made.files.values()) - 1
    print(f"It calls {one.name} ({one.path}:{one.line}); {guessed} marks GUESSED or WRITE say what to look at.")
    where = "" if Path.cwd().is_relative_to(root) else f" --repo {shlex.quote(str(root))}"
    here = devices.choose(()).kind
    interpreted = bool(one.kernels) and here == "cpu"
    preset = " --preset smoke" if here == "cpu" else ""
    if not begun:
        print("First: git add --all && git commit -m 'Begin' (the repository has no commit yet)")
    print(f"Next: abprof .{where} --dry-run")
    print(f"then: {'TRITON_INTERPRET=1 ' if interpreted else ''}abprof run .{where} --quick{preset}")
    if interpreted:
        print("      (no GPU here: Triton's interpreter shows whether it works, and its times mean nothing)")
    print("then: abprof BASE TARGET with two branches; docs/ADOPT.md goes on from here")
