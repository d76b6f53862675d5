"""Where one arm of a cell spent the processors' time, by samples that perf took after all timing (abprof/evidence/perf.py)."""

from __future__ import annotations

from abprof.records.base import Record


class SampledFunction(Record, frozen=True, kw_only=True):
    """A function of machine code that was found running."""

    name: str  # demangled; "[unknown]" without a symbol
    object: (
        str  # file name of the shared object or program, without its folder; [kernel.kallsyms] for the system's kernel
    )
    samples: int
    own: bool = False  # of the side's own build or worktree


class Sampled(Record, frozen=True, kw_only=True):
    """One arm under perf: its worker made `calls` calls, and perf looked `hz` times in each second of processor time."""

    cell: str
    arm: str
    calls: int = 0
    hz: int = 0
    event: str = ""  # what perf counted: cycles, or cpu-clock where a processor's counters are not there
    samples: int = 0  # all of them, of all threads
    functions: tuple[SampledFunction, ...] = ()  # most samples first
    left_out: int = 0  # samples in functions that the list has no room for
    missing: str = ""  # why there are none
