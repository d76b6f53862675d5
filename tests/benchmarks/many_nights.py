"""How long a thousand nights of 500 cells take: the index made anew, one more night, a query, the page.
`python -m tests.benchmarks.many_nights [FOLDER] [NIGHTS] [CELLS]`

The run.json files are of the size that a run of 500 cells has (phases, metrics and checks of each arm).
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from abprof.extras.nightly import Query, history_page, open_index
from abprof.extras.nightly.index import FILE
from abprof.records import Night, Run
from abprof.store import runfolder
from tests import large
from tests.nights import BEGAN, MACHINE, commit
from tests.runs import changed


def night_of(like: Run, number: int, dice: random.Random) -> bytes:
    """run.json of one night: the cells of `like`, with a scatter of 1 %."""
    observations = tuple(
        msgspec.structs.replace(
            seen,
            metrics={
                name: msgspec.structs.replace(metric, value=metric.value * dice.gauss(1, 0.01))
                for name, metric in seen.metrics.items()
            },
        )
        for seen in like.observations
    )
    base, target = like.sides
    sides = (
        msgspec.structs.replace(base, commit=commit(number - 1)),
        msgspec.structs.replace(target, commit=commit(number)),
    )
    run = changed(
        like,
        id=f"night-{number:04}",
        sides=sides,
        began=f"{BEGAN.year + number // 365}-{1 + number % 365 // 31:02}-{1 + number % 365 % 31 % 28:02}T02:17:00+00:00",
        night=Night(series="main", number=number, kind="step", asked="matrix", machine=dict(MACHINE)),
        observations=observations,
    )
    return msgspec.json.format(msgspec.json.encode(run), indent=1)


def main(folder: Path, nights: int, cells: int) -> None:
    """Make the nights, unless they are there, and print a line for each thing measured."""
    if not (folder / f"night-{nights:04}").is_dir():
        dice, like = random.Random(1), large.run(cells)
        for number in range(1, nights + 1):
            made = folder / f"night-{number:04}"
            made.mkdir(parents=True, exist_ok=True)
            (made / runfolder.RUN).write_bytes(night_of(like, number, dice))
    size = sum(file.stat().st_size for file in folder.glob(f"*/{runfolder.RUN}"))
    print(f"{nights} nights of {cells} cells: run.json {size / nights / 1e6:.1f} MB each, {size / 1e9:.2f} GB together")
    (folder / FILE).unlink(missing_ok=True)
    timed("index made anew", lambda: _open(folder))
    print(f"the index is {(folder / FILE).stat().st_size / 1e6:.0f} MB")
    timed("index, nothing new", lambda: _open(folder))
    with open_index(folder) as index:
        cell = index.cells()[0]
        timed("one cell's values", lambda: list(index.values(Query(cells=(cell,)))))
        timed("history.html", lambda: (folder / "history.html").write_text(history_page(index, "main")))
    print(f"history.html is {(folder / 'history.html').stat().st_size / 1e6:.2f} MB")
    command = [sys.executable, "-m", "abprof", "history", "query", "--cell", cell, "--runs-dir", str(folder)]
    timed("abprof history query --cell", lambda: subprocess.run(command, check=True, capture_output=True))


def timed(what: str, do: Callable[[], object]) -> None:
    """Do it, and print how long it took."""
    began, busy = time.perf_counter(), time.process_time()
    do()
    print(f"{what}: {time.perf_counter() - began:.2f} s, {time.process_time() - busy:.2f} s of this process's own")


def _open(folder: Path) -> None:
    with open_index(folder) as index:
        assert not index.notes, index.notes


if __name__ == "__main__":
    given = sys.argv[1:]
    nights, cells = (int(given[1]) if len(given) > 1 else 1000), (int(given[2]) if len(given) > 2 else 500)
    if given:
        main(Path(given[0]), nights, cells)
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made), nights, cells)
