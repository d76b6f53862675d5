"""profile_SUITE_BRANCH.csv and compare_BASE_TARGET_SUITE.csv: the branch-profile scripts' columns, then ours.

A row per configuration and direction (and variant), whatever became of it: an arm that did not run has `-1.0000` in
the scripts' columns and says in ours what happened. Suites whose cases have no direction have the scripts' latency and
rate, and none of their columns of forward and backward phases.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain, takewhile

from abprof.records import Build, Cell, Observation, Run, Side, Workload
from abprof.records.names import safe_labels
from abprof.report import gains, numbers, seed_format
from abprof.report.seed_format import LATER_COLUMNS, VALUE_COLUMNS, decimal
from abprof.report.steps import ArmOf
from abprof.report.tables import Line, csv_text, plain
from abprof.report.view import Group, Row, groups

_OURS = ("variant", "latency_low_ms", "latency_high_ms", "status", "verdict", "reason", "metric", "epochs", "gb_per_s",
         "peak_mem_bytes", "phase_total_ms", "residual_ms", "flops", "flop_convention")  # fmt: skip
_BESIDE = ("status", "reason", "latency_ms", "latency_low_ms", "latency_high_ms", "commit", "build_key", "proof",
           "artefacts_sha256")  # fmt: skip
_GAINS = ("speedup_over_", "scaling_", "best_step")
_IDENTITY = ("branch", "commit", "tree", "build_key", "proof", "artefacts_sha256", "cell")


@dataclass(frozen=True)
class Suite:
    """Workloads that write into one file: the same suite name and the same columns."""

    name: str
    columns: tuple[str, ...]  # the axes' columns, `direction` last if it is one
    workloads: tuple[Workload, ...]

    @property
    def directed(self) -> bool:
        """Whether cases are forward or backward."""
        return "direction" in self.columns

    @property
    def values(self) -> tuple[str, ...]:
        """The scripts' columns after the axes, without those that came later."""
        return VALUE_COLUMNS if self.directed else VALUE_COLUMNS[:2]

    @property
    def later(self) -> tuple[str, ...]:
        """The scripts' columns that came later."""
        return LATER_COLUMNS if self.directed else ()


def files(run: Run) -> dict[str, str]:
    """File name -> text: the profile of each side and the comparison of each target, for each suite with columns."""
    labels = safe_labels((side.label, side.commit) for side in run.sides)
    sides = {side.id: label for side, label in zip(run.sides, labels, strict=True)}
    made = {}
    for suite in suites(run):
        profiles = {side.id: Profile(run, suite, side) for side in run.sides}
        for side in run.sides:
            name = f"profile_{suite.name}_{sides[side.id]}.csv"
            made[name] = csv_text(profile_header(suite, profiles[side.id]), profiles[side.id])
        for side in run.sides[1:]:
            lines = compare_lines(run, suite, side, profiles)
            first = next(lines)
            name = f"compare_{sides['base']}_{sides[side.id]}_{suite.name}.csv"
            made[name] = csv_text(list(first), chain([first], lines))
    return made


def suites(run: Run) -> list[Suite]:
    """The suites of workloads with seed columns and cells, under names that are safe and distinct in file names."""
    merged: dict[tuple[str, tuple[str, ...]], list[Workload]] = {}
    for workload in run.workloads:
        if workload.seed_columns and any(cell.workload == workload.name for cell in run.cells):
            last = ("direction",) if "direction" in workload.seed_columns else ()
            columns = (*(name for name in workload.seed_columns if name not in last), *last)
            merged.setdefault((workload.suite, columns), []).append(workload)
    labels = safe_labels((name, workloads[0].sha256) for (name, _), workloads in merged.items())
    return [
        Suite(label, columns, tuple(workloads))
        for label, ((_, columns), workloads) in zip(labels, merged.items(), strict=True)
    ]


