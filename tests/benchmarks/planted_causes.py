"""Are the causes named that were planted, at the right line, and is none named where nothing changed?

    python -m tests.benchmarks.planted_causes [branch ...] [--lines triton|cuda|gpu|cpu] [--together] [--probe torch]
                                              [--only PART] [--ncu PART ...] [--epochs 4] [--keep FOLDER]

Makes a repository of small kernels with a branch for each cause, and compares all of them with main in one run: a branch
changes one kernel, so every row but one of a branch is the same code twice. Prints what each planted row says, and every
row of unchanged code that names a change of it. Exit code 0 when all are named and none wrongly. Branches that change
neither machine code nor launches are looked at by Nsight Compute, which must be there.

The branches are those of tests/planted/, on a GPU; with --lines those of tests/planted/marked.py, whose lines are known.
`--lines cpu` needs no GPU. With --together a branch changes every kernel at once (`marked.together`). `--ncu` then profiles
the changed rows of these parts, for samples by line.
"""

import argparse
import json
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
Branches = dict[str, tuple[str, ...]]  # branch -> its changes


@dataclass(frozen=True)
class Expected:
    """What is right for a row: the change, the kinds of its first cause and of others, and FILE:LINE."""

    change: str = ""
    first: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    lines: frozenset[str] = frozenset()


def expected(changes: tuple[str, ...], part: str) -> Expected:
    for change in changes:
        if (old := planted.BRANCHES.get(change)) and old.part == part:
            return Expected(change, (old.kind,), old.also)
        if (of := marked.BRANCHES.get(change)) and of.part == part:
            return Expected(change, of.kinds, of.kinds, frozenset(marked.right(change, changes)))
    return Expected()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("branches", nargs="*", metavar="branch")
    parser.add_argument("--lines", choices=marked.SETS, default="", help="branches with known lines")
    parser.add_argument("--together", action="store_true", help="with --lines: many changes on a branch")
    parser.add_argument("--probe", default="", help="look at changed rows with these profilers, too")
    parser.add_argument("--only", default="", metavar="PART", help="measure this part alone")
    parser.add_argument("--ncu", nargs="*", default=[], metavar="PART", help="then profile the rows of these parts")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--keep", type=Path, help="leave the repository and its run here")
    requested = parser.parse_args()
    if requested.together:
        known = marked.together(requested.lines or parser.error("--together needs --lines"))
    else:
        known = {name: (name,) for name in (marked.SETS.get(requested.lines) or planted.BRANCHES)}
    branches = {name: known[name] for name in requested.branches or known}
    if requested.keep:
        requested.keep.mkdir(parents=True, exist_ok=True)
        return compare(requested.keep, branches, requested)
    with tempfile.TemporaryDirectory() as folder:
        return compare(Path(folder), branches, requested)


def compare(home: Path, branches: Branches, requested: argparse.Namespace) -> int:
    lined = requested.lines
    repo = make_repo(home / "repo")
    repo.commit("kernels", (marked.files(of=lined) if lined else planted.files()) | {".gitignore": "runs/\n"})
    for name, changes in branches.items():
        repo.branch(name)
        repo.commit(name, marked.files(changes, lined) if lined else planted.changed(name))
        repo.checkout("main")
    began = time.monotonic()
    tools = [*filter(None, [requested.probe]), *(["ncu"] if set(branches) & set(planted.COUNTED) else [])]
    more = ["--probe", ",".join(tools)] if tools else []
    more += ["--device", "cpu"] if lined == "cpu" else []
    more += ["--only", f"part={requested.only}"] if requested.only else []
    epochs = str(requested.epochs)
    done = abprof("main", *branches, "--no-peers", "--json", "--epochs", epochs, *more, cwd=repo.path, home=home)
    print(done.err[-3000:] if done.code not in (0, 1, 4) else "", end="")
    if not done.out:
        return 2
    reported = done.run
    failed = show(reported, branches)
    print(f"{time.monotonic() - began:.0f} s; {reported['run_dir']}", flush=True)
    if requested.ncu:
        began = time.monotonic()
        each = [cell["id"] for cell in reported["cells"] if cell["params"]["part"] in requested.ncu]
        only = [text for id in each for text in ("--only", id)]
        print(abprof("profile", reported["run_dir"], *only, "--json", cwd=repo.path, home=home).err[-1500:])
        failed += show(json.loads(Path(reported["run_dir"], "run.json").read_text()), branches)
        print(f"{time.monotonic() - began:.0f} s under ncu")
    return 1 if failed else 0


def show(run: dict[str, Any], branches: Branches) -> int:
    """Print what the rows say. Return how many planted causes were not named, and how many causes and lines are wrong."""
    at, rows = Counter[str](), [row for row in run["comparisons"] if row["from"] == "base"]
    labels = {side["id"]: side["label"] for side in run["sides"]}
    parts = {cell["id"]: cell["params"]["part"] for cell in run["cells"]}
    right = wrong = due = changed = 0
    for row in rows:
        branch, part = labels[row["to"]], parts[row["cell"]]
        of, moved = expected(branches[branch], part), row["verdict"] not in {"same", "unclear"}
        kinds = [cause["kind"] for cause in row["causes"] or ()]
        named = {kind for kind in kinds if kind not in NO_CHANGE}
        due, changed = due + bool(of.change), changed + (moved and bool(of.change))
        right += bool(of.change) and kinds[:1] != [] and kinds[0] in of.first
        wrong += bool(named - {*of.first, *of.also})
        if of.change or named or moved:
            pct = "no number" if row["pct"] is None else f"{row['pct']:+.1f} %"
            wanted = " or ".join(of.first) or "none"
            print(f"{of.change or branch} / {part}: {row['verdict']} {pct}; expected {wanted}, named {kinds or 'none'}")
            for cause in row["causes"] or ():
                line = cause.get("at")  # None: not recorded
                if line is not None and (of.change or line):
                    at["right lines" if line in of.lines else "wrong lines" if line else "no line found"] += 1
                print(f"    {cause['text']}" + (f" ({line or 'no line found'})" if line is not None else ""))
            if of.lines:
                print(f"    right: {', '.join(sorted(of.lines))}")
    for seen in run["observations"]:
        census = seen.get("census")
        if census is None or census["missing"]:
            why = census["missing"] if census else "not requested"
            print(f"no census: {seen['arm']} {seen['cell']}: {why} {seen['reason']}")
    print(f"\n{right} of {due} planted causes named ({changed} rows changed), {wrong} of {len(rows)} rows name a wrong one, "
          f"{len(rows) - due} of them of unchanged code")  # fmt: skip
    print("; ".join(f"{at[word]} {word}" for word in at) or "no cause has a line")
    read = sum(not kernel["missing"] for kernel in run["kernels"])
    print(f"{read} of {len(run['kernels'])} kernels read", end="; ")
    return due - right + wrong + at["wrong lines"]


if __name__ == "__main__":
    raise SystemExit(main())
