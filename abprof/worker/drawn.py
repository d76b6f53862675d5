"""Turns of code that may be hostile (--untrusted): inputs that change before each call, and what each call returned.

A worker mixes its inputs and writes its outputs; the judge, a worker without the package, mixes the same inputs and reads
the outputs of the call that it checks. Both are quick, because the parent's clock reads them with the calls: code under
test could do them with less, and pass that off as its own speed.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from abprof.records import messages as wire
from abprof.worker.api import Unsupported
from abprof.worker.arms import Arms

NO_INPUTS = "--untrusted mixes finite floating-point inputs before each call, and this cell has none that it can mix"
NO_INFLUENCE = "--untrusted mixes floating-point inputs before each call, and the reference does not depend on them"
_HASHED = 1 << 16  # bytes of a tensor that count for the next call's inputs
_STEP, _STIRS = -0x61C8_8646_80B5_83EB, ((30, -0x40A7_B892_E31B_1A47), (27, -0x6B2F_B644_ECCE_EE15))
_TOO_LONG = "the outputs' layout does not fit into what is there of them"
_PLAIN = (bool, int, float, str, type(None))


def turn(arms: Arms, request: wire.Turn) -> wire.Turned:
    """Time a turn as `Arms.turn` does. With `request.draw`, change the inputs before each call, and keep what all calls
    returned for the judge before the reply. The parent's clock sees both, the turn's timer neither. For no calls, only prepare
    for such turns: make the inputs anew (`placement`), and what they are mixed from."""
    if not request.draw:
        return Arms.turn(arms, request)
    arm = arms.opened[request.arm]
    if request.placement is not None:
        arms.move(arm, request.placement)
        request = dataclasses.replace(request, placement=None)
    if arm.mixtures is None:
        arm.mixtures = mixtures(*map(arms.inputs, seeded(arm.request, request.draw)))
        arm.kept = Kept(Path(arms.start.scratch) / request.outputs, arms.memory if request.shared else None)
    if not any(each and each.finite for each in arm.mixtures):
        raise Unsupported(NO_INPUTS)
    arm.mixing = arm.mixing or mixer(arm.inputs, arm.mixtures, arms.clock.device)
    if not request.calls:
        return wire.Turned(0.0, 0.0, now := time.monotonic_ns(), now)
    own, op, results, kept = arm.op, arm.op, list[Any](), arm.kept
    # `prepare` may read integers, as for the size of a buffer.
    anew = request.anew or any(each and not each.one.is_floating_point() for each in arm.mixtures)
    kept.begin()

    def keep() -> None:
        for one in results:
            kept.add(one)
        results.clear()

    def reset() -> None:
        nonlocal op
        keep()
        arm.mixing(seed(request.draw[2], len(kept.layouts), kept.last))
        op = arms.prepared(arm.request, arm.inputs) if anew else op
        op.restore()

    arm.op = dataclasses.replace(own, call=lambda: results.append(op.call()), reset=reset)
    try:
        try:
            turned = Arms.turn(arms, request)
            keep()
        except Full:  # the GPU's clock repeated many calls, as the host was not ahead
            results.clear()
            kept.begin()
            turned = Arms.turn(arms, dataclasses.replace(request, lead=0.0))
            turned = dataclasses.replace(turned, lead=2 * request.lead)
            keep()
        layouts = kept.end()
        arms.clock.sync()
        return dataclasses.replace(turned, layouts=layouts)
    finally:
        arm.op = own


# ---------------------------------------------------------------- inputs


@dataclass(frozen=True)
class Mixture:
    """A tensor of the inputs of one seed and, of those of another seed, the difference from it (`finite`) or itself."""

    one: torch.Tensor
    other: torch.Tensor
    finite: bool


def seed(draw: int, number: int, before: Any) -> Any:
    """Return the seed of the inputs of a turn's call `number`, given what the call before it returned: a side that did
    several calls as one batch would not know their inputs. Of large tensors evenly spaced bytes count. If they are
    on a GPU, so is the seed: the host does not wait for it. The last bit chooses the integers, in turns: outputs do not
    count for it, because a side could then choose those that are quicker."""
    digest, sums = hashlib.sha256(f"{draw} {number}".encode()), list[torch.Tensor]()
    for tensor in held(before):
        flat = tensor.reshape(-1).view(torch.uint8)
        some = flat[:: flat.numel() // _HASHED | 1]
        if some.is_cuda:
            sums.append((some.long() * _places(len(some), some.device)).sum())
        else:
            digest.update(some.numpy().tobytes())
    return 2 * sum(sums, start=int.from_bytes(digest.digest()[:7], "big")) + (draw + number) % 2


def _bits(seed: Any, count: int, device: torch.device) -> torch.Tensor:
    """Return `count` integers that look random (splitmix64)."""
    bits = torch.arange(1, count + 1, device=device).mul_(_STEP)
    bits += seed
    for shift, factor in _STIRS:
        bits ^= bits >> shift
        bits *= factor
    return bits


_places = functools.lru_cache(8)(functools.partial(_bits, 1))


def _weights(seed: Any, count: int, device: torch.device) -> torch.Tensor:
    """Return `count` numbers between 0 and 1, without a wait for a GPU."""
    if device.type == "cpu":
        return torch.rand(count, generator=torch.Generator().manual_seed(int(seed)))
    return (_bits(seed, count, device) >> 20 & (1 << 24) - 1) / float(1 << 24)


def seeded(request: wire.Open, draw: list[int]) -> list[wire.Open]:
    """Return the requests for the two inputs that are mixed."""
    return [dataclasses.replace(request, seed=seed) for seed in draw[:2]]


def mixtures(one: Any, other: Any) -> list[Mixture | None]:
    """Return a mixture for each tensor in the inputs of two seeds, in order; None for those that do not change."""
    pairs = zip(held(one), held(other), changes(one, other), strict=False)
    return [_mixture(one.detach(), other.detach()) if changing else None for one, other, changing in pairs]


def changes(one: Any, other: Any) -> list[bool]:
    """Return, for each tensor in the inputs of two seeds, whether it may have the values of either.

    A tensor does not if one element is another's too. Integers and booleans do only if all of them may, and if all that
    is no tensor is the same for both seeds, because they may belong to each other.
    """
    pairs = [(a, b, a.is_floating_point()) for a, b in zip(held(one), held(other), strict=False)]
    fit = [_fit(a, b) for a, b, _ in pairs]
    linked = _outline(one) == _outline(other) and all(
        f or real or torch.equal(a, b) for f, (a, b, real) in zip(fit, pairs, strict=True)
    )
    return [f and (real or linked) for f, (_, _, real) in zip(fit, pairs, strict=True)]


def _fit(one: torch.Tensor, other: torch.Tensor) -> bool:
    overlaps = any(s == 0 < n - 1 for s, n in zip(one.stride(), one.shape, strict=True))
    return (one.shape, one.dtype) == (other.shape, other.dtype) and not overlaps


def _mixture(one: torch.Tensor, other: torch.Tensor) -> Mixture | None:
    if not one.is_floating_point():
        return None if torch.equal(one, other) else Mixture(one, other, finite=False)
    if one.element_size() == 1:  # torch computes nothing in eight bits
        one, other = one.float(), other.float()
    finite = bool(one.isfinite().all() and other.isfinite().all())
    return Mixture(one, other - one if finite else other, finite)


def _outline(values: Any) -> Any:
    """Return what `values` has beside tensors. Objects that may be anything equal nothing."""
    if isinstance(values, torch.Tensor):
        return values.layout == torch.strided or object()
    if isinstance(values, Mapping):
        return [(key, _outline(part)) for key, part in values.items()]
    if isinstance(values, list | tuple):
        return [_outline(part) for part in values]
    if dataclasses.is_dataclass(values):
        return [_outline(getattr(values, field.name)) for field in dataclasses.fields(values)]
    return values if isinstance(values, (*_PLAIN, torch.dtype, torch.device)) else object()


def mixer(inputs: Any, mixed: list[Mixture | None], device: torch.device) -> Callable[[Any], None]:
    """Return a function that mixes the inputs by a seed: on a GPU, where it can be, one launch of a CUDA graph in the place
    of some thirty, which take the host longer than short calls take."""
    plain, changed = functools.partial(mix, inputs, mixed), getattr(torch.autograd.graph, "increment_version", None)
    if device.type == "cpu" or not all(each is None or each.one.is_cuda for each in mixed) or not changed:
        return plain
    own = [old for old, each in zip(held(inputs), mixed, strict=False) if each is not None]
    if not own:
        return plain
    number, graph, stream = (
        torch.zeros((), dtype=torch.int64, device=device),
        torch.cuda.CUDAGraph(),
        torch.cuda.Stream(),
    )
    plain(number)  # loads the kernels
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                plain(number)
            finally:
                graph.capture_end()
    except RuntimeError as error:
        print(f"inputs are mixed without a graph: {error}", flush=True)
        return plain
    torch.cuda.current_stream().wait_stream(stream)

    def mixing(seed: Any) -> None:
        number.copy_(seed) if isinstance(seed, torch.Tensor) else number.fill_(seed)
        graph.replay()
        for tensor in own:  # kernels may keep what they made of an input until its version changes
            changed(tensor)

    return mixing


def mix(inputs: Any, mixed: list[Mixture | None], seed: Any) -> None:
    """Set the tensors of `inputs` to mixtures, in place.

    Each element has a weight of its own between 0 and 1, so no result for one of the two gives that of the mixture.
    Tensors with infinities, integers and booleans are copied, all of them from the same one of the two.
    """
    pairs = [(old, each) for old, each in zip(held(inputs), mixed, strict=False) if each is not None]
    mixing = [old for old, each in pairs if each.finite]
    shapes = [shape for old in mixing for shape in ((*old.shape[:-1], 1) if old.dim() else (), old.shape[-1:])]
    counts = [math.prod(shape) for shape in shapes]
    weights = _weights(seed, sum(counts), mixing[0].device) if mixing else torch.empty(0)
    parts = iter(part.view(shape) for part, shape in zip(weights.split(counts), shapes, strict=True))
    with torch.no_grad():
        for old, each in pairs:
            if each.finite:
                rows, columns = (next(parts).to(each.one.device, each.one.dtype) for _ in range(2))
                old.copy_(torch.addcmul(each.one, each.other * columns, rows))
            else:
                old.copy_(torch.where(torch.as_tensor(seed, device=each.one.device) & 1 == 0, each.one, each.other))


def held(values: Any) -> Iterator[torch.Tensor]:
    """Yield the dense tensors in nested sequences, mappings and dataclasses, in order."""
    if isinstance(values, torch.Tensor):
        if values.layout == torch.strided:
            yield values
    elif isinstance(values, Mapping):
        for part in values.values():
            yield from held(part)
    elif isinstance(values, list | tuple):
        for part in values:
            yield from held(part)
    elif dataclasses.is_dataclass(values):
        for field in dataclasses.fields(values):
            yield from held(getattr(values, field.name))


# ---------------------------------------------------------------- outputs


class Full(MemoryError):
    """Outputs do not fit into the memory that is there for them."""


class Kept:
    """What a turn's calls returned, in the GPU memory `memory` or else in a file that is mapped to memory: a call's outputs
    are copied into it before the next call, which may overwrite them. Each turn writes over the same pages of the file,
    since new ones take longer than the copy."""

    def __init__(self, path: Path, memory: torch.Tensor | None = None) -> None:
        self._path, self._fixed = path, memory is not None
        self._memory = torch.empty(0, dtype=torch.uint8) if memory is None else memory
        if not self._fixed:
            path.touch(0o600)
        self.begin()

    def begin(self) -> None:
        """Forget the calls of the turn before."""
        self.layouts, self.last, self._end = list[dict[str, Any]](), list[torch.Tensor](), 0

    def add(self, values: Any) -> None:
        """Copy what a call returned. `last` then has its tensors' bytes."""
        self.last = []
        self.layouts.append(self._copied(values))

    def end(self) -> str:
        """Return the layout of each call's outputs as JSON. The file then holds their bytes, one after the other."""
        if not self._fixed:
            os.truncate(self._path, self._end)  # another cell's outputs were larger
        return json.dumps(self.layouts)

    def _copied(self, values: Any) -> dict[str, Any]:
        """Copy the tensors in `values` to the file, and return their layout."""
        if isinstance(values, torch.Tensor) and values.layout == torch.strided:
            plain = values.detach().resolve_conj().resolve_neg().contiguous()
            self._write(plain.reshape(-1).view(torch.uint8))
            return {"dtype": str(values.dtype).removeprefix("torch."), "shape": list(values.shape)}
        if isinstance(values, Mapping):
            return {"dict": [[key, self._copied(part)] for key, part in values.items()]}
        if isinstance(values, list | tuple):
            return {"list" if type(values) is list else "tuple": [self._copied(part) for part in values]}
        return {"value": values} if isinstance(values, _PLAIN) else {"type": type(values).__name__}

    def _write(self, data: torch.Tensor) -> None:
        begin, self._end = self._end, self._end + data.numel()
        if self._fixed and self._end > len(self._memory):
            raise Full(f"{self._end} bytes of outputs")
        if not self._fixed and self._path.stat().st_size < self._end:
            os.truncate(self._path, self._end)  # torch would overwrite the file's first byte
        if self._end > len(self._memory):
            self._memory = torch.from_file(str(self._path), shared=True, size=self._end, dtype=torch.uint8)
        self.last.append(self._memory[begin : self._end].copy_(data))


