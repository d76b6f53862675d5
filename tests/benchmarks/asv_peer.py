"""What airspeed velocity says of selfcheck's CPU kernels: two commits, `asv continuous`.

    python -m venv /tmp/peers && /tmp/peers/bin/pip install asv virtualenv       (torch and abprof are not needed)
    /tmp/peers/bin/python -m tests.benchmarks.asv_peer [--copies 4] [--factor 1.1 1.05]

A repository is made for it: an installable project, whose branch `injected` does more work in some cells. asv installs each
commit into a virtual environment of its own (from pip's index; the C is compiled then) and times every copy of a cell in two
rounds, base, injected, injected, base, in a process each. It calls a cell changed when the medians differ by more than the
factor (1.1 unless it is told another) and its statistics say that they differ at all. The first factor is given to
`asv continuous`; by the others `asv compare` judges the same readings again. Prints a Markdown table, and asv's own to standard
error.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.meter import COMPILE, SOURCE, Cell, cells, row

SETUP = f"""
import subprocess
from setuptools import setup
from setuptools.command.build_py import build_py

class Build(build_py):
    def run(self):
        super().run()
        place = self.build_lib + "/meter/meter"
        subprocess.run([*{COMPILE}, place + ".so", place + ".c"], check=True)

setup(name="meter", version="0", packages=["meter"], package_data={{"meter": ["meter.c"]}}, cmdclass={{"build_py": Build}})
"""
PACKAGE = """
import ctypes
import pathlib

library = ctypes.CDLL(str(pathlib.Path(__file__).with_name("meter.so")))
library.chain.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_long]
library.copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]
"""
# No setup(): with one, asv runs it before each call and times single calls, not samples of 10 ms. Memory is taken in warm-up.
BENCHMARK = """
import ctypes
import functools

import meter

@functools.lru_cache(maxsize=None)
def kernel(cell):
    op, base, injected = cell.split("-")[:3]
    steps = int(injected if meter.INJECTED else base)
    room = ctypes.c_float * (1 if op == "chain" else steps)
    source, out = room(), room()
    if op == "chain":
        return functools.partial(meter.library.chain, out, 1, steps)
    return functools.partial(meter.library.copy, source, out, steps)

def time_kernel(cell):
    kernel(cell)()

time_kernel.params = CELLS
"""
CONFIG = {
    "version": 1,
    "project": "meter",
    "repo": ".",
    "branches": ["main"],
    "environment_type": "virtualenv",
    "benchmark_dir": "benchmarks",
}


def name(cell: Cell) -> str:
    """The parameter of the cell's benchmark: no two are alike."""
    return f"{cell.op}-{cell.steps}-{cell.injected}-{cell.percent:g}-{cell.copy}"


def repository(folder: Path, matrix: list[Cell]) -> None:
    """Branch `main`, and `injected`, which differs in one line of Python."""
    files = {
        "pyproject.toml": '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n',
        "setup.py": SETUP,
        "meter/meter.c": SOURCE,
        "meter/__init__.py": PACKAGE + "INJECTED = False\n",
        "benchmarks/__init__.py": "",
        "benchmarks/cells.py": BENCHMARK.replace("CELLS", repr([name(cell) for cell in matrix])),
        "asv.conf.json": json.dumps(CONFIG),
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    git = ["git", "-C", str(folder), "-c", "user.name=meter", "-c", "user.email=meter@localhost"]
    for command in (
        ["init", "-q", "-b", "main"],
        ["add", "."],
        ["commit", "-qm", "Base"],
        ["checkout", "-qb", "injected"],
    ):
        subprocess.run([*git, *command], check=True)
    (folder / "meter/__init__.py").write_text(PACKAGE + "INJECTED = True\n")
    subprocess.run([*git, "commit", "-qam", "More work"], check=True)
    subprocess.run([*git, "checkout", "-q", "main"], check=True)


def asv(folder: Path, *args: str) -> str:
    """What asv prints. Raises RuntimeError when it fails; that something became slower (1) is no failure."""
    env = {**os.environ, "HOME": str(folder)}  # it keeps what it knows of the machine there
    command = [sys.executable, "-m", "asv", *args]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"asv {' '.join(args)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def verdicts(printed: str, matrix: list[Cell]) -> list[str]:
    """`slower`, `faster` or `no change` of each cell, from asv's table. Raises RuntimeError when one is not in it."""
    marks = {}
    for line in printed.splitlines():
        columns = [column.strip() for column in line.strip("|").split("|")]
        if len(columns) == 5 and "time_kernel" in columns[4]:
            marks[columns[4].partition("(")[2].strip("')")] = columns[0]
    words = {"+": "slower", "-": "faster", "": "no change"}
    try:
        return [words[marks[name(cell)]] for cell in matrix]
    except KeyError as missing:
        raise RuntimeError(f"asv has no reading of {missing}\n{printed}") from None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--factor", type=float, nargs="+", default=[1.1, 1.05])
    options = parser.parse_args()
    began = time.monotonic()
    matrix = cells(options.copies)
    print("| factor | injected | cells | called slower | called faster |\n|---:|---|---:|---:|---:|", flush=True)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        repository(folder, matrix)
        asv(folder, "machine", "--yes")
        for i, factor in enumerate(options.factor):
            verb = ["compare"] if i else ["continuous", "--no-only-changed"]
            printed = asv(folder, *verb, "--factor", str(factor), "main", "injected")
            sys.stderr.writelines(f"{line}\n" for line in printed.splitlines() if line.startswith("|"))
            said = verdicts(printed, matrix)
            for percent in dict.fromkeys(cell.percent for cell in matrix):
                some = [word for word, cell in zip(said, matrix, strict=True) if cell.percent == percent]
                print(row(percent, some, f"{factor:g}"), flush=True)
    print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
