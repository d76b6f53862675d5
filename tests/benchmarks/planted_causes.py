"""On a GPU: are the causes named that were planted, and is none named where nothing changed?

    python -m tests.benchmarks.planted_causes [branch ...] [--lines triton|cuda|gpu|cpu] [--probe torch] [--epochs 4]
                                              [--keep FOLDER]

Makes a repository of small Triton kernels (tests/planted/), with a branch for each cause, and compares all of them with
main in one run: each branch changes one of the kernels, so every row but one of a branch is the same code twice. Prints
what each planted row says, and every row of unchanged code that names a change of it. Exit code 0 when all are named and
none wrongly. Branches that change neither machine code nor launches are looked at by Nsight Compute, which must be there.

With --lines the branches are those of tests/planted/marked.py, whose causes are at known lines: a cause's `at` is compared
with them, where a run records it. `--lines cpu` needs no GPU.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import planted
from tests.gitrepo import make_repo
from tests.planted import marked
from tests.tinyrepo import abprof

NO_CHANGE = {"same_code"}  # causes that speak of no change of code


@dataclass(frozen=True)
class Expected:
    """What is right for a branch: the changed part, the kinds of its first cause and of others, and FILE:LINE."""

    part: str
    first: tuple[str, ...]
    also: tuple[str, ...] = ()
    lines: frozenset[str] = frozenset()


def expected(branch: str) -> Expected:
    if branch in planted.BRANCHES:
        of = planted.BRANCHES[branch]
        return Expected(of.part, (of.kind,), of.also)
    kinds = marked.BRANCHES[branch].kinds
    return Expected(marked.BRANCHES[branch].part, kinds, kinds, frozenset(marked.right(branch)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("branches", nargs="*", metavar="branch")
    parser.add_argument("--lines", choices=marked.SETS, default="", help="branches with known lines")
    parser.add_argument("--probe", default="", help="look at changed rows with these profilers, too")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--keep", type=Path, help="leave the repository and its run here")
    requested = parser.parse_args()
    branches = requested.branches or list(marked.SETS.get(requested.lines, planted.BRANCHES))
    if requested.keep:
        requested.keep.mkdir(parents=True, exist_ok=True)
        return compare(requested.keep, branches, requested)
    with tempfile.TemporaryDirectory() as folder:
        return compare(Path(folder), branches, requested)


def compare(home: Path, branches: list[str], requested: argparse.Namespace) -> int:
    lined, epochs = requested.lines, requested.epochs
    repo = make_repo(home / "repo")
    repo.commit("kernels", (marked.files(of=lined) if lined else planted.files()) | {".gitignore": "runs/\n"})
    for name in branches:
        repo.branch(name)
        repo.commit(name, marked.files(name, of=lined) if lined else planted.changed(name))
        repo.checkout("main")
    began = time.monotonic()
    tools = [*filter(None, [requested.probe]), *(["ncu"] if set(branches) & set(planted.COUNTED) else [])]
    probe = ["--probe", ",".join(tools)] if tools else []
    probe += ["--device", "cpu"] if lined == "cpu" else []
    done = abprof("main", *branches, "--no-peers", "--json", "--epochs", str(epochs), *probe, cwd=repo.path, home=home)
    took = time.monotonic() - began
    print(done.err[-3000:] if done.code not in (0, 1, 4) else "", end="")
    if not done.out:
        return 2
    reported = done.run
    right, wrong, at = show(reported)
    read = sum(not kernel["missing"] for kernel in reported["kernels"])
    rows = sum(row["from"] == "base" for row in reported["comparisons"])
    print(f"\n{right} of {len(branches)} planted causes named, {wrong} of {rows} rows name a wrong one, "
          f"{rows - len(branches)} of them of unchanged code")  # fmt: skip
    print(f"{read} of {len(reported['kernels'])} kernels read; {took:.0f} s; {reported['run_dir']}")
    print("; ".join(f"{at[word]} {word}" for word in at) or "no cause has a line")
    return 0 if right == len(branches) and not wrong and not at["wrong lines"] else 1


def show(run: dict[str, Any]) -> tuple[int, int, Counter[str]]:
    """How many planted causes were named, how many rows name one that was not planted, and what lines causes have."""
    at = Counter[str]()
    labels = {side["id"]: side["label"] for side in run["sides"]}
    parts = {cell["id"]: cell["params"]["part"] for cell in run["cells"]}
    right = wrong = 0
    for row in (row for row in run["comparisons"] if row["from"] == "base"):
        branch, part = labels[row["to"]], parts[row["cell"]]
        due = expected(branch)
        here = due.part == part
        kinds = [cause["kind"] for cause in row["causes"] or ()]
        named = {kind for kind in kinds if kind not in NO_CHANGE}
        right += here and bool(kinds) and kinds[0] in due.first
        wrong += bool(named - {*due.first, *due.also} if here else named)
        if here or named or (row["verdict"] not in {"same", "unclear"}):
            pct = "no number" if row["pct"] is None else f"{row['pct']:+.1f} %"
            wanted = " or ".join(due.first) if here else "none"
            print(f"{branch} / {part}: {row['verdict']} {pct}; expected {wanted}, named {kinds or 'none'}")
            for cause in row["causes"] or ():
                line = cause.get("at")  # None: not recorded
                if line is not None and (here or line):
                    at["right lines" if here and line in due.lines else "wrong lines" if line else "no line found"] += 1
                print(f"    {cause['text']}" + (f" ({line or 'no line found'})" if line is not None else ""))
            if here and due.lines:
                print(f"    right: {', '.join(sorted(due.lines))}")
    for seen in run["observations"]:
        census = seen.get("census")
        if census is None or census["missing"]:
            print(
                f"no census: {seen['arm']} {seen['cell']}: {census['missing'] if census else 'not requested'} {seen['reason']}"
            )
    return right, wrong, at


if __name__ == "__main__":
    raise SystemExit(main())
