"""`abprof doctor`: report what this machine can measure, and how to install the tools that are missing."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from abprof import devices
from abprof.builds import WorkerFactory, sandbox
from abprof.evidence import Ncu, Refused
from abprof.records.errors import AbprofError
from abprof.records.messages import Start
from abprof.records.options import File, Options
from abprof.system import paths
from abprof.system import processes as proc
from abprof.system.config_file import file_above
from abprof.system.processes import WorkerDied, WorkerFault

_NO_SANDBOX = "--contain cannot restrict code under test to its own folders; writes elsewhere are only detected"
_NO_NCU = "abprof profile and abprof memory BASE TARGET need Nsight Compute, a part of the CUDA toolkit"


@dataclass(frozen=True)
class Finding:
    """The state of one tool or setting: one line of the output of `abprof doctor`."""

    name: str
    state: Literal["ok", "missing", "problem"]
    text: str
    advice: str = ""


def examine(python: str | None) -> Iterator[Finding]:
    """Yield a finding for each program and setting that a run needs. `python`: the workers' interpreter, if given."""
    yield from tools()
    config = Options(python={"": python} if python else {})
    try:
        config = msgspec.structs.replace(config, file=file_above(Path.cwd()))
    except AbprofError as error:
        yield Finding("abprof.toml", "problem", error.line, "correct that line")
    for kind in ("cuda", "cpu"):
        try:
            device = devices.choose((kind,))
        except AbprofError as error:
            yield Finding(kind, "missing", error.what)
            continue
        if refusal := device.refusal() or device.busy():
            yield Finding(kind, "problem", *refusal)
            continue
        machine = device.machine()
        facts = ", ".join(f"{key} {value}" for key, value in machine.facts.items())
        yield Finding(kind, "ok", f"{machine.device} ({facts})")
        yield from _workers(kind, device.worker, config)


def tools() -> Iterator[Finding]:
    """Yield findings on abprof's folders and on the programs that abprof calls: git, compilers, ncu and bubblewrap."""
    for name, folder in (("cache", paths.cache_dir), ("state", paths.state_dir)):
        try:
            yield Finding(name, "ok", f"{folder()}, {shutil.disk_usage(folder()).free / 2**30:.0f} GiB free")
        except AbprofError as error:
            yield Finding(name, "problem", error.line)
    for name, tool, need in (
        ("git", "git", "install git"),
        ("C++ compiler", os.environ.get("CXX") or "c++", "kernels in C++ cannot be built; install g++ or clang++"),
        ("ninja", "ninja", "torch's extension builder needs it; pip install ninja"),
        (
            "nvcc",
            proc.cuda_tool("nvcc") or "nvcc",
            "kernels in CUDA C++ cannot be built; Triton kernels do not need it",
        ),
    ):
        beside = Path(sys.executable).parent / tool  # tools installed by pip need not be on PATH
        said = proc.output([str(beside) if beside.exists() else tool, "--version"])
        if said is None:
            yield Finding(name, "problem" if name == "git" else "missing", f"{tool} not found", need)
        else:
            yield Finding(name, "ok", said.strip().splitlines()[-1 if name == "nvcc" else 0])
    try:
        ncu = Ncu.find()
        yield Finding("ncu", "ok", f"{ncu.version} ({ncu.path})")
    except Refused as refused:
        yield Finding("ncu", "missing", refused.what, _NO_NCU)
    try:
        yield Finding("bubblewrap", "ok", sandbox.find().version)
    except AbprofError as refused:
        yield Finding("bubblewrap", "missing", str(refused), _NO_SANDBOX)


def _workers(kind: str, device: str, config: Options) -> Iterator[Finding]:
    known = set[str]()
    for side in ("base", *sorted((config.file or File()).python.keys() - {"all", "base"})):
        name = f"worker on {kind}" + (f" ({side})" if known else "")
        with tempfile.TemporaryDirectory() as scratch:
            place = Path(scratch, "scratch")
            place.mkdir()
            try:
                factory = WorkerFactory.of(config, paths.cache_dir(), place, device, [side], place, {})
            except AbprofError as error:
                yield Finding(name, "problem", error.line, "name an existing interpreter")
                continue
            python = factory.argv(side)[0]
            if python in known:
                continue
            known.add(python)
            try:
                with factory.alone("discovery", side) as worker:
                    ready = worker.call(Start(device, "base"), 120)
            except (WorkerDied, WorkerFault) as error:
                yield Finding(name, "problem", error.reason, "check `import torch` in that interpreter")
                continue
        yield Finding(name, "ok", f"{python}: {', '.join(f'{key} {value}' for key, value in ready.versions.items())}")
