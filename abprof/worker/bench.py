"""What one worker holds: a mounted kernel package, workloads, and the arms of the cell that is open."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import platform
import subprocess
import time
import types
from importlib import metadata
from pathlib import Path

from abprof.records import messages as wire
from abprof.worker import ceilings, chrome, compiles, declared, given, identity, mount, nvtx, profile, proof, proton
from abprof.worker.api import Work
from abprof.worker.arms import Arms
from abprof.worker.checks import Checks
from abprof.worker.clocks import clock


class Bench:
    """Answers every request but `start` and `stop`; each method's name is its verb."""

    def __init__(self, start: wire.Start) -> None:
        self.start = start
        self.clock = clock(start.device)
        self.kernel: types.ModuleType | None = None
        self.mounted: types.ModuleType | None = None
        self.compiles = compiles.Watch()
        self.arms = Arms(self.clock, self._workload, self._kernel, lambda: self.compiles.count)
        self._checks = Checks(self.clock, self.arms, self._workload, Path(start.scratch))
        self.versions = identity.versions()
        self.marks = (
            nvtx.around if self.clock.kind == "cuda" else nvtx.nothing
        )  # on a CPU they would be in what is read
        self.given = given.take()  # torch, Triton and the driver are loaded, and nothing of a side's or a workload's

    def ready(self) -> wire.Ready:
        """Who this worker is. The package is imported by the first request that needs it, so that its faults are typed."""
        name, uuid, memory, facts = self.clock.identity()
        return wire.Ready(
            wire.PROTOCOL,
            os.getpid(),
            self.clock.kind,
            name,
            uuid,
            memory,
            self.versions,
            facts | {"host": platform.node()} | identity.interpreter(),
        )

    def usable(self) -> bool:
        """Whether the device still answers this process."""
        try:
            self.clock.sync()
        except Exception:  # noqa: BLE001 - CUDA's errors have many classes
            return False
        return True

    # ------------------------------------------------------------ workloads

    def describe(self, request: wire.Describe) -> wire.Described:
        """Raises ValueError for a module that breaks the contract."""
        return declared.described(self._workload(request.workload), request.workload, self.clock.kind)

    def screen(self, request: wire.Screen) -> wire.Screened:
        """Which cases the workload leaves out on this device, and what each would cost."""
        module = self._workload(request.workload)
        skips, works = [], []
        ranks = getattr(module, "RANKS", 1)
        for loose in request.cases:
            case = types.MappingProxyType(loose)
            skip = str(module.skip(case, self.clock.device) or "") if hasattr(module, "skip") else ""
            skips.append(skip or (f"needs {ranks} ranks, and abprof starts one process a side" if ranks != 1 else ""))
            works.append(declared.returned("work", module.work(case), Work) if hasattr(module, "work") else Work())
        return wire.Screened(skips, [w.flops for w in works], [w.bytes for w in works], [w.convention for w in works])

    def reach(self, request: wire.Reach) -> wire.Reached:
        """What the device does at its best."""
        return ceilings.reach(self.clock, request.seconds)

    def inventory(self, request: wire.Inventory) -> wire.Listed:
        """What is installed for this interpreter, the first of each name as an import would find it."""
        del request
        found: dict[str, str] = {}
        for one in metadata.distributions():
            found.setdefault(str(one.metadata["Name"]), str(one.version))
        return wire.Listed(dict(sorted(found.items())))

    def _workload(self, name: str) -> types.ModuleType:
        module = mount.workload(name, self.start.workloads[name])
        wrapped: types.ModuleType = getattr(
            module, "WORKLOAD", module
        )  # of abprof.adapters: an object with a module's names
        return wrapped

    # ------------------------------------------------------------ the kernel package

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

    def _kernel(self) -> types.ModuleType:
        if self.kernel is None:
            assert self.start.mount is not None, "this worker has no kernel package"
            # Known by name before the import, so that a fault inside it is told from the workload's own.
            self.mounted = types.ModuleType(self.start.mount.module)
            self.compiles.install()
            self.kernel = self.mounted = mount.kernel_package(self.start.mount)
        return self.kernel

    def prove(self, request: wire.Prove) -> wire.Proved:
        """What is loaded now."""
        del request
        assert self.start.mount is not None
        judges = tuple({str(Path(file).parent / wire.WRAPPED) for file in self.start.workloads.values()})
        reason, artefacts = proof.prove(self.start.mount, self.given, self.compiles.kernels(), judges)
        return wire.Proved(not reason, reason, artefacts, self.compiles.count, self.compiles.facts())

    # ------------------------------------------------------------ one cell

    def open(self, request: wire.Open) -> wire.Opened:
        """Make inputs and operation, call it until it is warm. A fault is raised, and typed by the loop."""
        return self.arms.open(request)

    def check(self, request: wire.Check) -> wire.Checked:
        """Whether the arm's outputs are right."""
        return self._checks.check(request)

    def hand(self, request: wire.Hand) -> wire.Handed:
        """Outputs on inputs of other seeds, kept for a judge."""
        return self._checks.hand(request)

    def examine(self, request: wire.Examine) -> wire.Checked:
        """What another worker handed over."""
        return self._checks.examine(request)

    def records(self, request: wire.Records) -> wire.Recordable:
        """Whether CUPTI can time this process."""
        del request
        return wire.Recordable(self.clock.unrecorded())

    def capture(self, request: wire.Capture) -> wire.Captured:
        """The arm's call in a CUDA graph."""
        return self.arms.capture(request)

    def turn(self, request: wire.Turn) -> wire.Turned:
        """Some calls of one arm."""
        return self.arms.turn(request)

    def phases(self, request: wire.Phases) -> wire.Phased:
        """A profiled pass of its own, so that instrumentation never touches the timing: phases, and what is launched."""
        arm = self.arms[request.arm]
        module = self._workload(arm.request.workload)
        ranges = {name: spec[0] for name, spec in getattr(module, "PHASES", {}).items()}
        with self.marked(arm.request):
            phased = profile.phases(
                arm.op, ranges, request.calls, self.clock, discarded=request.discarded, watch=self.compiles
            )
        if self.mounted is None or phased.census.missing:
            return phased
        launches = compiles.chosen(phased.census.launches, self.mounted.__name__)
        return dataclasses.replace(phased, census=dataclasses.replace(phased.census, launches=launches))

    def trace(self, request: wire.Trace) -> wire.Traced:
        """A profiled pass that is kept as a Chrome trace, or as proton's tree."""
        arm = self.arms[request.arm]
        if request.by == "proton":
            target = Path(self.start.scratch) / request.name
            with self.marked(arm.request):
                return proton.traced(arm.op, request.calls, self.clock, request.discarded, target, request.most_bytes)
        module = self._workload(arm.request.workload)
        ranges = {name: spec[0] for name, spec in getattr(module, "PHASES", {}).items()}
        with self.marked(arm.request):
            profiler, launched = profile.profiled(arm.op, request.calls, self.clock, request.discarded, self.compiles)
        target = Path(self.start.scratch) / request.name
        with profile.exported(profiler) as raw:
            counted = profile.counted_calls(profiler, launched, ranges, self.clock, request.discarded, raw)
            try:
                return wire.Traced(counted, chrome.write(raw, target, request.most_bytes))
            except ValueError as error:
                return wire.Traced(counted, missing=f"{type(error).__name__}: {error}")

    def marked(self, of: wire.Open) -> contextlib.AbstractContextManager[None]:
        """NVTX ranges around this arm's calls: the cell's id, the arm's, and what the workload's users call a call."""
        module, case = self._workload(of.workload), types.MappingProxyType(of.case)
        return self.marks(
            [wire.cell_id(of.workload, of.case), of.arm], declared.nvtx(module, case, of.variant or of.peer)
        )

    def load(self, request: wire.Load) -> wire.Loaded:
        """Kernels that Triton compiled for this process."""
        del request
        return wire.Loaded(self.compiles.compiled())

    def close(self, request: wire.Close) -> wire.Closed:
        """Forget the cell."""
        del request
        peak = self.clock.peak_bytes()
        self.arms.clear()
        gc.collect()
        gc.freeze()  # what outlives a cell stays for good: walking torch's objects at every cell took 70 ms each time
        self.clock.reset_peak()
        return wire.Closed(peak)
