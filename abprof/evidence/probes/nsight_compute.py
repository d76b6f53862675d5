"""`--probe ncu`: each side's calls under Nsight Compute, a process of its own for each arm."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from abprof.devices.protocols import Subject
from abprof.evidence.ncu import capture, tool
from abprof.measure.epochs import Ground
from abprof.records import Profile


def profiles(ground: Ground, subjects: Sequence[Subject], folder: Path, epoch: int) -> Iterator[Profile]:
    """The metrics of each arm of these cells; of the first alone where no recording can succeed, why."""
    del epoch
    order, rows = capture.PROFILE, [(subject.cell, subject.arms) for subject in subjects]
    try:
        yield from capture.captured(ground, rows, order, folder, tool.find(os.environ), lambda _: None)
    except tool.Refused as refused:
        cell, arms = rows[0]
        yield Profile(cell=cell.id, arm=arms[0].id, purpose=order.purpose, warmup=order.warmup, runs=order.runs,
                      status="error", reason=refused.line)  # fmt: skip
