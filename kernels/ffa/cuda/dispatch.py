"""The rule that picks the kernels, in one place: Gluon where its conditions hold, plain Triton everywhere else."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..schedule import Blocks, Options, Schedule, UnsupportedOption
from .plan import long_slices

DTYPES = (torch.bfloat16, torch.float16)
HEAD_DIMS = (64, 128)
BWD_TILE = (64, 128)  # queries, keys of a Gluon backward CTA


@dataclass(frozen=True)
class Choice:
    """Which implementation runs: "gluon", "triton", or "both": Gluon for the long slices, Triton for the rest.

    `because` names the first unmet condition of the faster one, "" when all are met.
    """

    kernel: str
    because: str = ""


def check_supported(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, schedule: Schedule) -> None:
    """Raise UnsupportedOption for what no kernel here computes."""
    dtypes = {t.dtype for t in (q, k, v)}
    if len(dtypes) != 1 or q.dtype not in DTYPES:
        raise UnsupportedOption(f"dtype {', '.join(sorted(map(str, dtypes)))} on CUDA; bfloat16 is there")
    if q.shape[-1] not in HEAD_DIMS:
        raise UnsupportedOption(f"head dimension {q.shape[-1]} on CUDA; 64 and 128 are there")
    if isinstance(schedule, Blocks):
        _check_options(schedule, schedule.options, q.shape[1] // k.shape[1])


def _check_options(schedule: Blocks, options: Options, group: int) -> None:
    if options.swap_ab:
        raise UnsupportedOption("swap_ab is not implemented on CUDA")
    if options.sparse_load:
        raise UnsupportedOption("sparse_load is not implemented on CUDA")
    if options.pack_gqa and group > 1:
        raise UnsupportedOption("pack_gqa with several query heads per key head is not implemented on CUDA")
    if options.ref_block is not None:
        for size, block, what in zip(options.ref_block, (schedule.q_block, schedule.k_block), "qk", strict=True):
            if size not in (16, 32, 64, 128):
                raise UnsupportedOption(f"compute tile of {size} in {what} on CUDA; 16, 32, 64 and 128 are there")
            if size > block:
                raise UnsupportedOption(f"compute tile of {size} in {what} over blocks of {block} on CUDA")


def choose(direction: str, q: torch.Tensor, schedule: Schedule, scale: float) -> Choice:
    """The implementation for direction "fwd" or "bwd" on these (contiguous) queries."""
    because = _unmet(direction, q, schedule, scale)
    if because or isinstance(schedule, Blocks):
        return Choice("triton" if because else "gluon", because)
    long = long_slices(schedule, direction)
    if all(long):
        return Choice("gluon")
    because = f"{long.count(False)} of {len(long)} slices are shorter than a tile"
    return Choice("both" if any(long) else "triton", because)


def is_hopper(device: torch.device) -> bool:
    """Whether this is an NVIDIA GPU of compute capability 9.x."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


def _unmet(direction: str, q: torch.Tensor, schedule: Schedule, scale: float) -> str:
    if direction == "bwd" and torch.are_deterministic_algorithms_enabled():
        return "torch.use_deterministic_algorithms is on"
    if not is_hopper(q.device):
        return "not a Hopper GPU"
    if not scale > 0:
        return "the scale is not positive"
    if direction == "bwd" and q.shape[-1] != 128:
        return "the head dimension is not 128"
    if direction == "bwd" and q.dtype != torch.bfloat16:
        return "LSE and delta may be out of float16's range"
    return _unmet_by_blocks(direction, schedule) if isinstance(schedule, Blocks) else ""


def forward_tile(schedule: Schedule) -> tuple[int, int]:
    """Queries and keys of a Gluon forward CTA's tile."""
    if not isinstance(schedule, Blocks):
        return 128, 128
    if schedule.q_block == 64:
        return 64, 64
    return 128, 64 if schedule.k_block % 128 else 128


def _unmet_by_blocks(direction: str, schedule: Blocks) -> str:
    rows, keys = forward_tile(schedule) if direction == "fwd" else BWD_TILE
    tiles = [(rows, keys)] if direction == "fwd" else [(rows, keys), (128, 128)]  # of 128 rows it takes 64 at a time
    if schedule.options.ref_block not in (None, *tiles):
        return f"the compute tile is given as {schedule.options.ref_block}"
    if (schedule.q_block != rows) if direction == "fwd" else (schedule.q_block % rows):
        return f"blocks of {schedule.q_block} queries"
    if schedule.k_block % keys:
        return f"blocks of {schedule.k_block} keys"
    if schedule.k_len % schedule.k_block:
        return "the last key block is not whole"
    return "the last query block is not whole" if direction == "bwd" and schedule.q_len % schedule.q_block else ""
