"""What to measure tonight: a pure function of the nights so far. The run folders are the only memory, so a night that was
killed leaves nothing to repair: its run did not finish, and it is continued or repeated."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from abprof.builds.worker_factory import command
from abprof.extras.nightly.index import NightRow
from abprof.measure.run_context import Place
from abprof.records.options import File, Options
from abprof.system import paths
from abprof.system import processes as proc

MOST_TRIES = 3  # nights on which nothing could run, for the same commits on the same machine
_CHAIN = ("first", "step")
_MATRIX = ("kernels", "workloads", "workloads_from", "preset", "only", "set", "no_peers", "peer", "all")
_PACKAGES = ("torch", "triton", "numpy", "cupti-python")  # cupti-python: it times short calls where it is installed
_VERSIONS = """
import importlib.metadata, sys
for name in sys.argv[1:]:
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


def jobs(nights: Sequence[NightRow], tonight: Tonight) -> list[Job]:
    """The runs that are needed, given the nights of one series in their order.

    The head is compared with the last judged commit. It is profiled alone on the first night, and when the matrix or the
    machine changed since this commit was judged. A night on which nothing could run, and not because of the head, is
    repeated, on MOST_TRIES nights in all.
    """
    known = {_key(night) for night in nights if night.settled} | _hopeless(nights)

    def new(kind: str, base: str) -> bool:
        return (kind, base, tonight.head, tonight.matrix, tonight.machine) not in known

    found, last = [], last_judged(nights)
    if not last or last == tonight.head:
        question = (tonight.head, tonight.matrix, tonight.machine)
        if not any(night.kind in _CHAIN and _key(night) in known and _key(night)[2:] == question for night in nights):
            found.append(Job("first", (tonight.head,)))
    elif new("step", last):
        found.append(Job("step", (last, tonight.head)))
    if tonight.release and tonight.release != tonight.head and new("against", tonight.release):
        found.append(Job("against", (tonight.release, tonight.head)))
    return found


def given_up(nights: Sequence[NightRow], tonight: Tonight) -> str:
    """Why tonight's head could not be judged, if it was tried MOST_TRIES times in vain; else ""."""
    hopeless = _hopeless(nights)
    mine = [night for night in nights if _key(night)[2:] == (tonight.head, tonight.matrix, tonight.machine)]
    chain = [night for night in mine if night.kind in _CHAIN]
    against = [night for night in mine if night.kind not in _CHAIN and night.base == tonight.release]
    newest = [of_kind[-1] for of_kind in (chain, against) if of_kind]
    vain = [night for night in newest if not night.settled and _key(night) in hopeless]
    return vain[0].sentence or "nothing ran" if vain else ""


def last_judged(nights: Sequence[NightRow]) -> str:
    """The head of the newest night that measured any of it; "" if there is none."""
    return next((night.head for night in reversed(nights) if night.kind in _CHAIN and night.heads), "")


def after(nights: Sequence[NightRow], commit: str) -> list[NightRow]:
    """The nights after the last one with this head, for a commit that is no longer in the repository."""
    at = max((place for place, night in enumerate(nights) if night.kind in _CHAIN and night.head == commit), default=-1)
    return [night for place, night in enumerate(nights) if place > at or night.kind not in _CHAIN]


def _key(night: NightRow) -> tuple[str, ...]:
    return night.kind, night.base, night.head, night.matrix, night.machine


def _hopeless(nights: Sequence[NightRow]) -> set[tuple[str, ...]]:
    tries = Counter(_key(night) for night in nights if not night.settled)
    return {key for key, count in tries.items() if count >= MOST_TRIES}


# ---------------------------------------------------------------- what two nights must have in common


def matrix_hash(place: Place) -> str:
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


def machine(place: Place) -> dict[str, str]:
    """The fingerprint: device, its settings, driver, system, and versions that the workers' interpreter has."""
    found = place.device.machine()
    facts = {"host": "" if found.uuid else found.host, "device": found.device, "uuid": found.uuid, **found.facts}
    facts |= _versions(place.options)
    return {name: facts[name] for name in sorted(facts) if facts[name]}


def _versions(options: Options) -> dict[str, str]:
    python = command(options, "base", paths.cache_dir())[0]
    if Path(python) == Path(sys.executable):
        versions = {name: _version(name) for name in _PACKAGES}
        return {"python": sys.version.split()[0], **versions}
    lines = (proc.output([python, "-c", _VERSIONS, *_PACKAGES]) or "").splitlines()
    return {"python": python, **dict(line.split(" ", 1) for line in lines if " " in line)}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
