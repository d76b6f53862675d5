"""The configurations that are tried, and what each asks of a multiprocessor."""

from __future__ import annotations

from dataclasses import dataclass

VARIANTS = ("ws", "ws_pipelined")


@dataclass(frozen=True)
class Config:
    """The seven parameters, by the names that reports show.

    BLOCK_M query rows are shared out among NUM_MMA_GROUPS consumers, NUM_MMA_WARPS warps in all; NUM_BUFFERS tiles of K,
    and as many of V, of BLOCK_N keys each are in flight. num_warps is the first consumer's. num_stages is 0: Gluon has no
    automatic pipeline, NUM_BUFFERS is its depth.
    """

    BLOCK_M: int
    BLOCK_N: int
    NUM_BUFFERS: int
    NUM_MMA_WARPS: int
    NUM_MMA_GROUPS: int
    num_warps: int = 4
    num_stages: int = 0

    @property
    def rows(self) -> int:
        """Query rows of one consumer."""
        return self.BLOCK_M // self.NUM_MMA_GROUPS

    @property
    def registers(self) -> tuple[int, int, int]:
        """Of a thread: at entry, in a consumer, in the producer. Two consumers and the producer's warpgroup enter with 168
        each, which setmaxnreg deals out as 240, 240 and 24; one consumer and the producer with 128, as 232 and 24."""
        return (168, 240, 24) if self.NUM_MMA_GROUPS == 2 else (128, 232, 24)


CONFIGS = (
    Config(BLOCK_M=128, BLOCK_N=128, NUM_BUFFERS=2, NUM_MMA_WARPS=8, NUM_MMA_GROUPS=2),
    Config(BLOCK_M=128, BLOCK_N=64, NUM_BUFFERS=4, NUM_MMA_WARPS=8, NUM_MMA_GROUPS=2),
    Config(BLOCK_M=64, BLOCK_N=128, NUM_BUFFERS=2, NUM_MMA_WARPS=4, NUM_MMA_GROUPS=1),
    Config(BLOCK_M=64, BLOCK_N=64, NUM_BUFFERS=2, NUM_MMA_WARPS=4, NUM_MMA_GROUPS=1),  # two blocks a multiprocessor
)
