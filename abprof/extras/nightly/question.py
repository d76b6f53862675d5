"""What two nights must have in common: the matrix that was asked for, and the machine."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import sys
from pathlib import Path

import msgspec

from abprof.builds.worker_factory import command
from abprof.measure.run_context import Place
from abprof.records.options import File, Options
from abprof.system import paths
from abprof.system import processes as proc

_MATRIX = ("kernels", "workloads", "workloads_from", "preset", "only", "set", "no_peers", "peer", "all")
_PACKAGES = ("torch", "triton", "numpy", "cupti-python")  # the last: it reads short calls where it is there
_ASK = """
import importlib.metadata, sys
for name in sys.argv[1:]:
    try:
        print(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        pass
"""


def asked(place: Place) -> str:
    """Hash of the matrix as it was asked for and of the workloads that judge, whose cases it chooses."""
    config = place.options
    matrix = {name: getattr(config, name) for name in _MATRIX}
    parts = [msgspec.json.encode(matrix, order="sorted"), *_workloads(place)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _workloads(place: Place) -> list[bytes]:
    """Names and contents of the workloads' files. Those that a side brings are part of its commit."""
    source = place.options.workloads_from
    if source in {side.id for side in place.sides} or source == "target":
        return []
    folder = Path(source) if source else place.root / ((place.options.file or File()).workloads or "workloads")
    files = sorted(folder.glob("*.py")) if folder.is_dir() else []
    wrapped = [place.root / name for name in (place.options.file or File()).benchmarks]
    files += [file for path in wrapped for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))]
    return [part for file in files for part in (os.fsencode(file.name), hashlib.sha256(file.read_bytes()).digest())]


def machine(place: Place) -> dict[str, str]:
    """The fingerprint: device, its settings, driver, system, and what the workers' interpreter brings."""
    found = place.device.machine()
    facts = {"host": "" if found.uuid else found.host, "device": found.device, "uuid": found.uuid, **found.facts}
    facts |= _versions(place.options)
    return {name: facts[name] for name in sorted(facts) if facts[name]}


def _versions(config: Options) -> dict[str, str]:
    python = command(config, "base", paths.cache_dir())[0]
    if Path(python) == Path(sys.executable):
        versions = {}
        for name in _PACKAGES:
            try:
                versions[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        return {"python": sys.version.split()[0], **versions}
    said = proc.output([python, "-c", _ASK, *_PACKAGES]) or ""
    return {"python": python, **dict(line.split(" ", 1) for line in said.splitlines() if " " in line)}
