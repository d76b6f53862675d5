"""Why arms have no speed, each reason told once: a failed build costs all cells of its package, a crash often several."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from abprof.records import Advice, Build, Cell, Observation, Run
from abprof.report import words
from abprof.report.lines import arm_name
from abprof.report.view import Group, Row, arm, groups
from abprof.store.runfolder import LOGS

LONGEST = 4000  # characters of a reason that a page shows; shorter places cut it
SHORT = 160  # on a terminal and in the log, where a line is read at a glance
IN_A_WARNING = 80  # the reason stands in full elsewhere
Key = tuple[str, ...]


@dataclass(frozen=True)
class Failed:
    """One reason, and the cells whose arm it cost."""

    arm: str  # as a person names it: the branch, with the variant; a peer
    package: str  # the kernel package, when it is the package that failed; "" otherwise
    status: str
    reason: str
    log: str  # path inside the run folder
    cases: tuple[str, ...]
    seen: tuple[tuple[str, str], ...]  # (cell, arm) of each observation

    @property
    def several(self) -> bool:
        """Whether it cost more than one cell, and so is told for all of them together."""
        return len(self.cases) > 1

    @property
    def what(self) -> str:
        """What it cost: `package ffa (16 cells)`, `8 cells (first: dense mask_type=full)`, or the one cell."""
        cells = words.plural(len(self.cases), "cell")
        if self.package:
            return f"package {self.package} ({cells if self.several else self.cases[0]})"
        return f"{cells} (first: {self.cases[0]})" if self.several else self.cases[0]

    def line(self, limit: int = SHORT) -> str:
        """`main, package ffa (16 cells): build failed: error: ... [logs/build-base-ffa.log]`."""
        log = f" [{words.clean(self.log)}]" if self.log else ""
        return f"{self.arm}, {self.what}: {self.status}: {words.clean(self.reason, limit)}{log}"


def failing(row: Row) -> list[Observation]:
    """The arms of a row that should have run and did not, or were wrong; unsupported ones where the other side ran."""
    fine = ("ok", "identical") if row.comparison and not row.apart else ("ok", "identical", "unsupported")
    return [seen for seen in (row.base, row.target) if seen and not row.apart and seen.status not in fine]


def failures(run: Run, rows: Iterable[tuple[Group, Row]]) -> list[Failed]:
    """Every reason among these rows once, in the rows' order."""
    return _told(run, [(seen, case_name(group, row.cell, row.variant)) for group, row in rows for seen in failing(row)])


def all_failures(run: Run, every: Iterable[Group]) -> list[Failed]:
    """Every reason of the run once: of all rows, then of the peers measured beside them. What neither side supports is
    told where no row has anything else."""
    every = list(every)
    nothing = all(row.apart for group in every for row in group.rows)
    found = [(seen, case_name(group, row.cell, row.variant)) for group in every for row in group.rows
             for seen in ((row.base, row.target) if nothing else failing(row)) if seen]  # fmt: skip
    found += [
        (seen, case_name(group, cell))
        for group in every
        for cell, _, seen in group.peers
        if seen.status not in ("ok", "identical", "unsupported", "missing")
    ]
    return _told(run, found)


def case_name(group: Group, cell: Cell, variant: str = "") -> str:
    """A cell as the whole run names it: the workload, and the axes that tell its cells apart."""
    axes = (f"{axis}={cell.params[axis]}" for axis in group.axes if axis in cell.params)
    return words.clean(" ".join(filter(None, (group.workload.name, *axes, variant))))


def advice_text(run: Run, advice: Advice) -> str:
    """A warning with its cells named as the tables name them, and without the whole of a reason that is told anyway."""
    text = advice.text
    for seen in run.observations:
        if seen.cell in advice.cells and len(seen.reason) > IN_A_WARNING:
            text = text.replace(seen.reason, words.clean(seen.reason, IN_A_WARNING))
    names = {row.cell.id: case_name(group, row.cell) for group in groups(run) for row in group.rows}
    for cell in sorted(set(advice.cells) & names.keys(), key=len, reverse=True):
        text = text.replace(cell, names[cell])
    return words.clean(text, 1000)


def log_path(name: str) -> str:
    """Where a log lies inside the run folder: records name it by the file alone."""
    return f"{LOGS}/{name}" if name and "/" not in name else name


def _told(run: Run, found: Iterable[tuple[Observation, str]]) -> list[Failed]:
    kernels = {cell.id: cell.kernel for cell in run.cells}
    builds = {(build.side, build.kernel): build for build in run.builds}
    merged: dict[Key, list[tuple[Observation, str]]] = {}
    for seen, case in found:
        build = builds.get((_side(run, seen), kernels[seen.cell]))
        merged.setdefault(_key(run, seen, kernels[seen.cell], build), []).append((seen, case))
    return [_failed(run, key, pairs, builds) for key, pairs in merged.items()]


def _key(run: Run, seen: Observation, kernel: str, build: Build | None) -> Key:
    """What makes two failures one: the side and package whose build failed, or the arm, status and reason."""
    if seen.status == "build_failed" or (build and build.failure and build.failure.status == seen.status):
        return "package", _side(run, seen), kernel
    return "arm", seen.arm, seen.status, seen.reason


def _failed(run: Run, key: Key, pairs: list[tuple[Observation, str]], builds: dict[tuple[str, str], Build]) -> Failed:
    first = pairs[0][0]
    package = key[2] if key[0] == "package" else ""
    build = builds.get((key[1], package))
    source = build.failure if package and build and build.failure else first
    log = source.log or (build.log if build else "")
    return Failed(
        arm=arm_name(run, key[1]),
        package=words.clean(package),
        status=words.status(first.status),
        reason=words.clean(source.reason, LONGEST) or words.STATUSES[first.status],
        log=log_path(log),
        cases=tuple(dict.fromkeys(case for _, case in pairs)),
        seen=tuple(dict.fromkeys((seen.cell, seen.arm) for seen, _ in pairs)),
    )


def _side(run: Run, seen: Observation) -> str:
    return arm(run, seen.arm).side
