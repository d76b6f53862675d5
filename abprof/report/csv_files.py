"""cells.csv and comparisons.csv, and how every CSV of a run is written and read.

Every cell stays the text it is, but for invisible letters and what a spreadsheet would take for a formula. Numbers are
unrounded, times in ms, memory in bytes, changes in per cent of time (negative is faster); empty where nothing was recorded.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO, StringIO
from pathlib import Path

from abprof.records import HOST, Cell, Comparison, Observation, Run
from abprof.records.errors import AbprofError
from abprof.records.visible import cell as safe_cell
from abprof.report import rows
from abprof.report.text import clean

Line = dict[str, str]  # column -> cell
_NUMBERS = (
    "pct",
    "low_pct",
    "high_pct",
    "certifiable_pct",
    "read_pct",
    "clock_pct",
    "sustained_pct",
    "p",
)  # of a comparison


def csv_text(header: Sequence[str], lines: Iterable[Line]) -> str:
    """A CSV file with these columns; a line's missing ones are empty. Raises ValueError for a column not among them."""
    written = StringIO()
    writer = csv.DictWriter(written, [*header], restval="", lineterminator="\n")
    writer.writerow(dict(zip(header, map(safe_cell, header), strict=True)))
    for line in lines:
        writer.writerow({name: safe_cell(text) for name, text in line.items()})
    return written.getvalue()


def plain(text: str) -> str:
    """Foreign text as a cell: one line of some hundred letters, and never a formula."""
    return safe_cell(clean(text))


def read(path: Path) -> tuple[tuple[str, ...], list[Line]]:
    """A CSV file's columns and lines, every cell as text. Raises AbprofError for anything that is not a whole table."""
    import pandas as pd

    try:
        # The Python engine tells a short row from one with empty cells, and says where a quote stays open.
        frame = pd.read_csv(BytesIO(path.read_bytes()), header=None, dtype=str, keep_default_na=False,
                            encoding="utf-8-sig", engine="python")  # fmt: skip
    except OSError as error:
        raise AbprofError(error.strerror or str(error), where=str(path)) from None
    except pd.errors.EmptyDataError:
        raise AbprofError("no rows", where=str(path)) from None
    except (UnicodeDecodeError, pd.errors.ParserError) as error:
        raise AbprofError(f"not a CSV file: {error}", where=str(path)) from None
    short = frame.isna().any(axis=1)
    if short.any():
        first = int(short.to_numpy().argmax())
        cells = int(frame.iloc[first].notna().sum())
        raise AbprofError(f"row {first + 1} has {cells} cells, the header {frame.shape[1]}", where=str(path))
    header, *lines = frame.to_numpy().tolist()
    if len(set(header)) != len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise AbprofError(f"column {twice!r} stands twice in the header", where=str(path))
    if not lines:
        raise AbprofError("no rows", where=str(path))
    return tuple(header), [dict(zip(header, line, strict=True)) for line in lines]


def _number(value: float | None) -> str:
    return "" if value is None else repr(value)


def _ms(ns: float | None) -> str:
    return _number(None if ns is None else ns / 1e6)


# ---------------------------------------------------------------- cells.csv


def cells_csv(run: Run) -> str:
    """A row per cell and arm."""
    seen: dict[str, list[Observation | None]] = {}
    for observation in run.observations:
        seen.setdefault(observation.cell, []).append(observation)
    judged = {(c.cell, c.to): c for c in reversed(run.comparisons) if c.from_.split(":")[0] == "base"}

    def lines() -> Iterator[Line]:
        for cell in run.cells:
            for one in seen.get(cell.id, [None]):  # a cell that was never reached keeps its row
                yield _cell_line(run, cell, one, judged.get((cell.id, one.arm)) if one else None)

    names = dict.fromkeys(name for line in lines() for name in line)
    head = ["cell", "workload", "kernel", "suite"]
    axes = [name for name in names if name.startswith("param_")]
    phases = [name for name in names if name.startswith("phase_")]
    rest = [name for name in names if name not in {*head, *axes, *phases}]
    return csv_text([*head, *axes, *rest, *phases], lines())  # made twice, and never all at once


