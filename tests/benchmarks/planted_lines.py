"""Is the line named at which a change was planted, and none where no code changed?

    python -m tests.benchmarks.planted_lines cpp | cuda | triton [branch ...] [--keep FOLDER] [--probe ncu|perf]

Makes a repository with a branch for each change (tests/planted/lined.py, native.py), and compares all with main. Prints
what each row says. Exit code 0 when no line is wrong.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.gitrepo import make_repo
from tests.planted import lined, native
from tests.tinyrepo import abprof

BRANCHES: dict[str, dict[str, Any]]
BRANCHES = {"cpp": native.CPP_BRANCHES, "cuda": native.CUDA_BRANCHES, "triton": lined.BRANCHES}  # type: ignore[dict-item]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["cpp", "cuda", "triton"])
    parser.add_argument("branches", nargs="*", metavar="branch")
    parser.add_argument("--keep", type=Path, help="leave the repository and its run here")
    parser.add_argument("--probe", default="")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return compare(asked.keep or Path(folder), asked.kind, asked.branches, asked.probe)


def compare(home: Path, kind: str, branches: list[str], probe: str) -> int:
    every = BRANCHES[kind]
    made = lined.files if kind == "triton" else lambda branch="": native.files(kind, branch)
    home.mkdir(parents=True, exist_ok=True)
    repo = make_repo(home / "repo")
    repo.commit("kernels", made() | {".gitignore": "runs/\n"})
    for name in branches or every:
        repo.branch(name)
        repo.commit(name, made(name))
        repo.checkout("main")
    began = time.monotonic()
    more = [*(["--device", "cpu"] if kind == "cpp" else []), *(["--probe", probe] if probe else [])]
    done = abprof(
        "main", *(branches or every), "--no-peers", "--json", "--epochs", "4", *more, cwd=repo.path, home=home
    )
    print(done.err[-3000:] if done.code not in (0, 1, 4) else "", end="")
    right, named, wrong = show(done.run, kind)
    print(f"{right} of {named} planted changes at the right line, {wrong} wrong lines; {time.monotonic() - began:.0f} s; "
          f"{done.run['run_dir']}")  # fmt: skip
    return 1 if wrong else 0


def show(run: dict[str, Any], kind: str) -> tuple[int, int, int]:
    """Print what each row says. Return how many changes are at the right line, of how many, and how many lines are wrong."""
    labels = {side["id"]: side["label"] for side in run["sides"]}
    parts = {cell["id"]: cell["params"]["part"] for cell in run["cells"]}
    right = planted = wrong = 0
    for row in (row for row in run["comparisons"] if row["from"] == "base"):
        branch, part = labels[row["to"]], parts[row["cell"]]
        lines = lined.lines_of(branch) if kind == "triton" else native.lines_of(kind, branch)
        mine = part == BRANCHES[kind][branch].part
        named = [cause["at"] for cause in row["causes"] or () if cause["at"]]
        planted += mine
        right += mine and named[:1] != [] and named[0] in lines
        wrong += sum(line not in lines or not mine for line in named[:1])
        if mine or named or row["verdict"] not in {"same", "unclear"}:
            pct = "no number" if row["pct"] is None else f"{row['pct']:+.1f} %"
            print(f"{branch} / {part}: {row['verdict']} {pct}; planted {sorted(lines) if mine else 'nothing'}")
            for cause in row["causes"] or ():
                print(f"    {cause['at']}: {cause['text']} ({cause['note']})")
    return right, planted, wrong


if __name__ == "__main__":
    raise SystemExit(main())
