"""Answer a worker's requests: a method for each kind of request in messages.VERBS, except `start` and `stop`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import math
import os
import platform
import socket
import subprocess
import sys
import sysconfig
import types
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import torch

from abprof.records import messages as wire
from abprof.worker import checks, drawn, package, profile, shared, workload
from abprof.worker.api import Op, Work
from abprof.worker.arms import Arms
from abprof.worker.clocks import Clock, CudaClock, shortest
from abprof.worker.compiles import chosen


class Bench(Arms):
    """Answers a worker's requests. main.py catches the exceptions of these methods, and replies with a reason."""

    open, check, hand, examine = checks.open_checked, checks.check, checks.hand, checks.examine
    turn = drawn.turn
    beside = -1  # a descriptor: the judge's socket, another worker's memory (Start.room), or none

    def __init__(self, start: wire.Start) -> None:
        super().__init__(start)
        self._shares = dict[str, torch.Tensor]()
        self._versions = versions()  # imports Triton
        package.mend_interpreter(start.device)
        # At this point torch, Triton and the driver are loaded, but no code of a workload, and of a side at most the
        # package that `preload` imported.
        self._prover = package.prover(start) if start.mount else None
        gc.freeze()  # collecting torch's objects took 70 ms for each check

    def ready(self) -> wire.Ready:
        """Return the versions, folders and compute capability on which a build of the package depends."""
        if self.start.room:
            self.memory = shared.opened(self.beside, self.start.room, self.clock.device)
            os.close(self.beside)
        facts = {
            "capability": self.clock.capability(),
            "prefix": os.path.realpath(sys.prefix),
            "base_prefix": os.path.realpath(sys.base_prefix),
            "soabi": str(sysconfig.get_config_var("SOABI") or ""),
        }
        return wire.Ready(self._versions, facts)

    def usable(self) -> bool:
        """Return whether the device still works in this process."""
        try:
            self.clock.sync()
        except Exception:  # noqa: BLE001 - CUDA's errors have many classes
            return False
        return True

    def describe(self, request: wire.Describe) -> wire.Described:
        return workload.described(self.module(request.workload), request.workload, self.clock.kind)

    def screen(self, request: wire.Screen) -> wire.Screened:
        module = self.module(request.workload)
        skips, works = [], []
        for loose in request.cases:
            case = types.MappingProxyType(loose)
            skips.append(str(module.skip(case, self.clock.device) or "") if hasattr(module, "skip") else "")
            works.append(workload.returned("work", module.work(case), Work) if hasattr(module, "work") else Work())
        return wire.Screened(skips, [w.flops for w in works], [w.bytes for w in works], [w.convention for w in works])

    def inventory(self, _request: wire.Inventory) -> wire.Listed:
        found: dict[str, str] = {}
        for one in metadata.distributions():
            found.setdefault(str(one.metadata["Name"]), str(one.version))
        return wire.Listed(dict(sorted(found.items())))

    def reach(self, _request: wire.Reach) -> wire.Ceilings:
        return ceilings(self.clock)

    def share(self, request: wire.Share) -> wire.Shared:
        memory, descriptor = shared.made(self.clock.device)
        self._shares[request.worker] = memory
        self.snapshot = torch.empty_like(memory) if self.snapshot is None else self.snapshot
        self.unread = torch.empty_like(memory) if self.unread is None else self.unread
        with socket.socket(fileno=os.dup(self.beside)) as channel:
            socket.send_fds(channel, [b"."], [descriptor])
        os.close(descriptor)
        return wire.Shared(len(memory))

    def snap(self, request: wire.Snap) -> wire.Done:
        place = self.snapshot if request.kept else self.unread
        assert place is not None
        place[: request.bytes].copy_(self._shares[request.worker][: request.bytes])
        self.clock.sync()
        return wire.Done()

    def watch(self, request: wire.Watch) -> wire.Watched:
        """Watch the GPU for kernels of other processes."""
        return wire.Watched(self.gpu("a watch").busy(request.ns))

    def build(self, request: wire.Build) -> wire.Built:
        """Run the build command (abprof.toml) and the package's build(), if defined; they print to the worker's log."""
        if request.recipe:
            print("$", *request.recipe, flush=True)
            subprocess.run(request.recipe, check=True, stdin=subprocess.DEVNULL)
        kernel = self.kernel()
        has_build = hasattr(kernel, "build")
        if has_build:
            kernel.build(verbose=True)
        return wire.Built(has_build, list(getattr(kernel, "VARIANTS", ())))

    def prove(self, _request: wire.Prove) -> wire.Proved:
        """Return the files that this process has loaded, and whether this side may load all of them."""
        assert self._prover is not None, "this worker has no kernel package"
        kernels = self.compiles.kernels
        reason, artefacts = self._prover.prove({key: kernel.sha256 for key, kernel in kernels.items()})
        return wire.Proved(not reason, reason, artefacts, self.compiles.count, list(kernels.values()))

    def marked(self, of: wire.Open) -> contextlib.AbstractContextManager[None]:
        """Return a context that marks calls by NVTX ranges, named by the cell, the arm and the workload."""
        if self.clock.kind != "cuda":
            return contextlib.nullcontext()
        names = workload.nvtx_names(self.module(of.workload), types.MappingProxyType(of.case), of.variant or of.peer)
        return profile.nvtx([wire.cell_id(of.workload, of.case), of.arm], names)

    def phases(self, request: wire.Phases) -> wire.Phased:
        """Profile calls; return the times of phases, and the launches. Write a trace if `request.keep` names a file."""
        arm, target = self.opened[request.arm], Path(self.start.scratch) / request.keep if request.keep else None
        ranges = {name: spec[0] for name, spec in getattr(arm.module, "PHASES", {}).items()}
        with self.marked(arm.request):
            phased = profile.phases(arm.op, ranges, request, self.clock, self.compiles, target)
        if self.imported is None or phased.census.missing:
            return phased
        launches = chosen(phased.census.launches, self.imported.__name__)
        return dataclasses.replace(phased, census=dataclasses.replace(phased.census, launches=launches))

    def close(self, _request: wire.Close) -> wire.Done:
        self.opened.clear()
        self.mixed = None
        self.expected.clear()
        gc.collect()
        gc.freeze()  # objects that outlive a cell are permanent
        self.clock.reset_peak()
        return wire.Done()


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions on which a build depends, such as torch's and Triton's, without using a device."""
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "implementation": sys.implementation.name,
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
    }
    with contextlib.suppress(ImportError):
        import triton

        found["triton"] = triton.__version__
    with contextlib.suppress(Exception):
        found["cudnn"] = str(torch._C._cudnn.getVersionInt())  # torch.backends.cudnn.version() starts CUDA
    return {name: str(value) for name, value in found.items() if value}


SIZE = {"cpu": 1024, "cuda": 8192}  # rows of the square matrices
MIB = {"cpu": 256, "cuda": 1024}  # MiB of a copy, more than caches hold
SLICE = 2e7  # ns of calls per reading
READINGS = 3


def ceilings(clock: Clock) -> wire.Ceilings:
    """Measure peak rates of matrix products and copies; a rate is None if memory does not suffice. A kernel whose data
    fit in a cache may exceed the rate of copies."""
    gpu = clock if isinstance(clock, CudaClock) else None
    size, mib, device = SIZE[clock.kind], MIB[clock.kind], clock.device
    dtype = torch.float32
    if gpu:
        dtype = torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16

    def product() -> Op:
        blocks = [torch.randn(512, 512, device=device).to(dtype) for _ in range(2)]
        left, right = (block.repeat(size // 512, size // 512) for block in blocks)
        out = torch.empty_like(left)
        return Op(lambda: torch.mm(left, right.t(), out=out))  # the fastest layout: both are read along rows

    def copy() -> Op:
        source = torch.ones(mib << 20, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        return Op(lambda: target.copy_(source))

    def best(work: float, make: Callable[[], Op]) -> float | None:
        try:
            op = make()
            clock.wall(op)  # loads libraries, touches pages
            calls = min(1000, max(3, math.ceil(SLICE / max(clock.wall(op), 1.0))))
            return work / shortest([gpu.sustained(op, calls) if gpu else clock.wall(op) for _ in range(READINGS)])
        except (RuntimeError, MemoryError, ZeroDivisionError) as error:  # torch's own memory errors are RuntimeErrors
            print(f"no ceiling: {error}", flush=True)
            return None
        finally:
            op = Op(lambda: None)  # frees its tensors
            gc.collect()

    tflops, gbps = best(2e-3 * size**3, product), best(2.0 * (mib << 20), copy)
    clock.reset_peak()
    how = f"{'' if gpu else f' on {torch.get_num_threads()} threads'}, the best of {READINGS} readings"
    products = f"{str(dtype).removeprefix('torch.')} matrix products of {size} x {size} x {size}{how}"
    copies = f"copies of {mib} MiB, bytes read and written{how}"
    why_not = (
        "" if tflops and gbps else "they could not be measured, or the device had no free memory (logs/discovery.log)"
    )
    return wire.Ceilings(tflops, products if tflops else "", gbps, copies if gbps else "", why_not)
