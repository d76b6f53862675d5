"""Runs the Gluon kernels of kernels/ffa/cuda in Python on a CPU: their indices, masks and barriers, not their speed.

Gluon has no interpreter. Here a kernel's Python function runs with its language replaced: the partitions of
`warp_specialize` are threads, shared memory starts as NaN, an mbarrier counts arrivals and bytes and has a phase. What
is asynchronous on the GPU happens at a bad moment here: a load at once or late, at random; a store or reduce, and a
wgmma, only when it is waited for; and a partition that has arrived at a barrier gives way. So a missing wait, a buffer
released too early or an out-of-range pointer gives wrong numbers or an error, and a protocol that blocks raises
`Deadlock`.
"""

from __future__ import annotations

import random
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import torch
from triton.runtime.jit import JITFunction

PATIENCE = 60.0  # seconds that one wait may take before it counts as a deadlock
GIVE_WAY = 2e-4  # seconds in which the other partitions may go on


class Deadlock(RuntimeError):
    """A wait did not end."""


class Barrier:
    """An mbarrier: a phase completes when `count` arrivals and all expected bytes are in."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.count = self.pending = self.bytes = self.phase = 0

    def init(self, count: int) -> None:
        self.count = self.pending = count

    def add(self, *, arrivals: int = 0, expected: int = 0, received: int = 0) -> None:
        with self.changed:
            self.bytes += expected - received
            self.pending -= arrivals
            if self.pending < 0:
                raise RuntimeError("more arrivals than the barrier counts")
            if self.pending == 0 and self.bytes == 0:
                self.phase += 1
                self.pending = self.count
                self.changed.notify_all()

    def wait(self, parity: int) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: self.phase % 2 != int(parity), PATIENCE):
                raise Deadlock(f"waited for parity {int(parity)} in phase {self.phase}, {self.pending} pending")


class Shared:
    """A shared-memory tensor or a view of one."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data, self.dtype = data, data.dtype

    def index(self, i: Any) -> Shared:
        return Shared(self.data[int(i)])

    def slice(self, start: int, length: int, dim: int = 0) -> Shared:
        return Shared(self.data.narrow(dim, start, length))

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
    """A TMA descriptor: boxes of a 2D tensor, zero outside it on reads, nothing written there."""

    def __init__(self, host: Any) -> None:
        self.full = host.base.view(*host.shape)
        nbytes = host.block_shape[0] * host.block_shape[1] * host.base.element_size()
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
    """Loads are done at once or, by another thread, later and in random order; stores when they are waited for."""

    def __init__(self, seed: int) -> None:
        self.random, self.queue = random.Random(seed), list[Callable[[], None]]()
        self.changed, self.closing = threading.Condition(), False
        self.mine = threading.local()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def load(self, desc: Descriptor, coord: list[Any], barrier: Barrier, into: Shared) -> None:
        def copy() -> None:
            outer, inner = desc.clip(coord, into.data.shape)
            into.data.zero_()
            into.data[inner] = desc.full[outer]
            barrier.add(received=desc.block_type.nbytes)

        with self.changed:
            late = self.random.random() < 0.5
            if late:
                self.queue.append(copy)
                self.changed.notify()
        if not late:
            copy()

    def store(self, desc: Descriptor, coord: list[Any], source: Shared, add: bool) -> None:
        def copy() -> None:
            outer, inner = desc.clip(coord, source.data.shape)
            with self.changed:
                desc.full[outer] = source.data[inner] + (desc.full[outer] if add else 0)

        self.mine.stores = [*getattr(self.mine, "stores", []), copy]

    def wait_for_stores(self, pending: int = 0) -> None:
        """Wait for this partition's stores but the last `pending`."""
        stores = getattr(self.mine, "stores", [])
        for copy in stores[: len(stores) - pending]:
            copy()
        self.mine.stores = stores[len(stores) - pending :]

    def close(self) -> None:
        with self.changed:
            self.closing = True
            self.changed.notify()
        self.thread.join()

    def _work(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.queue or self.closing)
                if not self.queue:
                    return
            time.sleep(GIVE_WAY)
            with self.changed:
                copy = self.queue.pop(self.random.randrange(len(self.queue)))
            copy()


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

    def __init__(self, pid: int) -> None:
        self.pid, self.engine, self.flight = pid, CopyEngine(pid), threading.local()

    def mma(self, a: Any, b: Shared, acc: Any, *, use_acc: bool = True, is_async: bool = False) -> Mma:
        made = Mma(a, b, acc, use_acc)
        self.flight.all = [*getattr(self.flight, "all", []), made]
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
        errors: list[BaseException] = []

        def run(function: Any, args: Any) -> None:
            try:
                function(*args)
                self.engine.wait_for_stores()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=part, daemon=True) for part in partitions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * PATIENCE)
        if errors:
            raise errors[0]

    def language(self) -> dict[str, Any]:
        """What stands in for the modules and functions that the kernels import."""
        engine = self.engine

        def arrive(barrier: Barrier, count: int) -> None:
            barrier.add(arrivals=count)
            time.sleep(GIVE_WAY)

        barriers = types.SimpleNamespace(
            MBarrierLayout=lambda: "barrier",
            init=lambda bar, count: bar.init(count),
            expect=lambda bar, nbytes: bar.add(arrivals=1, expected=nbytes),
            arrive=arrive,
            wait=lambda bar, parity, pred=True: bar.wait(parity) if bool(pred) else None,
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
            float32=torch.float32, int32=torch.int32, int64=torch.int64, static_range=range, thread_barrier=lambda: None,
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
    for name, value in kernel.fn.__globals__.items():
        inner = isinstance(value, JITFunction)
        names[name] = types.FunctionType(value.fn.__code__, names, name) if inner else value
    names.update(language)
    return types.FunctionType(kernel.fn.__code__, names, kernel.fn.__name__)


def emulate(launch: Any) -> None:
    """Run every program of a `Launch` of a Gluon kernel on its CPU tensors, one after the other."""
    args = [_argument(arg) for arg in launch.args]
    options = {name: value for name, value in launch.options.items() if name not in ("num_warps", "maxnreg")}
    for pid in range(launch.programs):
        program = Program(pid)
        try:
            translate(launch.kernel, program.language())(*args, **options)
        finally:
            program.engine.close()


def _argument(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Pointer(value.view(-1))
    if isinstance(value, int):
        return torch.tensor(value)
    return Descriptor(value) if hasattr(value, "block_shape") else value
