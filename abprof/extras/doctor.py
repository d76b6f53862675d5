"""`abprof doctor`: what this machine can measure, what is missing for it, and what to do about that."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from abprof import devices
from abprof.builds import sandbox as contain
from abprof.builds.worker_factory import alone, command
from abprof.evidence.ncu import capture
from abprof.measure.run_context import nvcc
from abprof.measure.timers import INSTALL
from abprof.measure.turns import SHORT
from abprof.records import Record
from abprof.records.errors import AbprofError
from abprof.records.messages import Done, Ready, Records, Start
from abprof.records.options import File, Options
from abprof.system import heartbeat, paths
from abprof.system import processes as proc
from abprof.system.config_file import file_above
from abprof.system.processes import Worker, WorkerDied, WorkerFault


class Finding(Record, frozen=True):
    """One line of the examination."""

    name: str
    state: Literal["ok", "missing", "problem"]
    text: str
    advice: str = ""


def examine(python: str | None) -> list[Finding]:
    """Everything a run needs, in the order in which it needs it; in a repository with its abprof.toml."""
    config, found = Options(specs=(), python={"": python} if python else {}), []
    try:
        config = msgspec.structs.replace(config, file=file_above(Path.cwd()))
    except AbprofError as error:
        found.append(Finding(name="abprof.toml", state="problem", text=error.line, advice="mend that line"))
    return [*_folders(), _git(), *_compilers(), *found, *_devices(config), *sandbox_row(), *_nights()]


def _folders() -> list[Finding]:
    found = []
    for name, folder in (("cache", paths.cache_dir), ("state", paths.state_dir)):
        try:
            path = folder()
            free = shutil.disk_usage(path).free / 2**30
            found.append(Finding(name=name, state="ok", text=f"{path}, {free:.0f} GiB free"))
        except AbprofError as error:
            found.append(Finding(name=name, state="problem", text=error.line))
    return found


def sandbox_row() -> Iterator[Finding]:
    """Whether code under test can run in a sandbox."""
    try:
        yield Finding(name="bubblewrap", state="ok", text=contain.find().version)
    except AbprofError as refused:
        need = "--contain cannot keep code under test to its own folders; what it writes elsewhere is only looked for"
        yield Finding(name="bubblewrap", state="missing", text=str(refused), advice=need)


def _nights() -> Iterator[Finding]:
    """A row for each nightly job of this machine; one that stopped is a problem."""
    for fine, text, advice in heartbeat.examine(paths.state_dir()):
        yield Finding(name="nightly", state="ok" if fine else "problem", text=text, advice=advice)


def _git() -> Finding:
    said = proc.output(["git", "--version"])
    if said is None:
        return Finding(name="git", state="problem", text="not found", advice="install git")
    return Finding(name="git", state="ok", text=said.strip())


def _compilers() -> list[Finding]:
    rows = []
    for name, tool, need in (
        ("C++ compiler", os.environ.get("CXX") or "c++", "kernels in C++ cannot be built; install g++ or clang++"),
        ("ninja", "ninja", "torch's extension builder needs it; pip install ninja"),
        ("nvcc", nvcc(os.environ) or "nvcc", "kernels in CUDA C++ cannot be built; Triton kernels do not need it"),
    ):
        said = proc.output([_beside(tool), "--version"])
        if said is None:
            rows.append(Finding(name=name, state="missing", text=f"{tool} not found", advice=need))
        else:
            rows.append(Finding(name=name, state="ok", text=said.strip().splitlines()[-1 if name == "nvcc" else 0]))
    return [*rows, _ncu()]


def _ncu() -> Finding:
    try:
        found = capture.find()
    except capture.Refused as refused:
        advice = "abprof profile and abprof memory BASE TARGET cannot count; it comes with the CUDA toolkit"
        return Finding(name="ncu", state="missing", text=refused.what, advice=advice)
    return Finding(name="ncu", state="ok", text=f"{found.version} ({found.path})")


def _beside(command: str) -> str:
    """A tool that pip installed next to this interpreter, which need not be on PATH."""
    near = Path(sys.executable).parent / command
    return str(near) if near.exists() else command


def _devices(config: Options) -> list[Finding]:
    rows = []
    for asked in ("cuda", "cpu"):
        try:
            device = devices.choose((asked,))
        except AbprofError as error:
            rows.append(Finding(name=asked, state="missing", text=error.what))
            continue
        refusal = device.refusal() or device.busy()
        if refusal:
            rows.append(Finding(name=asked, state="problem", text=refusal[0], advice=refusal[1]))
            continue
        machine = device.machine()
        facts = ", ".join(f"{key} {value}" for key, value in machine.facts.items())
        rows.append(Finding(name=asked, state="ok", text=f"{machine.device} ({facts})"))
        rows += _workers(asked, device.worker, config)
    return rows


def _workers(asked: str, device: str, config: Options) -> Iterator[Finding]:
    """A row for each interpreter that abprof.toml or --python gives to a side."""
    known: set[tuple[str, ...]] = set()
    for side in ("base", *sorted((config.file or File()).python.keys() - {"all", "base"})):
        name = f"worker on {asked}" + (f" ({side})" if known else "")
        try:
            argv = command(config, side, paths.cache_dir())
        except AbprofError as error:
            yield Finding(name=name, state="problem", text=error.line, advice="name one that is there")
            continue
        if argv not in known:
            known.add(argv)
            yield from _worker(name, device, config, side)


def _worker(name: str, device: str, config: Options, side: str) -> Iterator[Finding]:
    """Start a real worker: the only way to know that its interpreter and torch work, and on a GPU whether CUPTI times it."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            worker = alone(config, paths.cache_dir(), device, Path(scratch), side=side)
            ready: Ready = worker.call(Start(device, "base"), 120)
        except (WorkerDied, WorkerFault) as error:
            yield Finding(name=name, state="problem", text=error.reason, advice="does `import torch` work there?")
            return
        versions = ", ".join(f"{key} {value}" for key, value in ready.versions.items())
        yield Finding(name=name, state="ok", text=f"{command(config, side, paths.cache_dir())[0]}: {versions}")
        if ready.kind == "cuda":
            yield recordable(worker, name.replace("worker", "CUPTI", 1))
        worker.stop()


def recordable(worker: Worker, name: str) -> Finding:
    """Whether CUPTI's records can read a worker's short calls."""
    try:
        done: Done = worker.call(Records(), 120)
        why = done.why
    except (WorkerDied, WorkerFault) as error:
        why = error.reason
    if not why:
        return Finding(name=name, state="ok", text=f"its records read calls under {SHORT / 1e3:g} us")
    advice = f"events read calls under {SHORT / 1e3:g} us too, less closely; {INSTALL}"
    return Finding(name=name, state="missing", text=why, advice=advice)
