"""Branches of small kernels that each have one cause, at a known line: Triton and Gluon, C++, CUDA C++.

The files of `marked_tree/` hold base and every branch at once, in comments that a side's files do not have:

    total += x  # - BRANCH          the line is not in the branch
    # + BRANCH: total += exp(x)     the branch has this line instead or besides: the line of the cause
    # ~ BRANCH: unrelated = 1       the branch has this line, too, and it is not the cause
    load(x)  # = BRANCH             both sides have this line, and a right answer may name it, too

C++ has `//` for `#`. Every branch begins with lines of comment, so that no line has the same number on both sides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

TREE = Path(__file__).parent / "marked_tree"
_MARK = re.compile(r"(?:#|//) ([-+~=]) ([\w, ]+)(?:: ?(.*))?$")


@dataclass(frozen=True)
class Lined:
    """A branch: the file that it changes, the part of the workload, and the kinds of cause that are right."""

    file: str
    part: str
    kinds: tuple[str, ...]


_TRITON = {
    "special": ("activate", ("arithmetic",)),
    "double": ("activate", ("arithmetic",)),
    "division": ("gather", ("arithmetic",)),
    "reload": ("gather", ("memory",)),
    "counter": ("sums", ("atomics",)),
    "not_unrolled": ("decay", ("unrolling",)),
    "barrier": ("relax", ("barriers",)),
    "three_products": ("product", ("tensor",)),
    "dequantised": ("product", ("shared", "arithmetic", "tensor")),
    "rescaled": ("product", ("arithmetic",)),
    "converted": ("gluon_steps", ("shared",)),
    "column_order": ("gluon_steps", ("memory",)),
}
_CPU = {
    "exact_exp": ("squash", ("vectorisation",)),
    "early_exit": ("norms", ("vectorisation",)),
    "columns_first": ("turned", ("vectorisation",)),
    "divided": ("scaled", ("arithmetic",)),
    "allocated": ("sorted_rows", ("calls",)),
}
_CUDA = {
    "one_float": ("copied", ("memory",)),
    "waits": ("averaged", ("barriers",)),
    "indexed": ("picked", ("spills",)),
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


def files(branch: str = "", of: str = "") -> dict[str, str]:
    """path -> content of the branch; "": of base. `of`: the set whose files are wanted; "": all."""
    names = {name for each in ([of] if of else _NAMES) for name in _NAMES[each]}
    found = [path for path in sorted(TREE.rglob("*.*")) if {path.stem, path.parent.name} & names]
    read = {path.relative_to(TREE).as_posix(): path.read_text() for path in found}
    changed = BRANCHES[branch].file if branch else ""
    return {path: _side(path, text, branch if path == changed else "")[0] for path, text in read.items()}


def right(branch: str) -> set[str]:
    """Return the answers that are right: FILE:LINE of the branch."""
    file = BRANCHES[branch].file
    return {f"{file}:{line}" for line in _side(file, (TREE / file).read_text(), branch)[1]}


def _side(path: str, text: str, branch: str) -> tuple[str, set[int]]:
    made, lines = ["#" if path.endswith(".py") else "//"] * (3 if branch else 0), set[int]()
    for line in text.splitlines():
        found = _MARK.search(line)
        names = re.split(r",\s*", found[2]) if found else []
        if found is None:
            made.append(line)
        elif found[1] in "-=":
            if found[1] == "=" or branch not in names:
                made.append(line[: found.start()].rstrip())
            if found[1] == "=" and branch in names:
                lines.add(len(made))
        elif branch in names:
            made.append(line[: found.start()] + (found[3] or ""))
            lines |= {len(made)} if found[1] == "+" else set()
    return "\n".join(made) + "\n", lines
