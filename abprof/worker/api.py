"""What a workload imports: plain records and helpers. Needs torch, and nothing else of abprof.

from abprof.kit import Check, Op, Unsupported, Work, compare
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = [
    "Band",
    "Check",
    "Op",
    "Sweep",
    "Unsupported",
    "Work",
    "accepts",
    "agree",
    "compare",
    "tensors",
]


class Unsupported(Exception):
    """Raised by a workload or a kernel: this case cannot run here, and that is nobody's fault. The reason is shown."""


@dataclass(frozen=True)
class Op:
    """What is measured: `call()` is timed; `reset()`, untimed, puts in-place state and gradients back before each call."""

    call: Callable[[], Any]
    reset: Callable[[], None] | None = None
    facts: Callable[[], Mapping[str, Any]] | None = None  # of this arm, asked once after a call, untimed


@dataclass(frozen=True)
class Check:
    """An arm's outputs judged against the reference. `max_rel` is relative to the largest reference magnitude."""

    ok: bool
    reason: str = ""
    max_abs: float | None = None
    max_rel: float | None = None


@dataclass(frozen=True)
class Work:
    """Floating-point operations and bytes of one call, and the name of the convention they are counted by."""

    flops: float | None = None
    bytes: float | None = None
    convention: str = ""


@dataclass(frozen=True)
class Band:
    """The speed-up that is expected where the density lies between two values (0 to 1, both ends included)."""

    density: tuple[float, float]
    speedup: tuple[float, float]


@dataclass(frozen=True)
class Sweep:
    """A workload's SWEEP: cases that differ in density alone.

    `axes`: what the density comes of (the mask's pattern and ratio, say); cases that agree in all other axes are one
    curve. `density`: the fact, or the axis, that is the density. `against`: the variant that speed-up is counted from,
    in the same case; "" is the densest case of the same arm.
    """

    axes: Sequence[str]
    bands: Sequence[Band] = ()
    density: str = "density"
    against: str = ""


def compare(outputs: Any, expected: Any, *, rtol: float, atol: float) -> Check:
    """Compare tensors, or equal-length sequences of tensors, of the same shapes.

    An output passes when every element satisfies |out - ref| <= atol + rtol * max|ref| (the reference's largest
    magnitude, not the element's own: attention outputs are averages, and their error scales with the values averaged).
    An infinity passes where the other has the same one; differences and magnitude are those of the finite elements.
    NaN and a wrong shape never pass. Comparison is in float64.
    """
    worst_abs = worst_rel = 0.0
    outs, refs = tensors(outputs), tensors(expected)
    if len(outs) != len(refs):
        return Check(False, f"{len(outs)} outputs, {len(refs)} expected")
    for i, (out, ref) in enumerate(zip(outs, refs, strict=True)):
        if out.shape != ref.shape:
            return Check(False, f"output {i}: shape {tuple(out.shape)}, expected {tuple(ref.shape)}")
        if not ref.numel():
            continue
        wide = ref.detach().double()
        got = out.detach().to(wide.device).double()
        nans, infinite = int((got.isnan() | wide.isnan()).sum()), got.isinf() | wide.isinf()
        if nans:
            return Check(False, f"output {i}: {nans} of {got.numel()} values are NaN")
        if infinite.any():
            apart = int((infinite & (got != wide)).sum())
            if apart:
                return Check(
                    False, f"output {i}: {apart} of {got.numel()} values are infinite where the other's are not"
                )
            got, wide = got.masked_fill(infinite, 0.0), wide.masked_fill(infinite, 0.0)
        largest = float((got - wide).abs().max())
        scale = float(wide.abs().max())
        worst_abs = max(worst_abs, largest)
        worst_rel = max(worst_rel, largest / scale if scale else largest)
        if largest > atol + rtol * scale:
            reason = f"output {i}: largest error {largest:.3g}, allowed {atol + rtol * scale:.3g}"
            return Check(False, reason, worst_abs, worst_rel)
    return Check(True, "", worst_abs, worst_rel)


_AGREE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 2e-2}
_AGREE_NARROW = 0.1  # of types of eight bits and less


def agree(outputs: Any, expected: Any) -> Check:
    """Whether outputs agree with those of another side: what is checked where there is no reference.

    As `compare` with a tolerance of the dtype (1e-3 of the largest magnitude for float32, since tensor cores round to
    TF32; integers exactly), and NaN agrees with NaN in the same place: a benchmark may well compute on what it never set.
    """
    outs, refs = tensors(outputs), tensors(expected)
    if [out.dtype for out in outs] != [ref.dtype for ref in refs]:
        return Check(False, f"outputs of {_types(outs)}, and base's are of {_types(refs)}")
    if not outs:
        return Check(True)  # nothing was compared, so there is no error to tell
    worst_abs = worst_rel = 0.0
    for place, pair in enumerate(zip(outs, refs, strict=True)):
        if pair[1].numel() and all(bool(one.isnan().all()) for one in pair):
            return Check(False, f"output {place}: every value is NaN on both sides: nothing can be compared")
        out, ref = _without_common_nans(*pair)
        rtol = _AGREE.get(ref.dtype, _AGREE_NARROW) if ref.is_floating_point() else 0.0
        found = compare(out, ref, rtol=rtol, atol=0.0)
        worst_abs, worst_rel = max(worst_abs, found.max_abs or 0.0), max(worst_rel, found.max_rel or 0.0)
        if not found.ok:
            said = f"output {place}{found.reason.removeprefix('output 0')}"
            return Check(False, f"the sides do not agree: {said}", worst_abs, worst_rel)
    return Check(True, "", worst_abs, worst_rel)


def _without_common_nans(out: torch.Tensor, ref: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both on one device, with zero where both are NaN."""
    mine = out.detach().to(ref.device)
    if mine.shape != ref.shape or not mine.is_floating_point():
        return mine, ref
    both = mine.isnan() & ref.isnan()
    return mine.masked_fill(both, 0.0), ref.masked_fill(both, 0.0)


def _types(values: Sequence[torch.Tensor]) -> str:
    return ", ".join(str(value.dtype).removeprefix("torch.") for value in values) or "nothing"


def accepts(function: Callable[..., Any], *names: str) -> bool:
    """Whether a side's function takes these arguments by name: where the sides' signatures differ, `prepare` asks this.

    One without a signature (built in, or compiled) takes none that is known.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return True
    return set(names) <= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def tensors(values: Any) -> list[torch.Tensor]:
    """Every tensor of a possibly nested sequence or mapping, in order, without None: what a function returns in the place
    of an output that was not asked for. Raises TypeError for anything else in it."""
    if values is None:
        return []
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, Mapping):
        return tensors(values.values())
    if isinstance(values, Iterable) and not isinstance(values, str | bytes):
        return [t for value in values for t in tensors(value)]
    raise TypeError(f"outputs must be tensors, not {type(values).__name__}")
