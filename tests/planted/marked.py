"""Changes of small kernels that each have one cause, at a known line: Triton and Gluon, C++, CUDA C++.

The files of `marked_tree/` hold base and every change at once, in comments that a side's files do not have:

    total += x  # - CHANGE          the line is not in a branch with this change
    # + CHANGE: total += exp(x)     the branch has this line instead or besides: the line of the cause
    # ~ CHANGE: unrelated = 1       the branch has this line, too, and it is not the cause
    load(x)  # = CHANGE             both sides have this line, and a right answer may name it, too

C++ has `//` for `#`. CHANGE `any` is of every branch, in code that no row runs: the diff alone does not show which of its
hunks is meant. A changed file begins with lines of comment, so that no line has the same number on both sides.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

TREE = Path(__file__).parent / "marked_tree"
_MARK = re.compile(r"(?:#|//) ([-+~=]) ([\w, ]+)(?:: ?(.*))?$")


@dataclass(frozen=True)
class Lined:
    """A change: its file, the part of the workload, and the kinds of cause that are right."""

    file: str
    part: str
    kinds: tuple[str, ...]


_TRITON = {
    "special": ("activate", ("arithmetic",)),
    "double": ("activate", ("arithmetic",)),
    "narrow": ("blur", ("memory",)),
    "summed": ("blur", ("shared",)),
    "not_unrolled": ("decay", ("unrolling",)),
    "division": ("gather", ("arithmetic",)),
    "reload": ("gather", ("memory",)),
    "converted": ("gluon_steps", ("shared",)),
    "column_order": ("gluon_steps", ("memory",)),
    "three_products": ("product", ("tensor",)),
    "dequantised": ("product", ("shared", "arithmetic", "tensor")),
    "rescaled": ("product", ("arithmetic",)),
    "exact": ("product", ("tensor",)),
    "exchanged": ("product", ("memory", "atomics")),
    "barrier": ("relax", ("barriers",)),
    "sine": ("softmax", ("memory", "spills", "arithmetic")),
    "again": ("softmax", ("memory",)),
    "counter": ("sums", ("atomics",)),
    "sorted": ("sums", ("shared",)),
}
_CPU = {
    "exact_exp": ("squash", ("vectorisation",)),
    "early_exit": ("norms", ("vectorisation",)),
    "columns_first": ("turned", ("vectorisation",)),
    "swept": ("turned", ("pass",)),
    "divided": ("scaled", ("arithmetic",)),
    "allocated": ("sorted_rows", ("calls",)),
}
_CUDA = {
    "one_float": ("copied", ("memory",)),
    "waits": ("averaged", ("barriers",)),
    "conflicting": ("averaged", ("arithmetic", "kernel")),
    "indexed": ("picked", ("spills",)),
    "in_double": ("picked", ("arithmetic",)),
}
BRANCHES = {
    **{name: Lined(f"kernels/lined/{part}.py", part, kinds) for name, (part, kinds) in _TRITON.items()},
    **{name: Lined("kernels/lined_cpu/parts.cpp", part, kinds) for name, (part, kinds) in _CPU.items()},
    **{name: Lined("kernels/lined_cuda/parts.cu", part, kinds) for name, (part, kinds) in _CUDA.items()},
}
SETS = {"triton": tuple(_TRITON), "cpu": tuple(_CPU), "cuda": tuple(_CUDA), "gpu": (*_TRITON, *_CUDA)}
_NAMES = {
    "triton": ("lined",),
    "cpu": ("lined_cpu",),
    "cuda": ("lined_cuda",),
    "gpu": ("lined", "lined_cuda"),
}  # packages


def together(of: str) -> dict[str, tuple[str, ...]]:
    """Return branches `one`, `two`, ... with a change in each kernel of a set, and `unchanged` with none."""
    by_part: dict[str, list[str]] = {}
    for name in SETS[of]:
        by_part.setdefault(BRANCHES[name].part, []).append(name)
    rounds = (tuple(filter(None, each)) for each in zip_longest(*by_part.values()))
    return dict(zip(("one", "two", "three", "four", "five"), rounds, strict=False)) | {"unchanged": ()}


def files(changes: Collection[str] | None = None, of: str = "") -> dict[str, str]:
    """path -> content of a branch with these changes; None: of base. `of`: the set whose files are wanted; "": all."""
    names = {name for each in ([of] if of else _NAMES) for name in _NAMES[each]}
    found = [path for path in sorted(TREE.rglob("*.*")) if {path.stem, path.parent.name} & names]
    return {name: _side(name, changes)[0] for name in (path.relative_to(TREE).as_posix() for path in found)}


def right(change: str, changes: Collection[str] = ()) -> set[str]:
    """Return the answers that are right: FILE:LINE of a branch with this change, alone or among `changes`."""
    file = BRANCHES[change].file
    return {f"{file}:{number}" for number, by in _side(file, {change, *changes})[1] if change in by}


def _side(path: str, changes: Collection[str] | None) -> tuple[str, list[tuple[int, set[str]]]]:
    """Return a file's text, and each line that is an answer with the changes that it answers."""
    mine = set() if changes is None else {*changes, "any"}
    text = (TREE / path).read_text()
    has = any(mine & set(re.split(r",\s*", found[2])) for line in text.splitlines() if (found := _MARK.search(line)))
    made, lines = ["#" if path.endswith(".py") else "//"] * (3 * has), list[tuple[int, set[str]]]()
    for line in text.splitlines():
        found = _MARK.search(line)
        of = mine & set(re.split(r",\s*", found[2])) if found else set[str]()
        if found is None:
            made.append(line)
            continue
        if found[1] == "=" or (found[1] == "-" and not of):
            made.append(line[: found.start()].rstrip())
        elif of and found[1] in "+~":
            made.append(line[: found.start()] + (found[3] or ""))
        if of and found[1] in "+=":
            lines.append((len(made), of))
    return "\n".join(made) + "\n", lines
