"""Compile wsattn's kernels for sm_90a without a GPU: python -m tests.kernels.wsattn_offline [label ...]."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from triton.runtime import driver

from kernels import wsattn
from kernels.wsattn.launch import Launch, prepare
from tests.kernels.offline_driver import OfflineDriver, report


def catalogue(device: torch.device) -> Iterator[tuple[str, Launch]]:
    """Both variants in every configuration, on whole tiles and with a tail."""
    for length, tail in ((256, ""), (200, " tail")):
        q, k, v, out = (torch.empty(1, 2, length, 128, dtype=torch.float16, device=device) for _ in range(4))
        for variant in wsattn.VARIANTS:
            for config in wsattn.CONFIGS:
                label = f"{variant} {config.BLOCK_M}x{config.BLOCK_N}{tail}"
                yield label, prepare(q, k, v, out, 0.1, variant, config)


if __name__ == "__main__":
    driver.set_active(OfflineDriver())
    report(catalogue, sys.argv[1:])
