"""FfaProblem: what a call hands to the library. Mirrors csrc/problem.h field by field."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import torch

from ..schedule import Blocks, Schedule, Slices, UnsupportedOption

MAX_TILE = (128, 192)  # kMaxTileQ, kMaxTileK in csrc/micro.h
SLICES_TILE = (96, 192)  # measured best; a multiple of every register tile
DTYPES = {torch.float32: 0, torch.bfloat16: 1}

_I32, _I64, _P = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p


class FfaTensor(ctypes.Structure):
    _fields_ = [("data", _P), ("token_stride", _I64), ("head_stride", _I64)]


class FfaProblem(ctypes.Structure):
    _fields_ = [
        *((name, _I32) for name in ("dtype", "kind", "threads", "head_dim", "q_heads", "k_heads", "tile_q", "tile_k")),
        *((name, _I64) for name in ("q_len", "k_len")),
        ("scale", ctypes.c_double),
        *((name, FfaTensor) for name in ("q", "k", "v", "out")),
        ("lse", _P),
        *((name, FfaTensor) for name in ("dout", "dq", "dk", "dv")),
        ("n_slices", _I64),
        ("slices", _P),
        *((name, _I64) for name in ("q_block", "k_block", "max_kv", "max_q")),
        *((name, _P) for name in ("kv_num", "kv_indices", "q_num", "q_indices")),
        ("workspace", _P),
    ]


@dataclass
class Problem:
    """An FfaProblem and the tensors its pointers point into."""

    c: FfaProblem
    keep: list[torch.Tensor] = field(default_factory=list)

    def tensor(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Point field `name` at [tokens, heads, D] `value`, of which the last dimension must be contiguous."""
        if value.stride(2) != 1:
            value = value.contiguous()
        setattr(self.c, name, FfaTensor(value.data_ptr(), value.stride(0), value.stride(1)))
        self.keep.append(value)
        return value

    def pointer(self, name: str, value: torch.Tensor) -> None:
        """Point field `name` at contiguous `value`."""
        value = value.contiguous()
        setattr(self.c, name, value.data_ptr())
        self.keep.append(value)


def problem_of(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, schedule: Schedule, scale: float, *, transposed: bool = False
) -> Problem:
    """The problem without outputs and workspace. `transposed` adds the transposed block lists, for the backward."""
    c = FfaProblem(
        dtype=DTYPES[q.dtype],
        threads=torch.get_num_threads(),
        head_dim=q.shape[2],
        q_heads=q.shape[1],
        k_heads=k.shape[1],
        q_len=q.shape[0],
        k_len=k.shape[0],
        scale=scale,
    )
    problem = Problem(c)
    for name, value in (("q", q), ("k", k), ("v", v)):
        problem.tensor(name, value)
    if isinstance(schedule, Slices):
        _add_slices(problem, schedule)
    else:
        _add_blocks(problem, schedule, transposed)
    return problem


def _add_slices(problem: Problem, slices: Slices) -> None:
    problem.c.kind = 0
    problem.c.tile_q, problem.c.tile_k = SLICES_TILE
    table = slices.tables.get("cpu")
    if table is None:
        rows = [[*q, *k, m] for q, k, m in zip(slices.q_ranges, slices.k_ranges, slices.mask_types, strict=True)]
        table = slices.tables["cpu"] = torch.tensor(rows, dtype=torch.int64, device="cpu")
    assert isinstance(table, torch.Tensor)
    problem.c.n_slices = len(slices)
    problem.pointer("slices", table)


def _add_blocks(problem: Problem, blocks: Blocks, transposed: bool) -> None:
    problem.c.kind = 1
    problem.c.tile_q, problem.c.tile_k = _block_tile(blocks)
    problem.c.q_block, problem.c.k_block = blocks.q_block, blocks.k_block
    problem.c.max_kv = blocks.kv_indices.shape[2]
    problem.pointer("kv_num", blocks.kv_num)
    problem.pointer("kv_indices", blocks.kv_indices)
    if transposed:
        problem.c.max_q = blocks.q_indices.shape[2]
        problem.pointer("q_num", blocks.q_num)
        problem.pointer("q_indices", blocks.q_indices)


def _block_tile(blocks: Blocks) -> tuple[int, int]:
    """ref_block if given; otherwise the blocks themselves where they fit, or an even part of them."""
    options = blocks.options
    for name in ("pack_gqa", "swap_ab", "sparse_load"):
        if getattr(options, name):
            raise UnsupportedOption(f"{name} is not implemented on the CPU")
    if options.ref_block is None:
        rows = -(-blocks.q_block // -(-blocks.q_block // MAX_TILE[0]))
        keys = blocks.k_block if blocks.k_block % 32 == 0 and blocks.k_block <= MAX_TILE[1] else SLICES_TILE[1]
        return rows, keys
    rows, keys = options.ref_block
    if not (1 <= rows <= MAX_TILE[0] and 32 <= keys <= MAX_TILE[1] and keys % 32 == 0):
        raise UnsupportedOption(
            f"ref_block {rows}x{keys} is not implemented on the CPU: at most {MAX_TILE[0]} rows, and keys a multiple "
            f"of 32 up to {MAX_TILE[1]}"
        )
    return rows, keys