def read(
    source: Path | torch.Tensor,
    layouts: str,
    number: int,
    calls: int,
    device: torch.device,
    seen: Sequence[Sequence[Any]] = (),
) -> Any:
    """Return what call `number` of a turn of `calls` calls returned, from a file or snapshot and the layouts that hostile
    code may have made. `seen`: Examine.seen. Raises ValueError if they do not hold that, or if bytes `seen` have changed."""
    found = json.loads(layouts)
    if not isinstance(found, list) or len(found) < calls:  # a GPU's clock repeats calls that its spin did not hide
        raise ValueError(f"outputs of {len(found)} of {calls} calls")
    at, size = sum(map(_size, found[:number])), _size(found[number])
    if size < 0 or at < 0:
        raise ValueError("an impossible layout of outputs")
    data = _bytes(source, at, size)
    values, _ = _built(found[number], data, 0, device)
    if seen and (seen[0][0] != sum(map(_size, found)) or _late(data, at, seen)):
        raise ValueError("it was written after the reply")
    return values


def _bytes(source: Path | torch.Tensor, at: int, size: int) -> torch.Tensor:
    if isinstance(source, torch.Tensor):
        if at + size > len(source):
            raise ValueError(_TOO_LONG)
        return source[at : at + size].clone()
    # Without blocking: the opener waits for a FIFO's writer, and for the holder of a lease, who could compute meanwhile.
    file = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            raise ValueError("the outputs are in no regular file")
        if at + size > about.st_size:
            raise ValueError(_TOO_LONG)
        data, done = torch.zeros(size, dtype=torch.uint8), 0
        while done < size and (more := os.preadv(file, [memoryview(data.numpy())[done:]], at + done)):
            done += more
    finally:
        os.close(file)
    return data


