"""cells.csv, and how every CSV of a run is written and read.

Every cell stays the text it is, but for invisible letters and what a spreadsheet would take for a formula. Numbers are
unrounded, times in ms, memory in bytes, changes in per cent of time (negative is faster); empty where nothing was recorded.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path

from abprof.records import HOST, Cell, Comparison, Observation, Run
from abprof.records.errors import AbprofError
from abprof.records.visible import cell as safe_cell
from abprof.report import rows
from abprof.report.text import clean

Line = dict[str, str]  # column -> cell
_NUMBERS = ("pct", "low_pct", "high_pct")  # of a comparison
_MORE = ("certifiable_pct", "detectable_pct", "tail_pct", "read_pct", "clock_pct", "sustained_pct", "p")


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

    try:  # the Python engine tells a short row from one with empty cells, and says where a quote stays open
        frame = pd.read_csv(path, header=None, dtype=str, keep_default_na=False, encoding="utf-8-sig", engine="python")
    except OSError as error:
        raise AbprofError(error.strerror or str(error), where=str(path)) from None
    except pd.errors.EmptyDataError:
        raise AbprofError("no rows", where=str(path)) from None
    except (UnicodeDecodeError, pd.errors.ParserError) as error:
        raise AbprofError(f"not a CSV file: {error}", where=str(path)) from None
    header, *lines = frame.to_numpy().tolist()
    twice = [name for name in header if header.count(name) > 1]
    short = [number for number, line in enumerate(lines, 2) if not all(isinstance(cell, str) for cell in line)]
    if twice or short or not lines:
        what = f"column {twice[0]!r} stands twice in the header" if twice else "no rows"
        raise AbprofError(f"row {short[0]} has fewer cells than the header" if short else what, where=str(path))
    return tuple(header), [dict(zip(header, line, strict=True)) for line in lines]


def _number(value: float | None) -> str:
    return "" if value is None else repr(value)


def _ms(ns: float | None) -> str:
    return _number(None if ns is None else ns / 1e6)


# ---------------------------------------------------------------- cells.csv


def cells_csv(run: Run) -> str:
    """A row per cell and arm; a cell that was never reached keeps its row."""
    seen: dict[str, list[Observation | None]] = {}
    for observation in run.observations:
        seen.setdefault(observation.cell, []).append(observation)
    judged = {(c.cell, c.to): c for c in reversed(run.comparisons) if c.from_.split(":")[0] == "base"}
    lines = [_cell_line(run, cell, one, judged.get((cell.id, one.arm)) if one else None)
             for cell in run.cells for one in seen.get(cell.id, [None])]  # fmt: skip
    names = [*dict.fromkeys(name for line in lines for name in line)]
    place = {name: 3 for name in names if name.startswith("phase_")} | {
        name: 1 for name in names if name.startswith("param_")
    }
    place |= dict.fromkeys(("cell", "workload", "kernel", "suite"), 0)
    return csv_text(sorted(names, key=lambda name: place.get(name, 2)), lines)


def _cell_line(run: Run, cell: Cell, seen: Observation | None, judged: Comparison | None) -> Line:
    """`judged`: the arm against base; None for base itself, for peers and in a run of one branch."""
    place = rows.arm(run, seen.arm) if seen else None
    side = next((side for side in run.sides if place and side.id == place.side), None)
    metric = judged.metric if judged else rows.judged_metric(run, rows.workload_of(run, cell), seen)
    time = rows.metric(seen, metric)
    ns, check = (time.value if time else None), (seen.check if seen else None)
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
        **{name: _number(getattr(judged, name, None)) for name in _NUMBERS},
        "reasons": plain(" ".join(judged.reasons)) if judged else "",
        **{name: _number(getattr(judged, name, None)) for name in _MORE},
        "discovery": str(judged.discovery) if judged else "",
    }
    parts = rows.breakdown(cell, seen)
    line |= {f"phase_{name}_ms": _ms(ns) for name, ns in parts.all.items()}
    return line | {"phase_total_ms": _ms(parts.total), "phase_residual_ms": _ms(parts.residual)}
