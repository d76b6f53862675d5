"""One cell's times over many nights, as the search for changes takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Z = 4.5  # standard deviations that a change stands apart by
NORMAL = 1.4826  # standard deviation of a normal law over its median absolute deviation

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Trend:
    """One cell (of one variant), a place per night on which it has a value, in their order; nights without are no places.

    `base` and `head` are ns, nan where not recorded. `ratio` is ln(head / base) as the night's run judged it, nan where
    it did not; nights of identical code are exact zeros in `ratio` and `measured` is False there. `machine` is whatever
    absolute times depend on beside the code: the machine, and the matrix with its workloads' contents.
    """

    name: str
    numbers: tuple[int, ...]
    base: Floats
    head: Floats
    ratio: Floats
    measured: tuple[bool, ...]
    machine: tuple[str, ...]
