"""From the index's rows to trends: one per series, cell and variant, of the judged metric."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import groupby

import numpy as np

from abprof.extras.history.index import Row
from abprof.extras.history.night import Value
from abprof.extras.history.trend import Trend


def trends(values: Iterable[tuple[Row, Value]]) -> Iterator[Trend]:
    """The trends of values that come cell by cell and each cell's in the order of its nights, of one series.

    A night on which a cell has neither a time nor identical code is no place of its trend: a gap stays one.
    """
    for (cell, variant, _), rows in groupby(values, key=lambda pair: (pair[1].cell, pair[1].variant, pair[1].metric)):
        told = [(night, value) for night, value in rows if value.head is not None or value.pct is not None]
        if told:
            yield _trend(f"{cell} [{variant}]" if variant else cell, told)


def _trend(name: str, told: list[tuple[Row, Value]]) -> Trend:
    return Trend(
        name=name,
        numbers=tuple(night.number for night, _ in told),
        base=_numbers(value.base for _, value in told),
        head=_numbers(value.head for _, value in told),
        ratio=_numbers(None if value.pct is None else math.log1p(max(value.pct, -99.9) / 100) for _, value in told),
        measured=tuple(value.head is not None for _, value in told),
        machine=tuple(f"{night.machine} {night.asked}" for night, _ in told),
    )


def _numbers(found: Iterable[float | None]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([math.nan if value is None else value for value in found], dtype=np.float64)
