"""Fused multi-head attention as a ladder of optimisations: each rung adds to the one before.

| rung | what it adds |
|---|---|
| `basic` | one fused kernel: online softmax with the natural exponential, loads by pointers, a shallow pipeline |
| `exp2` | base-2 exponential, the scale of the scores folded into its argument |
| `memory` | loads by the tensor memory accelerator where the GPU has one, a larger tile and deeper pipeline, long causal rows first |
| `full` | small tiles and so two thread blocks per multiprocessor, row sums in their threads, an approximate reciprocal |

`cutile_basic`, ..., `cutile_full` are the same in cuTile, where the package cuda-tile can run.

Tiles, warps and stages of each rung on each kind of GPU are a table, `TABLE` in platforms.py.
"""

from .api import UnsupportedOption, configuration, fmha
from .platforms import CUTILE_RUNGS, RUNGS, TABLE, Config, CutileConfig

VARIANTS = (*RUNGS, *CUTILE_RUNGS)

__all__ = [
    "CUTILE_RUNGS",
    "RUNGS",
    "TABLE",
    "VARIANTS",
    "Config",
    "CutileConfig",
    "UnsupportedOption",
    "configuration",
    "fmha",
]