def _cell_line(run: Run, cell: Cell, seen: Observation | None, judged: Comparison | None) -> Line:
    """`judged`: the arm against base; None for base itself, for peers and in a run of one branch."""
    place = rows.arm(run, seen.arm) if seen else None
    side = next((side for side in run.sides if place and side.id == place.side), None)
    metric = judged.metric if judged else rows.judged_metric(run, rows.workload_of(run, cell), seen)
    time = rows.metric(seen, metric)
    ns, check = (time.value if time else None), (seen.check if seen else None)
    changes = [_number(getattr(judged, name) if judged else None) for name in _NUMBERS]
    line = {"cell": cell.id, "workload": cell.workload, "kernel": cell.kernel, "suite": cell.suite}
    line |= {f"param_{name}": plain(str(value)) for name, value in cell.params.items()}
    line |= {
        "arm": seen.arm if seen else "",
        "side": place.side if place else "",
        "variant": place.variant if place else "",
        "peer": place.peer if place else "",
        "branch": plain(side.label) if side else "",
        "commit": side.commit if side else "",
        "status": seen.status if seen else "not measured",
        "reason": plain(seen.reason) if seen else "",
        "epochs": str(seen.epochs) if seen else "0",
        **({"device": plain(seen.device) if seen else ""} if run.machines else {}),
        "metric": metric,
        "latency_ms": _ms(ns),
        "latency_low_ms": _ms(time.low if time else None),
        "latency_high_ms": _ms(time.high if time else None),
        "wall_ms": _ms(rows.value(seen, "wall")),
        "tflops_per_sec": _number(rows.tflops(cell, ns)),
        "gb_per_s": _number(rows.gbps(cell, ns)),
        "host_ms": _ms(rows.value(seen, HOST)),
        "peak_mem_bytes": _number(rows.value(seen, "peak_mem_bytes")),
        "flops": _number(cell.flops),
        "bytes": _number(cell.bytes),
        "convention": plain(cell.convention),
        "check_ok": "" if check is None or not check.compared else str(check.ok),
        "check_max_abs": _number(check.max_abs if check else None),
        "check_max_rel": _number(check.max_rel if check else None),
        "output_digest": check.digest if check else "",
        "compared_with": judged.from_ if judged else "",
        "verdict": judged.verdict if judged else "",
        **dict(zip(_NUMBERS[:3], changes[:3], strict=True)),
        "reasons": plain(" ".join(judged.reasons)) if judged else "",
        **dict(zip(_NUMBERS[3:], changes[3:], strict=True)),
        "discovery": str(judged.discovery) if judged else "",
    }
    parts = rows.breakdown(cell, seen)
    line |= {f"phase_{name}_ms": _ms(ns) for name, ns in parts.all.items()}
    return line | {"phase_total_ms": _ms(parts.total), "phase_residual_ms": _ms(parts.residual)}


# ---------------------------------------------------------------- comparisons.csv


def comparisons_csv(run: Run) -> str:
    """A row per comparison of any family, in the order of run.json."""
    families: dict[str, list[Comparison]] = {"target": [], "peer": []}
    for one in run.comparisons:
        families["peer" if one.with_peer else "target"].append(one)
    families |= {"variant": list(run.within), "control": list(run.controls)}
    cells = {cell.id: cell for cell in run.cells}
    found = [(cells[one.cell], family, one) for family, several in families.items() for one in several]
    axes = dict.fromkeys(f"param_{name}" for cell, _, _ in found for name in cell.params)
    header = ["cell", "workload", *axes, "family", "from", "to", "metric", "verdict", "reasons", "discovery", "epochs"]
    return csv_text([*header, "look", *_NUMBERS], (_comparison_line(*one) for one in found))


def _comparison_line(cell: Cell, family: str, one: Comparison) -> Line:
    line = {"cell": cell.id, "workload": cell.workload}
    line |= {f"param_{name}": plain(str(value)) for name, value in cell.params.items()}
    line |= {"family": family, "from": one.from_, "to": one.to, "metric": one.metric, "verdict": one.verdict}
    line |= {"reasons": plain(" ".join(one.reasons)), "discovery": str(one.discovery)}
    line |= {"epochs": str(one.epochs), "look": str(one.look)}
    return line | {name: _number(getattr(one, name)) for name in _NUMBERS}
