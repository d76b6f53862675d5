"""From a save to its answer: how many seconds `abprof main . --watch` takes, for three edits of one kernel in one cell.

    python -m tests.benchmarks.watch_seconds --device cuda

The repository is that of tests/planted/slipping.py: a Triton kernel on a GPU, one in C on a CPU. Exit code 0 where all three were
answered within --goal seconds (20). Words that this program does not know go to abprof.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.gitrepo import GitRepo, make_repo
from tests.planted.slipping import files

EDITS = (80, 72, 96)  # steps of the kernel's loop, which has 64 on main


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--goal", type=float, default=20.0)
    given, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        repo = make_repo(Path(folder) / "repo")
        repo.commit("Square roots", files(given.device))
        save(repo, given.device, 65)
        command = [sys.executable, "-m", "abprof", "main", ".", "--watch", "--repo", str(repo.path)]
        command += ["--device", given.device, "--runs-dir", str(Path(folder) / "runs"), *more]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
            try:
                took = list(answered(watching, repo, given.device))
            finally:
                watching.send_signal(signal.SIGINT)
    print(
        f"start {took[0]:.1f} s, saves {', '.join(f'{seconds:.1f}' for seconds in took[1:])} s (goal {given.goal:g} s)"
    )
    return 0 if len(took) == 1 + len(EDITS) and max(took[1:]) <= given.goal else 1


def answered(watching: subprocess.Popen[str], repo: GitRepo, device: str) -> Iterator[float]:
    """Seconds until the first answer, and from each save to its answer, by a clock of this program's own."""
    yield until_answer(watching, time.monotonic())
    for steps in EDITS:
        began = time.monotonic()
        save(repo, device, steps)
        yield until_answer(watching, began)


def until_answer(watching: subprocess.Popen[str], began: float) -> float:
    """Show what is printed until an answer is complete; the seconds since `began`. Raises RuntimeError where none comes."""
    assert watching.stdout
    for line in watching.stdout:
        print(line, end="", flush=True)
        if line.startswith("answered "):
            return time.monotonic() - began
    raise RuntimeError(f"abprof ended without an answer, exit code {watching.wait()}")


def save(repo: GitRepo, device: str, steps: int) -> None:
    """Write the kernel's file, whole at once."""
    file, text = next(iter(files(device, steps).items()))
    fresh = repo.path.parent / "saved"
    fresh.write_text(text)
    fresh.replace(repo.path / file)


if __name__ == "__main__":
    raise SystemExit(main())
