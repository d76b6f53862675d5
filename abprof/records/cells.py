"""Sides, kernel packages, commands, cells and arms: the things that a run compares."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Literal

from abprof.records.base import Record
from abprof.records.messages import Value

# No git ref contains a space. The exceptions are git's searches in messages: `:/words`, `REF^{/words}`.
_WITH = re.compile(r"(?!:/|\S*\{/)(\S+) with (\S.*)")


def split_spec(spec: str) -> tuple[str, str]:
    """Split a side's spec into its ref or release, and the packages of its environment: `. with torch==2.12` into `.`
    and `torch==2.12`. Without packages the second part is empty."""
    match = _WITH.fullmatch(spec)
    return (match[1], match[2]) if match else (spec, "")


def join_spec(ref: str, requirements: Sequence[str]) -> str:
    """Return the spec of a ref or release with the packages of its environment."""
    return f"{ref} with {', '.join(requirements)}" if requirements else ref


class Side(Record, frozen=True, kw_only=True):
    """One side of the comparison: the commit of a git ref, the working tree (`.`), or an installed release; and the
    packages of its environment, if it has its own."""

    id: str  # base, target, target2, ...
    spec: str  # as the user typed it
    kind: Literal["commit", "worktree", "dist"]
    commit: str  # 40 hex digits (of a working tree: its HEAD); of a release 64 digits, the hash of its files
    tree: str  # 40 hex digits, git's hash of the measured content; of a release equal to `commit`
    label: str  # branch name, NAME==VERSION of a release, or the spec; used in file names and sentences
    subject: str = ""  # first line of the commit message; for a release the wheel's name and hash
    requirements: tuple[str, ...] = ()  # packages of the side's environment, NAME==VERSION; (): the interpreter's own

    @property
    def ref(self) -> str:
        """Return the command-line argument that names this side's files when the run is repeated."""
        return {"commit": self.commit, "worktree": ".", "dist": split_spec(self.spec)[0]}[self.kind]

    @property
    def anew(self) -> str:
        """Return the command-line argument that names this side when the run is repeated."""
        return join_spec(self.ref, self.requirements)


class Checkout(Record, frozen=True, kw_only=True):
    """A side and the folder with its files."""

    side: Side
    path: str


class PackageTable(Record, frozen=True, kw_only=True, rename={"module": "import"}):
    """A kernel package's `[kernels.NAME]` table in abprof.toml."""

    path: str = ""  # folder relative to the side's root; "": kernels/NAME
    module: str = ""  # import name; "": imported under the private name abprof_side.NAME
    inputs: tuple[str, ...] = ()  # globs of the files that the build reads; (): kernels/**, or ** with `module`
    build: tuple[str, ...] = ()  # argv of the build command, run in a copy of the inputs
    env: dict[str, str] = {}
    submodules: bool = False
    network: bool = False  # whether the build needs the network, in a sandbox


class Package(PackageTable, frozen=True, kw_only=True):
    """A kernel package: its name and settings, the same for every side."""

    name: str

    def of(self, side: Side) -> Package:
        """Return the package's settings for `side`: for a release, which is already built, only `module` and `env`."""
        if side.kind != "dist":
            return self
        return Package(name=self.name, module=self.module or self.name, env=self.env)

    @property
    def patterns(self) -> tuple[str, ...]:
        """Return the globs of the files that a build of this package depends on."""
        return self.inputs or (("**",) if self.module or self.path else ("kernels/**",))

    @property
    def folders(self) -> tuple[str, ...]:
        """Return the folders that together contain all files of a build, relative to the side's root; "" is the root itself."""
        if all(pattern.endswith("/**") for pattern in self.patterns):  # other patterns may match at any depth
            return tuple(dict.fromkeys(pattern[:-3] for pattern in self.patterns))
        return ("",)


class Command(Record, frozen=True, kw_only=True):
    """A command that prints its own times: `abprof BASE TARGET -- ARGV` (abprof/measure/commands.py)."""

    argv: tuple[str, ...]  # as typed, with {worktree}, {build_dir} and {side} to be filled in
    build: tuple[str, ...] = ()  # argv of a build command, run once in each side's worktree
    env: dict[str, str] = {}  # further environment variables, with names in braces like `argv`
    network: bool = False  # whether the build needs the network, in a sandbox


COMMAND = "command"  # name of the only workload of a run of a command


class Cell(Record, frozen=True, kw_only=True):
    """One workload with one value for each of its axes, measured on every arm."""

    id: str  # WORKLOAD/axis=value,...
    workload: str
    kernel: str
    suite: str
    params: dict[str, Value]
    flops: float | None = None
    bytes: float | None = None
    convention: str = ""  # name of the FLOP and byte convention, e.g. "fwd-causal-exact"
    skip: str = ""  # why the workload skips this cell on this device (every arm is then `unsupported`); "" if measured


def arm_id(side: str, variant: str) -> str:
    """Return the id of a side's arm: SIDE, or SIDE:VARIANT unless `variant` is ""."""
    return f"{side}:{variant}" if variant else side


PEERS = "peers"  # name of the worker that runs library peers
STANDING_IN = frozenset({"control", PEERS})  # names of further workers of base's build


class Arm(Record, frozen=True, kw_only=True):
    """What is timed in a cell: a side, a variant of a side, a library peer, or the control (a second copy of base).

    The id is `SIDE`, `SIDE:VARIANT`, `peer:NAME`, `control` or `control:VARIANT`. A peer has the side `base`,
    because base's workload declares the peer.
    """

    id: str
    side: str  # a side's id, or `control`
    variant: str = ""
    peer: str = ""

    @staticmethod
    @cache
    def of(id: str) -> Arm:
        """Return the arm with this id."""
        side, _, rest = id.partition(":")
        return Arm(id=id, side="base", peer=rest) if side == "peer" else Arm(id=id, side=side, variant=rest)

    @property
    def under_test(self) -> bool:
        """Whether the arm runs a side's code for a verdict: it is neither a peer nor the control."""
        return not self.peer and self.side != "control"

    @property
    def worker(self) -> str:
        """Return the name of the worker that runs the arm. Peers do not run in base's worker: there a peer's turn
        would make the next turn of base faster (docs/MEASUREMENT.md)."""
        return PEERS if self.peer else self.side
