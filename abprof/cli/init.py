"""`abprof init` writes abprof.toml and a first workload for a repository; `--github` writes the bot's workflow."""

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
_NAMED = 5  # further measurable functions that a note names


def _module_name(name: str, option: str) -> str:
    """Return `name` if it is a valid module name. Else raise AbprofError, which names `option`."""
    if not re.fullmatch(r"[A-Za-z]\w*", name):
        raise AbprofError(f"{name!r} is not a valid module name", where=option, advice="use letters, digits and _")
    return name


@app.command("init", short_help="Write abprof.toml and a first workload for a repository.")
@takes(
    flag("--github", "Write the GitHub workflow of the pull-request bot."),
    text("--kernel", "NAME", "Write a new kernel package kernels/NAME and its workload.", _module_name, default=""),
    text("--workload", "NAME", "Write a workload for the existing kernel package NAME.", _module_name, default=""),
    text("--function", "[FILE:]NAME", "Function to measure; default: the likeliest candidate.", default=""),
    text("--workloads-dir", "PATH", "Folder for the workloads, also outside the repository; default: workloads/."),
    flag("--overwrite", "Replace existing files that differ."),
    "repo",
)
def init(ctx: typer.Context, **values: Any) -> int:
    """Propose abprof.toml and a first workload for this repository, without running its code (docs/ADOPT.md).

    --kernel and --workload write files in abprof's own layout; --github writes the bot's workflow and the list of users
    who may start runs. Files with other content are replaced only with --overwrite; otherwise the exit code is 2.
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
        raise AbprofError("not the top folder of a git repository", where=f"--repo {root}")
    read_file(root)  # a broken abprof.toml would fail the bot's runs
    _write(root, {to: (bundled("templates") / "github" / name).read_bytes() for name, to in _FILES.items()}, overwrite)
    print("Read both files, fill in the lines marked FILL IN, and commit them to the default branch: docs/BOT.md")


def _adopt(values: Mapping[str, Any]) -> None:
    """Write the proposed files and print the next commands. Raises AbprofError before anything is written."""
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
            what, advice = "the settings name another folder of workloads", f"set workloads = {given!r} there first"
            raise AbprofError(what, where=f"--workloads-dir {given}", advice=advice)
        folder = given
    made, notes = _made(values, repository.files(), root, file, folder)
    if made.missing:
        print("\n".join(made.missing))
        what = "this file has no table for the package"
        raise AbprofError(what, where=str(place(root)[0]), advice="add the lines above, then try again")
    for name in made.files:
        there = (root / name).parent.resolve()
        meant = values["workloads_dir"] and Path(name).parent == Path(folder)
        if not there.is_relative_to(root.resolve()) and not meant:  # by `..` or by a link
            advice = f"to write there, give --workloads-dir {shlex.quote(os.path.normpath((root / name).parent))}"
            raise AbprofError(f"leads outside the repository, to {there}", where=str(root / name), advice=advice)
    _write(root, {name: text.encode() for name, text in made.files.items()}, values["overwrite"])
    if (config := place(root)[0]).exists() and config.name not in made.files:
        print(f"unchanged {config}")
        made.files[config.name] = config.read_text()  # marks in this file count, too
    for line in notes:
        print(line)
    _what_next(root, made, begun=bool(repository.ref_names()))


def _made(
    values: Mapping[str, Any], files: Sequence[str], root: Path, file: File | None, folder: str
) -> tuple[Made, list[str]]:
    """Return the files to write, and notes to print."""
    from abprof.extras import init as maker
    from abprof.records.options import File
    from abprof.system.config_file import place

    name, kernel = values["workload"], values["kernel"]
    there = [path for path in files if path.startswith(f"kernels/{kernel}/") or path == f"kernels/{kernel}.py"]
    if kernel and not there and kernel not in (file or File()).kernels:
        return maker.begun(kernel, name, file, folder), []
    if kernel and not name:
        where = there[0] if there else place(root)[0].name
        raise AbprofError("already exists", where=where, advice="--workload NAME writes a workload for this package")
    found = maker.look(files, lambda path: (root / path).read_text(encoding="utf-8-sig"))
    more = f" and {len(found.unread) - 3} more" if len(found.unread) > 3 else ""
    notes = [f"not parsed as Python: {', '.join(found.unread[:3])}{more}"] if found.unread else []
    some = maker.within(found, kernel or name, file) if name else maker.candidates(found)
    if not some:
        what = "; ".join(
            ["found no function to measure: no @triton.jit kernel, no function that takes tensors", *notes]
        )
        raise AbprofError(what, where=str(root), advice="abprof init --kernel NAME writes a new kernel package")
    one, others = _chosen(some, values["function"])
    made = maker.adopted(found, one, file, folder, name, under=place(root)[1])
    return made, [*others, *notes]


def _chosen(some: Sequence[Function], wanted: str) -> tuple[Function, list[str]]:
    """Return the function named `wanted` ("": the likeliest), and a note that lists the other candidates."""
    file, _, name = wanted.rpartition(":")
    fitting = [one for one in some if not wanted or (one.name == name and one.path.endswith(file))]
    names = ", ".join([f"{one.path}:{one.name}" for one in some if one not in fitting[:1]][:_NAMED])
    if not fitting:
        raise AbprofError("no such candidate", where=f"--function {wanted}", advice=f"candidates: {names}")
    return fitting[0], [f"other candidates for --function: {names}"] if names and not wanted else []


def _write(root: Path, files: Mapping[str, bytes], overwrite: bool) -> None:
    """Write `files` (path -> content) under `root`. Write nothing and raise AbprofError if a file exists with other
    content and `overwrite` is False."""
    from abprof.system import files as disk

    paths = {Path(os.path.normpath(root / name)): content for name, content in files.items()}
    same = [path for path, content in paths.items() if path.exists() and path.read_bytes() == content]
    for path in paths:
        if path.exists() and path not in same and not overwrite:
            advice = "nothing was written; --overwrite replaces the file"
            raise AbprofError("exists with other content", where=str(path), advice=advice)
    for path, content in paths.items():
        print(f"unchanged {path}" if path in same else f"wrote {disk.put(path, content)}")


def _what_next(root: Path, made: Made, *, begun: bool) -> None:
    """Print the commands to run next. `begun`: whether the repository has a commit."""
    from abprof import devices

    one = made.function
    guessed = sum(text.count("GUESSED") + text.count("# WRITE") for text in made.files.values()) - 1
    print(f"The workload calls {one.name} ({one.path}:{one.line}); check its {guessed} marks GUESSED or WRITE.")
    where = "" if Path.cwd().is_relative_to(root) else f" --repo {shlex.quote(str(root))}"
    on_cpu = devices.choose(()).kind == "cpu"
    if not begun:
        print("First: git add --all && git commit -m 'Begin' (the repository has no commit yet)")
    interpreted = "TRITON_INTERPRET=1 " if on_cpu and made.triton else ""
    print(f"Next: {interpreted}abprof .{where} --dry-run")
    print(f"then: {interpreted}abprof run .{where} --quick{' --preset smoke' if on_cpu else ''}")
    if interpreted:
        print("      (no GPU here: the kernels run in Triton's interpreter, and their times mean nothing)")
    print(f"then: {interpreted}abprof BASE TARGET with two branches (more in docs/ADOPT.md)")
