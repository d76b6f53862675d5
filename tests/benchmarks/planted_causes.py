"""On a GPU: are the causes named that were planted, and is none named where nothing changed?

    python -m tests.benchmarks.planted_causes [branch ...] [--epochs 4] [--keep FOLDER]

Makes a repository of small Triton kernels (tests/planted/), with a branch for each cause, and compares all of them with
main in one run: each branch changes one of the kernels, so every row but one of a branch is the same code twice. Prints
what each planted row says, and every row of unchanged code that names a change of it. Exit code 0 when all are named and
none wrongly. Branches that change neither machine code nor launches are looked at by Nsight Compute, which must be there.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from tests import planted
from tests.gitrepo import make_repo
from tests.tinyrepo import abprof

NO_CHANGE = {"same_code"}  # causes that speak of no change of code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("branches", nargs="*", default=list(planted.BRANCHES), metavar="branch")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--keep", type=Path, help="leave the repository and its run here")
    requested = parser.parse_args()
    if requested.keep:
        requested.keep.mkdir(parents=True, exist_ok=True)
        return compare(requested.keep, requested.branches, requested.epochs)
    with tempfile.TemporaryDirectory() as folder:
        return compare(Path(folder), requested.branches, requested.epochs)


def compare(home: Path, branches: list[str], epochs: int) -> int:
    repo = make_repo(home / "repo")
    repo.commit("kernels", planted.files() | {".gitignore": "runs/\n"})
    for name in branches:
        repo.branch(name)
        repo.commit(name, planted.changed(name))
        repo.checkout("main")
    began = time.monotonic()
    probe = ["--probe", "ncu"] if set(branches) & set(planted.COUNTED) else []
    done = abprof("main", *branches, "--no-peers", "--json", "--epochs", str(epochs), *probe, cwd=repo.path, home=home)
    took = time.monotonic() - began
    print(done.err[-3000:] if done.code not in (0, 1, 4) else "", end="")
    if not done.out:
        return 2
    reported = done.run
    right, wrong = show(reported)
    read = sum(not kernel["missing"] for kernel in reported["kernels"])
    rows = sum(row["from"] == "base" for row in reported["comparisons"])
    print(f"\n{right} of {len(branches)} planted causes named, {wrong} of {rows} rows name a wrong one, "
          f"{rows - len(branches)} of them of unchanged code")  # fmt: skip
    print(f"{read} of {len(reported['kernels'])} kernels read; {took:.0f} s; {reported['run_dir']}")
    return 0 if right == len(branches) and not wrong else 1


def show(run: dict[str, Any]) -> tuple[int, int]:
    """How many planted causes were named, and how many rows name one that was not planted."""
    labels = {side["id"]: side["label"] for side in run["sides"]}
    parts = {cell["id"]: cell["params"]["part"] for cell in run["cells"]}
    right = wrong = 0
    for row in (row for row in run["comparisons"] if row["from"] == "base"):
        branch, part = labels[row["to"]], parts[row["cell"]]
        expected = planted.BRANCHES[branch].kind if planted.BRANCHES[branch].part == part else ""
        kinds = [cause["kind"] for cause in row["causes"] or ()]
        named = {kind for kind in kinds if kind not in NO_CHANGE}
        right += bool(expected) and kinds[:1] == [expected]
        wrong += bool(named - {expected, *planted.BRANCHES[branch].also} if expected else named)
        if expected or named or (row["verdict"] not in {"same", "unclear"}):
            pct = "no number" if row["pct"] is None else f"{row['pct']:+.1f} %"
            print(f"{branch} / {part}: {row['verdict']} {pct}; expected {expected or 'none'}, named {kinds or 'none'}")
            for cause in row["causes"] or ():
                print(f"    {cause['text']}")
    for seen in run["observations"]:
        census = seen.get("census")
        if census is None or census["missing"]:
            print(
                f"no census: {seen['arm']} {seen['cell']}: {census['missing'] if census else 'not requested'} {seen['reason']}"
            )
    return right, wrong


if __name__ == "__main__":
    raise SystemExit(main())
