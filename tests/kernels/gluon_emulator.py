"""Runs the Gluon kernels of kernels/ffa/cuda in Python on a CPU: their indices, masks and barriers, not their speed.

Gluon has no interpreter. Here a kernel's Python function runs with its language replaced: the partitions of
`warp_specialize` take turns (gluon_scheduler.py), shared memory starts as NaN, an mbarrier counts arrivals and bytes and
has a phase. What is asynchronous on the GPU happens at a bad moment here: a load at once or late, at random; a store or
reduce, and a wgmma, only when it is waited for; and a partition gives way wherever another could notice. So a missing
wait, a buffer released too early or an out-of-range pointer gives wrong numbers or an error, and a protocol that blocks
raises `Deadlock`. A seed decides everything that is random: the same seed finds the same mistake on every machine.
"""

from __future__ import annotations

import math
import threading
import types
from collections.abc import Callable
from typing import Any

import torch
from triton.runtime.jit import JITFunction

from tests.kernels.gluon_scheduler import Scheduler


class Barrier:
    """An mbarrier: a phase completes when `count` arrivals and all expected bytes are in."""

    def __init__(self) -> None:
        self.count = self.pending = self.bytes = self.phase = 0

    def init(self, count: int) -> None:
        self.count = self.pending = count

    def add(self, *, arrivals: int = 0, expected: int = 0, received: int = 0) -> None:
        self.bytes += expected - received
        self.pending -= arrivals
        if self.pending < 0:
            raise RuntimeError("more arrivals than the barrier counts")
        if self.pending == 0 and self.bytes == 0:
            self.phase += 1
            self.pending = self.count

    def wait(self, parity: int, scheduler: Scheduler) -> None:
        why = f"waits for parity {int(parity)} in phase {self.phase}, {self.pending} pending"
        scheduler.wait(lambda: self.phase % 2 != int(parity), why)


class Shared:
    """A shared-memory tensor or a view of one."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data, self.dtype = data, data.dtype

    def index(self, i: Any) -> Shared:
        return Shared(self.data[int(i)])

    def slice(self, start: int, length: int, dim: int = 0) -> Shared:
        return Shared(self.data.narrow(dim, start, length))

    def reshape(self, shape: list[int]) -> Shared:
        return Shared(self.data.view(*shape))

    def permute(self, order: tuple[int, ...]) -> Shared:
        return Shared(self.data.permute(order))

    def load(self, layout: Any) -> torch.Tensor:
        return self.data.clone()

    def store(self, value: torch.Tensor) -> None:
        self.data.copy_(value)


class Barriers(list[Barrier]):
    def index(self, i: Any) -> Barrier:  # type: ignore[override]
        return self[int(i)]


class Pointer:
    """A pointer into a tensor's elements; an access outside it is an error."""

    def __init__(self, flat: torch.Tensor, at: Any = 0) -> None:
        self.flat, self.at = flat, at

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.flat, self.at + offset)

    def load(self, mask: Any = None, other: Any = 0) -> torch.Tensor:
        at = torch.as_tensor(self.at)
        here = torch.ones_like(at, dtype=torch.bool) if mask is None else mask.expand(at.shape)
        self._inside(at[here])
        return torch.where(here, self.flat[torch.where(here, at, 0)], other)

    def store(self, value: torch.Tensor, mask: Any = None) -> None:
        at = torch.as_tensor(self.at)
        here = torch.ones_like(at, dtype=torch.bool) if mask is None else mask.expand(at.shape)
        self._inside(at[here])
        self.flat[at[here]] = value[here]

    def _inside(self, at: torch.Tensor) -> None:
        if at.numel() and not (int(at.min()) >= 0 and int(at.max()) < self.flat.numel()):
            raise IndexError(f"elements {int(at.min())}..{int(at.max())} of {self.flat.numel()}")