def _late(data: torch.Tensor, at: int, seen: Sequence[Sequence[Any]]) -> bool:
    """Whether `data`, which begins at `at` in its file, has other bytes than were `seen` there."""
    inside = [(place - at, bytes.fromhex(text)) for place, text in seen if at <= place < at + len(data)]
    return any(
        data[begin : begin + len(piece)].numpy().tobytes() != piece[: len(data) - begin] for begin, piece in inside
    )


def _size(layout: dict[str, Any]) -> int:
    if "dtype" in layout:
        return math.prod(layout["shape"]) * _type(layout).itemsize
    (parts,) = layout.values()
    if "dict" in layout:
        return sum(_size(part) for _, part in parts)
    return sum(map(_size, parts)) if {"list", "tuple"} & layout.keys() else 0


def _type(layout: dict[str, Any]) -> torch.dtype:
    dtype = getattr(torch, layout["dtype"], None)
    if not isinstance(dtype, torch.dtype) or any(n < 0 for n in layout["shape"]):
        raise ValueError("a layout that no tensor has")
    return dtype


def _built(layout: dict[str, Any], data: torch.Tensor, at: int, device: torch.device) -> tuple[Any, int]:
    """Return the values with this layout whose bytes begin at `at`, and where they end."""
    if "dtype" in layout:
        end = at + _size(layout)
        flat = data[at:end] if at % 16 == 0 else data[at:end].clone()  # aligned for each type
        return flat.view(_type(layout)).reshape(layout["shape"]).to(device), end
    if "type" in layout:
        raise ValueError(f"a call returns a {layout['type']}: return tensors, or lists, tuples and dicts of tensors")
    if "value" in layout:
        return layout["value"], at
    parts, keys = [], []
    for item in layout["dict"] if "dict" in layout else next(iter(layout.values())):
        key, part = item if "dict" in layout else (None, item)
        value, at = _built(part, data, at, device)
        parts.append(value)
        keys.append(key)
    if "dict" in layout:
        return dict(zip(keys, parts, strict=True)), at
    return tuple(parts) if "tuple" in layout else parts, at
