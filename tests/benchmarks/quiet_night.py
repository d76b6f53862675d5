"""How long `abprof nightly` takes when there is nothing new, from the shell: ten times in a repository made for it.
`python -m tests.benchmarks.quiet_night`"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.simulated.lab import Lab
from tests.test_nightly import QUICK


def main() -> None:
    """Print the median and the longest."""
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder), QUICK)
        assert lab.finish(lab.start("nightly")).code == 0
        seconds = []
        for _ in range(10):
            began = time.perf_counter()
            words = [sys.executable, "-m", "abprof", *lab._placed(["nightly", "--quiet"])]
            done = subprocess.run(
                words, env=lab.environment(), cwd=lab.folder, capture_output=True, text=True, check=True
            )
            seconds.append(time.perf_counter() - began)
            assert '"did":"nothing"' in done.stdout
        print(f"nothing new: median {statistics.median(seconds):.2f} s, longest {max(seconds):.2f} s")


if __name__ == "__main__":
    main()
