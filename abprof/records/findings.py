"""Findings that are written while a run is measured, so that a killed run keeps them."""

from __future__ import annotations

from abprof.records.base import Record
from abprof.records.builds import Kernel, Proof
from abprof.records.cells import Arm
from abprof.records.run import Machine, Touched


class Placed(Record, frozen=True, kw_only=True):
    """A device that part of the run is measured on."""

    device: str  # the lease's name, as blocks have it
    machine: Machine  # all that is known of it by now


class Finding(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A line of evidence.jsonl, written at once: exactly one of these. run.json holds all of them when the run ends."""

    proof: Proof | None = None
    kernel: Kernel | None = None
    touched: Touched | None = None
    placed: Placed | None = None
    arm: Arm | None = None  # one that the plan did not have
