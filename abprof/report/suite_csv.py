"""Write the same files as MagiAttention's profiling scripts (exps/attn/profile_ffa): CSVs and the end of output.txt.

The CSVs are profile_SUITE_BRANCH.csv and compare_BASE_TARGET_SUITE.csv. They have a row for each configuration,
direction and variant. The scripts' own columns come first, then abprof's. `-1.0000` means "not recorded". The command
`abprof compare` compares two profile CSVs, written by the scripts or by abprof.

The text at the end of output.txt has a block for each case, the cases that did not run, and a warning for each slower
or faster case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import takewhile
from math import isfinite
from pathlib import Path

from abprof.records import Cell, Observation, Run, Side, Workload
from abprof.records.errors import AbprofError
from abprof.records.names import safe_labels
from abprof.records.visible import is_number, visible
from abprof.report import sentences
from abprof.report import tables as gains
from abprof.report.csv_files import Line, csv_text, ms, read, save
from abprof.report.layouts import plain
from abprof.report.model import Page
from abprof.report.rows import Breakdown, Group, Row, gbps, groups, metric, tflops, value
from abprof.report.text import clean

# ---------------------------------------------------------------- the scripts' format

FORWARD = ("range_merge", "sparse_load_preprocess", "prepare", "run", "fill", "cast")
BACKWARD = ("range_merge", "prepare", "preprocess", "run", "cast")
PHASES = tuple([f"fwd_{name}_ms" for name in FORWARD] + [f"bwd_{name}_ms" for name in BACKWARD])
LATER = ("fwd_postprocess_ms", "bwd_postprocess_ms")  # the scripts' kernels record both, the scripts collect neither
VALUES = ("latency_ms", "tflops_per_sec", *PHASES)
DENSE_KEYS = ("mask_type", "direction", "seqlen")
_FOUR = "{:.4f}".format


def decimal(number: float | None) -> str:
    """Format a number with four decimals. None means "not recorded" and becomes `-1.0000`."""
    return "-1.0000" if number is None else _FOUR(number)


def number(text: str | None) -> float | None:
    """Read a CSV field as a number. Return None for -1 ("not recorded"), for text, and for infinity or NaN."""
    try:
        found = float(text or "")
    except ValueError:
        return None
    return None if found == -1.0 or not isfinite(found) else found


def improvement(baseline: float | None, target: float | None) -> float | None:
    """Return the change in per cent from `baseline` to `target`, by the formula of MagiAttention's scripts."""
    if baseline is None or target is None:
        return None
    return (target - baseline) / (baseline + 1e-9) * 100


