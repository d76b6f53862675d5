"""What pyperf says of selfcheck's CPU kernels: base first, then target, `pyperf compare_to`.

    python -m venv /tmp/peers && /tmp/peers/bin/pip install pyperf        (nothing else is needed, torch and abprof neither)
    /tmp/peers/bin/python -m tests.benchmarks.pyperf_peer [--copies 4] [--processes 10]

Each cell's base is run to its end by pyperf (fresh processes, three values each, calibrated loops), then its target; then
`pyperf compare_to` judges. Unchanged cells count false alarms, the others how often injected work is called slower.
Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.meter import COMPILE, SOURCE, Cell, cells, row


def library(folder: Path) -> Path:
    """selfcheck's C kernels, compiled as selfcheck compiles them."""
    (folder / "meter.c").write_text(SOURCE)
    made = folder / "meter.so"
    subprocess.run([*COMPILE, str(made), str(folder / "meter.c")], check=True)
    return made


def benchmark(path: str, op: str, steps: int) -> None:
    """One of pyperf's processes."""
    import pyperf  # type: ignore[import-untyped, import-not-found, unused-ignore]

    kernels = ctypes.CDLL(path)
    kernels.chain.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_long]
    kernels.copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]
    room = max(1, steps if op == "copy" else 1)
    source, out = (ctypes.c_float * room)(), (ctypes.c_float * room)()
    runner = pyperf.Runner(program_args=("-m", "tests.benchmarks.pyperf_peer", "--one", path, op, str(steps)))
    if op == "chain":
        runner.bench_func("meter", kernels.chain, ctypes.addressof(out), 1, steps)
    else:
        runner.bench_func("meter", kernels.copy, ctypes.addressof(source), ctypes.addressof(out), steps)


def verdict(folder: Path, cell: Cell, made: Path, processes: int) -> str:
    """`slower`, `faster` or `no change`, as compare_to says."""
    files = [folder / "base.json", folder / "target.json"]
    for file, count in zip(files, (cell.steps, cell.injected), strict=True):
        file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.benchmarks.pyperf_peer", "--one", str(made), cell.op, str(count)]
        subprocess.run([*command, "-q", "-p", str(processes), "-o", str(file)], check=True, stdout=subprocess.DEVNULL)
    said = subprocess.run(
        [sys.executable, "-m", "pyperf", "compare_to", *map(str, files)], capture_output=True, text=True, check=True
    ).stdout
    if "not significant" in said:
        return "no change"
    return "slower" if "slower" in said else "faster" if "faster" in said else "no change"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--processes", type=int, default=10)
    options = parser.parse_args()
    began = time.monotonic()
    matrix = cells(options.copies)
    with tempfile.TemporaryDirectory() as name:
        made = library(Path(name))
        print("| injected | cells | called slower | called faster |\n|---|---:|---:|---:|")
        for percent in dict.fromkeys(cell.percent for cell in matrix):
            asked = [cell for cell in matrix if cell.percent == percent]
            said = [verdict(Path(name), cell, made, options.processes) for cell in asked]
            print(row(percent, said), flush=True)
    print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    if "--one" in sys.argv:
        at = sys.argv.index("--one")
        path, op, steps = sys.argv[at + 1 : at + 4]
        del sys.argv[at : at + 4]
        benchmark(path, op, int(steps))
    else:
        main()
