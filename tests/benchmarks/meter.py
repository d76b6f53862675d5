"""selfcheck's CPU kernels for what has neither torch nor abprof's dependencies: a peer in a venv of its own.

Source and numbers are read from selfcheck's own tree, which is not imported: a peer is asked about the same cells.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, NamedTuple

_TREE = Path(__file__).parents[2] / "abprof" / "selfcheck" / "tree"


def _assigned(file: str, name: str) -> Any:
    """The constant that a module of the tree assigns to `name`."""
    for node in ast.parse((_TREE / file).read_text()).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]:
            return eval(ast.unparse(node.value), {})  # numbers, names of operations and what they make together
    raise LookupError(f"{name} in {_TREE / file}")


class Cell(NamedTuple):
    """One kernel as it is, or with `percent` more of its loop on the branch."""

    op: str  # chain: one float, `steps` times; copy: `steps` floats
    steps: int
    percent: float
    copy: int

    @property
    def injected(self) -> int:
        """Steps on the branch."""
        return self.steps + round(self.steps * self.percent / 100)


SOURCE: str = _assigned("kernels/meter/cpu.py", "SOURCE")
COMPILE = ("cc", "-O2", "-shared", "-fPIC", "-o")  # and the object, and the source: as selfcheck's builder does
INJECTED: tuple[float, ...] = _assigned("workloads/meter.py", "INJECTED")["cpu"]


def cells(copies: int) -> list[Cell]:
    """So many copies of each unchanged kernel, and half as many of each injection, as `abprof selfcheck` has them."""
    unchanged = _assigned("workloads/meter.py", "SIZES")["cpu"]
    changed = _assigned("workloads/meter.py", "CHANGED")["cpu"]
    rows = [Cell(op, steps, 0.0, i) for op, steps in unchanged for i in range(copies)]
    some = range(max(1, copies // 2))
    return rows + [Cell(op, steps, percent, i) for percent in INJECTED for op, steps in changed for i in some]


def row(percent: float, said: list[str], before: str = "") -> str:
    """A line of a table in Markdown: how many cells were called `slower` and `faster`; `before` is a first column."""
    first = f"| {before} " if before else ""
    return f"{first}| +{percent:g} % | {len(said)} | {said.count('slower')} | {said.count('faster')} |"
