"""Does `abprof bisect` find the commit, of 64, that makes a kernel a little slower, and how long does it take?

    python -m tests.benchmarks.planted_bisect --device cuda --budget 40s
    python -m tests.benchmarks.planted_bisect --device cuda --budget 40s --slip 52 --every 13
    python -m tests.benchmarks.planted_bisect --device cpu --budget 1m

On a GPU the slip is 3.1 % of a Triton kernel's work (tests/planted/slipping.py); on a CPU it is large, and tells only that
this program works. The slip is commit 40 of 64 and eight touch the kernel package, or what --slip and --every say. Words that
this program does not know go to abprof. Exit code 0 where that commit alone is named.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.planted.slipping import COMMITS, repository


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--runs-dir", type=Path, default=None)
    parser.add_argument("--slip", type=int, default=40)
    parser.add_argument("--every", type=int, default=8)
    given, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        made = repository(Path(folder) / "repo", given.device, given.slip, given.every)
        runs = given.runs_dir or Path(folder) / "runs"
        place = ["--repo", str(made.repo.path), "--device", given.device, "--runs-dir", str(runs.resolve())]
        began = time.monotonic()
        command = [sys.executable, "-m", "abprof", "bisect", made.commits[0], made.commits[-1], *place, "--json", *more]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        seconds = time.monotonic() - began
    if not done.stdout:
        print(f"no answer after {seconds:.0f} s, exit code {done.returncode}")
        return 1
    reported = json.loads(done.stdout)
    for number, step in enumerate(reported["steps"], 1):
        at = made.commits.index(step["commit"]), made.commits.index(step["base"])
        message = ", ".join(f"{row['answer']['result']} {_change(row['answer'])}" for row in step["rows"])
        print(f"step {number}: {step['question']}, commit {at[0]} against {at[1]}: {message}; {step['seconds']:.1f} s")
    right = reported["culprits"] == [made.commits[given.slip]]
    named = ", ".join(f"commit {made.commits.index(culprit)}" for culprit in reported["culprits"]) or "no commit"
    planted = f"commit {given.slip} of {COMMITS}"
    print(
        f"{'right' if right else 'WRONG'}: {named} named, {planted} planted; {len(reported['steps'])} steps, {seconds:.0f} s"
    )
    return 0 if right else 1


def _change(answer: dict[str, float | None]) -> str:
    theta, low, high = (answer.get(name) for name in ("theta", "low", "high"))
    if theta is None or low is None or high is None:
        return ""
    theta, low, high = (100 * (math.exp(each) - 1) for each in (theta, low, high))
    return f"({theta:+.2f} % of time, {low:+.2f} to {high:+.2f}, {answer['epochs']} epochs)"


if __name__ == "__main__":
    raise SystemExit(main())
