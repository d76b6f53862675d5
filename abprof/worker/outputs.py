"""Reference values kept for the run, and sampled outputs by which the sides are compared with each other."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import os
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from abprof.worker.api import tensors

SAMPLE = 1 << 16  # elements kept of each output tensor


def expected(path: Path, make: Callable[[], Any]) -> Any:
    """The reference of this case: computed by the first worker that asks, read by all later ones of the run.

    A worker that may not write there (abprof/builds/sandbox.py) keeps what it computed to itself. So does each where they are more
    than tensors and plain containers: a file's objects could bring anybody's code along, so that none is loaded.
    """
    if path.exists():
        with contextlib.suppress(pickle.UnpicklingError):
            return torch.load(path, weights_only=True)  # on the device where reference() left them
        return make()
    values = _compact(make())
    if os.access(path.parent, os.W_OK):
        _save(values, path)
    return values


def agreed(path: Path, make: Callable[[], Any]) -> Any:
    """The same where nothing but the first side's outputs says what is right. Raises ValueError for what cannot be read: no
    other side's may stand in for them."""

    def unread() -> Any:
        if path.exists():
            raise ValueError("the outputs that the others are to agree with hold more than tensors")
        return make()

    return expected(path, unread)


def sample(results: Any, path: Path, against: Path | None) -> tuple[str, float | None]:
    """Digest of the outputs, and the largest difference from the base's on the sampled elements.

    The digest covers every bit: an order-independent sum and a position-weighted sum over the raw integers.
    """
    digest = hashlib.sha256()
    kept: list[torch.Tensor] = []
    for tensor in tensors(results):
        flat = tensor.detach().reshape(-1)
        for number in _sums(flat):
            digest.update(str((tuple(tensor.shape), str(tensor.dtype), number)).encode())
        step = max(1, flat.numel() // SAMPLE)
        kept.append(flat[::step].double().cpu())
    said = digest.hexdigest() if kept else ""  # of nothing there are no equal bits
    _save(kept, path)
    if against is None or not against.exists():
        return said, None
    base = torch.load(against, map_location="cpu", weights_only=True)
    if [t.shape for t in base] != [t.shape for t in kept]:
        return said, None
    worst = max((float((a - b).abs().max()) for a, b in zip(kept, base, strict=True) if a.numel()), default=0.0)
    return said, finite(worst)


def input_digests(inputs: Any) -> list[str]:
    """A digest of up to SAMPLE evenly spaced elements of each tensor in sequences, mappings and dataclasses.

    Tensors held in anything else, and sparse ones, are not seen.
    """
    found: list[str] = []
    for tensor in held(inputs):
        flat = tensor.detach().reshape(-1)
        kept = flat[:: max(1, flat.numel() // SAMPLE)].contiguous().cpu()
        found.append(hashlib.sha256(kept.view(torch.uint8).numpy().tobytes()).hexdigest())
    return found


def overwrite(inputs: Any, fresh: Any) -> None:
    """Put the values of `fresh` into the floating-point tensors of `inputs`, in place, where they are of the same shapes."""
    with torch.no_grad():
        for old, new in zip(held(inputs), held(fresh), strict=False):
            if old.is_floating_point() and (old.shape, old.dtype) == (new.shape, new.dtype):
                old.copy_(new)


def keep(results: Any, path: Path) -> None:
    """Whole outputs in a file that `handed` reads: tensors in lists, tuples and mappings, whatever they were in."""
    _save(_compact(on_host(results)), path)


def handed(path: Path, device: Any) -> Any:
    """What `keep` wrote; the file is gone then. It may hold tensors and plain containers alone: another process's object
    would bring its code along. Raises ValueError."""
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except pickle.UnpicklingError:
        raise ValueError("the outputs hold more than tensors in lists, tuples and mappings") from None
    finally:
        path.unlink(missing_ok=True)


def on_host(values: Any) -> Any:
    """Tensors in lists, tuples and mappings, copied to the host."""
    if isinstance(values, torch.Tensor):
        return values.detach().cpu()
    if isinstance(values, Mapping):
        return {key: on_host(value) for key, value in values.items()}
    if isinstance(values, tuple):  # named ones and torch's own as well
        return tuple(map(on_host, values))
    return list(map(on_host, values)) if isinstance(values, Iterable) and not isinstance(values, str) else values


def held(values: Any) -> Iterator[torch.Tensor]:
    """Strided tensors in sequences, mappings and dataclasses; what is held in anything else is not seen."""
    if isinstance(values, torch.Tensor):
        if values.layout == torch.strided:
            yield values
        return
    if isinstance(values, Mapping):
        parts: Iterable[Any] = values.values()
    elif isinstance(values, (list, tuple)):
        parts = values
    elif dataclasses.is_dataclass(values):
        parts = (getattr(values, field.name) for field in dataclasses.fields(values))
    else:
        return
    for part in parts:
        yield from held(part)


def _sums(flat: torch.Tensor) -> tuple[int, int]:
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()]
    if flat.dtype == torch.bool:
        flat = flat.to(torch.uint8)
    total = weighted = 0
    for part in flat.contiguous().view(width).split(1 << 24):  # pieces bound the int64 copies
        wide = part.to(torch.int64)
        total += int(wide.sum())
        weighted += int((wide * torch.arange(1, wide.numel() + 1, device=wide.device)).sum())
    return total, weighted


def finite(value: float | None) -> float | None:
    """None for NaN and infinity: JSON has neither."""
    return None if value is None or not math.isfinite(value) else float(value)


def _compact(values: Any) -> Any:
    """Tensors without the rest of the memory that they are views of: saving a row would save the whole."""
    if isinstance(values, torch.Tensor):
        whole = values.layout == torch.strided and values.untyped_storage().nbytes() > values.nbytes
        return values.clone() if whole else values
    if isinstance(values, Mapping):
        return {key: _compact(value) for key, value in values.items()}
    return type(values)(map(_compact, values)) if type(values) in {list, tuple} else values


def _save(values: Any, path: Path) -> None:
    temporary = path.with_suffix(f".{uuid.uuid4().hex}")  # process ids are not unique: behind a wall they begin anew
    try:
        torch.save(values, temporary)
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
