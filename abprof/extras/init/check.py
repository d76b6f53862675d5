"""`abprof init --check`: run the proposed workload once, and mend what its failures explain."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from abprof import devices, session
from abprof.extras.init.propose import DTYPES, Choices, Made
from abprof.records import Observation
from abprof.records.options import Options
from abprof.system import files as disk
from abprof.system.console import View

_DTYPES = frozenset(DTYPES)
_OF_TYPE = re.compile(r"dtype|scalar type|not (supported|implemented) for '|\b(fp(16|32)|bf16|Half)\b", re.IGNORECASE)


def checked(made: Made, root: Path) -> tuple[Made, list[str], bool]:
    """Run the workload's preset smoke for one epoch, on a CPU in Triton's interpreter if there is no GPU. While failures
    have a known remedy, write the workload again and repeat. Return the last proposal, lines to print, and whether every
    cell is right. Raises AbprofError if the run cannot start.
    """
    cpu, lines, choices = devices.choose(()).kind == "cpu", list[str](), Choices()
    *more, name = [name for name in made.files if name.endswith(".py") and Path(name).name != "__init__.py"]
    if cpu and made.function.kernels:
        os.environ.setdefault("TRITON_INTERPRET", "1")  # in this process, which ends after the check
    where = "on the GPU" if not cpu else "in Triton's interpreter" if made.function.kernels else "on the CPU"
    before, failed = made, list[Observation]()
    for _ in range(6):  # more runs than there are remedies
        seen, last = _run(root, [*more, name]), failed
        failed = [one for one in seen if one.status != "ok"]
        if failed and [(one.cell, one.reason) for one in failed] == [(one.cell, one.reason) for one in last]:
            made = before  # the remedy changed nothing
            disk.put(root / name, made.files[name].encode())
            lines.pop()
            break
        better = _mended(choices, made.files[name], failed)
        if better is None or made.again is None:
            break
        before, made, choices = made, made.again(better), better
        disk.put(root / name, made.files[name].encode())
        lines.append(f"mended: {choices.why[-1]}")
    lines += [f"failed: {one.cell}: {one.status}: {one.reason}" for one in failed]
    how = "are right" if "\ndef reference(" in made.files[name] else "ran, without a reference,"
    return made, [*lines, f"checked: {len(seen) - len(failed)} of {len(seen)} cells {how} {where}"], not failed


def _run(root: Path, files: Sequence[str]) -> Sequence[Observation]:
    """Run the workloads `files` on the working tree for one epoch. Return what was observed in each cell."""
    names = tuple(Path(name).stem for name in files)
    with tempfile.TemporaryDirectory() as folder:
        once = Options(specs=(".",), repo=str(root), workloads=names, preset="smoke", quick=True, runs_dir=folder)
        run, _ = session.run(once, View(quiet=True))
    if run.status == "interrupted":
        raise KeyboardInterrupt
    return [one for one in run.observations if one.arm == "base"]


def _mended(old: Choices, text: str, failed: Sequence[Observation]) -> Choices | None:
    """Return choices that avoid one of the failures of the workload `text`; None if there is no remedy left."""

    def chosen(why: str, **new: Any) -> Choices:
        return replace(old, why=(*old.why, why), **new)

    forward = [one for one in failed if "direction=bwd" not in one.cell]
    for one in failed:
        reason, wrong = one.reason, one.status == "wrong"
        if (reached := re.search(r"wrt=\(([^)]*)\)", reason)) and not old.wrt:
            names = tuple(re.findall(r"\w+", reached[1]))
            return chosen(f"only {', '.join(names)} has a gradient", wrt=names)
        if "no output has a gradient" in reason:
            return chosen("this times the forward alone: no output has a gradient", directions=("fwd",))
        if not old.fresh and ("overwrote its inputs" in reason or (wrong and not forward)):
            return chosen(f"fresh inputs for each call, because of: {reason}", fresh=True)
        if old.reference and (one.at.startswith("reference") or (wrong and one in forward)):
            return chosen(f"no reference, because the one guessed by the name fails: {reason}", reference=False)
        present = re.findall(r'"dtype":\s+\["(\w+)"\]', text)[:1]
        named = _DTYPES.intersection(re.findall(r"b?float\d+", reason)).difference(present)
        against = _DTYPES - named if named else {*present} if _OF_TYPE.search(reason) else set()
        refused = old.refused | against
        if one.status in {"crash", "build_failed"} and old.refused < refused < _DTYPES:
            return chosen(f"not {', '.join(sorted(refused))}: {reason}", refused=refused)
    return None
