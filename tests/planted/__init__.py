"""A repository of small Triton kernels, and branches that each change one thing of one of them: the cause is known.

`files()` is base; `BRANCHES` says of each branch which part it changes, how, and which rule should name it
(abprof/why/). The kernels live in `tree/`, which is mounted and never imported as part of the tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TREE = Path(__file__).parent / "tree"


@dataclass(frozen=True)
class Planted:
    """A branch: what it changes in which part, and the kind of cause that it plants."""

    part: str
    file: str
    old: str
    new: str
    kind: str


BRANCHES = {
    "spill": Planted("spill", "kernels/planted/spill.py", '"maxnreg": 128', '"maxnreg": 32', "spills"),
    "tuned_otherwise": Planted("tuned", "kernels/planted/tuned.py", "WORST = False", "WORST = True", "autotune"),
    "extra_pass": Planted("passes", "kernels/planted/passes.py", "TWICE = False", "TWICE = True", "memory"),
    "lost_overlap": Planted("matmul", "kernels/planted/matmul.py", '"num_stages": 3', '"num_stages": 1', "overlap"),
    "added_launch": Planted("launches", "kernels/planted/launches.py", "EXTRA = False", "EXTRA = True", "launches"),
    "slower_phase": Planted("phases", "kernels/planted/phases.py", "POST = 2", "POST = 20", "phase"),
    "block_size": Planted("blocks", "kernels/planted/blocks.py", "BLOCK = 2048", "BLOCK = 64", "block_size"),
}


def files() -> dict[str, str]:
    """path -> content of base."""
    return {path.relative_to(TREE).as_posix(): path.read_text() for path in sorted(TREE.rglob("*.py"))}


def changed(branch: str) -> dict[str, str]:
    """The one file that a branch changes. Raises ValueError where base no longer has what is to be changed."""
    planted = BRANCHES[branch]
    text = (TREE / planted.file).read_text()
    if text.count(planted.old) != 1:
        raise ValueError(f"{planted.file} has {planted.old!r} {text.count(planted.old)} times, not once")
    return {planted.file: text.replace(planted.old, planted.new)}
