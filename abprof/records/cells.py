"""What is compared: sides, kernel packages, workloads, cells and arms."""

from __future__ import annotations

from functools import cache
from typing import Literal

from abprof.records.base import Record
from abprof.records.messages import Value


class Side(Record, frozen=True, kw_only=True):
    """One side of the comparison: a ref resolved once to a commit, `.`, the working tree as it is, or a release."""

    id: str  # base, target, target2, ...
    spec: str  # as the user typed it
    kind: Literal["commit", "worktree", "dist"]
    commit: str  # 40 hex digits; for a working tree the commit it stands on; of a release 64: its installed files' hash
    tree: str  # 40 hex digits: the content that is measured; of a release as `commit`
    label: str  # branch name, NAME==VERSION, or the spec: what file names and sentences use
    subject: str = ""  # first line of the commit message; of a release the wheel's name and hash

    @property
    def anew(self) -> str:
        """What to type for the same again: a working tree may be another by then, a release is known by its name."""
        return {"commit": self.commit, "worktree": ".", "dist": self.spec}[self.kind]


class Checkout(Record, frozen=True, kw_only=True):
    """A side's files on disk."""

    side: Side
    path: str


class PackageTable(Record, frozen=True, kw_only=True, rename={"module": "import"}):
    """A kernel package's `[kernels.NAME]` table in abprof.toml."""

    path: str = ""  # folder relative to the side's root, "" for kernels/NAME
    module: str = ""  # real import name; "" mounts it privately as abprof_side.NAME
    inputs: tuple[str, ...] = ()  # globs that decide a rebuild; () means all of kernels/ (or the tree, with `module`)
    build: tuple[str, ...] = ()  # argv of a build recipe, run in a copy of the inputs
    env: dict[str, str] = {}
    submodules: bool = False


class Package(PackageTable, frozen=True, kw_only=True):
    """A kernel package as it is found on every side."""

    name: str

    def of(self, side: Side) -> Package:
        """The package where this side has it: a release installs it by its import name, and built."""
        if side.kind != "dist":
            return self
        return Package(name=self.name, module=self.module or self.name, env=self.env)


class Command(Record, frozen=True, kw_only=True):
    """A command that times itself, run once a process on each side: `abprof BASE TARGET -- ARGV` (abprof/measure/commands/)."""

    argv: tuple[str, ...]  # as typed: {worktree}, {build_dir} and {side} are filled in for each side
    build: tuple[str, ...] = ()  # argv that is run once in each side's worktree before it
    env: dict[str, str] = {}  # its variables beside the environment's, likewise to be filled in


class Cell(Record, frozen=True, kw_only=True):
    """One point of a workload's matrix, measured on every arm."""

    id: str  # WORKLOAD/axis=value,...
    workload: str
    kernel: str
    suite: str
    params: dict[str, Value]
    flops: float | None = None
    bytes: float | None = None
    convention: str = ""  # name of the FLOP and byte convention, e.g. "fwd-causal-exact"
    skip: str = ""  # why the workload leaves this cell out on this device: every arm is `unsupported`


def arm_id(side: str, variant: str) -> str:
    """The id of a side's arm in a variant, "" for the plain one."""
    return f"{side}:{variant}" if variant else side


PEERS = "peers"  # the worker in which they run
STANDING_IN = frozenset({"control", PEERS})  # workers of base's build beside base's own


class Arm(Record, frozen=True, kw_only=True):
    """What is timed in turns: a side, a variant of a side, a library peer, or the control (base's build once more).

    Its id is `SIDE`, `SIDE:VARIANT`, `peer:NAME`, `control` or `control:VARIANT`. `side` of a peer is `base`, whose
    workload it comes from.
    """

    id: str
    side: str  # a side's id, or `control`
    variant: str = ""
    peer: str = ""

    @staticmethod
    @cache
    def of(id: str) -> Arm:
        """The arm with this id."""
        side, _, rest = id.partition(":")
        return Arm(id=id, side="base", peer=rest) if side == "peer" else Arm(id=id, side=side, variant=rest)

    @property
    def worker(self) -> str:
        """Whose worker it runs on: its side's, or that of the peers. A turn that follows one of the same process is shorter
        (docs/MEASUREMENT.md), so none that is no side's may be taken by a side's."""
        return PEERS if self.peer else self.side
