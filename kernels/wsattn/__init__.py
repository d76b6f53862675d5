"""Warp-specialised attention forward for Hopper GPUs, in Gluon: plain, and pipelined with ping-pong.

`ws`: a producer warp loads by TMA; while one consumer warpgroup computes its softmax, the other may multiply.
`ws_pipelined`: besides, P·V of a tile is in flight under Q·Kᵀ and the softmax of the next, and two consumers take turns at
the tensor cores, which is called ping-pong (arXiv 2407.08608, sections 3.2 and 3.1).

The configuration is chosen from `CONFIGS` by timing them at the first call of a shape: `configuration` says which it is.
"""

from .api import UnsupportedOption, ws_attention
from .configs import CONFIGS, VARIANTS, Config
from .tune import configuration

__all__ = ["CONFIGS", "VARIANTS", "Config", "UnsupportedOption", "configuration", "ws_attention"]
