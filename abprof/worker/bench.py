"""What one worker holds and answers: a mounted kernel package, workloads, and the arms of the open cell."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import os
import platform
import subprocess
import sys
import sysconfig
import time
import types
from importlib import metadata
from pathlib import Path

import torch

from abprof.records import messages as wire
from abprof.worker import ceilings, checks, mount, profile, workload
from abprof.worker.api import Work
from abprof.worker.arms import Arm, Arms
from abprof.worker.clocks import Clock, CpuClock
from abprof.worker.compiles import Watch, chosen
from abprof.worker.cuda import CudaClock
from abprof.worker.proof import Given, Prover


class Bench:
    """Answers every request but `start` and `stop`; each method's name is its verb. Faults are raised, and classified by
    the loop."""

    def __init__(self, start: wire.Start) -> None:
        self.start = start
        self.clock = clock(start.device)
        self.mounted: types.ModuleType | None = None
        self._imported: types.ModuleType | None = None
        self._compiles = Watch()
        self.arms = Arms(self.clock, self._workload, self._kernel, lambda: self._compiles.count)
        self.open, self.turn, self.capture = self.arms.open, self.arms.turn, self.arms.capture
        shared = self.arms, Path(start.scratch)
        self.check, self.hand, self.examine = (
            functools.partial(answer, *shared) for answer in (checks.check, checks.hand, checks.examine)
        )
        self._versions = versions()
        self._prover: Prover | None = None
        self._given = Given.take()  # torch, Triton and the driver are loaded, and no code of a side or a workload

    def ready(self) -> wire.Ready:
        """Who this worker is. The package is imported by the first request that needs it."""
        name, uuid, memory, facts = self.clock.identity()
        facts |= {
            "host": platform.node(),
            "prefix": os.path.realpath(sys.prefix),
            "base_prefix": os.path.realpath(sys.base_prefix),
            "soabi": str(sysconfig.get_config_var("SOABI") or ""),
        }
        return wire.Ready(wire.PROTOCOL, os.getpid(), self.clock.kind, name, uuid, memory, self._versions, facts)

    def usable(self) -> bool:
        """Whether the device still answers this process."""
        try:
            self.clock.sync()
        except Exception:  # noqa: BLE001 - CUDA's errors have many classes
            return False
        return True

    # ------------------------------------------------------------ workloads

    def _workload(self, name: str) -> types.ModuleType:
        module = workload.load(name, self.start.workloads[name])
        wrapped: types.ModuleType = getattr(module, "WORKLOAD", module)  # abprof.adapters: an object like a module
        return wrapped

    def describe(self, request: wire.Describe) -> wire.Described:
        """Raises ValueError for a module that breaks the contract."""
        return workload.described(self._workload(request.workload), request.workload, self.clock.kind)

    def screen(self, request: wire.Screen) -> wire.Screened:
        """Which cases the workload skips on this device, and the work of each."""
        module = self._workload(request.workload)
        skips, works = [], []
        ranks = getattr(module, "RANKS", 1)
        for loose in request.cases:
            case = types.MappingProxyType(loose)
            skip = str(module.skip(case, self.clock.device) or "") if hasattr(module, "skip") else ""
            skips.append(skip or (f"needs {ranks} ranks, and abprof starts one process a side" if ranks != 1 else ""))
            works.append(workload.returned("work", module.work(case), Work) if hasattr(module, "work") else Work())
        return wire.Screened(skips, [w.flops for w in works], [w.bytes for w in works], [w.convention for w in works])

    def facts(self, arm: Arm) -> dict[str, wire.Value]:
        """The facts of the case and of this arm's operation."""
        module, case = self._workload(arm.request.workload), types.MappingProxyType(arm.request.case)
        return workload.facts(module, case, arm.inputs, arm.op)

    # ------------------------------------------------------------ the interpreter and the device

    def inventory(self, _request: wire.Inventory) -> wire.Listed:
        """Installed distributions, the first of each name as an import would find it."""
        found: dict[str, str] = {}
        for one in metadata.distributions():
            found.setdefault(str(one.metadata["Name"]), str(one.version))
        return wire.Listed(dict(sorted(found.items())))

    def reach(self, request: wire.Reach) -> wire.Reached:
        """What the device does at its best."""
        return ceilings.reach(self.clock, request.seconds)

    def records(self, _request: wire.Records) -> wire.Done:
        """Whether CUPTI can time this process."""
        return wire.Done(self.clock.unrecorded())

    # ------------------------------------------------------------ the kernel package

    def _kernel(self) -> types.ModuleType:
        if self._imported is None:
            assert self.start.mount is not None, "this worker has no kernel package"
            # Known by name before the import, so that a fault inside it is not taken for the workload's.
            self.mounted = types.ModuleType(self.start.mount.module)
            self._compiles.install()
            self._imported = self.mounted = mount.kernel_package(self.start.mount)
        return self._imported

    def build(self, request: wire.Build) -> wire.Built:
        """Run the recipe, then the package's own build(). Output goes to the log, flags do not depend on it."""
        began = time.monotonic()
        if request.recipe:
            print("$", *request.recipe, flush=True)
            subprocess.run(request.recipe, check=True, cwd=request.recipe_cwd or None, stdin=subprocess.DEVNULL)
        kernel = self._kernel()
        has_build = hasattr(kernel, "build")
        if has_build:
            kernel.build(verbose=request.verbose)
        return wire.Built(has_build, time.monotonic() - began, list(getattr(kernel, "VARIANTS", ())))

    def prove(self, _request: wire.Prove) -> wire.Proved:
        """What is loaded now, and whether it may be."""
        if self._prover is None:
            assert self.start.mount is not None
            judges = tuple({str(Path(file).parent / wire.WRAPPED) for file in self.start.workloads.values()})
            self._prover = Prover(self.start.mount, self._given, judges)
        reason, artefacts = self._prover.prove({key: kernel.sha256 for key, kernel in self._compiles.kernels.items()})
        kernels = list(self._compiles.kernels.values())
        return wire.Proved(not reason, reason, artefacts, self._compiles.count, kernels)

    # ------------------------------------------------------------ profiled passes, and the end of a cell

    def marked(self, of: wire.Open) -> contextlib.AbstractContextManager[None]:
        """NVTX ranges around this arm's calls: the cell's id, the arm's, and the workload's own names for a call."""
        if self.clock.kind != "cuda":
            return contextlib.nullcontext()
        module, case = self._workload(of.workload), types.MappingProxyType(of.case)
        names = workload.nvtx_names(module, case, of.variant or of.peer)
        return profile.nvtx([wire.cell_id(of.workload, of.case), of.arm], names)

    def _ranges(self, arm: Arm) -> dict[str, str]:
        module = self._workload(arm.request.workload)
        return {name: spec[0] for name, spec in getattr(module, "PHASES", {}).items()}

    def phases(self, request: wire.Phases) -> wire.Phased:
        """Phases of a call and what it launches, from a profiled pass."""
        arm = self.arms[request.arm]
        with self.marked(arm.request):
            phased = profile.phases(
                arm.op,
                self._ranges(arm),
                request.calls,
                self.clock,
                discarded=request.discarded,
                watch=self._compiles,
            )
        if self.mounted is None or phased.census.missing:
            return phased
        launches = chosen(phased.census.launches, self.mounted.__name__)
        return dataclasses.replace(phased, census=dataclasses.replace(phased.census, launches=launches))

    def trace(self, request: wire.Trace) -> wire.Traced:
        """A profiled pass kept as a Chrome trace, or as proton's tree."""
        arm, target = self.arms[request.arm], Path(self.start.scratch) / request.name
        if request.by == "proton":
            with self.marked(arm.request):
                return profile.proton(arm.op, request.calls, self.clock, request.discarded, target, request.most_bytes)
        with self.marked(arm.request):
            made = profile.profiled(arm.op, request.calls, self.clock, request.discarded, self._compiles)
        with profile.exported(made[0]) as raw:
            counted = profile.counted(made, self._ranges(arm), self.clock, request.discarded, raw).census
            try:
                return wire.Traced(counted, profile.write_chrome(raw, target, request.most_bytes))
            except ValueError as error:
                return wire.Traced(counted, missing=f"{type(error).__name__}: {error}")

    def close(self, _request: wire.Close) -> wire.Closed:
        """Forget the cell's arms."""
        peak = self.clock.peak_bytes()
        self.arms.clear()
        gc.collect()
        gc.freeze()  # what outlives a cell stays for good: walking torch's objects at every cell took 70 ms each time
        self.clock.reset_peak()
        return wire.Closed(peak)


def clock(device: str) -> Clock:
    """The clock for "cpu", "cuda" or "cuda:UUID". Raises RuntimeError when the device is not there."""
    return CpuClock() if device == "cpu" else CudaClock()


@functools.cache
def versions() -> dict[str, str]:
    """Versions of the interpreter, torch and what else decides a build. Imports Triton, and touches no device."""
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