def compare_keys(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that identify a case, in the order of MagiAttention's files."""
    return DENSE_KEYS if set(columns) == set(DENSE_KEYS) else _direction_last(columns)


def value_columns(keys: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of times and rates. Phases have columns if `keys` contains `direction`."""
    return (*VALUES, *LATER) if "direction" in keys else VALUES[:2]


def compared_columns(keys: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of times and rates to compare. In the dense suite the latency is not compared."""
    return value_columns(keys)[1:] if set(keys) == set(DENSE_KEYS) else value_columns(keys)


def compared(base: Line, target: Line, columns: Iterable[str]) -> Line:
    """Return for each column both sides' values, and the change in per cent (None if a value is missing)."""
    line: Line = {}
    for column in columns:
        left, right = base.get(column), target.get(column)
        line |= {f"{column}_baseline": left, f"{column}_target": right}
        line[f"{column}_improvement(%)"] = improvement(number(left), number(right))
    return line


def alert(case: Mapping[str, object], base: float, target: float, column: str = "tflops_per_sec") -> dict[str, object]:
    """Return what a warning shows of a case: the values of both sides in `column`, and the change."""
    values = {"before": base, "after": target, "change": improvement(base, target)}
    return {"case": case, "column": column, **values, "verdict": ""}


def limit(thresholds: Iterable[float]) -> str:
    """Return the threshold as text: `1.5%`, or `1% to 5% (each case has its own)` if the thresholds differ."""
    known = sorted(set(thresholds))
    return f"{known[0]:g}%" if len(known) == 1 else f"{known[0]:g}% to {known[-1]:g}% (each case has its own)"


# ---------------------------------------------------------------- a run's files

_BOTH = ("status", "reason", "latency_ms", "latency_low_ms", "latency_high_ms", "commit", "build_key", "proof",
         "artefacts_sha256")  # fmt: skip
Lines = dict[tuple[str, str], Line]  # by cell and variant, in the order of the run's cells


@dataclass(frozen=True)
class Suite:
    """Workloads that share CSV files, because they have the same suite name and the same columns."""

    name: str
    columns: tuple[str, ...]  # the axes, with `direction` last
    workloads: tuple[str, ...]


def files(run: Run) -> dict[str, str]:
    """Return {file name: CSV text}: per suite, each side's times (a profile) and each target's comparison with base."""
    labels = safe_labels((side.label, side.commit) for side in run.sides)
    sides = {side.id: label for side, label in zip(run.sides, labels, strict=True)}
    made = {}
    for suite in _suites(run):
        profiles = {side.id: _profile(run, suite, side) for side in run.sides}
        for id, lines in profiles.items():
            seeds = (*suite.columns, *value_columns(suite.columns))
            phases = {name for line in lines.values() for name in takewhile(lambda name: name != "variant", line)}
            every = dict.fromkeys(name for line in lines.values() for name in line)
            header = dict.fromkeys([*seeds, *sorted(phases - set(seeds)), *every])
            made[f"profile_{suite.name}_{sides[id]}.csv"] = csv_text([*header], lines.values(), _FOUR)
        for side in run.sides[1:]:
            compared_lines = _compare_lines(run, suite, side, profiles["base"], profiles[side.id])
            name = f"compare_{sides['base']}_{sides[side.id]}_{suite.name}.csv"
            made[name] = csv_text([*compared_lines[0]], compared_lines, _FOUR)
    return made


def _suites(run: Run) -> list[Suite]:
    """Group workloads with the same suite name and columns. The suites get distinct names, safe as file names."""
    merged: dict[tuple[str, tuple[str, ...]], list[Workload]] = {}
    for load in run.workloads:
        if load.seed_columns and any(cell.workload == load.name for cell in run.cells):
            merged.setdefault((load.suite, _direction_last(load.seed_columns)), []).append(load)
    labels = safe_labels((name, loads[0].sha256) for (name, _), loads in merged.items())
    return [Suite(label, columns, tuple(load.name for load in loads))
            for label, ((_, columns), loads) in zip(labels, merged.items(), strict=True)]  # fmt: skip


def _direction_last(columns: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(columns, key=lambda name: name == "direction"))


def _profile(run: Run, suite: Suite, side: Side) -> Lines:
    found = _groups(run, suite, None if side.id == "base" else side)
    order = {cell.id: place for place, cell in enumerate(run.cells)}
    made = [pair for group in found for pair in _gain_lines(group, side)]
    names = dict.fromkeys(name for _, line in made for name in line)
    made.sort(key=lambda pair: order[pair[0].cell.id])
    return {
        (row.cell.id, row.variant): _profile_line(run, suite, side, row) | {name: more.get(name) for name in names}
        for row, more in made
    }


def _profile_line(run: Run, suite: Suite, side: Side, row: Row) -> Line:
    seen, cell = row.of(side.id), row.cell
    timed, parts, memory = metric(seen, row.metric), Breakdown(cell, seen), value(seen, "peak_mem_bytes")
    ns = timed.value if timed else None
    line: Line = {name: clean(cell.params.get(name, "")) for name in suite.columns}
    line |= {"latency_ms": decimal(ms(ns)), "tflops_per_sec": decimal(tflops(cell, ns))}
    here = str(cell.params.get("direction", ""))
    for column in value_columns(suite.columns)[2:]:  # the other direction's columns stay empty
        line[column] = decimal(ms(parts.phases.get(column[4:-3]))) if column.startswith(f"{here}_") else ""
    for name, phase in parts.phases.items():
        line.setdefault(f"{here}_{name}_ms" if here else f"{name}_ms", decimal(ms(phase)))
    line |= {
        "variant": row.variant,
        "latency_low_ms": ms(timed.low if timed else None),
        "latency_high_ms": ms(timed.high if timed else None),
        "status": seen and seen.status,
        "verdict": row.verdict if side.id != "base" else "",
        "reason": clean(seen.reason) if seen else "not measured",
        "metric": row.metric,
        "epochs": seen.epochs if seen else 0,
        "gb_per_s": gbps(cell, ns),
        "peak_mem_bytes": "" if memory is None else f"{memory:.0f}",
        "phase_total_ms": ms(parts.total),
        "residual_ms": ms(parts.residual),
        "flops": "" if cell.flops is None else f"{cell.flops:.0f}",
        "flop_convention": clean(cell.convention),
    }
    rest = (name for name in cell.params if name not in suite.columns)
    line |= {name if name not in line else f"axis_{name}": clean(cell.params[name]) for name in rest}
    line |= {"branch": clean(side.label), "commit": side.commit, "tree": side.tree}
    return line | _code(run, side, cell) | {"cell": cell.id}


def _code(run: Run, side: Side, cell: Cell) -> Line:
    """Return the CSV fields on a side's code: build key, whether the right files were loaded, and these files' hash."""
    build = next((b for b in run.builds if (b.side, b.kernel) == (side.id, cell.kernel)), None)
    proofs = [proof for proof in run.proofs if (proof.side, proof.kernel) == (side.id, cell.kernel)]
    bad = next((proof for proof in proofs if not proof.ok), None)
    proof = clean(f"failed: {bad.reason}") if bad else "ok"
    if not proofs:
        proof = "not built" if build and build.failure else "not recorded"
    loaded = "\n".join(sorted({f"{a.kind} {a.name} {a.sha256}" for one in proofs for a in one.artefacts}))
    digest = sha256(loaded.encode(errors="surrogatepass")).hexdigest() if proofs else ""
    return {"build_key": build and build.key, "proof": proof, "artefacts_sha256": digest}


def _compare_lines(run: Run, suite: Suite, target: Side, base: Lines, others: Lines) -> list[Line]:
    rows = {(row.cell.id, row.variant): row for group in _groups(run, suite, target) for row in group.rows}
    keys = compare_keys(suite.columns)
    lines = []
    for key, one in base.items():
        other, judged = others.get(key, {}), rows[key].comparison
        line = {name: one[name] for name in keys} | compared(one, other, compared_columns(keys))
        line |= {
            "verdict": judged and judged.verdict,
            "time_change_pct": judged and judged.pct,
            "time_low_pct": judged and judged.low_pct,
            "time_high_pct": judged and judged.high_pct,
            "reasons": judged and clean(" ".join(judged.reasons)),
        }
        more = (name for name in one if name.startswith(("speedup_over_", "scaling_", "best_step")))
        for name in (*_BOTH, *more):
            line |= {f"{name}_baseline": one.get(name), f"{name}_target": other.get(name)}
        lines.append(line | {name: one[name] for name in ("metric", "variant", "flop_convention", "cell")})
    return lines


def _groups(run: Run, suite: Suite, target: Side | None) -> list[Group]:
    found = [group for group in groups(run) if group.workload.name in suite.workloads]
    return [group for group in found if target is None or (group.target and group.target.id == target.id)]


def _gain_lines(group: Group, side: Side) -> Iterator[tuple[Row, Line]]:
    arms = {(row.cell.id, row.variant): row.of(side.id) for row in group.rows}
    scaled, peers = gains.efficiency(group, side.id), gains.peers(group)
    ladder = group.workload.ladder
    for row in group.rows:
        seen = row.of(side.id)
        line: Line = {"memory_mb": row.cell.bytes and row.cell.bytes / 1e6}
        if ladder:
            steps = {step: arms.get((row.cell.id, step)) for step in ladder}
            place = ladder.index(row.variant) if row.variant in ladder else 0
            line["baseline"], line["step_before"] = clean(ladder[0]), clean(ladder[place - 1]) if place else ""
            line |= _gain("baseline", gains.Gain(group, steps[ladder[0]], seen, row.metric))
            before = steps[ladder[place - 1]] if place else None
            line |= _gain("step_before", gains.Gain(group, before, seen, row.metric))
            line["best_step"] = clean(gains.fastest(row, steps)[1])
        for name, by_cell in peers.items():
            line |= _gain(f"peer_{name}", gains.Gain(group, by_cell.get(row.cell.id), seen, row.metric))
        if group.workload.scaled:
            line["scaling_efficiency"] = scaled.get((row.cell.id, row.variant))
        for name, known in (seen.facts if seen else {}).items():
            if name in ("autotuned", "configuration") and "=" in str(known):  # `BLOCK_M=128 num_warps=8`
                parts = (part.partition("=") for part in str(known).split())
                line |= {clean(f"{name}_{key}"): clean(text) for key, _, text in parts}
            else:
                line[clean(f"fact_{name}")] = clean(known)
        yield row, line


def _gain(over: str, of: gains.Gain) -> Line:
    values = {"": of.ratio, "_low": of.low, "_high": of.high, "_verdict": of.verdict}
    return {f"speedup_over_{over}{end}": known for end, known in values.items()}


# ---------------------------------------------------------------- two profile CSVs that exist (`abprof compare`)

_OWN_KEYS = ("cell", "variant")  # columns that also tell rows of abprof's own profiles apart
_MODES = (  # a suite and the columns by which its profiles are recognised
    ("block_sparse", ("seqlen", "sparsity_ratio", "q_block_size", "k_block_size", "direction")),
    ("block_sparse", ("seqlen", "sparsity_ratio", "block_size", "direction")),
    ("dense", DENSE_KEYS),
    ("abprof", _OWN_KEYS),
)


@dataclass(frozen=True)
class ProfileFile:
    """One profile CSV with its columns and lines."""

    path: Path
    columns: tuple[str, ...]
    lines: list[Line]


def compare(base_csv: Path, target_csv: Path, out_csv: Path | None, *, threshold: float = 1.5) -> str:
    """Compare two profile CSVs. Write the result to `out_csv`, if given, and return the text to print. `threshold`: in
    per cent. Raises AbprofError if the files cannot be compared or written."""
    base, target = (ProfileFile(path, *read(path)) for path in (base_csv, target_csv))
    mode, keys = _mode(base, target)
    shared = {*base.columns} & {*target.columns}
    columns = [name for name in compared_columns(keys) if name in shared]
    joining = (*keys, *(name for name in _OWN_KEYS if name in shared))
    left, right = (_lines_by_case(of, joining, columns) for of in (base, target))
    cases = [(left.get(case, {}), right.get(case, {})) for case in {**left, **right}]
    if not any(one and other for one, other in cases):
        advice = f"cases are matched by {', '.join(keys)}"
        raise AbprofError(f"no case of {base_csv} is in this file", where=str(target_csv), advice=advice)
    either, lines, alerts, apart = {*base.columns, *target.columns}, [], [], []
    for one, other in cases:
        known = one or other
        line = {name: known[name] for name in keys} | compared(one, other, columns)
        line["in_files"] = "both" if one and other else "baseline only" if one else "target only"
        if "status" in either:
            line |= {"status_baseline": one.get("status"), "status_target": other.get("status")}
        lines.append(line | {name: known.get(name) for name in ("variant", "cell") if name in either})
        case = {name: _key(known[name]) for name in keys}
        before, after = number(one.get("tflops_per_sec")), number(other.get("tflops_per_sec"))
        if before is not None and after is not None:
            alerts += [alert(case, before, after)] if abs(improvement(before, after) or 0.0) > threshold else []
        elif one and other:
            sides = (("baseline", before, one), ("target", after, other))
            bare = [f"{name}{_failed(line)}" for name, rate, line in sides if rate is None]
            apart.append((case, f"TFLOP/s not recorded in the {' and the '.join(bare)}"))
        else:
            apart.append((case, f"no row in the {'target' if one else 'baseline'}"))
    if out_csv:
        save(out_csv, csv_text([*lines[0]], lines, _FOUR))
    shown = {"mode": mode, "base": base.path, "target": target.path, "out": out_csv, "threshold": threshold}
    return plain("compare.txt", **shown, alerts=alerts, apart=apart)


def _failed(line: Line) -> str:
    status = clean(line.get("status") or "ok")
    return "" if status == "ok" else f" ({status})"


def _mode(base: ProfileFile, target: ProfileFile) -> tuple[str, tuple[str, ...]]:
    """Return the suite of both files (dense, block_sparse or abprof), and the columns that identify a case. Raises
    AbprofError if the columns of base fit no suite, or if the target lacks a column of this suite."""
    known = ((mode, needed) for mode, needed in _MODES if {*needed} <= {*base.columns})
    mode, needed = next(known, ("", ()))
    if not mode or "arm" in base.columns:  # cells.csv: commits stand before its values, and would be keys
        found = ", ".join(base.columns[:12])
        keys = "cell,variant or mask_type,direction,seqlen or seqlen,sparsity_ratio,q_block_size,k_block_size,direction"
        raise AbprofError(f"not a table of profiled cases: its columns are {found}", where=str(base.path),
                          advice=f"expected columns {keys}; to compare two runs: abprof report RUN1 RUN2")  # fmt: skip
    for name in (*needed, "latency_ms", "tflops_per_sec"):
        if lacking := [of for of in (base, target) if name not in of.columns]:
            raise AbprofError(f"no column {name!r}", where=str(lacking[0].path))
    axes = base.columns[: base.columns.index("latency_ms")]
    return mode, compare_keys([name for name in axes if name in target.columns])


def _lines_by_case(profile: ProfileFile, keys: Sequence[str], columns: Sequence[str]) -> dict[str, Line]:
    """Return {case: line} of a file; a case is a line's values in the columns `keys`. Raises AbprofError if two lines
    have the same case, or if a value in `columns` is neither empty nor a number."""
    found: dict[str, Line] = {}
    for place, line in enumerate(profile.lines, 2):
        case = repr([_key(line[name]) for name in keys])
        if case in found:
            named = ", ".join(f"{name}={line[name]}" for name in keys)
            raise AbprofError(f"two rows for {named}", where=str(profile.path))
        found[case] = line
        if bad := next((name for name in columns if line[name].strip() and not is_number(line[name])), None):
            what = f"row {place}, column {bad}: {line[bad]!r} is not a number"
            raise AbprofError(what, where=str(profile.path))
    return found


def _key(text: str) -> object:
    """Parse a CSV field that identifies a case, so that 64 equals 64.0, and True equals TRUE."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() else number


# ---------------------------------------------------------------- the end of output.txt

_TITLES = {"fwd": "FORWARD PERFORMANCE", "bwd": "BACKWARD PERFORMANCE"}


def with_footer(log: str, page: Page) -> str:
    """Return the text of output.txt with the run's results at the end, in place of this run's earlier results."""
    run, of = page.run, page.workloads
    marker = visible(f"======== abprof: results of run {run.id} ========")
    body, found, _ = log.rpartition(f"\n{marker}\n")
    kept = body if found else "" if log.startswith(marker) else log.rstrip("\n")
    order = {cell.id: place for place, cell in enumerate(run.cells)}
    sides = []
    for side in run.sides:
        target = next((s.id for s in run.sides[1:]), None) if side.id == "base" else side.id
        mine = [group for group in of if (group.target.id if group.target else None) == target]
        pairs = ((g, row) for g in mine for row in sorted(g.rows, key=lambda row: order[row.cell.id]))
        sides.append((side, [_shown(group, row, row.of(side.id)) for group, row in pairs]))
    lists = {
        "incomplete": sentences.incomplete(run),
        "targets": [_fluctuations(run, of, side) for side in run.sides[1:]],
    }
    return (f"{kept}\n" if kept else "") + plain("output.txt", page=page, marker=marker, sides=sides, **lists)


def _shown(group: Group, row: Row, seen: Observation | None) -> dict[str, object]:
    config, ns = _case(group, row), row.ns(seen)
    if seen is None or ns is None:
        why = ": ".join(filter(None, (sentences.status(seen.status), clean(seen.reason, 160)))) if seen else "no turn"
        return {"config": config, "why": why}
    direction = str(config.pop("direction", ""))  # the block's title names the direction, as in the scripts
    parts = Breakdown(row.cell, seen)
    named = {f"{direction}_{name}" if direction else name: time for name, time in parts.phases.items()}
    times = {"ns": ns, "total": parts.total, "parts": {**named, **parts.others, "residual": parts.residual}}
    more = {
        "title": _TITLES.get(direction, "PERFORMANCE"),
        "wrong": seen.status == "wrong",
        "rate": tflops(row.cell, ns),
    }
    return {"config": config, "why": "", **more, **times}


def _case(group: Group, row: Row) -> dict[str, object]:
    columns = group.workload.seed_columns
    names = compare_keys(columns) if columns else tuple(row.cell.params)
    shown: dict[str, object] = {name: row.cell.params[name] for name in names if name in row.cell.params}
    shown = {name: clean(value) if isinstance(value, str) else value for name, value in shown.items()}
    return shown | ({"variant": row.variant} if row.variant else {})


def _fluctuations(run: Run, of: Sequence[Group], side: Side) -> dict[str, object]:
    found = [(group, row) for group in of if group.target == side for row in group.rows]
    changed = [pair for pair in found if pair[1].verdict in ("slower", "faster")]
    thresholds = [run.options.threshold_of(row.cell.id) for _, row in changed or found] or [run.options.threshold]
    decided = any(row.verdict in ("same", "slight") for _, row in found)
    left = sum(row.verdict in ("broken", "unclear", None) and not row.apart for _, row in found)
    undone = f"{left} without a verdict on speed" if left else "none was measured"
    undone = "" if changed or (decided and not left) else undone
    return {"side": side, "alerts": [_alert(*pair) for pair in changed], "most": limit(thresholds), "undone": undone}


def _alert(group: Group, row: Row) -> dict[str, object]:
    case, times = _case(group, row), [row.ns(seen) for seen in (row.base, row.target)]
    verdict = sentences.verdict_and_change(row.comparison) if row.comparison else "not judged"
    columns = {"tflops_per_sec": [tflops(row.cell, ns) for ns in times], "latency_ms": [ms(ns) for ns in times]}
    for column, (left, right) in columns.items():  # TFLOP/s or, without a FLOP count, ms
        if left is not None and right is not None:
            return alert(case, left, right, column) | {"verdict": verdict}
    return {"case": case, "column": "", "verdict": verdict}
