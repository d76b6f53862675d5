"""Memory traffic of kernels, from the CSV files of Nsight Compute: read, counted, summed, compared.

`measured` is the way in. Nothing is started here, and no run is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from abprof.evidence.memory import census, recording, traffic
from abprof.evidence.memory.traffic import Table


def measured(path: Path, *, warmup: int, runs: int, kernels: Sequence[str] = ()) -> Table:
    """The traffic of each kernel of a CSV file, per launch and per call, warm-ups dropped.

    The file holds `warmup + runs` calls of each shape. `kernels`: globs of the kernels under test, each of which must be
    there. Raises AbprofError for a file that cannot be read, and for launches that are no whole number of calls.
    """
    read = recording.read(path)
    return traffic.table(read, census.take(read, warmup=warmup, runs=runs, kernels=kernels), kernels)
