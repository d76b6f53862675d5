"""The workload API: records and helpers for workload files, which import them from `abprof.kit`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from abprof.records.messages import Band, Sweep

__all__ = ["Band", "Check", "Op", "Sweep", "Unsupported", "Work", "accepts", "agree", "compare", "directed", "tensors"]


class Unsupported(Exception):
    """Raise this exception in a case that cannot run here. The report shows the reason, and the case does not fail."""


@dataclass(frozen=True)
class Op:
    """An operation to measure. `call()` is timed. `reset()` runs before each call, untimed, to restore gradients and
    inputs that the call changes. `facts()` runs once after a call, and returns named values for the report."""

    call: Callable[[], Any]
    reset: Callable[[], None] | None = None
    facts: Callable[[], Mapping[str, Any]] | None = None

    def restore(self) -> None:
        """Call `reset` if defined."""
        if self.reset:
            self.reset()


@dataclass(frozen=True)
class Check:
    """Result of a check of outputs. `max_rel`: largest error, divided by the reference's largest magnitude."""

    ok: bool
    reason: str = ""
    max_abs: float | None = None
    max_rel: float | None = None


@dataclass(frozen=True)
class Work:
    """Work of one call: floating-point operations, bytes moved, and the name of the convention for counting them."""

    flops: float | None = None
    bytes: float | None = None
    convention: str = ""


def compare(outputs: Any, expected: Any, *, rtol: float, atol: float) -> Check:
    """Compare tensors, or sequences of tensors of the same length, in float64.

    An output passes if every element satisfies |out - ref| <= atol + rtol * max|ref|, where max is over the whole
    reference. Shapes and infinities must be equal; NaN never passes.
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
        largest, scale = _extent(got - wide), _extent(wide)
        if not math.isfinite(largest + scale):
            if nans := int((got.isnan() | wide.isnan()).sum()):
                return Check(False, f"output {i}: {nans} of {got.numel()} values are NaN")
            infinite = got.isinf() | wide.isinf()
            if apart := int((infinite & (got != wide)).sum()):
                return Check(False, f"output {i}: {apart} of {got.numel()} values are infinite on one side only")
            got, wide = got.masked_fill(infinite, 0.0), wide.masked_fill(infinite, 0.0)
            largest, scale = _extent(got - wide), _extent(wide)
        worst_abs = max(worst_abs, largest)
        worst_rel = max(worst_rel, largest / scale if scale else largest)
        if largest > atol + rtol * scale:
            reason = f"output {i}: largest error {largest:.3g}, allowed {atol + rtol * scale:.3g}"
            return Check(False, reason, worst_abs, worst_rel)
    return Check(True, "", worst_abs, worst_rel)


def _extent(values: torch.Tensor) -> float:
    """Return the largest absolute value; NaN if there is a NaN."""
    low, high = values.aminmax()
    return float(torch.maximum(-low, high))


_AGREE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 2e-2}
_AGREE_NARROW = 0.1  # for types of eight bits or less


def agree(outputs: Any, expected: Any) -> Check:
    """Compare outputs with those of the other side, for workloads without a reference.

    The tolerance depends on the dtype: 1e-3 of the largest magnitude for float32, because tensor cores round to TF32;
    integers must be equal. NaN agrees with NaN at the same index, unless every value is NaN.
    """
    outs, refs = tensors(outputs), tensors(expected)
    mine, other = (", ".join(str(one.dtype).removeprefix("torch.") for one in each) for each in (outs, refs))
    if mine != other:
        return Check(False, f"outputs are {mine or 'nothing'}, those of the other side {other or 'nothing'}")
    worst_abs = worst_rel = 0.0
    for place, (out, ref) in enumerate(zip(outs, refs, strict=True)):
        got, rtol = out.detach().to(ref.device), 0.0
        if ref.is_floating_point() and got.shape == ref.shape:
            rtol, both = _AGREE.get(ref.dtype, _AGREE_NARROW), got.isnan() & ref.isnan()
            if ref.numel() and bool(both.all()):
                return Check(False, f"output {place}: every value is NaN on both sides")
            got, ref = got.masked_fill(both, 0.0), ref.masked_fill(both, 0.0)  # noqa: PLW2901
        found = compare(got, ref, rtol=rtol, atol=0.0)
        worst_abs, worst_rel = max(worst_abs, found.max_abs or 0.0), max(worst_rel, found.max_rel or 0.0)
        if not found.ok:
            reason = f"the sides do not agree: output {place}{found.reason.removeprefix('output 0')}"
            return Check(False, reason, worst_abs, worst_rel)
    return Check(True, "", worst_abs, worst_rel)


def accepts(function: Callable[..., Any], *names: str) -> bool:
    """Return whether `function` takes arguments with these names; False if Python does not know them (compiled
    functions). A workload's `prepare` can then serve sides whose functions differ in arguments."""
    try:
        inspect.signature(function).bind_partial(**dict.fromkeys(names))
    except (TypeError, ValueError):
        return False
    return True


