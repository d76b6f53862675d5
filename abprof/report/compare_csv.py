"""`abprof compare-csv`: two profile CSVs that exist already, compared the way the branch-profile scripts did.

Reads theirs (dense, block_sparse with `q_block_size,k_block_size` or the older `block_size`) and abprof's own, of any suite.
A row that only one file has is shown; "not recorded" never enters arithmetic. Such files hold no noise estimate, so
this says only what moved: a verdict needs a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from abprof.records.errors import AbprofError
from abprof.records.visible import is_number
from abprof.report import seed_format, tables
from abprof.report.seed_format import LATER_COLUMNS
from abprof.report.seed_tables import compared
from abprof.report.tables import Line, csv_text
from abprof.system.files import replace

Pair = tuple[Line | None, Line | None]  # a case's row in the base and in the target file
OLD_SPARSE = ("seqlen", "sparsity_ratio", "block_size", "direction")
_FIRST_VALUE = "latency_ms"
_OWN_KEYS = ("cell", "variant")  # an abprof profile's rows are told apart by these as well
_OF_ARMS = frozenset({"cell", "workload", "arm", "side", "epochs"})  # of cells.csv: as keys, commits would never meet
_MODES = (
    ("block_sparse", ("seqlen", "sparsity_ratio", "q_block_size", "k_block_size", "direction")),
    ("block_sparse", OLD_SPARSE),
    ("dense", seed_format.DENSE_KEYS),
)


@dataclass(frozen=True)
class Table:
    """One profile CSV."""

    path: Path
    columns: tuple[str, ...]
    lines: tuple[Line, ...]


def compare(base_csv: Path, target_csv: Path, out_csv: Path, *, threshold: float = 1.5) -> str:
    """Write the comparison of two profile CSVs; the text is what to print, the scripts' warnings at its end.

    Raises AbprofError for files that cannot be compared or written.
    """
    base, target = _read(base_csv), _read(target_csv)
    mode, keys = _mode(base, target)
    columns = _value_columns(base, target, keys)
    joining = keys + tuple(name for name in _OWN_KEYS if name in base.columns and name in target.columns)
    pairs = _joined(base, target, joining)
    if not any(left and right for left, right in pairs):
        raise AbprofError(f"no case of {base_csv} is in it", where=str(target_csv), advice=f"keys: {', '.join(keys)}")
    for table in (base, target):
        _refuse_texts(table, columns)
    shared = [name for name in ("status", *_OWN_KEYS[::-1]) if name in base.columns or name in target.columns]
    lines = [_line(left or {}, right or {}, keys, columns, shared) for left, right in pairs]
    _write(out_csv, csv_text(list(lines[0]), lines))
    alerts = [alert for left, right in pairs if (alert := _alert(left, right, keys, threshold))]
    apart = _uncompared(pairs, keys)
    return _text(mode, base, target, out_csv, apart, alerts, threshold)


def _read(path: Path) -> Table:
    columns, lines = tables.read(path)
    return Table(path, columns, tuple(lines))


def _mode(base: Table, target: Table) -> tuple[str, tuple[str, ...]]:
    """The suite and the key columns, from both headers."""
    for mode, needed in _MODES:
        if set(needed) <= set(base.columns):
            missing = [name for name in needed if name not in target.columns]
            if missing:
                raise AbprofError(f"no column {missing[0]!r}, which {base.path} has", where=str(target.path))
            return mode, needed if needed in (seed_format.DENSE_KEYS, OLD_SPARSE) else _axes(base, target)
    for table in (base, target):
        if set(table.columns) >= _OF_ARMS:
            raise AbprofError("a run's cells.csv, a row per arm, is no profile", where=str(table.path),
                              advice="abprof report RUN1 RUN2 compares two runs")  # fmt: skip
    if all({*_OWN_KEYS, _FIRST_VALUE} <= set(table.columns) for table in (base, target)):
        return "abprof", _axes(base, target)
    found = ", ".join(base.columns[:12]) or "none"
    wanted = "mask_type,direction,seqlen or seqlen,sparsity_ratio,q_block_size,k_block_size,direction"
    raise AbprofError(f"neither a dense nor a block_sparse profile: its columns are {found}", where=str(base.path),
                      advice=f"it needs {wanted}")  # fmt: skip


def _axes(base: Table, target: Table) -> tuple[str, ...]:
    """Every column in front of the first value that both files have: files of different years have different ones."""
    if _FIRST_VALUE not in base.columns:
        raise AbprofError(f"no column {_FIRST_VALUE!r}", where=str(base.path))
    front = base.columns[: base.columns.index(_FIRST_VALUE)]
    return seed_format.compare_keys([name for name in front if name in target.columns])


def _value_columns(base: Table, target: Table, keys: Sequence[str]) -> list[str]:
    known = (*seed_format.compared_columns(keys), *LATER_COLUMNS)
    for table, other in ((base, target), (target, base)):
        if "tflops_per_sec" not in table.columns:
            raise AbprofError("no column 'tflops_per_sec'", where=str(table.path))
        alone = [name for name in known if name in table.columns and name not in other.columns]
        if alone and alone[0] not in LATER_COLUMNS:
            raise AbprofError(f"no column {alone[0]!r}, which {table.path} has", where=str(other.path))
    return [name for name in known if name in base.columns and name in target.columns]


def _refuse_texts(table: Table, columns: Sequence[str]) -> None:
    """Raises AbprofError for a cell that is neither a number nor empty: it would be taken for "not recorded"."""
    for place, line in enumerate(table.lines):
        for name in columns:
            if line[name].strip() and not is_number(line[name]):
                what = f"row {place + 2}, column {name}: {line[name]!r} is not a number"
                raise AbprofError(what, where=str(table.path))


def _joined(base: Table, target: Table, keys: Sequence[str]) -> list[Pair]:
    """Every case of either file with its row in both; None where a file has none."""
    left, right = _cases(base, keys), _cases(target, keys)
    return [(left.get(case), right.get(case)) for case in {**left, **right}]


def _cases(table: Table, keys: Sequence[str]) -> dict[str, Line]:
    """Case, written so that equal cases are equal texts, -> its row. Raises AbprofError when two rows have the same."""
    found: dict[str, Line] = {}
    for line in table.lines:
        case = repr([_value(line[name]) for name in keys])
        if case in found:
            said = ", ".join(f"{name}={line[name]}" for name in keys)
            raise AbprofError(f"two rows for {said}", where=str(table.path))
        found[case] = line
    return found


def _value(text: str) -> object:
    """A key as the value it stands for, so that 64 and 64.0, True and TRUE are the same case."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() else number


