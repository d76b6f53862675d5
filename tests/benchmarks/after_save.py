"""`python -m tests.benchmarks.after_save [OPTION...]`: seconds from a save to the answer of `abprof main . --watch`.

One cell, of a Triton kernel of about 0.5 ms on an H100. Each save changes a source file, so the package is built anew.
"""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tests.benchmarks.stranger import make

ROW = ("chain", 100_000, 0.0, 0)
SAVED = "kernels/meter/cuda.py"
SAVES = 4


def answers(out: IO[str]) -> Iterator[str]:
    """Yield each answer's lines, in one."""
    lines = []
    for line in out:
        lines.append(line.strip())
        if line.startswith("answered "):
            yield "; ".join(lines)
            lines.clear()


def main(*options: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "repository"
        make(path, [ROW])
        command = (sys.executable, "-m", "abprof", "main", ".", "--watch", *options)
        with subprocess.Popen(command, cwd=path, stdout=subprocess.PIPE, text=True) as watching:
            assert watching.stdout
            for number, answer in enumerate(answers(watching.stdout)):
                print(answer, flush=True)
                if number == SAVES:
                    break
                with (path / SAVED).open("a") as file:
                    file.write(f"# save {number}\n")
            watching.send_signal(signal.SIGINT)


if __name__ == "__main__":
    main(*sys.argv[1:])
