"""cells.csv: tidy, a row per cell and arm, numbers unrounded, empty where nothing was recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from abprof.records import GPU_GRAPH, HOST, Arm, Cell, Comparison, Observation, Run
from abprof.report import numbers
from abprof.report.tables import Line, csv_text, plain
from abprof.report.view import arm, judged_metric, workload_of

_PARAM = "param_"


def cells_csv(run: Run) -> str:
    """The table as text. Times in ms, memory in bytes, changes in per cent of time (negative is faster)."""
    seen: dict[str, list[Observation | None]] = {}
    for observation in run.observations:
        seen.setdefault(observation.cell, []).append(observation)
    judged = {
        (c.cell, c.to): c for c in reversed(run.comparisons) if Arm.of(c.from_).side == "base" and not c.with_peer
    }
    others = numbers.sequential(run)

    def lines() -> Iterator[Line]:
        for cell in run.cells:
            for observation in seen.get(cell.id, [None]):  # a cell that was never reached keeps its row
                against_base = judged.get((cell.id, observation.arm)) if observation else None
                yield _line(run, cell, observation, others, against_base)

    return csv_text(_header(lines()), lines())  # made twice, and never all at once


def _line(run: Run, cell: Cell, seen: Observation | None, others: Sequence[str], judged: Comparison | None) -> Line:
    """`judged`: the arm against base; None for base itself, for peers and in a run of one branch."""
    place = arm(run, seen.arm) if seen else None
    side = next((side for side in run.sides if place and side.id == place.side), None)
    line = {"cell": cell.id, "workload": cell.workload, "kernel": cell.kernel, "suite": cell.suite}
    line |= {f"{_PARAM}{name}": plain(str(value)) for name, value in cell.params.items()}
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
    }
    line |= {"device": plain(seen.device) if seen else ""} if run.machines else {}
    return line | _measured(run, cell, seen, others, judged) | _judged(judged) | _phases(cell, seen)


def _measured(run: Run, cell: Cell, seen: Observation | None, others: Sequence[str], judged: Comparison | None) -> Line:
    name = judged.metric if judged else judged_metric(run, workload_of(run, cell), seen)
    time = numbers.metric(seen, name)
    ns, check = (time.value if time else None), (seen.check if seen else None)
    return {
        "metric": name,
        "latency_ms": _ms(ns),
        "latency_low_ms": _ms(time.low if time else None),
        "latency_high_ms": _ms(time.high if time else None),
        "wall_ms": _ms(numbers.time_ns(seen, "wall")),
        **{f"{other}_ms": _ms(numbers.time_ns(seen, other)) for other in others},
        "tflops_per_sec": _text(numbers.tflops(cell, ns)),
        "gb_per_s": _text(numbers.gbps(cell, ns)),
        "host_ms": _ms(numbers.time_ns(seen, HOST)),
        "graph_ms": _ms(numbers.time_ns(seen, GPU_GRAPH)),
        "no_graph": plain(seen.uncaptured) if seen else "",
        "peak_mem_bytes": _text(numbers.time_ns(seen, "peak_mem_bytes")),
        "flops": _text(cell.flops),
        "bytes": _text(cell.bytes),
        "convention": plain(cell.convention),
        "check_ok": "" if check is None or not check.compared else str(check.ok),
        "check_max_abs": _text(check.max_abs if check else None),
        "check_max_rel": _text(check.max_rel if check else None),
        "output_digest": check.digest if check else "",
    }


def _judged(judged: Comparison | None) -> Line:
    return {
        "compared_with": judged.from_ if judged else "",
        "verdict": judged.verdict if judged else "",
        "pct": _text(judged.pct if judged else None),
        "low_pct": _text(judged.low_pct if judged else None),
        "high_pct": _text(judged.high_pct if judged else None),
        "reasons": plain(" ".join(judged.reasons)) if judged else "",
        "certifiable_pct": _text(judged.certifiable_pct if judged else None),
        "read_pct": _text(judged.read_pct if judged else None),
        "clock_pct": _text(judged.clock_pct if judged else None),
        "sustained_pct": _text(judged.sustained_pct if judged else None),
        "graph_pct": _text(judged.graph_pct if judged else None),
        "p": _text(judged.p if judged else None),
        "discovery": str(judged.discovery) if judged else "",
    }


def _phases(cell: Cell, seen: Observation | None) -> Line:
    parts = numbers.breakdown(cell, seen)
    line = {f"phase_{name}_ms": _ms(ns) for name, ns in parts.all.items()}
    return line | {"phase_total_ms": _ms(parts.total), "phase_residual_ms": _ms(parts.residual)}


def _header(lines: Iterable[Line]) -> list[str]:
    """Identity, axes, the rest, phases: the axes of all workloads beside each other."""
    names = list(dict.fromkeys(name for line in lines for name in line))
    head, axes = ["cell", "workload", "kernel", "suite"], [name for name in names if name.startswith(_PARAM)]
    phases = [name for name in names if name.startswith("phase_")]
    return [*head, *axes, *(name for name in names if name not in {*head, *axes, *phases}), *phases]


def _ms(ns: float | None) -> str:
    return _text(None if ns is None else ns / 1e6)


def _text(value: float | None) -> str:
    return "" if value is None else repr(value)
