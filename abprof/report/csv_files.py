"""Read and write CSV files, and make cells.csv.

Untrusted text is made safe for spreadsheets. The numbers in cells.csv are not rounded: times in ms, memory in bytes,
changes in per cent of time (negative is faster). An empty cell means "not recorded".
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abprof.records import HOST, Arm, Cell, Comparison, Observation, Run
from abprof.records.errors import AbprofError
from abprof.records.visible import cell as safe_cell
from abprof.report import rows
from abprof.report.text import clean
from abprof.system.files import read_named, replace

if TYPE_CHECKING:
    import pandas as pd

Line = dict[str, Any]  # column -> text, number, or None
_JUDGED = ("pct", "low_pct", "high_pct", "reasons", "certifiable_pct", "detectable_pct", "tail_pct", "host_pct", "read_pct",
           "clock_pct", "sustained_pct", "sustained_low_pct", "sustained_high_pct", "burst_pct", "p", "discovery")  # fmt: skip


def csv_text(header: Sequence[str], lines: Iterable[Mapping[str, Any]], number: Callable[[float], str] = repr) -> str:
    """Return a CSV file with the columns `header`. `number` formats floats. None and missing values leave empty cells.
    Raises ValueError if a line has a column that `header` lacks."""

    def cell(value: Any) -> str:
        return "" if value is None else number(value) if isinstance(value, float) else safe_cell(str(value))

    written = StringIO()
    writer = csv.DictWriter(written, [*header], restval="", lineterminator="\n")
    writer.writerow(dict(zip(header, map(cell, header), strict=True)))
    writer.writerows({name: cell(value) for name, value in line.items()} for line in lines)
    return written.getvalue()


def read(path: Path) -> tuple[tuple[str, ...], list[Line]]:
    """Return the columns and lines of a CSV file, every cell as text. Raises AbprofError for a malformed table."""
    import pandas as pd

    try:  # the Python engine tells a short row from one with empty cells, and says where a quote stays open
        data, text = io.BytesIO(read_named(path, 256 << 20)), "utf-8-sig"
        frame = pd.read_csv(data, header=None, dtype=str, keep_default_na=False, encoding=text, engine="python")
    except pd.errors.EmptyDataError:
        raise AbprofError("the file has no rows", where=str(path)) from None
    except (UnicodeDecodeError, pd.errors.ParserError) as error:
        raise AbprofError(f"this is not a CSV file: {error}", where=str(path)) from None
    header, *lines = frame.to_numpy().tolist()
    twice = [name for name in header if header.count(name) > 1]
    short = [number for number, line in enumerate(lines, 2) if not all(isinstance(cell, str) for cell in line)]
    if twice or short or not lines:
        what = f"column {twice[0]!r} stands twice in the header" if twice else "the file has no rows"
        raise AbprofError(f"row {short[0]} has fewer cells than the header" if short else what, where=str(path))
    return tuple(header), [dict(zip(header, line, strict=True)) for line in lines]


def save(path: Path, text: str) -> None:
    """Write a file that the user named. Raises AbprofError if something else than a file is there."""
    if path.exists() and not path.is_file():
        raise AbprofError("not a regular file", where=str(path))
    replace(path.resolve(), text.encode(errors="replace"))


def ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


def cells_csv(run: Run) -> str:
    """Return cells.csv: one row for each cell and arm, and one row for each cell that was not measured."""
    return csv_text(*_cells(run))


def frame(run: Run) -> pd.DataFrame:
    """Return the rows of cells.csv that are compared with base, as a DataFrame with base's time in another column."""
    import pandas as pd

    header, lines = _cells(run)
    times = {(line["cell"], line["arm"]): line["latency_ms"] for line in lines}
    found = [{**x, "base_latency_ms": times.get((x["cell"], x["compared_with"]))} for x in lines if x["compared_with"]]
    return pd.DataFrame(found, columns=[*header, "base_latency_ms"])


def _cells(run: Run) -> tuple[list[str], list[Line]]:
    seen: dict[str, list[Observation | None]] = {}
    for observation in run.observations:
        seen.setdefault(observation.cell, []).append(observation)
    judged = {(c.cell, c.to): c for c in reversed(run.comparisons) if Arm.of(c.from_).worker == "base"}
    lines = [_cell_line(run, cell, one, judged.get((cell.id, one.arm)) if one else None)
             for cell in run.cells for one in seen.get(cell.id, [None])]  # fmt: skip
    names = [*dict.fromkeys(name for line in lines for name in line)]
    phases = [name for name in names if name.startswith("phase_")]  # each cell has its own axes and phases
    axes = [name for name in names if name.startswith("param_")]
    return [*dict.fromkeys([*names[:4], *axes, *(n for n in names if n not in phases), *phases])], lines


def _cell_line(run: Run, cell: Cell, seen: Observation | None, judged: Comparison | None) -> Line:
    place = rows.arm(run, seen.arm) if seen else None
    side = next((side for side in run.sides if place and side.id == place.side), None)
    metric = judged.metric if judged else rows.judged_metric(run, rows.workload_of(run, cell), seen)
    time, parts = rows.metric(seen, metric), rows.Breakdown(cell, seen)
    ns, check = (time.value if time else None), (seen.check if seen else None)
    return {
        "cell": cell.id,
        "workload": cell.workload,
        "kernel": cell.kernel,
        "suite": cell.suite,
        **{f"param_{name}": clean(value) for name, value in cell.params.items()},
        "arm": seen and seen.arm,
        "side": place and place.side,
        "variant": place and place.variant,
        "peer": place and place.peer,
        "branch": side and clean(side.label),
        "commit": side and side.commit,
        "status": seen.status if seen else "not measured",
        "reason": seen and clean(seen.reason),
        "epochs": seen.epochs if seen else 0,
        **({"device": seen and clean(seen.device)} if run.machines else {}),
        "metric": metric,
        "latency_ms": ms(ns),
        "latency_low_ms": ms(time.low if time else None),
        "latency_high_ms": ms(time.high if time else None),
        "wall_ms": ms(rows.value(seen, "wall")),
        "tflops_per_sec": rows.tflops(cell, ns),
        "gb_per_s": rows.gbps(cell, ns),
        "host_ms": ms(rows.value(seen, HOST)),
        "peak_mem_bytes": rows.value(seen, "peak_mem_bytes"),
        "flops": cell.flops,
        "bytes": cell.bytes,
        "convention": clean(cell.convention),
        "check_ok": check.ok if check and check.compared else None,
        "check_max_abs": check and check.max_abs,
        "check_max_rel": check and check.max_rel,
        "output_digest": check and check.digest,
        "compared_with": judged and judged.from_,
        "verdict": judged and judged.verdict,
        **{name: getattr(judged, name, None) for name in _JUDGED},
        **({"reasons": clean(" ".join(judged.reasons))} if judged else {}),
        **{f"phase_{name}_ms": ms(ns) for name, ns in parts.all.items()},
        "phase_total_ms": ms(parts.total),
        "phase_residual_ms": ms(parts.residual),
    }