class Descriptor:
    """A TMA descriptor: boxes of a tensor, zero outside it on reads, nothing written there."""

    def __init__(self, host: Any) -> None:
        self.full = host.base.view(*host.shape)
        nbytes = math.prod(host.block_shape) * host.base.element_size()
        self.block_type = types.SimpleNamespace(shape=list(host.block_shape), nbytes=nbytes)
        self.dtype, self.layout = host.base.dtype, None

    def clip(self, coord: list[Any], shape: torch.Size) -> tuple[Any, Any]:
        """(slices of the tensor, slices of the box) of the part of the box that is inside."""
        outer, inner = [], []
        for begin, length, limit in zip(map(int, coord), shape, self.full.shape, strict=True):
            lo, hi = min(max(begin, 0), limit), min(max(begin + length, 0), limit)
            outer.append(slice(lo, max(lo, hi)))
            inner.append(slice(lo - begin, max(lo, hi) - begin) if lo < hi else slice(0, 0))
        return tuple(outer), tuple(inner)


class CopyEngine:
    """Loads are done at once or later and in random order; stores when they are waited for."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.mine = scheduler, threading.local()

    def load(self, desc: Descriptor, coord: list[Any], barrier: Barrier, into: Shared) -> None:
        def copy() -> None:
            outer, inner = desc.clip(coord, into.data.shape)
            into.data.zero_()
            into.data[inner] = desc.full[outer]
            barrier.add(received=desc.block_type.nbytes)

        if self.scheduler.random.random() < 0.5:
            self.scheduler.later(copy)
        else:
            copy()
        self.scheduler.give_way()

    def store(self, desc: Descriptor, coord: list[Any], source: Shared, add: bool) -> None:
        def copy() -> None:
            outer, inner = desc.clip(coord, source.data.shape)
            desc.full[outer] = source.data[inner] + (desc.full[outer] if add else 0)

        self.mine.stores = [*getattr(self.mine, "stores", []), copy]
        self.scheduler.give_way()

    def wait_for_stores(self, pending: int = 0) -> None:
        """Wait for this partition's stores but the last `pending`."""
        stores = getattr(self.mine, "stores", [])
        for copy in stores[: len(stores) - pending]:
            copy()
        self.mine.stores = stores[len(stores) - pending :]


class Mma:
    """A wgmma in flight: computed when it is waited for."""

    def __init__(self, a: Any, b: Shared, acc: torch.Tensor, use_acc: bool) -> None:
        self.a, self.b, self.acc, self.use_acc = a, b, acc, use_acc
        self.result: torch.Tensor | None = None

    def finish(self) -> torch.Tensor:
        if self.result is None:
            a = self.a.data if isinstance(self.a, Shared) else self.a
            product = a.float() @ self.b.data.float()
            self.result = product + self.acc if self.use_acc else product
        return self.result


