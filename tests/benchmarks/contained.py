"""`python -m tests.benchmarks.contained [OPTION...]`: seconds an epoch takes in a sandbox, on this machine.

The first three epochs of a run start a fork server for each side, which costs what a fresh worker costs; later ones fork.
"""

import itertools
import json
import statistics
import sys
import tempfile
from pathlib import Path

from tests.tinyrepo import abprof_afresh, source, tiny_repo


def main(*options: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        repo = tiny_repo(Path(place) / "repository", 100)
        repo.branch("slow")
        repo.commit("slow", {"kernels/tiny/tiny.c": source(130)})
        given = ("--device", "cpu", "--no-peers", "--contain", "always", "--epochs", "12", "--json", *options)
        done = abprof_afresh("main", "slow", *given, cwd=repo.path, home=Path(place))
        lines = (Path(done.run["run_dir"]) / "rounds.jsonl").read_text().splitlines()
        began = [block["began"] for block in map(json.loads, lines) if block["rounds"]]
    seconds = [later - earlier for earlier, later in itertools.pairwise(began)]
    print("from each epoch's first turns to the next one's:", *(f"{each:.1f}" for each in seconds), "s")
    first, later = statistics.median(seconds[:2]), statistics.median(seconds[2:])
    print(f"epochs 2 and 3: {first:.2f} s; later ones: {later:.2f} s, {first / later:.1f} times fewer")


if __name__ == "__main__":
    main(*sys.argv[1:])
