"""`abprof init` writes abprof.toml and a first workload for a repository; `--github` writes the bot's workflow."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abprof.cli.app import app, note, refuse
from abprof.cli.options import flag, takes, text
from abprof.records.errors import AbprofError, Exit
from abprof.records.filters import nearest
from abprof.records.options import File
from abprof.records.quantities import plural
from abprof.system import files as disk
from abprof.system import paths
from abprof.system.config_file import place, read_file
from abprof.system.paths import bundled

if TYPE_CHECKING:
    from abprof.extras.init import Found, Function, Made
    from abprof.sides import Repository

_FILES = {"abprof.yml": ".github/workflows/abprof.yml", "abprof-bot.toml": ".github/abprof-bot.toml"}
_NAMED = 5  # further measurable functions that a note names
Refs = Annotated[list[str], typer.Argument(metavar="BASE TARGET", help="Propose for what these refs differ in.")]


@app.command("init", short_help="Write abprof.toml and a first workload for a repository.")
@takes(
    flag("--github", "Write the GitHub workflow of the pull-request bot."),
    text(
        "--function",
        "[FILE:]NAME",
        "Function to measure, or a kernel that it launches; default: the likeliest.",
        default="",
    ),
    text("--workloads-dir", "PATH", "Folder for the workloads, also outside the repository; default: workloads/."),
    flag("--check", "Run the proposed workload once, and mend or name what fails."),
    flag("--overwrite", "Replace existing files that differ."),
    "repo",
)
def init(ctx: typer.Context, refs: Refs = [], **values: Any) -> int:  # noqa: B006
    """Propose abprof.toml and a first workload for this repository, without running its code (docs/ADOPT.md).

    `abprof init BASE TARGET` proposes workloads for the functions whose code, or whose callees' code, the refs differ in.
    --check then runs the workloads once, without a GPU in Triton's interpreter; exit code 1 if a cell still fails.

    --github writes the bot's workflow and the list of users who may start runs. Files with other content are replaced only
    with --overwrite; otherwise the exit code is 2.
    """
    if values["github"]:
        refuse(ctx, "does not go with --github", but=("github", "repo", "overwrite"))
        _write_bot(Path(values["repo"]).absolute(), overwrite=values["overwrite"])
        return Exit.OK
    return _adopt(values, refs)


def _write_bot(root: Path, *, overwrite: bool) -> None:
    if not (root / ".git").exists():
        raise AbprofError("not the top folder of a git repository", where=f"--repo {root}")
    read_file(root)  # a broken abprof.toml would fail the bot's runs
    _write(root, {to: (bundled("templates") / "github" / name).read_bytes() for name, to in _FILES.items()}, overwrite)
    print("Read both files, fill in the lines marked FILL IN, and commit them to the default branch: docs/BOT.md")


def _adopt(values: Mapping[str, Any], refs: Sequence[str]) -> int:
    from abprof import sides as repo

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
    if refs:
        made, notes = _made_of(refs, values["function"], repository, file, folder)
    else:
        made, notes = _made(values["function"], repository.files(), root, file, folder)
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
    right = True
    for part in made.parts if values["check"] else ():
        from abprof.extras.init import checked

        note(f"running the smallest cells of {_names([part.function])}")  # minutes, where kernels are interpreted
        made.files[part.path], lines, fine = checked(part, root)
        right = right and fine
        print("\n".join(lines))
    _what_next(root, made, refs)
    return Exit.OK if right else Exit.SLOWER


def _made(wanted: str, files: Sequence[str], root: Path, file: File | None, folder: str) -> tuple[Made, list[str]]:
    from abprof.extras import init as maker

    found = maker.look(files, lambda path: (root / path).read_text(encoding="utf-8-sig"))
    notes = [f"not parsed as Python: {_few(found.unread)}"] if found.unread else []
    some = maker.candidates(found)
    if not some:
        what = "; ".join(["found no function to measure: no @triton.jit kernel, and no function takes tensors", *notes])
        raise AbprofError(what, where=str(root), advice="docs/WRITING.md describes kernel packages")
    one, others = _chosen(found, some, wanted)
    made = maker.proposed(found, [one], file, folder, place(root)[1])
    return made, [*others, *notes, *made.notes]


def _made_of(
    refs: Sequence[str], wanted: str, repository: Repository, file: File | None, folder: str
) -> tuple[Made, list[str]]:
    from abprof import sides as repo
    from abprof.extras import init as maker

    sides, notes = repo.resolve(repository, refs)
    if len(sides) != 2:
        advice = "abprof init BASE TARGET; . is the working tree"
        raise AbprofError("needs two refs", where=" ".join(refs), advice=advice)
    base, target = (side.spec for side in sides)
    found, changed = maker.changes(*(repository.python_files(side.tree) for side in sides))
    every = [one.function for one in changed]
    if not changed:
        advice = "comments and docstrings do not count; abprof init without refs takes the likeliest function"
        raise AbprofError(f"no function that can be measured differs between {base} and {target}", advice=advice)
    some, chosen = maker.best(changed), list[str]()
    functions = [one.function for one in some]
    if wanted:
        single, chosen = _chosen(found, every, wanted)
        functions, some = [single], [one for one in changed if one.function is single]
        chosen += [] if some else [f"{single.name} reaches nothing that differs"]
    made = maker.proposed(found, functions, file, folder, under=place(Path(repository.path))[1])
    kernels = list(dict.fromkeys(name for one in changed for name in sorted(one.kernels)))
    noun = "kernel source" if any("." in name for name in kernels) else "kernel" if kernels else "function"
    named, lacks = kernels or [one.name for one in every], ("", f"; {base} lacks it")
    lines = [*notes, *chosen, f"{target} changes {plural(len(named), noun)}: {_few(named)}"]
    for one in some:
        parts = [part for part in one.parts if part != one.function.name.partition(".")[0]]
        reached = f" reaches {_few(parts)}" if parts else ""
        lines.append(f"  {_names([one.function])}{reached}{lacks[one.new]}")
    others = [one.function for one in changed if one not in some]
    return made, [*lines, *made.notes] + [f"also changed, for --function: {_names(others)}"] * bool(others)


def _chosen(found: Found, some: Sequence[Function], wanted: str) -> tuple[Function, list[str]]:
    """Return the function that `wanted` names, itself or by a kernel that it launches ("": the likeliest), and a note that
    lists others. Functions that are not among `some` are found by their own name only."""
    if not wanted:
        return some[0], [f"other candidates for --function: {_names(some[1:])}"] if some[1:] else []
    option, (file, _, name) = f"--function {wanted}", wanted.rpartition(":")
    others = [one for same in found.functions.values() for one in same if one not in some and one.parameters]
    here = [one for one in (*some, *others) if one.path.endswith(file)]
    fitting = [one for one in here if one.name.removesuffix(".apply") == name.removesuffix(".apply")]
    fitting = fitting or [one for one in here if one in some and name in one.kernels]
    if not fitting:
        raise AbprofError("no such function", where=option, advice=nearest(name, [one.name for one in some]))
    note = f"{option}: took {_names(fitting[:1])}"
    return fitting[0], [f"{note}; also {_names(fitting[1:])}" if fitting[1:] else note]


def _names(some: Sequence[Function]) -> str:
    return _few([f"{one.path}:{one.name}" for one in some])


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _write(root: Path, files: Mapping[str, bytes], overwrite: bool) -> None:
    """Write `files` (path -> content) under `root`. Write nothing and raise AbprofError if a file exists with other
    content and `overwrite` is False."""
    paths = {Path(os.path.normpath(root / name)): content for name, content in files.items()}
    same = [path for path, content in paths.items() if path.exists() and path.read_bytes() == content]
    for path in paths:
        if path.exists() and path not in same and not overwrite:
            advice = "nothing was written; --overwrite replaces the file"
            raise AbprofError("exists with other content", where=str(path), advice=advice)
    for path, content in paths.items():
        print(f"unchanged {path}" if path in same else f"wrote {disk.put(path, content)}")


def _what_next(root: Path, made: Made, refs: Sequence[str]) -> None:
    from abprof import devices

    one = made.parts[0].function
    guessed = sum(text.count("GUESSED") + text.count("# WRITE") for text in made.files.values()) - 1
    called = "These workloads call them" if refs else f"The workload calls {one.name} ({one.path}:{one.line})"
    print(f"{called}; check {guessed} marks GUESSED or WRITE.")
    where = "" if Path.cwd().is_relative_to(root) else f" --repo {shlex.quote(str(root))}"
    mine = {Path(part.path).stem for part in made.parts}
    others = {path.stem for path in (root / made.parts[0].path).parent.glob("[!_]*.py")} - mine
    where += f" --workloads {','.join(sorted(mine))}" if others else ""
    on_cpu = devices.choose(()).kind == "cpu"
    interpreted, sides = "TRITON_INTERPRET=1 " if on_cpu and made.triton else "", shlex.join(refs)
    more = " --preset smoke" if on_cpu else ""  # the default sizes are for GPUs
    print(f"Next: {interpreted}abprof {sides or '.'}{where} --dry-run")
    print(f"then: {interpreted}abprof run {sides or '.'}{where} --quick{more}")
    ending = f"{'' if sides else ' with two branches'} (more in docs/ADOPT.md)"
    print(f"then: {interpreted}abprof {sides or 'BASE TARGET'}{where}{more}{ending}")
