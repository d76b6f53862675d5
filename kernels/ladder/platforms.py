"""Which tile, how many warps and how deep a pipeline each rung has on each kind of GPU."""

from __future__ import annotations

from dataclasses import dataclass

RUNGS = ("basic", "exp2", "memory", "full")
CUTILE_RUNGS = ("cutile_basic", "cutile_exp2", "cutile_memory", "cutile_full")


@dataclass(frozen=True)
class Config:
    """How one rung is compiled. `per_sm`: thread blocks that are meant to share a multiprocessor."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    tma: bool = False
    per_sm: int = 1

    @property
    def registers(self) -> int | None:
        """The most registers a thread may have so that `per_sm` blocks share the 65536 of a multiprocessor; None where
        that is more than the 255 that a thread can have."""
        share = 65536 // (32 * self.num_warps * self.per_sm) // 8 * 8
        return share if share < 255 else None


def _ladder(basic: Config, memory: Config, full: Config) -> dict[str, Config]:
    return {"basic": basic, "exp2": basic, "memory": memory, "full": full}


# By compute capability. `per_sm` blocks share a multiprocessor. sm80, sm100 and sm120 have not been run.
TABLE: dict[str, dict[str, Config]] = {
    "sm80": _ladder(Config(64, 64, 4, 2), Config(64, 64, 4, 3), Config(64, 64, 4, 2, per_sm=2)),
    "sm90": _ladder(Config(128, 64, 8, 2), Config(128, 128, 8, 3, tma=True), Config(64, 64, 4, 3, tma=True, per_sm=2)),
    "sm100": _ladder(Config(128, 64, 8, 2), Config(128, 128, 8, 3, tma=True), Config(64, 64, 4, 2, tma=True, per_sm=2)),
    "sm120": _ladder(Config(64, 32, 4, 2), Config(64, 32, 4, 4, tma=True), Config(64, 32, 4, 2, tma=True, per_sm=2)),
}


@dataclass(frozen=True)
class CutileConfig:
    """How a cuTile rung is compiled; warps and pipeline are the compiler's choice."""

    block_m: int
    block_n: int
    occupancy: int = 1


# Rows and keys of a tile, for all cuTile rungs; the last has an occupancy of 2 besides.
CUTILE_TILES = {"sm80": (64, 64), "sm90": (128, 64), "sm100": (256, 128), "sm120": (64, 64)}
FAMILIES = {8: "sm80", 9: "sm90", 10: "sm100", 11: "sm100", 12: "sm120"}  # major compute capability -> row of TABLE