class Program:
    """One program of the grid: the language's functions, as far as the kernels use them."""

    def __init__(self, pid: int, seed: int) -> None:
        self.scheduler = Scheduler(seed)
        self.pid, self.engine, self.flight = pid, CopyEngine(self.scheduler), threading.local()

    def mma(self, a: Any, b: Shared, acc: Any, *, use_acc: bool = True, is_async: bool = False) -> Mma:
        made = Mma(a, b, acc, use_acc)
        self.flight.all = [*getattr(self.flight, "all", []), made]
        self.scheduler.give_way()
        return made

    def mma_wait(self, outstanding: int, deps: tuple[Mma, ...]) -> torch.Tensor:
        flying = getattr(self.flight, "all", [])
        done = flying[: len(flying) - outstanding]
        for mma in done:
            mma.finish()
        self.flight.all = flying[len(done) :]
        if deps[0].result is None:
            raise RuntimeError("the result of a wgmma is used while it may be in flight")
        return deps[0].result

    def warp_specialize(self, partitions: list[tuple[Any, Any]], warps: list[int], registers: list[int]) -> None:
        def body(function: Any, args: Any) -> Callable[[], None]:
            def run() -> None:
                with torch.no_grad():  # as the thread that launches, in an autograd function
                    function(*args)
                    self.engine.wait_for_stores()

            return run

        self.scheduler.run([body(*part) for part in partitions])

    def language(self) -> dict[str, Any]:
        """What stands in for the modules and functions that the kernels import."""
        engine = self.engine

        def arrive(barrier: Barrier, count: int) -> None:
            barrier.add(arrivals=count)
            self.scheduler.give_way()

        barriers = types.SimpleNamespace(
            MBarrierLayout=lambda: "barrier",
            init=lambda bar, count: bar.init(count),
            expect=lambda bar, nbytes: bar.add(arrivals=1, expected=nbytes),
            arrive=arrive,
            wait=lambda bar, parity, pred=True: bar.wait(parity, self.scheduler) if bool(pred) else None,
        )
        tma = types.SimpleNamespace(
            async_copy_global_to_shared=engine.load,
            async_copy_shared_to_global=lambda desc, coord, source: engine.store(desc, coord, source, False),
            store_wait=engine.wait_for_stores,
        )
        return {
            "gl": self.core(),
            "mbarrier": barriers,
            "tma": tma,
            "thread_barrier": lambda: None,
            "async_load": tma.async_copy_global_to_shared,
            "async_store": tma.async_copy_shared_to_global,
            "tma_reduce_add": lambda desc, coord, source: engine.store(desc, coord, source, True),
            "warpgroup_mma": self.mma,
            "warpgroup_mma_wait": self.mma_wait,
            "fence_async_shared": lambda: None,
        }

    def core(self) -> Any:
        def layout(*args: Any, **kwargs: Any) -> None:
            return None

        def both(function: Callable[..., torch.Tensor]) -> Callable[[Any, Any], torch.Tensor]:
            return lambda a, b: function(torch.as_tensor(a), torch.as_tensor(b))

        def allocate(dtype: torch.dtype, shape: list[int], layout: Any) -> Any:
            if layout == "barrier":
                return Barrier() if len(shape) == 1 else Barriers(Barrier() for _ in range(shape[0]))
            return Shared(torch.full(shape, torch.nan if dtype.is_floating_point else 2**30, dtype=dtype))

        return types.SimpleNamespace(
            float32=torch.float32, int32=torch.int32, int64=torch.int64, static_range=range,
            program_id=lambda axis: torch.tensor(self.pid), cdiv=lambda a, b: -(-a // b),
            load=lambda p, mask=None, other=0: p.load(mask, other),
            store=lambda p, value, mask=None: p.store(torch.as_tensor(value), mask),
            allocate_shared_memory=allocate, convert_layout=lambda x, layout: x, warp_specialize=self.warp_specialize,
            full=lambda shape, value, dtype, layout: torch.full(shape, value, dtype=dtype),
            zeros=lambda shape, dtype, layout: torch.zeros(shape, dtype=dtype),
            arange=lambda begin, end, layout: torch.arange(begin, end),
            max=lambda x, axis: x.amax(axis), sum=lambda x, axis: x.sum(axis), exp2=torch.exp2, log2=torch.log2,
            maximum=both(torch.maximum), minimum=both(torch.minimum),
            where=lambda c, a, b: torch.where(torch.as_tensor(c), a, b),
            NVMMADistributedLayout=layout, SliceLayout=layout, DotOperandLayout=layout, BlockedLayout=layout,
            SwizzledSharedLayout=layout, NVMMASharedLayout=types.SimpleNamespace(get_default_for=layout),
        )  # fmt: skip


def translate(kernel: JITFunction[Any], language: dict[str, Any]) -> Callable[..., Any]:
    """The kernel's Python function, it and the kernel functions it calls with `language` for their globals."""
    names: dict[str, Any] = {}

    def collect(found: dict[str, Any]) -> None:
        for name, value in found.items():
            if name not in names:
                inner = isinstance(value, JITFunction)
                names[name] = types.FunctionType(value.fn.__code__, names, name) if inner else value
                if inner:
                    collect(value.fn.__globals__)

    collect(kernel.fn.__globals__)
    names.update(language)
    return types.FunctionType(kernel.fn.__code__, names, kernel.fn.__name__)


def emulate(launch: Any, seed: int = 0) -> None:
    """Run every program of a `Launch` of a Gluon kernel on its CPU tensors, one after the other."""
    args = [_argument(arg) for arg in launch.args]
    options = {
        name: value for name, value in launch.options.items() if name not in ("num_warps", "num_stages", "maxnreg")
    }
    for pid in range(launch.programs):
        program = Program(pid, seed * launch.programs + pid)
        translate(launch.kernel, program.language())(*args, **options)


def _argument(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Pointer(value.view(-1))
    if isinstance(value, int):
        return torch.tensor(value)
    return Descriptor(value) if hasattr(value, "block_shape") else value
