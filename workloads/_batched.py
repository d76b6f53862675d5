"""What hopper_ws.py and fmha_scaling.py share: forward attention on q, k, v and out [B, H, N, D], one head count.

The reference and its tolerance are those of _reference.py, with batch and head as one axis of heads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from abprof.kit import Check, Op, Unsupported

from . import _peers, _reference
from ._attention import DTYPES, Tensors


@dataclass(frozen=True)
class Shape:
    """One case, whatever its workload calls the axes. `scale` multiplies the scores."""

    batch: int
    heads: int
    length: int
    dim: int
    dtype: str
    causal: bool
    scale: float

    @property
    def as_case(self) -> dict[str, Any]:
        """The axes that _reference.py reads."""
        heads = self.batch * self.heads
        return {
            "nhq": heads,
            "nhk": heads,
            "seqlen": self.length,
            "hd": self.dim,
            "dtype": self.dtype,
            "direction": "fwd",
        }

    @property
    def ideal_bytes(self) -> float:
        """q, k, v read and out written once: 4 B H N D elements."""
        return float(4 * self.batch * self.heads * self.length * self.dim * DTYPES[self.dtype].itemsize)

    @property
    def full_flops(self) -> float:
        """4 B H N^2 D: two matrix products over all pairs."""
        return 4.0 * self.batch * self.heads * self.length**2 * self.dim


def unfit(dtype: str, device: torch.device | str, capability: tuple[int, int]) -> str | None:
    """Why these kernels cannot run here, or None."""
    if dtype not in DTYPES:
        return f"dtype={dtype} is none of {', '.join(DTYPES)}"
    device = torch.device(device)
    if device.type != "cuda":
        return f"needs an NVIDIA GPU, and this is {device.type}"
    found = torch.cuda.get_device_capability(device)
    if found < capability:
        return "needs compute capability {}.{} or later, and this GPU has {}.{}".format(*capability, *found)
    return None


def inputs(shape: Shape, device: torch.device | str, seed: int) -> Tensors:
    """q, k and v, standard normal, so that no kernel is timed on zeros."""
    if shape.dtype not in DTYPES:
        raise Unsupported(f"dtype={shape.dtype} is none of {', '.join(DTYPES)}")
    generator = torch.Generator(device).manual_seed(seed)
    size = (shape.batch, shape.heads, shape.length, shape.dim)
    return {
        name: torch.randn(size, generator=generator, device=device, dtype=DTYPES[shape.dtype])
        for name in ("q", "k", "v")
    }


def operation(
    forward: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
    inputs: Tensors,
    configuration: Callable[[], Any] | None = None,
    name: str = "autotuned",
) -> Op:
    """The timed call. NotImplementedError becomes kit.Unsupported. What `configuration()` returns, a dataclass, becomes
    the fact `name`; a package without one has no such fact."""

    def call() -> torch.Tensor:
        try:
            return forward(inputs["q"], inputs["k"], inputs["v"])
        except NotImplementedError as error:
            raise Unsupported(str(error)) from error

    def facts() -> dict[str, str]:
        fields = dataclasses.asdict(configuration()) if configuration else {}
        return {name: " ".join(f"{field}={value}" for field, value in fields.items())} if fields else {}

    return Op(call, facts=facts)


def peer(name: str, of: Callable[[Any], Shape], case: Any, inputs: Tensors) -> Op:
    """A library's attention on the same case; see _peers.py. Bound to its first two arguments it is a peer."""
    shape = of(case)
    problem = _peers.Problem((shape.length,), shape.causal, inputs["q"].device, shape.scale)
    return operation(_peers.attend(name, problem), inputs)


def reference(shape: Shape, inputs: Tensors, mask: _reference.Mask | None = None) -> dict[str, Tensors]:
    """`out` at sampled rows of every head, under the shape's mask if None; one that is given is called with b * H + h."""
    rows = torch.arange(shape.length, device=inputs["q"].device)
    hi = rows + 1 if shape.causal else torch.full_like(rows, shape.length)
    mask = mask or _reference.RowIntervals(torch.zeros_like(rows), hi, shape.length)
    flat = {name: _tokens_first(inputs[name]) for name in ("q", "k", "v")}
    return _reference.reference(shape.as_case, flat, mask, shape.scale)


def check(shape: Shape, out: Any, expected: dict[str, Tensors], tolerance: float | None = None) -> Check:
    """One output [B, H, N, D], finite everywhere, and within the tolerance, its dtype's if None, at the sampled rows."""
    if not isinstance(out, torch.Tensor):
        return Check(False, f"one tensor is expected, not {type(out).__name__}")
    size = (shape.batch, shape.heads, shape.length, shape.dim)
    if tuple(out.shape) != size:
        return Check(False, f"out: shape {tuple(out.shape)}, expected {size}")
    return _reference.check(shape.as_case, _tokens_first(out), expected, tolerance)


def _tokens_first(tensor: torch.Tensor) -> torch.Tensor:
    """[B, H, N, D] as [N, B*H, D]."""
    return tensor.detach().reshape(-1, *tensor.shape[2:]).transpose(0, 1)
