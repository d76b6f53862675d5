"""Library implementations of attention that workloads compare with, each as a function of q, k, v [B, H, N, D].

One that this machine does not have raises kit.Unsupported with the reason, when it is made or when it is called.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from abprof.kit import Unsupported

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

_BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def sdpa(backend: str, causal: bool, scale: float | None = None) -> Attend:
    """PyTorch's scaled_dot_product_attention by one backend alone, `cudnn` or `flash`: left to itself, torch takes flash
    first even where cuDNN's is the faster. On a CPU, which has neither name, torch's own choice."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel([_BACKENDS[backend]] if q.is_cuda else list(SDPBackend.__members__.values())):
            try:
                grouped = q.shape[1] != k.shape[1]
                out: torch.Tensor = scaled_dot_product_attention(
                    q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped
                )
            except RuntimeError as error:
                if "No available kernel" in str(error):
                    raise Unsupported(f"torch has no {backend} attention for this case here") from error
                raise
        return out

    return attend
