"""`abprof compare-csv`: two profile CSVs that exist already, compared the way the branch-profile scripts did.

Reads theirs (dense, block_sparse with `q_block_size,k_block_size` or the older `block_size`) and abprof's own, of any suite.
A row that only one file has is shown. Such files hold no noise estimate, so there is no verdict: that needs a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from abprof.records.errors import AbprofError
from abprof.records.visible import is_number
from abprof.report import suite_csv
from abprof.report.csv_files import Line, csv_text, read
from abprof.report.suite_csv import DENSE_KEYS, LATER
from abprof.system.files import replace

OLD_SPARSE = ("seqlen", "sparsity_ratio", "block_size", "direction")
_OWN_KEYS = ("cell", "variant")  # an abprof profile's rows differ in these as well
_OF_ARMS = frozenset({"cell", "workload", "arm", "side", "epochs"})  # of cells.csv: as keys, commits would never meet
_MODES = (
    ("block_sparse", ("seqlen", "sparsity_ratio", "q_block_size", "k_block_size", "direction")),
    ("block_sparse", OLD_SPARSE),
    ("dense", DENSE_KEYS),
)


@dataclass(frozen=True)
class Profile:
    """One profile CSV."""

    path: Path
    columns: tuple[str, ...]
    lines: list[Line]


def compare(base_csv: Path, target_csv: Path, out_csv: Path, *, threshold: float = 1.5) -> str:
    """Write the comparison of two profile CSVs; returns what to print, the scripts' warnings at its end.

    Raises AbprofError for files that cannot be compared or written.
    """
    base, target = (Profile(path, *read(path)) for path in (base_csv, target_csv))
    mode, keys = _mode(base, target)
    columns = _value_columns(base, target, keys)
    joining = keys + tuple(name for name in _OWN_KEYS if name in base.columns and name in target.columns)
    left, right = _cases(base, joining), _cases(target, joining)
    pairs = [(left.get(case, {}), right.get(case, {})) for case in {**left, **right}]
    if not any(one and other for one, other in pairs):
        raise AbprofError(f"no case of {base_csv} is in it", where=str(target_csv), advice=f"keys: {', '.join(keys)}")
    for profile in (base, target):
        for place, line in enumerate(profile.lines):  # a text would read as "not recorded"
            bad = next((name for name in columns if line[name].strip() and not is_number(line[name])), None)
            if bad:
                what = f"row {place + 2}, column {bad}: {line[bad]!r} is not a number"
                raise AbprofError(what, where=str(profile.path))
    shared = [name for name in ("status", *_OWN_KEYS[::-1]) if name in base.columns or name in target.columns]
    lines = [_line(one, other, keys, columns, shared) for one, other in pairs]
    _write(out_csv, csv_text(list(lines[0]), lines))
    alerts = [alert for one, other in pairs if (alert := _alert(one, other, keys, threshold))]
    apart = list(_uncompared(pairs, keys))
    head = [
        f"--- Automatically detected mode: '{mode}' ---",
        "",
        "--- Performance Comparison Report ---",
        f"Baseline File: {base.path}",
        f"Target File:   {target.path}",
        f"Results successfully saved to: {out_csv}",
        "These files hold no noise estimate: no percentage below has an interval. A verdict needs a run.",
    ]
    head += ["", "Cases that could not be compared:", *apart] if apart else []
    if apart and not alerts:
        head += ["", f"No case that could be compared fluctuates over {threshold:g}%."]
    else:
        head += suite_csv.warning_block(alerts, [threshold])
    return "\n".join(head) + "\n"


def _mode(base: Profile, target: Profile) -> tuple[str, tuple[str, ...]]:
    """The suite and the key columns, from both headers."""
    for mode, needed in _MODES:
        if set(needed) <= set(base.columns):
            missing = [name for name in needed if name not in target.columns]
            if missing:
                raise AbprofError(f"no column {missing[0]!r}, which {base.path} has", where=str(target.path))
            return mode, needed if needed in (DENSE_KEYS, OLD_SPARSE) else _axes(base, target)
    for profile in (base, target):
        if set(profile.columns) >= _OF_ARMS:
            raise AbprofError("this is a run's cells.csv, with a row per arm, not a profile", where=str(profile.path),
                              advice="abprof report RUN1 RUN2 compares two runs")  # fmt: skip
    if all({*_OWN_KEYS, "latency_ms"} <= set(profile.columns) for profile in (base, target)):
        return "abprof", _axes(base, target)
    found = ", ".join(base.columns[:12]) or "none"
    wanted = "mask_type,direction,seqlen or seqlen,sparsity_ratio,q_block_size,k_block_size,direction"
    raise AbprofError(f"neither a dense nor a block_sparse profile: its columns are {found}", where=str(base.path),
                      advice=f"it needs {wanted}")  # fmt: skip


def _axes(base: Profile, target: Profile) -> tuple[str, ...]:
    """Every column before the first value that both files have: files of different years have different ones."""
    if "latency_ms" not in base.columns:
        raise AbprofError("no column 'latency_ms'", where=str(base.path))
    front = base.columns[: base.columns.index("latency_ms")]
    return suite_csv.compare_keys([name for name in front if name in target.columns])


def _value_columns(base: Profile, target: Profile, keys: Sequence[str]) -> list[str]:
    known = (*suite_csv.compared_columns(keys), *LATER)
    for profile, other in ((base, target), (target, base)):
        if "tflops_per_sec" not in profile.columns:
            raise AbprofError("no column 'tflops_per_sec'", where=str(profile.path))
        alone = [name for name in known if name in profile.columns and name not in other.columns]
        if alone and alone[0] not in LATER:
            raise AbprofError(f"no column {alone[0]!r}, which {profile.path} has", where=str(other.path))
    return [name for name in known if name in base.columns and name in target.columns]


def _cases(profile: Profile, keys: Sequence[str]) -> dict[str, Line]:
    """Case, written so that equal cases are equal texts, -> its row. Raises AbprofError when two rows have the same."""
    found: dict[str, Line] = {}
    for line in profile.lines:
        case = repr([_value(line[name]) for name in keys])
        if case in found:
            named = ", ".join(f"{name}={line[name]}" for name in keys)
            raise AbprofError(f"two rows for {named}", where=str(profile.path))
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
    line = {name: either[name] for name in keys} | suite_csv.compared(base, target, columns)
    line["in_files"] = "both" if base and target else "baseline only" if base else "target only"
    for name in shared:
        if name in _OWN_KEYS:
            line[name] = either.get(name, "")
        else:
            line |= {f"{name}_baseline": base.get(name, ""), f"{name}_target": target.get(name, "")}
    return line


def _tflops(line: Line) -> float | None:
    return suite_csv.number(line["tflops_per_sec"]) if line else None


def _alert(base: Line, target: Line, keys: Sequence[str], threshold: float) -> list[str]:
    left, right = _tflops(base), _tflops(target)
    change = suite_csv.improvement(left, right)
    if left is None or right is None or change is None or abs(change) <= threshold:
        return []
    return suite_csv.alert({name: _value(base[name]) for name in keys}, left, right)


def _uncompared(pairs: Sequence[tuple[Line, Line]], keys: Sequence[str]) -> Iterator[str]:
    """A line for each case that has no TFLOP/s to compare, and why."""
    for pair in pairs:
        named = list(zip(("baseline", "target"), pair, strict=True))
        lacking = [name for name, line in named if not line]
        bare = [name for name, line in named if _tflops(line) is None]
        if bare:
            why = f"no row in the {lacking[0]}" if lacking else f"TFLOP/s not recorded in the {' and the '.join(bare)}"
            case = {name: _value((pair[0] or pair[1])[name]) for name in keys}
            yield f"  - {case}: {why}"


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.is_file():
        replace(path.resolve(), text.encode(errors="replace"))
        return
    try:  # /dev/stdout and its like cannot be replaced
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise AbprofError(error.strerror or str(error), where=str(path)) from None
