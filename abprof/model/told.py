"""What is told of a run while it is measured, and must not be lost with it."""

from __future__ import annotations

from abprof.model.base import Record
from abprof.model.built import Kernel, Proof
from abprof.model.run import Touched


class Told(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A line of evidence.jsonl, written as it is told: one of these. run.json holds all of them when the run ends."""

    proof: Proof | None = None
    kernel: Kernel | None = None
    touched: Touched | None = None
