"""profile_SUITE_BRANCH.csv and compare_BASE_TARGET_SUITE.csv: the branch-profile scripts' columns, then ours.

A row per configuration and direction (and variant), whatever became of it: an arm that did not run has `-1.0000` in
the scripts' columns and says in ours what happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import takewhile

from abprof.model import Build, Cell, Observation, Run, Side, Workload
from abprof.names import safe_labels

from . import numbers, seed_format, words
from .seed_format import LATER_COLUMNS, VALUE_COLUMNS, decimal
from .tables import Line, csv_text
from .view import Row, groups

_OURS = ("variant", "latency_low_ms", "latency_high_ms", "status", "verdict", "reason", "metric", "epochs", "gb_per_s",
         "peak_mem_bytes", "phase_total_ms", "residual_ms", "flops", "flop_convention")  # fmt: skip
_BESIDE = ("status", "reason", "latency_ms", "latency_low_ms", "latency_high_ms", "commit", "build_key", "proof",
           "artefacts_sha256")  # fmt: skip
_IDENTITY = ("branch", "commit", "tree", "build_key", "proof", "artefacts_sha256", "cell")


@dataclass(frozen=True)
class Suite:
    """Workloads that write into one file: the same suite name and the same columns."""

    name: str
    columns: tuple[str, ...]  # the axes' columns, `direction` last
    workloads: tuple[Workload, ...]


def files(run: Run) -> dict[str, str]:
    """File name -> text: the profile of each side and the comparison of each target, for each suite with columns."""
    labels = safe_labels((side.label, side.commit) for side in run.sides)
    sides = {side.id: label for side, label in zip(run.sides, labels, strict=True)}
    made = {}
    for suite in suites(run):
        profiles = {side.id: profile_lines(run, suite, side) for side in run.sides}
        for side in run.sides:
            name = f"profile_{suite.name}_{sides[side.id]}.csv"
            made[name] = csv_text(profile_header(suite, profiles[side.id]), profiles[side.id])
        for side in run.sides[1:]:
            lines = list(compare_lines(run, suite, side, profiles))
            name = f"compare_{sides['base']}_{sides[side.id]}_{suite.name}.csv"
            made[name] = csv_text(list(lines[0]), lines)
    return made


def suites(run: Run) -> list[Suite]:
    """The suites of workloads with seed columns and cells, under names that are safe and distinct in file names."""
    merged: dict[tuple[str, tuple[str, ...]], list[Workload]] = {}
    for workload in run.workloads:
        if workload.seed_columns and any(cell.workload == workload.name for cell in run.cells):
            columns = (*(name for name in workload.seed_columns if name != "direction"), "direction")
            merged.setdefault((workload.suite, columns), []).append(workload)
    labels = safe_labels((name, workloads[0].sha256) for (name, _), workloads in merged.items())
    return [
        Suite(label, columns, tuple(workloads))
        for label, ((_, columns), workloads) in zip(labels, merged.items(), strict=True)
    ]


def profile_header(suite: Suite, lines: Sequence[Line]) -> list[str]:
    """The scripts' columns, the two that came later, phases of other names, then everything else the lines have."""
    seeds = [*suite.columns, *VALUE_COLUMNS, *LATER_COLUMNS]
    phases = sorted({name for line in lines for name in takewhile(lambda name: name != _OURS[0], line)} - set(seeds))
    return list(dict.fromkeys([*seeds, *phases, *(name for line in lines for name in line)]))


def profile_lines(run: Run, suite: Suite, side: Side) -> list[Line]:
    """One side's rows, in the order of the run's cells."""
    rows = {(row.cell.id, row.variant): row for row in _rows(run, suite, None if side.id == "base" else side)}
    order = {cell.id: place for place, cell in enumerate(run.cells)}
    others = numbers.sequential(run)
    return [_profile_line(run, suite, side, rows[key], others) for key in sorted(rows, key=lambda key: order[key[0]])]


def compare_lines(run: Run, suite: Suite, target: Side, profiles: dict[str, list[Line]]) -> Iterator[Line]:
    """The scripts' comparison computed from the profiles' own digits, and our verdict after it."""
    rows = {(row.cell.id, row.variant): row for row in _rows(run, suite, target)}
    other = {(line["cell"], line["variant"]): line for line in profiles[target.id]}
    keys = seed_format.compare_keys(suite.columns)
    columns = (*seed_format.compared_columns(keys), *LATER_COLUMNS)
    for base in profiles["base"]:
        key = (base["cell"], base["variant"])
        line = {name: base[name] for name in keys} | compared(base, other.get(key, {}), columns)
        yield line | _verdict(rows[key]) | _both(base, other.get(key, {}))


def compared(base: Line, target: Line, columns: Iterable[str]) -> Line:
    """For each column the two sides' cells as they are and the scripts' per cent, empty where a side has no number."""
    line: Line = {}
    for column in columns:
        left, right = base.get(column, ""), target.get(column, "")
        change = seed_format.improvement(seed_format.number(left), seed_format.number(right))
        names = seed_format.triple(column)
        line |= zip(names, (left, right, "" if change is None else f"{change:.4f}"), strict=True)
    return line


def plain(text: str) -> str:
    """Foreign text as a cell: one line, and never taken for a formula by a spreadsheet."""
    line = words.clean(text)
    return f"'{line}" if line[:1] in ("=", "+", "-", "@") and not is_number(line) else line


def is_number(text: str) -> bool:
    """Whether a cell is a number as these files have them."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _profile_line(run: Run, suite: Suite, side: Side, row: Row, others: Sequence[str]) -> Line:
    seen = row.base if side.id == "base" else row.target
    ns = numbers.time_ns(seen, row.metric)
    line = {name: plain(str(row.cell.params.get(name, ""))) for name in suite.columns}
    line |= {"latency_ms": decimal(_ms(ns)), "tflops_per_sec": decimal(numbers.tflops(row.cell, ns))}
    line |= _phases(row.cell, seen) | _ours(row, seen, side)
    line |= {f"{name}_ms": _plain_ms(numbers.time_ns(seen, name)) for name in others}
    rest = (name for name in row.cell.params if name not in suite.columns)
    line |= {name if name not in line else f"axis_{name}": plain(str(row.cell.params[name])) for name in rest}
    return line | _identity(run, side, row.cell)


def _phases(cell: Cell, seen: Observation | None) -> Line:
    """Phases of the cell's direction; empty cells in the other direction's columns. Others come after."""
    here = str(cell.params.get("direction", ""))
    parts = numbers.breakdown(cell, seen).phases
    columns = (*VALUE_COLUMNS[2:], *LATER_COLUMNS)
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
    return (plain(f"failed: {bad.reason}") if bad else "ok"), sha256("\n".join(hashes).encode()).hexdigest()


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
    for name in _BESIDE:
        line |= {f"{name}_baseline": base.get(name, ""), f"{name}_target": target.get(name, "")}
    return line | {name: base[name] for name in ("metric", "variant", "flop_convention", "cell")}


def _rows(run: Run, suite: Suite, target: Side | None) -> Iterator[Row]:
    names = {workload.name for workload in suite.workloads}
    for group in groups(run):
        if group.workload.name in names and (target is None or (group.target and group.target.id == target.id)):
            yield from group.rows


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


def _plain_ms(ns: float | None) -> str:
    return _plain(_ms(ns))


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
