"""What to measure tonight: a pure function of the nights so far. The run folders are the only memory, so a night that was
killed leaves nothing to repair: its run did not finish, and it is repeated."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from abprof.builds.worker_factory import command
from abprof.extras.nightly.index import NightRow
from abprof.measure import RunContext
from abprof.records.options import File, Options
from abprof.system import paths
from abprof.system import processes as proc

MOST_TRIES = 3  # nights on which nothing could run, for the same commits on the same machine
_CHAIN = ("first", "step")
_MATRIX = ("kernels", "workloads", "workloads_from", "preset", "only", "set", "no_peers", "peer", "all")
_VERSIONS = """
import importlib.metadata, sys
print("python", sys.version.split()[0])
for name in ("torch", "triton", "numpy", "cupti-python"):
    try:
        print(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        pass
"""


@dataclass(frozen=True)
class Tonight:
    """What identifies a night's work."""

    head: str  # commit of the branch
    release: str  # commit of the fixed release, or ""
    matrix: str  # matrix_hash()
    machine: str  # machine() as JSON with sorted keys


@dataclass(frozen=True)
class Job:
    """One run of the night: its commits, base first."""

    kind: Literal["first", "step", "against"]
    commits: tuple[str, ...]


def jobs(nights: Sequence[NightRow], tonight: Tonight, exists: Callable[[str], bool]) -> tuple[list[Job], str]:
    """The runs that are needed, and why others are not retried ("" if none), given one series' nights in their order.

    The head is compared with the last judged commit that `exists` in the repository. It is profiled alone on the first
    night, and when the matrix or the machine changed since it was judged. A night on which nothing could run, and not
    because of the head, is repeated, on MOST_TRIES nights in all.
    """
    question = (tonight.head, tonight.matrix, tonight.machine)
    judged = (night.head for night in reversed(nights) if night.kind in _CHAIN and night.heads)
    last = next((head for head in dict.fromkeys(judged) if head == tonight.head or exists(head)), "")
    found = []
    if last and last != tonight.head:
        found.append(Job("step", (last, tonight.head)))
    elif not any(night.kind in _CHAIN and night.settled and night.key[2:] == question for night in nights):
        found.append(Job("first", (tonight.head,)))
    if tonight.release and tonight.release != tonight.head:
        found.append(Job("against", (tonight.release, tonight.head)))
    settled = {night.key for night in nights if night.settled}
    todo, given_up = list[Job](), ""
    for job in found:
        key = (job.kind, "".join(job.commits[:-1]), *question)
        vain = [night.sentence or "nothing ran" for night in nights if night.key == key]
        if key not in settled and len(vain) < MOST_TRIES:
            todo.append(job)
        elif key not in settled:
            given_up = given_up or vain[-1]
    return todo, given_up


# ---------------------------------------------------------------- what two nights must have in common


def matrix_hash(place: RunContext) -> str:
    """Hash of the options that choose cells, and of the workloads that the user's tree brings."""
    options = place.options
    matrix = {name: getattr(options, name) for name in _MATRIX}
    parts = [msgspec.json.encode(matrix, order="sorted")]
    source = options.workloads_from
    if source != "target" and source not in {side.id for side in place.sides}:  # a side's workloads are in its commit
        file = options.file or File()
        folder = Path(source) if source else place.root / (file.workloads or "workloads")
        files = sorted(folder.glob("*.py")) if folder.is_dir() else []
        for path in (place.root / name for name in file.benchmarks):
            files += [path] if path.is_file() else sorted(path.rglob("*.py"))
        for path in files:
            parts += [os.fsencode(path.name), hashlib.sha256(path.read_bytes()).digest()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def machine(place: RunContext) -> dict[str, str]:
    """The fingerprint: device, its settings, driver, system, and versions that the workers' interpreter has."""
    found = place.device.machine()
    facts = {"host": "" if found.uuid else found.host, "device": found.device, "uuid": found.uuid, **found.facts}
    facts |= _versions(place.options)
    return {name: facts[name] for name in sorted(facts) if facts[name]}


def _versions(options: Options) -> dict[str, str]:
    python = command(options, "base", paths.cache_dir())[0]
    found = dict(line.split(" ", 1) for line in (proc.output([python, "-c", _VERSIONS]) or "").splitlines())
    return found if Path(python) == Path(sys.executable) else {**found, "python": python}
