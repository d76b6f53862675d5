"""Arms under Nsight Compute (`Run.profiles`): their memory traffic as the tables of `abprof memory`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from abprof.evidence.ncu import recording
from abprof.evidence.ncu.recording import LEVELS
from abprof.evidence.ncu.traffic import Row, Table, summed
from abprof.records import KernelProfile, Profile, Run
from abprof.report import view
from abprof.report.memory import FORMATS, Group


def files(run: Run) -> dict[str, str]:
    """memory.csv and memory.md, where anything was looked at."""
    made = groups(run)
    return {f"memory.{kind}": FORMATS[kind](made) for kind in ("csv", "md")} if made else {}


def groups(run: Run) -> list[Group]:
    """The sides of each row of the run beside each other, and each peer alone."""
    return [made for row in rows(run) for made in of_row(run, row)]


def of_row(run: Run, row: Sequence[Profile]) -> Iterator[Group]:
    """What stands beside each other, and with the first of it who has nothing to show."""
    failed = tuple((one.cell, one.arm, f"{one.status}: {one.reason}") for one in row if one.status != "ok")
    for ok in beside(run, row) or [()]:
        yield Group(tuple(map(table, ok)), failed)
        failed = ()


def beside(run: Run, row: Sequence[Profile]) -> list[tuple[Profile, ...]]:
    """Who of a row that ran stands beside whom, base first. Without base each stands alone: none is against another."""
    ok = tuple(one for one in row if one.status == "ok")
    if ok and view.arm(run, ok[0].arm).side == "base":
        return [ok]
    return [(one,) for one in ok]


def rows(run: Run) -> Iterator[list[Profile]]:
    """What stands beside each other: of a cell the sides of each variant, base first, then each peer."""
    order = {side.id: place for place, side in enumerate(run.sides)}
    found: dict[tuple[str, str, str], list[Profile]] = {}
    for one in run.profiles:
        arm = view.arm(run, one.arm)
        found.setdefault((one.cell, arm.variant, arm.peer), []).append(one)
    cells = {cell.id: place for place, cell in enumerate(run.cells)}
    for key in sorted(found, key=lambda key: (cells.get(key[0], len(cells)), bool(key[2]))):
        yield sorted(found[key], key=lambda one: order.get(view.arm(run, one.arm).side, len(order)))


def table(profile: Profile) -> Table:
    """The traffic of an arm that ran."""
    sources: dict[str, dict[str, None]] = {}
    made = tuple(_row(kernel, sources) for kernel in profile.kernels)
    return Table(
        path=Path(profile.csv),
        page="raw",
        sources={level: " or ".join(names) for level, names in sources.items()},
        warmup=profile.warmup,
        runs=profile.runs,
        rows=made,
        sums=tuple(summed(1, made)),
        outside={},
        notes=profile.notes,
        cell=profile.cell,
        arm=profile.arm,
        minimum=profile.minimum,
    )


def _row(kernel: KernelProfile, sources: dict[str, dict[str, None]]) -> Row:
    per_launch: dict[str, float | None] = dict.fromkeys(LEVELS)
    for level, name, number in recording.moved(kernel.metrics):
        per_launch[level] = number
        sources.setdefault(level, {})[name] = None
    times = kernel.launches_a_call
    per_call = {level: None if number is None else number * times for level, number in per_launch.items()}
    return Row(1, kernel.name, kernel.grid, kernel.block, kernel.kind, kernel.launches, times, per_launch, per_call)
