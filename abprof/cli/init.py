"""`abprof init`: abprof.toml and a first workload for a repository, or the bot's workflow."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from abprof.cli.app import app, refuse
from abprof.cli.options import flag, takes, text
from abprof.records.errors import AbprofError, Exit

if TYPE_CHECKING:
    from abprof.extras.init import Function, Made
    from abprof.records.options import File

_FILES = {"abprof.yml": ".github/workflows/abprof.yml", "abprof-bot.toml": ".github/abprof-bot.toml"}
_NAMED = 5  # other functions that could be measured


def _plain(name: str, option: str) -> str:
    """A name that a file, a module and a TOML key can have. Raises AbprofError."""
    if not re.fullmatch(r"[A-Za-z]\w*", name):
        raise AbprofError(f"{name!r} is no name for a module", where=option, advice="letters, digits and _")
    return name


@app.command("init", short_help="Begin with a repository: abprof.toml and a workload.")
@takes(
    flag("--github", "Write the workflow of the bot on GitHub's pull requests."),
    text("--kernel", "NAME", "Write a new kernel package kernels/NAME and its workload.", _plain, default=""),
    text("--workload", "NAME", "A workload for the kernel package of that name.", _plain, default=""),
    text("--function", "[FILE:]NAME", "Function to measure: the likeliest.", default=""),
    text("--workloads-dir", "PATH", "Folder of the workloads, also outside of the repository."),
    flag("--overwrite", "Replace existing files that differ."),
    "repo",
)
def init(ctx: typer.Context, **values: Any) -> int:
    """Propose abprof.toml and a first workload for this repository, by reading its files and running none: docs/ADOPT.md.

    --kernel and --workload begin in abprof's own layout; --github writes the bot's workflow and the list of users who may
    start it. A file that is there and differs is not replaced (exit code 2) without --overwrite.
    """
    if values["github"]:
        refuse(ctx, "does not go with --github", but=("github", "repo", "overwrite"))
        _write_bot(Path(values["repo"]).absolute(), overwrite=values["overwrite"])
    else:
        _adopt(values)
    return Exit.OK


def _write_bot(root: Path, *, overwrite: bool) -> None:
    from abprof.system.bundled import bundled
    from abprof.system.config_file import read_file

    if not (root / ".git").exists():
        raise AbprofError("not the top of a git repository", where=f"--repo {root}")
    read_file(root)  # the bot's runs would refuse a broken abprof.toml
    _write(root, {to: (bundled("templates") / "github" / name).read_bytes() for name, to in _FILES.items()}, overwrite)
    print("Read both, fill in the lines marked FILL IN, and commit them to the default branch: docs/BOT.md")


def _adopt(values: Mapping[str, Any]) -> None:
    """Look, write, and say what comes next. Raises AbprofError; then nothing was written."""
    from abprof import sides as repo
    from abprof.system import paths
    from abprof.system.config_file import place, read_file

    repository = repo.open_repository(Path(values["repo"]), cache=paths.cache_dir())
    root = Path(repository.path)
    file = read_file(root)
    folder = file.workloads if file and file.workloads else "workloads"
    if values["workloads_dir"]:
        given = os.path.relpath(Path(values["workloads_dir"]).expanduser().absolute(), root)
        if file and given != folder:
            what, advice = "the file that is there names another folder", f"set workloads = {given!r} there first"
            raise AbprofError(what, where=f"--workloads-dir {given}", advice=advice)
        folder = given
    made, notes = _made(values, repository.files(), root, file, folder)
    if made.missing:
        print("\n".join(made.missing))
        what = "is there and has no table for this package"
        raise AbprofError(what, where=str(place(root)[0]), advice="add the lines above and run this again")
    for name in made.files:
        there = (root / name).parent.resolve()
        meant = values["workloads_dir"] and Path(name).parent == Path(folder)
        if not there.is_relative_to(root.resolve()) and not meant:  # by `..` or by a link
            advice = f"if it is meant: --workloads-dir {shlex.quote(os.path.normpath((root / name).parent))}"
            raise AbprofError(f"lies outside of the repository, at {there}", where=str(root / name), advice=advice)
    _write(root, {name: text.encode() for name, text in made.files.items()}, values["overwrite"])
    for line in notes:
        print(line)
    _what_next(root, made, begun=bool(repository.ref_names()))


def _made(
    values: Mapping[str, Any], files: Sequence[str], root: Path, file: File | None, folder: str
) -> tuple[Made, list[str]]:
    """The files to write, and notes: other functions, and Python files that cannot be read."""
    from abprof.extras import init as maker
    from abprof.records.options import File
    from abprof.system.config_file import place

    name, kernel = values["workload"], values["kernel"]
    there = [path for path in files if path.startswith(f"kernels/{kernel}/") or path == f"kernels/{kernel}.py"]
    if kernel and not there and kernel not in (file or File()).kernels:
        return maker.begun(kernel, name, file, folder), []
    if kernel and not name:
        where = there[0] if there else place(root)[0].name
        raise AbprofError("is there", where=where, advice="--workload NAME writes one for it")
    found = maker.look(files, lambda path: (root / path).read_text(encoding="utf-8-sig"))
    more = f" and {len(found.unread) - 3} more" if len(found.unread) > 3 else ""
    notes = [f"no Python of this version, or no text: {', '.join(found.unread[:3])}{more}"] if found.unread else []
    some = maker.within(found, kernel or name, file) if name else maker.candidates(found)
    if not some:
        what = "; ".join(["found nothing to measure: no @triton.jit, no function of tensors", *notes])
        raise AbprofError(what, where=str(root), advice="abprof init --kernel NAME begins a kernel package")
    one, others = _chosen(some, values["function"])
    made = maker.adopted(found, one, file, folder, name, under=place(root)[1])
    return made, [*others, *notes]


def _chosen(some: Sequence[Function], wanted: str) -> tuple[Function, list[str]]:
    """The function to measure, --function or the likeliest, and a note with the others."""
    file, _, name = wanted.rpartition(":")
    fitting = [one for one in some if not wanted or (one.name == name and one.path.endswith(file))]
    names = ", ".join([f"{one.path}:{one.name}" for one in some if one not in fitting[:1]][:_NAMED])
    if not fitting:
        raise AbprofError("no such function of tensors", where=f"--function {wanted}", advice=f"there is {names}")
    return fitting[0], [f"--function chooses another: {names}"] if names and not wanted else []


def _write(root: Path, files: Mapping[str, bytes], overwrite: bool) -> None:
    """Raises AbprofError, before anything is written, for a file that is there and differs."""
    from abprof.system import files as disk

    paths = {Path(os.path.normpath(root / name)): content for name, content in files.items()}
    same = [path for path, content in paths.items() if path.exists() and path.read_bytes() == content]
    for path in paths:
        if path.exists() and path not in same and not overwrite:
            advice = "--overwrite replaces it; nothing was written"
            raise AbprofError("is there and differs", where=str(path), advice=advice)
    for path, content in paths.items():
        print(f"unchanged {path}" if path in same else f"wrote {disk.put(path, content)}")


def _what_next(root: Path, made: Made, *, begun: bool) -> None:
    """The commands that follow. `begun`: the repository has a commit, which every side stands on."""
    from abprof import devices

    one = made.function
    guessed = sum(text.count("GUESSED") + text.count("# WRITE") for text in made.files.values()) - 1
    print(f"The workload calls {one.name} ({one.path}:{one.line}); check its {guessed} marks GUESSED or WRITE.")
    where = "" if Path.cwd().is_relative_to(root) else f" --repo {shlex.quote(str(root))}"
    on_cpu = devices.choose(()).kind == "cpu"
    if not begun:
        print("First: git add --all && git commit -m 'Begin' (the repository has no commit yet)")
    print(f"Next: abprof .{where} --dry-run")
    print(f"then: abprof run .{where} --quick{' --preset smoke' if on_cpu else ''}")
    if one.kernels and on_cpu:
        print("      (no GPU here: with TRITON_INTERPRET=1 it runs, and its times mean nothing)")
    print("then: abprof BASE TARGET with two branches; docs/ADOPT.md goes on from here")
