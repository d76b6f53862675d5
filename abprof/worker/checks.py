"""Check an arm's outputs against the workload's reference or base's outputs, in the arm's process or another one."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import gc
import hashlib
import math
import os
import pickle
import time
import types
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from abprof.records import messages as wire
from abprof.worker import drawn, workload
from abprof.worker.api import Check, Unsupported
from abprof.worker.arms import Arm, Arms
from abprof.worker.drawn import changes, held
from abprof.worker.faults import running

NO_RESET = "a call depends on earlier calls, and the Op has no reset()"
OVERWRITTEN = "the kernel overwrote its inputs, or added to their .grad, and no reset() restores them"
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RuntimeError, OSError, EOFError)
SAMPLE = 1 << 16  # elements sampled from each output tensor


def check(arms: Arms, request: wire.Check) -> wire.Checked:
    """Check a call on fresh inputs against the reference or, without a reference, against base's outputs.

    Also save a sample of the outputs. The check fails if the kernel overwrites its inputs and the workload has no
    reset(), because later calls would get other inputs.
    """
    if request.again:
        return _again(arms, request)
    wall, opened = _taken(arms, request.arm)
    expected = _first_expected(arms, opened, request)
    arm = arms.make(opened, opened.placement)
    before = None if arm.op.reset else sampled_digests(arm.inputs)
    arm.op.restore()
    results = arm.op.call()
    arms.clock.sync()
    checked = _compared(arms, arm, request, results, expected, before)
    arms.reopen(opened, wall, arm)
    return checked


def open_checked(arms: Arms, request: wire.Open) -> wire.Opened:
    """Open an arm as `Arms.open` does. With `request.check`, compare what its first call returns with the reference: if
    that is right, no second arm need be made for a check. Else, or without a reference, nothing is known yet: a first call
    may have tuned the kernel on its own outputs."""
    if request.check is None or not hasattr(arms.module(request.workload), "reference"):
        return Arms.open(arms, request)
    arms.drop(request.arm)
    began = time.perf_counter_ns()
    expected = _first_expected(arms, request, request.check)
    referred = time.perf_counter_ns() - began
    arm, took = arms.timed(request)
    before, results = None if arm.op.reset else sampled_digests(arm.inputs), list[Any]()
    kept = dataclasses.replace(arm.op, call=lambda: results.append(arm.op.call()))
    first, peak = arms.clock.wall(kept), arms.clock.peak_bytes()
    began = time.perf_counter_ns()
    checked = _compared(arms, arm, request.check, results.pop(), expected, before)
    spent = float(referred + time.perf_counter_ns() - began)
    del expected
    opened = arms.warmed(arm, took, first, peak)
    return dataclasses.replace(opened, check_ns=spent, checked=checked if checked.ok else None)


def _first_expected(arms: Arms, opened: wire.Open, request: wire.Check) -> Any:
    """Return the reference, which the first check of a cell computes; None for a workload without one."""
    if not hasattr(arms.module(opened.workload), "reference"):
        return None
    return _expected(Path(arms.start.scratch) / request.expected, lambda: _reference(arms, opened))


def _compared(
    arms: Arms, arm: Arm, request: wire.Check, results: Any, expected: Any, before: list[str] | None
) -> wire.Checked:
    """Compare what a call returned with the reference or base's outputs, and save a sample of it. `before`: digests of the
    inputs before the call; None if they may change."""
    scratch, alone = Path(arms.start.scratch), not hasattr(arm.module, "reference")
    tensors, beside = returned(results, whole=alone)
    if fault := lazy(results):
        return wire.Checked(False, fault)
    if alone:
        results = tensors
        expected = _expected(scratch / request.expected, lambda: results, host=True)
    verdict = workload.check(arm.module, arm.request.case, results, expected)
    if verdict.ok and before is not None and before != sampled_digests(arm.inputs):
        verdict = dataclasses.replace(verdict, ok=False, reason=OVERWRITTEN)
    against = scratch / request.against if request.against else None
    digest, base_max_abs, differ = _sample(tensors, scratch / request.sample, against)
    verdict = dataclasses.replace(verdict, ok=False, reason=differ) if verdict.ok and differ else verdict
    arm.outputs = tuple(sampled_digests(tensors))
    facts = arm.facts()
    if alone and (words := not_compared(tensors, beside)):
        facts["checked"] = words
    digest = "" if beside else digest  # a digest of some outputs cannot prove all equal
    compared = bool(tensors) or not alone
    return wire.Checked(*_fields(verdict), digest, base_max_abs, compared, facts)


def _again(arms: Arms, request: wire.Check) -> wire.Checked:
    """Check a call after the timed calls, on the same inputs. The check passes at once if the outputs equal those of
    the first check."""
    arm, path = arms.opened[request.arm], Path(arms.start.scratch) / request.expected
    arm.op.restore()
    results = arm.op.call()
    arms.clock.sync()
    if fault := lazy(results):
        return wire.Checked(False, fault)
    alone = not hasattr(arm.module, "reference")
    tensors, _ = returned(results)
    if tuple(sampled_digests(tensors)) == arm.outputs or (alone and not path.exists()):
        return wire.Checked(True)
    expected = _expected(path, lambda: _reference(arms, arm.request), host=alone)
    verdict = workload.check(arm.module, arm.request.case, tensors if alone else results, expected)
    if not verdict.ok and arm.op.reset is None:
        verdict = dataclasses.replace(verdict, reason=f"{NO_RESET}: {verdict.reason}")
    return wire.Checked(*_fields(verdict))


def hand(arms: Arms, request: wire.Hand) -> wire.Done:
    """Call the arm on inputs made with `request.seed`, and write the outputs to a file, which another worker checks."""
    wall, opened = _taken(arms, request.arm)
    arm = arms.make(dataclasses.replace(opened, seed=request.seed), opened.placement)
    anew = request.anew
    if request.again is not None:
        arm.op.call()
        anew = _overwrite(arm.inputs, arms.inputs(dataclasses.replace(opened, seed=request.again))) or anew
    if anew:
        arm.op = arms.prepared(opened, arm.inputs)
        arms.clock.sync()
    arm.op.restore()
    try:
        results = arm.op.call()
    except RuntimeError as error:  # autograd refuses what was computed before: the judge then says so, and asks anew
        if request.again is None or anew or _INPLACE not in str(error):
            raise
        results = []
    _save(_portable(results, host=True), Path(arms.start.scratch) / request.outputs)
    del arm
    gc.collect()
    arms.reopen(opened, wall)
    return wire.Done()


def examine(arms: Arms, request: wire.Examine) -> wire.CheckResult:
    """Check the outputs that another worker wrote to a file, against a reference computed here.

    Outputs that are not tensors in lists, tuples and mappings fail: other objects could run code when loaded. The data
    types must be those of base's outputs, if these were examined.
    """
    wanted = wire.Open(request.workload, request.case, "", seed=request.seed)
    again = None if request.again is None else dataclasses.replace(wanted, seed=request.again)
    path, number = Path(arms.start.scratch) / request.outputs, request.pick % max(1, request.calls)
    try:
        if request.draw:
            source = arms.snapshot if request.shared and arms.snapshot is not None else path
            device, layouts = arms.clock.device, request.layouts
            results = drawn.read(source, layouts, number, request.calls, device, request.seen)
            place = device if request.shared else torch.device("cpu")  # where the worker has them, too
            before = drawn.read(source, layouts, number - 1, request.calls, place) if number else []
            seed = int(drawn.seed(request.draw[2], number, before))
        else:
            results = torch.load(path, map_location=arms.clock.device, weights_only=True)
    except pickle.UnpicklingError:
        return wire.CheckResult(False, "the outputs must be tensors, or lists, tuples and mappings of tensors")
    except _UNREADABLE as error:
        return wire.CheckResult(False, f"what a call returned cannot be read: {error}")
    if request.draw:
        arms.expected.clear()
        of = request.workload, str(request.case)
        if arms.mixed is None or arms.mixed[0] != (of, request.draw[:2]):
            arms.mixed = None  # frees the memory first
            arms.mixed = (of, request.draw[:2]), drawn.mixtures(*map(arms.inputs, drawn.seeded(wanted, request.draw)))
        inputs = arms.inputs(wanted)
        drawn.mix(inputs, arms.mixed[1], seed)
        expected = _referred(arms, wanted, inputs, request.sample_seed)
        digests = tuple(sampled_digests(expected))
        alike = (of, *request.draw[:2], seed & 1) if any(m and not m.finite for m in arms.mixed[1]) else of
        other = arms.references.setdefault(alike, (seed, digests))  # of the same integers
        if digests and other[0] != seed and other[1] == digests:
            raise Unsupported(drawn.NO_INFLUENCE)
    else:
        path.unlink(missing_ok=True)
        asked = str((wanted, again, request.sample_seed))
        expected = arms.expected.pop(asked, None)
        arms.expected.clear()  # frees the memory first
        expected = _reference(arms, wanted, again, request.sample_seed) if expected is None else expected
        with contextlib.suppress(Exception):  # not of what has a gradient
            arms.expected[asked] = copy.deepcopy(expected)  # a check may write to it
    found, cell = [str(each.dtype) for each in held(results)], wire.cell_id(request.workload, request.case)
    if request.outputs.startswith("base/") and found not in arms.types.get(cell, []):
        arms.types.setdefault(cell, []).append(found)
    known = arms.types.get(cell, [found])
    if differ := lazy(results, strict=True) or ("" if found in known else _types_differ(found, known[0])):
        return wire.CheckResult(False, differ)
    return wire.CheckResult(*_fields(workload.check(arms.module(request.workload), request.case, results, expected)))


def _taken(arms: Arms, id: str) -> tuple[float, wire.Open]:
    """Remove an arm, to free its memory. Return the ns of its last untimed call, and the request that made the arm."""
    arm = arms.opened.pop(id)
    kept = arm.wall, arm.request
    del arm
    gc.collect()
    return kept


def _reference(arms: Arms, request: wire.Open, again: wire.Open | None = None, sample_seed: int | None = None) -> Any:
    inputs = arms.inputs(request)
    if again is not None:
        _overwrite(inputs, arms.inputs(again))
    return _referred(arms, request, inputs, request.seed if sample_seed is None else sample_seed)


def _referred(arms: Arms, request: wire.Open, inputs: Any, sample_seed: int) -> Any:
    module = arms.module(request.workload)
    torch.manual_seed(sample_seed)
    with running(module, "reference"):
        return module.reference(types.MappingProxyType(request.case), inputs)


def _fields(verdict: Check) -> tuple[bool, str, float | None, float | None]:
    return bool(verdict.ok), verdict.reason, _finite(verdict.max_abs), _finite(verdict.max_rel)


def _finite(value: float | None) -> float | None:
    """Replace NaN and infinity by None, because JSON has neither."""
    return None if value is None or not math.isfinite(value) else float(value)


def _expected(path: Path, make: Callable[[], Any], *, host: bool = False) -> Any:
    """Return a case's reference from the file `path`; if there is none, call `make`, and save the result if allowed.

    If the file holds anything but tensors, call `make` too. With `host` the file holds the first side's outputs; then
    raise ValueError instead.
    """
    if path.exists():
        try:
            return torch.load(path, weights_only=True)
        except pickle.UnpicklingError:
            if host:
                raise ValueError("the first side's outputs must be tensors") from None
            return make()
    values = _portable(make(), host=host)
    if os.access(path.parent, os.W_OK):
        _save(values, path)
    return values


def _portable(values: Any, *, host: bool = False) -> Any:
    """Prepare values for a file: copy views of larger memory; with `host` move all to the CPU, in plain containers."""
    if isinstance(values, torch.Tensor):
        values = values.detach().to("cpu", copy=True) if host else values
        view = values.layout == torch.strided and values.untyped_storage().nbytes() > values.nbytes
        return values.clone() if view else values
    if isinstance(values, Mapping):
        return {key: _portable(value, host=host) for key, value in values.items()}
    if isinstance(values, tuple) and (host or type(values) is tuple):  # host: named tuples and torch's tuples too
        return tuple(_portable(value, host=host) for value in values)
    if type(values) is list or (host and isinstance(values, Iterable) and not isinstance(values, str)):
        return [_portable(value, host=host) for value in values]
    return values


def _save(values: Any, path: Path) -> None:
    temporary = path.with_suffix(f".{uuid.uuid4().hex}")  # process ids repeat in a sandbox
    torch.save(values, temporary)
    temporary.replace(path)


def _sample(results: list[torch.Tensor], path: Path, against: Path | None) -> tuple[str, float | None, str]:
    """Write a sample of the outputs to `path`. Return the digest of all outputs ("": no outputs), the largest
    difference from base's sample, which is in the file `against` (None: not compared), and how data types differ."""
    digest = hashlib.sha256()
    kept: list[torch.Tensor] = []
    for tensor in results:
        flat, sums = tensor.detach().reshape(-1), [0, 0]
        bits = flat.to(torch.uint8) if flat.dtype == torch.bool else flat
        width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[bits.element_size()]
        for part in bits.contiguous().view(width).split(1 << 24):  # pieces bound the int64 copies
            wide = part.to(torch.int64)
            sums[0] += int(wide.sum())
            sums[1] += int((wide * torch.arange(1, wide.numel() + 1, device=wide.device)).sum())
        for number in sums:
            digest.update(str((tuple(tensor.shape), str(tensor.dtype), number)).encode())
        kept.append(flat[:: max(1, flat.numel() // SAMPLE)].double().cpu())
    text = digest.hexdigest() if kept else ""
    types = [str(tensor.dtype) for tensor in results]
    _save((types, kept), path)
    if against is None or not against.exists():
        return text, None, ""
    expected, base = torch.load(against, map_location="cpu", weights_only=True)
    if [t.shape for t in base] != [t.shape for t in kept]:
        return text, None, ""
    worst = max((float((a - b).abs().max()) for a, b in zip(kept, base, strict=True) if a.numel()), default=0.0)
    return text, _finite(worst), _types_differ(types, expected)


def _types_differ(found: list[str], base: list[str]) -> str:
    """Say how the data types of outputs differ from base's; "": not at all, or another number of outputs."""
    pairs = zip(found, base, strict=True) if len(found) == len(base) else ()
    return next((f"output {i} is of {a}, base's of {b}: return base's" for i, (a, b) in enumerate(pairs) if a != b), "")


def sampled_digests(values: Any) -> list[str]:
    """Return a digest of each dense tensor in `values`, and of its .grad, of about SAMPLE evenly spaced elements."""
    both = (one for tensor in held(values) for one in (tensor, tensor.grad if tensor.is_leaf else None))
    flat = (tensor.detach().reshape(-1) for tensor in both if tensor is not None)
    kept = (one[:: max(1, one.numel() // SAMPLE)].contiguous().cpu() for one in flat)
    return [hashlib.sha256(one.view(torch.uint8).numpy().tobytes()).hexdigest() for one in kept]


def _overwrite(inputs: Any, fresh: Any) -> bool:
    """Copy the tensors of `fresh` over those of `inputs`, where these may change. Return whether some are not of a
    floating-point type, and other values: `prepare` may have read them."""
    integers = False
    with torch.no_grad():
        for old, new, changing in zip(held(inputs), held(fresh), changes(inputs, fresh), strict=False):
            if changing:
                integers |= not (old.is_floating_point() or torch.equal(old, new))
                old.copy_(new)
    return integers


# ---------------------------------------------------------------- the values that a call returns

_INPLACE = "modified by an inplace operation"
_PLAIN = (int, float, complex, str, bytes, type(None))
_READS = ("__iter__", "__getitem__", "__len__", "keys", "values", "items")


def lazy(results: Any, *, strict: bool = False) -> str:
    """Return why outputs may be computed when they are read, after the call, and what to do; "": they are not.

    Tensors must be of type torch.Tensor or Parameter; lists, tuples and mappings must read as Python's own do. With
    `strict`, nothing else may be there, and tensors must be dense.
    """
    kind = type(results)
    if isinstance(results, torch.Tensor):
        if kind not in (torch.Tensor, torch.nn.Parameter):
            return f"a call returns a {kind.__name__}, which may compute when it is read: return a torch.Tensor"
        dense = results.layout == torch.strided or not strict
        return "" if dense else f"a call returns a tensor of layout {results.layout}: return a dense one"
    own = next((each for each in (list, tuple, dict, collections.OrderedDict) if isinstance(results, each)), None)
    if own is not None and kind not in (list, tuple, dict, collections.OrderedDict):
        reads = [name for name in _READS if hasattr(own, name)]
        other = any(getattr(kind, name) is not getattr(own, name) for name in reads)
        if (strict or other) and not dataclasses.is_dataclass(kind):
            return f"a call returns a {kind.__name__}, which may compute when it is read: return a {own.__name__}"
    if own is not None:
        parts = results.values() if isinstance(results, dict) else results
        return next(filter(None, (lazy(part, strict=strict) for part in parts)), "")
    if isinstance(results, Iterator) or (strict and not isinstance(results, (*_PLAIN, torch.dtype, torch.Size))):
        return f"a call returns a {kind.__name__}: return tensors, or lists, tuples and dicts of tensors"
    return ""


_NAMED = 5  # most kinds of values in the fact `checked`
_OPAQUE = (torch.Tensor, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType, type)


def returned(results: Any, *, whole: bool = False) -> tuple[list[torch.Tensor], list[str]]:
    """Return the tensors in a call's results, and the names of types and attributes that cannot be compared.

    Tensors, and arrays with DLPack, are looked for in sequences, mappings, dataclasses and public attributes of other
    objects. With `whole`, a result that is a sparse tensor or an iterator raises Unsupported.
    """
    tensors, beside, seen = list[torch.Tensor](), list[str](), set[int]()

    def walk(value: Any, name: str) -> None:
        private = name.rpartition(".")[2].startswith("_")
        dense = isinstance(value, torch.Tensor) and value.layout == torch.strided
        if value is None or id(value) in seen or (private and not isinstance(value, torch.Tensor)):
            return
        if whole and not name and (isinstance(value, Iterator) or (isinstance(value, torch.Tensor) and not dense)):
            what = f"tensor of layout {value.layout}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise Unsupported(f"a call returns a {what}: without a reference only dense tensors can be compared")
        if not isinstance(value, torch.Tensor) and hasattr(type(value), "__dlpack__"):
            with contextlib.suppress(TypeError, ValueError, RuntimeError, BufferError):
                value, dense = torch.from_dlpack(value), True
        if dense and not private:
            tensors.append(value)
            return
        before = len(tensors) + len(beside)
        if not isinstance(value, _OPAQUE):
            seen.add(id(value))
            for part, of in _parts(value):
                walk(part, of)
        kind = name or type(value).__name__
        nothing = len(tensors) + len(beside) == before and not isinstance(value, Mapping | list | tuple)
        if nothing and kind not in beside:
            beside.append(kind)

    walk(results, "")
    return tensors, beside


def not_compared(tensors: list[torch.Tensor], beside: list[str]) -> str:
    """Say for the report how many tensors are compared, and what is not compared; "" if everything is."""
    more = f" and {len(beside) - _NAMED} more" if len(beside) > _NAMED else ""
    kinds = ", ".join(beside[:_NAMED]) + more
    if not tensors:
        return "nothing: a call returns no tensor" + (f", but {kinds}" if kinds else "")
    count = f"{len(tensors)} tensor{'s' if len(tensors) > 1 else ''}"
    return f"{count}; not compared: {kinds}" if kinds else ""


def _parts(value: Any) -> Iterator[tuple[Any, str]]:
    """Yield each part of a value and its name: "" in a container, "TYPE.ATTRIBUTE" in any other object."""
    if isinstance(value, Mapping | list | tuple):
        yield from ((part, "") for part in (value.values() if isinstance(value, Mapping) else value))
    elif dataclasses.is_dataclass(value):
        yield from ((getattr(value, f.name), f"{type(value).__name__}.{f.name}") for f in dataclasses.fields(value))
    else:
        slots = [name for one in type(value).__mro__ for name in vars(one).get("__slots__", ())]
        names = sorted({*slots, *getattr(value, "__dict__", ())})
        yield from ((getattr(value, name, None), f"{type(value).__name__}.{name}") for name in names)
