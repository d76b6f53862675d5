"""What compilers made of the kernels of changed rows, with the line of source of each instruction."""

from __future__ import annotations

from abprof.records.base import Record

Lines = dict[str, dict[str, int]]  # "FILE:LINE" -> class of instructions -> how many come from this line
LISTINGS = "code"  # the folder in the run folder


def lines_of(source: str) -> list[str]:
    """Return the lines that compilers count: str.splitlines also ends a line at a form feed, for example."""
    return [line.removesuffix("\r") for line in source.removesuffix("\n").split("\n")] if source else []


class Stage(Record, frozen=True, kw_only=True):
    """One form of a kernel: source code between compilers, or machine code."""

    name: str  # TTIR, TTGIR, LLVM IR, PTX, SASS, assembly
    lines: tuple[str, ...]
    at: tuple[int, ...]  # for each line an index into Listing.places; -1: its line of source is unknown


class Listing(Record, frozen=True, kw_only=True):
    """All forms of a kernel, or of a shared object's changed functions. A file code/*.json.gz of the run folder."""

    name: str
    side: str
    places: tuple[tuple[str, ...], ...] = ()  # "FILE:LINE" in the side's tree; then the lines it is inlined at
    files: dict[str, str] = {}  # path in the side's tree -> text
    classes: Lines = {}  # of the machine code
    stages: tuple[Stage, ...] = ()
    notes: tuple[str, ...] = ()  # which forms are missing, and why


class Spent(Record, frozen=True, kw_only=True):
    """How many samples of a profiler fell on a line of source, and what warps waited for most."""

    samples: int
    stall: str = ""  # of Nsight Compute: long_scoreboard, ...


class Listed(Record, frozen=True, kw_only=True, rename={"from_": "from"}):
    """A kernel of a changed row, as both sides compiled it. Values of both sides are (before, after)."""

    cell: str
    from_: str
    to: str
    kernel: str
    files: tuple[str, str]  # Listing files, relative to the run folder
    spent: tuple[dict[str, Spent], dict[str, Spent]] = ({}, {})  # "FILE:LINE" -> samples; "": lines unknown
    by: str = ""  # ncu or perf, if one sampled both sides


class Hunk(Record, frozen=True, kw_only=True):
    """A part of a file that differs between base and a target. Lines are counted from 1."""

    file: str
    at: tuple[int, int]  # first line on each side
    count: tuple[int, int]  # lines on each side
    removed: str = ""  # text of the lines, cut after 2000 characters
    added: str = ""
    inside: tuple[int, int] = (0, 0)  # first and last line, on the target, of the Triton function that has all of it

    @property
    def line(self) -> str:
        """Return the hunk in words: `line 22, was line 18`, `lines 50 to 53, were lines 48 to 51`, `line 7, new`."""
        was, now = (f"line {at}" if n == 1 else f"lines {at} to {at + n - 1}"
                    for at, n in zip(self.at, self.count, strict=True))  # fmt: skip
        if not all(self.count):
            return f"{now}, new" if self.count[1] else f"{was} of base, gone"
        return now if was == now else f"{now}, {'was' if self.count[0] == 1 else 'were'} {was}"