def profile_header(suite: Suite, lines: Iterable[Line]) -> list[str]:
    """The scripts' columns, the two that came later, phases of other names, then everything else the lines have."""
    seeds = [*suite.columns, *suite.values, *suite.later]
    phases, every = set[str](), dict[str, None]()
    for line in lines:
        phases.update(takewhile(lambda name: name != _OURS[0], line))
        every |= dict.fromkeys(line)
    return list(dict.fromkeys([*seeds, *sorted(phases - set(seeds)), *every]))


class Profile:
    """One side's lines, in the order of the run's cells. They are made anew each time they are asked for: ten thousand take
    tens of megabytes."""

    def __init__(self, run: Run, suite: Suite, side: Side) -> None:
        self._run, self._suite, self._side = run, suite, side
        found = _groups(run, suite, None if side.id == "base" else side)
        order = {cell.id: place for place, cell in enumerate(run.cells)}
        rows = {(row.cell.id, row.variant): row for group in found for row in group.rows}
        self._rows = {key: rows[key] for key in sorted(rows, key=lambda key: order[key[0]])}
        self._more = {key: line for group in found for key, line in gains.columns(group, _arm(side)).items()}
        self._names = dict.fromkeys(name for line in self._more.values() for name in line)
        self._others = numbers.sequential(run)

    def __iter__(self) -> Iterator[Line]:
        return map(self.line, self._rows)

    def line(self, key: tuple[str, str]) -> Line:
        """Of this cell and variant; {} where the side has none."""
        if key not in self._rows:
            return {}
        made = _profile_line(self._run, self._suite, self._side, self._rows[key], self._others)
        return made | {name: self._more[key].get(name, "") for name in self._names}


def compare_lines(run: Run, suite: Suite, target: Side, profiles: dict[str, Profile]) -> Iterator[Line]:
    """The scripts' comparison computed from the profiles' own digits, and our verdict after it."""
    rows = {(row.cell.id, row.variant): row for group in _groups(run, suite, target) for row in group.rows}
    keys = seed_format.compare_keys(suite.columns)
    columns = (*(seed_format.compared_columns(keys) if suite.directed else suite.values), *suite.later)
    for base in profiles["base"]:
        key = (base["cell"], base["variant"])
        other = profiles[target.id].line(key)
        line = {name: base[name] for name in keys} | compared(base, other, columns)
        yield line | _verdict(rows[key]) | _both(base, other)


def compared(base: Line, target: Line, columns: Iterable[str]) -> Line:
    """For each column the two sides' cells as they are and the scripts' per cent, empty where a side has no number."""
    line: Line = {}
    for column in columns:
        left, right = base.get(column, ""), target.get(column, "")
        change = seed_format.improvement(seed_format.number(left), seed_format.number(right))
        names = seed_format.triple(column)
        line |= zip(names, (left, right, "" if change is None else f"{change:.4f}"), strict=True)
    return line


def _profile_line(run: Run, suite: Suite, side: Side, row: Row, others: Sequence[str]) -> Line:
    seen = _arm(side)(row)
    ns = numbers.time_ns(seen, row.metric)
    line = {name: plain(str(row.cell.params.get(name, ""))) for name in suite.columns}
    line |= {"latency_ms": decimal(_ms(ns)), "tflops_per_sec": decimal(numbers.tflops(row.cell, ns))}
    line |= _phases(suite, row.cell, seen) | _ours(row, seen, side)
    line |= {f"{name}_ms": _plain_ms(numbers.time_ns(seen, name)) for name in others}
    rest = (name for name in row.cell.params if name not in suite.columns)
    line |= {name if name not in line else f"axis_{name}": plain(str(row.cell.params[name])) for name in rest}
    return line | _identity(run, side, row.cell)