def directed(
    case: Mapping[str, Any],
    inputs: dict[str, Any],
    function: Callable[[Mapping[str, Any]], Any],
    *,
    wrt: Sequence[str] = (),
    dtype: torch.dtype | None = None,
    fresh: bool = False,
) -> Op:
    """Make the operation of `case["direction"]`: fwd calls `function(inputs)`, bwd computes gradients of its outputs.

    Gradients are those of the inputs that `wrt` names; by default, of all floating-point tensors. In both directions
    these require gradients, as in training. bwd runs `function` once, untimed; its call returns the gradients in the
    order of `wrt`. They are of `inputs["dout"]`; if there is none, it is drawn (1 for a scalar output), the same each
    time, and added to `inputs`.

    `dtype`: convert floating-point inputs first, for a reference: `directed(..., dtype=torch.float64).call()`. `fresh`:
    before each call, untimed, restore the inputs and, for bwd, run `function` again: for a kernel that writes to its
    inputs or to what it saved for the backward. Raises ValueError if an output or an input has no gradient.
    """
    if (direction := case["direction"]) not in {"fwd", "bwd"}:
        raise Unsupported(f"direction={direction} is neither fwd nor bwd")
    floats, own = {name: _floats(value) for name, value in inputs.items() if _floats(value)}, "dout" in inputs
    wrt = tuple(wrt) or tuple(name for name in floats if name != "dout")
    kept = [(one, one.clone()) for some in floats.values() for one in some] if fresh else []
    call: Callable[..., Any]

    def begin() -> None:
        nonlocal call
        for one, old in kept:
            one.copy_(old)
        given = {name: _given(value, dtype, grad=name in wrt) for name, value in inputs.items()}
        if direction == "fwd":
            call = partial(function, given)
            return
        outputs = [one for one in tensors(function(given)) if one.requires_grad]
        if not outputs:
            raise ValueError("no output has a gradient: leave bwd out of the axis direction")
        above = tensors(given["dout"]) if own else _upstream(outputs)
        inputs.setdefault("dout", above)  # so that the check sees whether the kernel writes to it
        leaves = [one for name in wrt for one in _floats(given[name])]
        call = partial(torch.autograd.grad, outputs, leaves, above, retain_graph=True)

    def run() -> Any:
        try:
            return call()
        except RuntimeError as error:
            if "not have been used" not in str(error):
                raise
            found = zip([name for name in wrt for _ in floats[name]], call(allow_unused=True), strict=True)
            reached = tuple(dict.fromkeys(name for name, one in found if one is not None))
            raise ValueError(f"some inputs have no gradient: name those that have one, wrt={reached}") from error

    begin()
    return Op(run, begin if fresh else None)


def _floats(value: Any) -> list[torch.Tensor]:
    some = value if isinstance(value, list | tuple) else [value]
    return [one for one in some if isinstance(one, torch.Tensor) and one.is_floating_point()]


def _given(value: Any, dtype: torch.dtype | None, *, grad: bool) -> Any:
    """Return an input as `function` gets it: it shares the memory of `value` unless `dtype` is another one."""
    if isinstance(value, list | tuple):
        return [_given(one, dtype, grad=grad) for one in value]
    return value.detach().to(dtype or value.dtype).requires_grad_(grad) if _floats(value) else value


def _upstream(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Draw gradients of the outputs. They are numbers of bfloat16, which float64 and the other types hold exactly."""
    draw = torch.Generator(outputs[0].device).manual_seed(0)
    made = [torch.randn(one.shape, generator=draw, device=one.device).bfloat16().to(one.dtype) for one in outputs]
    return [new if new.dim() else torch.ones_like(new) for new in made]


def tensors(values: Any) -> list[torch.Tensor]:
    """Return the tensors in a nested sequence or mapping, in order. Skips None; other values raise TypeError."""
    if values is None:
        return []
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, Mapping):
        return tensors(values.values())
    if isinstance(values, Iterable) and not isinstance(values, str | bytes):
        return [t for value in values for t in tensors(value)]
    raise TypeError(f"outputs must be tensors, not {type(values).__name__}")
