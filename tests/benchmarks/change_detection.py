"""Change detection beside apache-otava's and asv's, on the same made-up nights: false confirmed alerts a night for 500
cells, and nights until a step and a drift are confirmed. The table is in docs/NIGHTLY.md.
`python -m tests.benchmarks.change_detection [CELLS] [NIGHTS]`

Whoever of the others can be imported takes part: `pip install apache-otava` (numpy 2.2; a venv of its own), `pip install asv`.
Each sees the head's absolute times night by night, at most the last 60, as it would in a nightly job; an alert is a change
point at least three nights old that it has not reported within five nights of that place before.
"""

import math
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from abprof.extras.nightly.changes import Trend, find_changes
from tests.simulations.nights import Law, fleet

Points = Callable[[Sequence[float]], Sequence[int]]  # a series -> indexes of the first night at each new level
WINDOW, BURN = 60, 40


def otava(max_pvalue: float, magnitude: float) -> Points:
    """E-divisive with these limits. A plain list: an array is not cut into windows."""
    from otava.analysis import compute_change_points

    def points(values: Sequence[float]) -> list[int]:
        found, _ = compute_change_points(list(values), window_len=50, max_pvalue=max_pvalue, min_magnitude=magnitude)
        return [point.index for point in found]

    return points


def asv(values: Sequence[float]) -> list[int]:
    """asv's steps, those that are 3 % apart."""
    from asv.step_detect import detect_steps

    steps = detect_steps(list(values))
    return [after[0] for before, after in pairwise(steps) if abs(after[2] / before[2] - 1) >= 0.03]


def ours(trend: Trend) -> list[tuple[int, int]]:
    """(first night, night it was reported) of each confirmed change."""
    return [(change.night, change.found) for change in find_changes([trend])[0]]


def nightly(points: Points) -> Callable[[Trend], list[tuple[int, int]]]:
    """The same for a method that reads a whole series: it runs again every night."""

    def reported(trend: Trend) -> list[tuple[int, int]]:
        known: list[tuple[int, int]] = []
        for night in range(10, len(trend.head) + 1):
            first = max(0, night - WINDOW)
            for index in points(trend.head[first:night].tolist()):
                place = first + index + 1
                if night - place >= 2 and all(abs(place - other) > 5 for other, _ in known):
                    known.append((place, night))
        return known

    return reported


def row(name: str, method: Callable[[Trend], list[tuple[int, int]]], cells: int, nights: int) -> None:
    """Print a line of the table."""
    began, line = time.process_time(), [f"{name:34}"]
    laws: tuple[tuple[Law, float], ...] = (("gauss", 0.01), ("t3", 0.01), ("spikes", 0.005))
    for law, noise in laws:
        alerts = [
            found for trend in fleet(cells, nights, noise, 1, law=law) for _, found in method(trend) if found > BURN
        ]
        line.append(f"{len(alerts) / (nights - BURN) * 500 / cells:7.2f}")
    for what in ({"step": (BURN + 1, 0.05)}, {"drift": (BURN + 1, 0.003)}):
        waits = [
            min((found - BURN for _, found in method(trend) if found > BURN), default=math.inf)
            for trend in fleet(cells, BURN + 25, 0.01, 2, **what)  # type: ignore[arg-type]
        ]
        in_time = np.mean(np.array(waits) <= (3 if "step" in what else 16))
        line.append(f"{np.median(waits):5.0f} nights, {100 * in_time:3.0f} % in time")
    print(" | ".join([*line, f"{time.process_time() - began:5.0f} s"]), flush=True)


def main(cells: int, nights: int) -> None:
    """Print the table of all methods."""
    print(
        f"{'method':34} | gauss 1 % | t3 1 % | spikes .5 % | step of 5 %, in 3 nights | drift of 0.3 % a night, before 5 %"
    )
    row("abprof", ours, max(cells, 200), max(nights, 200))
    for name, make in (
        ("otava, its defaults", lambda: nightly(otava(1e-3, 0.0))),
        ("otava, p 1e-5, 3 %", lambda: nightly(otava(1e-5, 0.03))),
        ("asv detect_steps, 3 %", lambda: nightly(asv)),
    ):
        try:
            made = make()
            made(fleet(1, 12, 0.01, 0)[0])
        except ImportError as error:
            print(f"{name}: not installed here ({error})")
        else:
            row(name, made, cells, nights)


if __name__ == "__main__":
    main(*(int(word) for word in (sys.argv[1:] or ["30", "120"])))