def _phases(suite: Suite, cell: Cell, seen: Observation | None) -> Line:
    """Phases of the cell's direction; empty cells in the other direction's columns. Others come after."""
    here = str(cell.params.get("direction", ""))
    parts = numbers.breakdown(cell, seen).phases
    columns = (*suite.values[2:], *suite.later)
    line = {
        column: decimal(_ms(parts.get(column[4:-3]))) if column.startswith(f"{here}_") else "" for column in columns
    }
    prefix = f"{here}_" if here else ""
    return line | {f"{prefix}{n}_ms": decimal(_ms(ns)) for n, ns in parts.items() if f"{prefix}{n}_ms" not in line}


def _ours(row: Row, seen: Observation | None, side: Side) -> Line:
    timed, parts = numbers.metric(seen, row.metric), numbers.breakdown(row.cell, seen)
    memory = numbers.time_ns(seen, "peak_mem_bytes")
    values = (
        row.variant,
        _plain_ms(timed.low if timed else None),
        _plain_ms(timed.high if timed else None),
        seen.status if seen else "",
        (row.verdict or "") if side.id != "base" else "",
        plain(seen.reason) if seen else "not measured",
        row.metric,
        str(seen.epochs) if seen else "0",
        _plain(numbers.gbps(row.cell, timed.value if timed else None)),
        "" if memory is None else f"{memory:.0f}",
        _plain_ms(parts.total),
        _plain_ms(parts.residual),
        "" if row.cell.flops is None else f"{row.cell.flops:.0f}",
        plain(row.cell.convention),
    )
    return dict(zip(_OURS, values, strict=True))


def _identity(run: Run, side: Side, cell: Cell) -> Line:
    build = next((b for b in run.builds if (b.side, b.kernel) == (side.id, cell.kernel)), None)
    values = (
        plain(side.label),
        side.commit,
        side.tree,
        build.key if build else "",
        *_proof(run, side, build, cell),
        cell.id,
    )
    return dict(zip(_IDENTITY, values, strict=True))


def _proof(run: Run, side: Side, build: Build | None, cell: Cell) -> tuple[str, str]:
    """Whether the proofs of this side and package hold, and one hash over everything they list."""
    mine = [proof for proof in run.proofs if (proof.side, proof.kernel) == (side.id, cell.kernel)]
    if not mine:
        return ("not recorded" if build is None or build.failure is None else "not built"), ""
    bad = next((proof for proof in mine if not proof.ok), None)
    hashes = sorted({f"{a.kind} {a.name} {a.sha256}" for proof in mine for a in proof.artefacts})
    return (plain(f"failed: {bad.reason}") if bad else "ok"), sha256(
        "\n".join(hashes).encode(errors="surrogatepass")
    ).hexdigest()


def _verdict(row: Row) -> Line:
    judged = row.comparison
    if judged is None:
        return dict.fromkeys(("verdict", "time_change_pct", "time_low_pct", "time_high_pct", "reasons"), "")
    return {
        "verdict": judged.verdict,
        "time_change_pct": _plain(judged.pct),
        "time_low_pct": _plain(judged.low_pct),
        "time_high_pct": _plain(judged.high_pct),
        "reasons": plain(" ".join(judged.reasons)),
    }


def _both(base: Line, target: Line) -> Line:
    """Our columns of both sides beside each other, and once, at the end, what both share."""
    line: Line = {}
    for name in (*_BESIDE, *(name for name in base if name.startswith(_GAINS))):
        line |= {f"{name}_baseline": base.get(name, ""), f"{name}_target": target.get(name, "")}
    return line | {name: base[name] for name in ("metric", "variant", "flop_convention", "cell")}


def _groups(run: Run, suite: Suite, target: Side | None) -> list[Group]:
    """The suite's groups against this target; all of them for the base."""
    names = {workload.name for workload in suite.workloads}
    found = [group for group in groups(run) if group.workload.name in names]
    return [group for group in found if target is None or (group.target and group.target.id == target.id)]


def _arm(side: Side) -> ArmOf:
    return (lambda row: row.base) if side.id == "base" else (lambda row: row.target)


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


def _plain_ms(ns: float | None) -> str:
    return _plain(_ms(ns))


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
