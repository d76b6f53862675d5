"""`abprof BASE . --watch`: measure the chosen cells again at every save, one epoch of a fresh target.

In: Options with a base ref and `.`. Out: an `Answer` for each save, and its `lines`. Base's workers are kept from save to
save (warm.py); no run folder is kept.
"""

from abprof.extras.watch.loop import Answer, lines, watch

__all__ = ["Answer", "lines", "watch"]
