"""A repository of small Triton kernels, and branches that each change one thing of one of them: the cause is known.

`files()` is base; `BRANCHES` says of each branch which part it changes, how, and which rule should name it
(abprof/evidence/causes/). The kernels live in `tree/`, which is mounted and never imported as part of the tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TREE = Path(__file__).parent / "tree"


@dataclass(frozen=True)
class Planted:
    """A branch: the changed part, its change, the planted kind of cause, and other facts."""

    part: str
    file: str
    old: str
    new: str
    kind: str
    also: tuple[str, ...] = ()  # kinds


BRANCHES = {
    "spill": Planted("spill", "kernels/planted/spill.py", '"maxnreg": 128', '"maxnreg": 32', "spills"),
    "tuned_otherwise": Planted("tuned", "kernels/planted/tuned.py", "WORST = False", "WORST = True", "autotune"),
    "extra_pass": Planted(
        "passes", "kernels/planted/passes.py", "TWICE = False", "TWICE = True", "memory", ("dram_traffic",)
    ),
    "lost_overlap": Planted("matmul", "kernels/planted/matmul.py", '"num_stages": 3', '"num_stages": 1', "overlap"),
    "added_launch": Planted("launches", "kernels/planted/launches.py", "EXTRA = False", "EXTRA = True", "launches"),
    "slower_phase": Planted("phases", "kernels/planted/phases.py", "POST = 2", "POST = 20", "phase"),
    "block_size": Planted("blocks", "kernels/planted/blocks.py", "BLOCK = 2048", "BLOCK = 64", "block_size"),
    "lost_tensor_cores": Planted(
        "matmul", "kernels/planted/matmul.py", "tl.constexpr(False)", "tl.constexpr(True)", "tensor"
    ),
    "lost_pipeline": Planted("matmul", "kernels/planted/matmul.py", "tl.constexpr(None)", "tl.constexpr(1)", "overlap"),
    "smaller_tile": Planted("matmul", "kernels/planted/matmul.py", '"TILE": 128', '"TILE": 32', "block_size"),
    "shallower": Planted("matmul", "kernels/planted/matmul.py", '"DEPTH": 64', '"DEPTH": 16', "constants"),
    "fewer_warps": Planted("spill", "kernels/planted/spill.py", '"num_warps": 4', '"num_warps": 1', "block_size"),
    "launched_again": Planted("launches", "kernels/planted/launches.py", "TIMES = 1", "TIMES = 2", "launches"),
    "copied": Planted("passes", "kernels/planted/passes.py", "COPIED = False", "COPIED = True", "launches"),
    "slower_main": Planted("phases", "kernels/planted/phases.py", "MAIN = 12", "MAIN = 30", "phase"),
    "replaced": Planted("blocks", "kernels/planted/blocks.py", "OTHER = False", "OTHER = True", "kernels_replaced"),
    "one_after_another": Planted("streams", "kernels/planted/streams.py", "BESIDE = True", "BESIDE = False", "overlap"),
    "uncoalesced": Planted("strides", "kernels/planted/strides.py", "ACROSS = False", "ACROSS = True", "coalescing"),
    "beyond_cache": Planted("window", "kernels/planted/window.py", "FAR = False", "FAR = True", "dram_traffic"),
}
# Both sides have the same machine code and launches: only Nsight Compute can name the cause.
COUNTED = ("uncoalesced", "beyond_cache")
# What these change is in the code of one kernel, or in which there are: their kernels tell it without a GPU.
COMPILED = (
    *("spill", "tuned_otherwise", "extra_pass", "lost_overlap", "added_launch", "slower_phase", "block_size"),
    *("lost_tensor_cores", "lost_pipeline", "smaller_tile", "shallower", "fewer_warps", "replaced"),
)


def files() -> dict[str, str]:
    """path -> content of base."""
    return {path.relative_to(TREE).as_posix(): path.read_text() for path in sorted(TREE.rglob("*.py"))}


def changed(branch: str) -> dict[str, str]:
    """Return the one file that a branch changes. Raises ValueError if base lacks the text to replace."""
    planted = BRANCHES[branch]
    text = (TREE / planted.file).read_text()
    if text.count(planted.old) != 1:
        raise ValueError(f"{planted.file} has {planted.old!r} {text.count(planted.old)} times, not once")
    return {planted.file: text.replace(planted.old, planted.new)}
