"""What the device did at its best in this run, and what share of it a cell reaches."""

from __future__ import annotations

from abprof.records import Ceilings, Run
from abprof.report import places, words
from abprof.report.numbers import gbps, tflops
from abprof.report.view import Group

RATES = (("TFLOP/s", tflops), ("GB/s", gbps))
NOT_ASKED = "not measured in this run"


def of(run: Run, unit: str) -> float | None:
    """The ceiling in this unit, TFLOP/s or GB/s; None where it was not measured, and where devices of several models have
    several."""
    known = (None if places.models(run) else run.ceilings) or Ceilings()
    return {"TFLOP/s": known.tflops, "GB/s": known.gbps}[unit]


def label(run: Run, unit: str) -> str:
    """`TFLOP/s of 750.3`: what stands before rates of this unit."""
    ceiling = of(run, unit)
    return f"{unit} of {words.rate(ceiling)}" if ceiling else unit


def beside(run: Run, unit: str, rate: float | None) -> str:
    """`616.0, 82 %`; the rate alone where there is no ceiling, and nothing without a rate."""
    ceiling = of(run, unit)
    if rate is None:
        return ""
    return words.rate(rate) + (f", {_share(rate / ceiling)}" if ceiling else "")


def facts(run: Run) -> list[tuple[str, str]]:
    """The ceilings and how they were measured, as labelled lines; or why there are none."""
    if places.models(run):
        return []  # each device's stands beside it
    known = run.ceilings or Ceilings()
    why = words.clean(known.why_not) or NOT_ASKED
    return [
        (f"ceiling, {unit}", f"{words.rate(value)}: {words.clean(how)}" if value else why)
        for unit, value, how in (("TFLOP/s", known.tflops, known.tflops_by), ("GB/s", known.gbps, known.gbps_by))
    ]


def said(run: Run, group: Group) -> str:
    """What a share is a share of, in a sentence; nothing where no cell has rates."""
    known = (None if places.models(run) else run.ceilings) or Ceilings()
    if places.models(run):
        return "Rates stand without a percentage: what each device can do at its best stands beside it, under Machine."
    if not any(row.cell.flops or row.cell.bytes for row in group.rows):
        return ""
    if not (known.tflops or known.gbps):
        return "What this device can do at its best was not measured: rates stand without a percentage of it."
    parts = [f"{words.rate(known.tflops)} TFLOP/s by matrix products"] if known.tflops else []
    parts += [f"{words.rate(known.gbps)} GB/s by copies"] if known.gbps else []
    return f"Percentages of rates are of what plain torch reached on this device in this run: {' and '.join(parts)}."


def _share(part: float) -> str:
    return f"{100 * part:.0f} %" if part >= 0.01 else f"{100 * part:.1g} %"
