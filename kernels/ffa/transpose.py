"""Block lists the other way round: from "which key blocks this query block sees" to "which query blocks see this one".

The backward walks key blocks, so it needs the transposed lists. Two implementations give equal results: one of plain
tensor operations for every device, and a small C++ extension for the CPU (cpu/extension/), which
torch.utils.cpp_extension builds in some twenty seconds and is therefore used only with FFA_TORCH_EXTENSION=1.
"""

from __future__ import annotations

import importlib
import os

import torch


def transpose_lists(kv_num: torch.Tensor, kv_indices: torch.Tensor, n_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """q_num int32 [Hk, n_k] and q_indices int32 [Hk, n_k, nq] (ascending, then zeros) of the lists of `Blocks`."""
    if use_extension() and kv_num.device.type == "cpu":
        extension = importlib.import_module(".cpu.extension", __package__).load()
        num, indices = extension.transpose_lists(kv_num, kv_indices, n_k)
        return num, indices
    return transpose_with_torch(kv_num, kv_indices, n_k)


def use_extension() -> bool:
    """Whether the environment asks for the C++ extension."""
    return os.environ.get("FFA_TORCH_EXTENSION") == "1"


def transpose_with_torch(kv_num: torch.Tensor, kv_indices: torch.Tensor, n_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`transpose_lists` in tensor operations, on any device, without waiting for it."""
    heads, n_q, longest = kv_indices.shape
    slots = torch.arange(longest, device=kv_num.device)
    used = slots < kv_num[..., None]
    # Entries behind a list's end may hold anything: send them to a column of their own, n_k, and cut it off.
    column = torch.where(used, kv_indices, n_k).long()
    seen = torch.zeros(heads, n_q, n_k + 1, dtype=torch.bool, device=kv_num.device)
    seen.scatter_(2, column, True)
    by_key = seen[..., :n_k].transpose(1, 2).contiguous()
    place = by_key.cumsum(-1, dtype=torch.int32)
    q_num = place[..., -1].contiguous() if n_q else by_key.new_zeros(heads, n_k, dtype=torch.int32)
    # The same trick again: query blocks that do not see the key block are written to slot nq, which is cut off.
    slot = torch.where(by_key, place - 1, n_q).long()
    lists = torch.zeros(heads, n_k, n_q + 1, dtype=torch.int32, device=kv_num.device)
    lists.scatter_(2, slot, torch.arange(n_q, dtype=torch.int32, device=kv_num.device).expand(heads, n_k, n_q))
    return q_num, lists[..., :n_q].contiguous()
