"""Is the line named at which a change was planted, and none where no code of a row changed?

    python -m tests.benchmarks.planted_lines cpp [--probe perf]
    python -m tests.benchmarks.planted_lines gpu [--ncu PART ...]

Makes a repository of small kernels (tests/planted/lined.py, native.py) and compares three branches with main: two with a
planted change in a kernel of every row (where there is a second one), and one that changes only code that no row runs.
`--ncu` then profiles the cells of these parts, for samples by line. Exit code 0 when no line is wrong.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.gitrepo import make_repo
from tests.planted import lined, native
from tests.tinyrepo import abprof

# Branch -> its changes, at most one in each kernel.
PLANTED = {
    "cpp": {"one": ("carried", "swept"), "two": ("rooted",), "unchanged": ("nothing",)},
    "gpu": {
        "one": ("double", "exact", "narrow", "barrier", "layout", "in_double", "synchronised"),
        "two": ("again", "exchanged", "summed", "sorted", "converted", "conflicting"),
        "unchanged": ("nothing",),
    },
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=list(PLANTED))
    parser.add_argument("--branches", nargs="*", metavar="branch")
    parser.add_argument("--keep", type=Path, help="leave the repository and its run here")
    parser.add_argument("--probe", default="")
    parser.add_argument("--ncu", nargs="*", default=[], metavar="PART")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = asked.keep or Path(folder)
        home.mkdir(parents=True, exist_ok=True)
        return compare(home, asked)


def files(kind: str, *changes: str) -> dict[str, str]:
    return native.files("cpp", *changes) if kind == "cpp" else lined.files(*changes) | native.files("cuda", *changes)


def compare(home: Path, asked: argparse.Namespace) -> int:
    branches = asked.branches or list(PLANTED[asked.kind])
    repo = make_repo(home / "repo")
    repo.commit("kernels", files(asked.kind) | {".gitignore": "runs/\n"})
    for name in branches:
        repo.branch(name)
        repo.commit(name, files(asked.kind, *PLANTED[asked.kind][name]))
        repo.checkout("main")
    began = time.monotonic()
    more = [*(["--device", "cpu"] if asked.kind == "cpp" else []), *(["--probe", asked.probe] if asked.probe else [])]
    done = abprof("main", *branches, "--no-peers", "--json", "--epochs", "4", *more, cwd=repo.path, home=home)
    print(done.err[-3000:] if done.code not in (0, 1, 4) else "", end="")
    wrong = show(done.run, asked.kind)
    print(f"{time.monotonic() - began:.0f} s; {done.run['run_dir']}", flush=True)
    if asked.ncu:
        began = time.monotonic()
        only = [
            text for cell in done.run["cells"] if cell["params"]["part"] in asked.ncu for text in ("--only", cell["id"])
        ]
        profiled = abprof("profile", done.run["run_dir"], *only, "--json", cwd=repo.path, home=home)
        print(profiled.err[-1500:])
        wrong += show(json.loads(Path(done.run["run_dir"], "run.json").read_text()), asked.kind)
        print(f"{time.monotonic() - began:.0f} s under ncu")
    return 1 if wrong else 0


def show(run: dict[str, Any], kind: str) -> int:
    """Print what each row says. Return how many rows name a wrong line."""
    labels = {side["id"]: side["label"] for side in run["sides"]}
    cells = {cell["id"]: (cell["workload"], cell["params"]["part"]) for cell in run["cells"]}
    changed = right = planted = wrong = unchanged = 0
    for row in (row for row in run["comparisons"] if row["from"] == "base"):
        changes, (package, part) = PLANTED[kind][labels[row["to"]]], cells[row["cell"]]
        known: dict[str, Any] = dict(lined.BRANCHES) if package == "lined" else dict(native.BRANCHES[package])
        mine = next((one for one in changes if one in known and known[one].part == part), None)
        lines = set[str]()
        if mine:
            lines = lined.lines_of(mine, *changes) if package == "lined" else native.lines_of(package, mine, *changes)
        named = next((cause["at"] for cause in row["causes"] or () if cause["at"]), None)
        planted, unchanged = planted + bool(mine), unchanged + (not mine)
        changed += bool(mine) and row["verdict"] in {"slower", "faster", "slight"}
        right += bool(mine) and named in lines
        wrong += named is not None and named not in lines
        if mine or named or row["verdict"] not in {"same", "unclear"}:
            pct = "no number" if row["pct"] is None else f"{row['pct']:+.1f} %"
            print(f"{mine or 'nothing'} in {package} {part}: {row['verdict']} {pct}; planted at {sorted(lines)}")
            for cause in row["causes"] or ():
                print(f"    {cause['at']}: {cause['text']} ({cause['note']})")
    print(
        f"{right} of {changed} changed rows at the right line ({planted} planted), {wrong} wrong lines, {unchanged} unchanged rows"
    )
    return wrong


if __name__ == "__main__":
    raise SystemExit(main())
