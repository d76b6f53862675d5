"""The stopping rule played on simulated epoch values, as a live run plays it: look, decide or go on."""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from abprof.verdict import decide, stats

Values = NDArray[np.float64]
Source = Callable[[np.random.Generator, int], Values]  # (generator, epochs) -> epoch values, log ratios

MOST = stats.LOOKS[-1]


def normal(pct: float, sd_pct: float) -> Source:
    """Epoch values around a true change of `pct` per cent, with sd `sd_pct` per cent between epochs."""
    return lambda rng, n: np.log1p(pct / 100) + rng.normal(0.0, sd_pct / 100, n)


def to_verdict(values: Sequence[float], threshold: float, margin: float) -> tuple[str, int]:
    """Verdict and epochs spent: the first look that decides ends it, but `same` needs more; the last leaves `unclear`."""
    for look in stats.LOOKS:
        verdict = decide(values[:look], threshold, margin)
        if verdict is not None and (verdict != "same" or look >= stats.epochs_for_same(margin)):
            return verdict, look
    return "unclear", MOST


def verdicts(source: Source, runs: int, *, seed: int, threshold: float = 1.5, margin: float = 0.5) -> Counter[str]:
    """How many of `runs` simulated cells got which verdict; under "epochs" their sum of epochs."""
    rng = np.random.default_rng(seed)
    found: Counter[str] = Counter()
    for _ in range(runs):
        verdict, spent = to_verdict(list(source(rng, MOST)), threshold, margin)
        found[verdict] += 1
        found["epochs"] += spent
    return found
