"""Compare the code of base's and a target's files, as `diff -U0` does, without git: a side may be a release."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from abprof.records import Build, Checkout, Hunk, Proof, Run, lines_of
from abprof.system import doorway, trees

# Files that may decide a build or a launch, beside the Python modules that were loaded.
# A kind that is missing here makes the only other hunk take the blame.
_OTHERS = (".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hh", ".hpp", ".hxx", ".inl", ".ipp", ".tpp", ".ptx", ".ll",
           ".s", ".S", ".asm", ".cl", ".hip", ".pyx", ".pxd", ".rs", ".f90", ".in", ".j2", ".jinja", ".tmpl", ".json",
           ".yaml", ".yml", ".toml", ".cfg", ".ini", ".cmake", ".mk", "setup.py", "Makefile", "CMakeLists.txt")  # fmt: skip
_REMARK = re.compile(r"^\s*(#(?!\s*(include|define|if|else|elif|endif|pragma|undef)\b).*|//.*)?$")
_LARGEST = 2 << 20  # bytes of a file
_MOST = 400  # hunks of a target: with more, none is kept
_SHOWN = 2000  # characters
_FEW = 5  # lines of code


def differing_code(run: Run, checkouts: Sequence[Checkout]) -> dict[str, tuple[Hunk, ...]]:
    """Return where base and each target differ in what builds and workers loaded, C++, CUDA, and settings of builds."""
    roots, names = {one.side.id: Path(one.path) for one in checkouts}, dict[str, set[str]]()
    for side, root in roots.items():
        names[side] = {name for name in trees.files_of(root) if name.endswith(_OTHERS)}
        seen: list[Proof | Build] = [*run.proofs, *run.builds]
        # A build loads its copy of the sources.
        homes = (root, *(Path(build.path) / "src" for build in run.builds if build.side == side and build.path))
        loaded = (artefact for one in seen if one.side == side for artefact in one.artefacts)
        modules = {Path(one.path) for one in loaded if one.kind == "module"}
        names[side] |= {str(path.relative_to(home)) for path in modules for home in homes if path.is_relative_to(home)}
    found = {}
    for side in [side for side in roots if side != "base" and "base" in roots]:
        every = sorted(names["base"] | names[side])
        own = [hunk for name in every for hunk in _differing(name, roots["base"], roots[side])]
        if len(own) <= _MOST:
            found[side] = tuple(own)
    return found


def _differing(name: str, *roots: Path) -> Iterator[Hunk]:
    before, after = (text(root, name) for root in roots)
    if before != after:
        yield from compared(name, lines_of(before), lines_of(after))


def compared(name: str, before: Sequence[str], after: Sequence[str]) -> Iterator[Hunk]:
    """Yield the hunks of a file."""
    kernels = _kernels("\n".join(after)) if name.endswith(".py") else []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            removed, added = "\n".join(before[i:j])[:_SHOWN], "\n".join(after[k:m])[:_SHOWN]
            inside = next(((a, b) for a, b in kernels if a < k + 1 and max(k + 1, m) <= b), (0, 0))
            yield Hunk(file=name, at=(i + 1, k + 1), count=(j - i, m - k), removed=removed, added=added, inside=inside)


def _kernels(source: str) -> list[tuple[int, int]]:
    """Return the first and last lines of the functions that Triton compiles."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    return [(node.lineno, node.end_lineno or 0) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
            and any(re.search(r"\bjit\b", ast.unparse(one)) for one in node.decorator_list)]  # fmt: skip


def text(root: Path, name: str) -> str:
    """Return the text of a file below `root`; "" if it cannot be read."""
    try:
        return doorway.read(root / name, _LARGEST, root).decode(errors="replace")
    except OSError:
        return ""


# ---------------------------------------------------------------- what a hunk changes


def changes_code(hunk: Hunk) -> bool:
    """Whether a hunk changes more than blank lines and comments of a whole line."""
    one, two = ([line for line in lines_of(side) if not _REMARK.match(line)] for side in (hunk.removed, hunk.added))
    return one != two


def mentions(hunk: Hunk, patterns: Sequence[str]) -> bool:
    """Whether a changed line matches one of the patterns."""
    return any(re.search(pattern, f"{hunk.removed}\n{hunk.added}") for pattern in patterns)


def replaces(hunk: Hunk, text: str) -> bool:
    """Whether a hunk replaces a value by another as the text says: `BLOCK 64 -> 128`."""
    return any(re.search(rf"\b{before}\b", hunk.removed) and re.search(rf"\b{after}\b", hunk.added)
               for before, after in re.findall(r"(\w+) -> (\w+)", text))  # fmt: skip


def first_line(hunk: Hunk, patterns: Sequence[str]) -> str:
    """Return the hunk's first line of code on the target, FILE:LINE; one that matches a pattern, if there is one.

    Returns "" for a hunk of many lines of which none matches: any of them may be meant.
    """
    lines = lines_of(hunk.added)
    code = [place for place, line in enumerate(lines) if not _REMARK.match(line)]
    named = [place for place in code if any(re.search(pattern, lines[place]) for pattern in patterns)]
    return "" if len(code) > _FEW and not named else f"{hunk.file}:{hunk.at[1] + (named or code or [0])[0]}"