def _line(base: Line, target: Line, keys: Sequence[str], columns: Sequence[str], shared: Sequence[str]) -> Line:
    either = base or target
    line = {name: either[name] for name in keys} | compared(base, target, columns)
    line["in_files"] = "both" if base and target else "baseline only" if base else "target only"
    for name in shared:
        if name in _OWN_KEYS:
            line[name] = either.get(name, "")
        else:
            line |= {f"{name}_baseline": base.get(name, ""), f"{name}_target": target.get(name, "")}
    return line


def _alert(base: Line | None, target: Line | None, keys: Sequence[str], threshold: float) -> list[str]:
    if not base or not target:
        return []
    left, right = _tflops(base), _tflops(target)
    change = seed_format.improvement(left, right)
    if left is None or right is None or change is None or abs(change) <= threshold:
        return []
    return seed_format.alert({name: _value(base[name]) for name in keys}, left, right)


def _uncompared(pairs: Sequence[Pair], keys: Sequence[str]) -> list[str]:
    """A line for each case that has no TFLOP/s to compare, and why."""
    found = []
    for base, target in pairs:
        lacking = [name for name, line in (("baseline", base), ("target", target)) if not line]
        why = f"no row in the {lacking[0]}" if lacking else ""
        if base and target:
            bare = [name for name, line in (("baseline", base), ("target", target)) if _tflops(line) is None]
            why = f"TFLOP/s not recorded in the {' and the '.join(bare)}" if bare else ""
        if why:
            case = {name: _value((base or target or {})[name]) for name in keys}
            found.append(f"  - {case}: {why}")
    return found


def _tflops(line: Line) -> float | None:
    return seed_format.number(line["tflops_per_sec"])


def _text(mode: str, base: Table, target: Table, out: Path, apart: list[str], alerts: list[list[str]],
          threshold: float) -> str:  # fmt: skip
    head = [
        f"--- Automatically detected mode: '{mode}' ---",
        "",
        "--- Performance Comparison Report ---",
        f"Baseline File: {base.path}",
        f"Target File:   {target.path}",
        f"Results successfully saved to: {out}",
        "These files hold no noise estimate: no percentage below has an interval. A verdict needs a run.",
    ]
    if apart:
        head += ["", "Cases that could not be compared:", *apart]
    if apart and not alerts:
        head += ["", f"No case that could be compared fluctuates over {threshold:g}%."]
    else:
        head += seed_format.warning_block(alerts, [threshold])
    return "\n".join(head) + "\n"


def _write(path: Path, text: str) -> None:
    if path.exists() and not path.is_file():  # /dev/stdout and its like cannot be replaced
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise AbprofError(error.strerror or str(error), where=str(path)) from None
    else:
        replace(path.resolve(), text.encode(errors="replace"))
