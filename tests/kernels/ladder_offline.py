"""Compile the ladder's rungs without a GPU: python -m tests.kernels.ladder_offline FAMILY [label ...].

FAMILY is a row of the platform table, sm90 for example.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

import torch
from triton.runtime import driver

from kernels import ladder
from kernels.ladder.launch import Launch, prepare
from tests.kernels.offline_driver import OfflineDriver, report


def catalogue(family: str, device: torch.device) -> Iterator[tuple[str, Launch]]:
    """Every rung with its row of the platform table, as fmha_scaling calls it; the last rung without a mask too."""
    q, k, v, out = (torch.empty(1, 2, 256, 128, dtype=torch.float16, device=device) for _ in range(4))
    for rung in ladder.RUNGS:
        for causal in (True, False) if rung == ladder.RUNGS[-1] else (True,):
            config = ladder.TABLE[family][rung]
            made = prepare(q, k, v, out, scale=0.1, causal=causal, rung=rung, config=config)
            yield f"{rung} {'causal' if causal else 'full'}", made


if __name__ == "__main__":
    driver.set_active(OfflineDriver(int(sys.argv[1].removeprefix("sm"))))
    report(partial(catalogue, sys.argv[1]), sys.argv[2:])
