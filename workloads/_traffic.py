"""The least bytes that the kernels of memory_traffic.py move, per launch and level of memory.

Of what the three metrics of the original's table count (dram__bytes.sum, lts__t_bytes.sum, l1tex__t_bytes.sum), under
two assumptions: caches are empty before each launch, as Nsight Compute makes them, and what is written reaches memory.
    DRAM  every tensor that a kernel reads crosses once, and every one that it writes
    L2    what multiprocessors ask for: a program (a CTA) asks for its tiles once, and nothing is shared between programs,
          since their loads go around L1 (LDGSTS.BYPASS, LDG.STRONG); softmax alone reads through L1, which may give it
          its second look at a tile
    L1    what loads and stores ask for; more than L2 where a program reads a tile twice
The L2 rule is FlashAttention-2's reading of memory (arXiv 2307.08691, section 3.1: K and V once for each block of
queries), N / rows * (K + V); for lists of blocks (BigBird, arXiv 2007.14062, section 2) K and V once for each entry.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCK = 64
FLASH2_ROWS = 128  # queries of a program of the flash2 kernel
PV_COLUMNS = 256  # columns of the output that a program of the pv kernel makes; its probabilities are read for each


@dataclass(frozen=True)
class Traffic:
    """Bytes of one launch."""

    dram: float
    l2: float
    l1: float

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.dram + other.dram, self.l2 + other.l2, self.l1 + other.l1)


@dataclass(frozen=True)
class Problem:
    """heads: B * H; tokens a multiple of 64; entries: of the block lists, or None for full attention."""

    heads: int
    tokens: int
    dim: int
    itemsize: int
    entries: int | None = None

    @property
    def tensor(self) -> float:
        """Bytes of each of q, k, v, out."""
        return float(self.heads * self.tokens * self.dim * self.itemsize)

    @property
    def visited(self) -> int:
        """Blocks of 64 x 64 that attend, of one head."""
        return (self.tokens // BLOCK) ** 2 if self.entries is None else self.entries

    @property
    def listed(self) -> float:
        """Bytes of one operand's rows over all visited blocks."""
        return float(self.heads * self.visited * BLOCK * self.dim * self.itemsize)

    @property
    def scores(self) -> float:
        """Bytes of the scores, which the unfused kernels keep in the inputs' dtype."""
        return float(self.heads * self.visited * BLOCK**2 * self.itemsize)


def least(variant: str, problem: Problem) -> dict[str, Traffic]:
    """Traffic by kernel, one launch of each a call, in order."""
    if variant == "unfused":
        return _unfused(problem)
    once = problem.tensor
    if problem.entries is None:
        programs = -(-problem.tokens // FLASH2_ROWS)
        loaded = 2 * once + programs * 2 * once
        return {"memtraffic_flash2": Traffic(4 * once, loaded, loaded)}
    loaded = 2 * once + 2 * problem.listed
    return {"memtraffic_blocks": Traffic(4 * once, loaded, loaded)}


def _unfused(problem: Problem) -> dict[str, Traffic]:
    once, scores, listed = problem.tensor, problem.scores, problem.listed
    qk = 2 * listed + scores
    pv = max(1, problem.dim // PV_COLUMNS) * scores + listed + once
    return {
        "memtraffic_qk": Traffic(2 * once + scores, qk, qk),
        "memtraffic_softmax": Traffic(2 * scores, 2 * scores, 3 * scores),
        "memtraffic_pv": Traffic(scores + 2 * once, pv, pv),
    }
