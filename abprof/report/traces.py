"""What the sides did under torch's profiler (--probe torch), or Triton's (--probe proton): a table for each row of kernels,
or of operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from abprof.evidence.causes.wording import ns
from abprof.records import Run, Sampled, Trace
from abprof.report import tables, view, words
from abprof.report.lines import TextTable

_TITLES = {"torch": "Under torch's profiler", "proton": "Under Triton's proton"}
_OPENED = {"torch": "Traces for Perfetto (ui.perfetto.dev)", "proton": "Trees for proton-viewer"}
_TEXT = "A few calls after all timing, with the profiler's own cost in them: they say where the time is, and not how much it is."
_ON_A_CPU = " On a CPU these are torch's operations: what a kernel does without torch has no row."
_Evidence = TypeVar("_Evidence", Trace, Sampled)
MOST = 30  # names that a page shows of a row
HEADER = ("cell", "variant", "kind", "name", "from", "to", "from_count", "to_count", "from_ns", "to_ns",
          "difference_ns", "presence", "profiler")  # fmt: skip


@dataclass(frozen=True)
class Part:
    """One row of the run: its files, what is missing, and both sides' kernels beside each other."""

    title: str
    opened: str  # by what the files are opened
    files: tuple[tuple[str, str, str], ...]  # side, path from the run folder, what is to be said of it
    missing: tuple[str, ...]
    table: TextTable
    further: int  # names that the table leaves out


@dataclass(frozen=True)
class Named:
    """One name: (times, ns) in a call of each side, None where that side never launched it."""

    name: str
    before: tuple[int, float] | None
    after: tuple[int, float] | None

    @property
    def difference(self) -> float:
        """How much more of a call the second side takes, ns."""
        return (self.after[1] if self.after else 0.0) - (self.before[1] if self.before else 0.0)


def title(run: Run) -> str:
    """Whose profiles these are."""
    kinds = dict.fromkeys(one.by for one in run.traces)
    return _TITLES[next(iter(kinds))] if len(kinds) == 1 else "Under torch's profiler and Triton's proton"


def text(run: Run) -> str:
    """What the tables are of."""
    return _TEXT + (_ON_A_CPU if run.machine.kind == "cpu" else "")


def parts(run: Run) -> list[Part]:
    """A part for each traced row and target, in the order that they were looked at."""
    return [_part(run, before, after) for before, after in pairs(run, run.traces)]


def files(run: Run) -> dict[str, str]:
    """traces.csv, where anything was traced."""
    return {"traces.csv": tables.csv_text(HEADER, _lines(run))} if run.traces else {}


def named(before: Trace, after: Trace | None) -> list[Named]:
    """What a call launched, by name, the largest difference first. A side whose launches are not known has none here."""
    one, two = _counts(before), _counts(after)
    found = [Named(name, one.get(name), two.get(name)) for name in dict.fromkeys((*one, *two))]
    size = {f.name: abs(f.difference) if after else (f.before or (0, 0.0))[1] for f in found}
    return sorted(found, key=lambda f: -size[f.name])


def pairs(run: Run, of: Sequence[_Evidence]) -> Iterator[tuple[_Evidence, _Evidence | None]]:
    """What was found of base with that of each other side in the same cell and variant; alone where there is one side."""
    arms = [view.arm(run, one.arm) for one in of]
    made = {(_by(one), one.cell, arm.variant, arm.side): one for one, arm in zip(of, arms, strict=True)}
    others = [side.id for side in run.sides if side.id != "base"]
    for (by, cell, variant, side), trace in made.items():
        if side != "base":
            continue
        if not others:
            yield trace, None
        for other in others:
            if (by, cell, variant, other) in made:
                yield trace, made[by, cell, variant, other]


def _by(one: Trace | Sampled) -> str:
    return one.by if isinstance(one, Trace) else ""


def _part(run: Run, before: Trace, after: Trace | None) -> Part:
    both = [trace for trace in (before, after) if trace]
    sides = [view.arm(run, trace.arm).side for trace in both]
    found = named(before, after) if _known(before, after) else []
    header = [_kind(both), *(f"{side}, times" for side in sides), *(f"{side}, time" for side in sides)]
    header += ["difference", ""] if after else []
    variant = view.arm(run, before.arm).variant
    return Part(
        title=words.clean(f"{before.cell} {variant}".strip())
        + (f", {' and '.join(sides)}" if after else "")
        + (", by proton" if before.by == "proton" else ""),
        opened=_OPENED[before.by],
        files=tuple((side, one.file, _cut(one)) for side, one in zip(sides, both, strict=True) if one.file),
        missing=tuple(said for side, one in zip(sides, both, strict=True) for said in _missing(side, one)),
        table=TextTable(tuple(header), tuple(_row(one, after is not None, sides) for one in found[:MOST]), 1),
        further=max(0, len(found) - MOST),
    )


def _row(one: Named, compared: bool, sides: list[str]) -> tuple[str, ...]:
    told = [one.before, one.after] if compared else [one.before]
    texts = [words.clean(one.name, 120), *(str(t[0]) if t else "0" for t in told)]
    texts += [ns(t[1]) if t else "" for t in told]
    if compared:
        sign = "+" if one.difference > 0 else "-" if one.difference < 0 else ""
        texts += [f"{sign}{ns(abs(one.difference))}", _presence(one, *sides)]
    return tuple(texts)


def _presence(one: Named, first: str, second: str) -> str:
    return f"only {first}" if one.after is None else f"only {second}" if one.before is None else ""


def _lines(run: Run) -> Iterator[tables.Line]:
    for before, after in pairs(run, run.traces):
        first = view.arm(run, before.arm)
        second = view.arm(run, after.arm) if after else None
        for one in named(before, after) if _known(before, after) else []:
            line = {"cell": before.cell, "variant": first.variant, "kind": _kind([before]), "name": one.name}
            line |= {"from": first.side, "to": second.side if second else ""}
            for label, told in (("from", one.before), ("to", one.after)):
                line |= {f"{label}_count": str(told[0]), f"{label}_ns": str(told[1])} if told else {}
            if second:
                line["difference_ns"] = str(one.difference)
                line["presence"] = _presence(one, "from", "to") or "both"
            line["profiler"] = before.by
            yield {name: tables.plain(text) for name, text in line.items()}


def _counts(trace: Trace | None) -> dict[str, tuple[int, float]]:
    found: dict[str, tuple[int, float]] = {}
    for launch in trace.census.launches if trace and trace.census else ():
        count, time = found.get(launch.name, (0, 0.0))
        found[launch.name] = count + launch.count, time + launch.ns
    return found


def _known(before: Trace, after: Trace | None) -> bool:
    """Whether the launches of both are known: what is not known of one side must not read as absent there."""
    return all(one.census and not one.census.missing for one in (before, after) if one)


def _kind(both: list[Trace]) -> str:
    return "kernel" if any(one.census and one.census.on_device for one in both) else "operation"


def _cut(trace: Trace) -> str:
    return f"the first part: {words.plural(trace.left_out, 'event')} had no room" if trace.left_out else ""


def _missing(side: str, trace: Trace) -> Iterator[str]:
    if trace.missing:
        yield f"{side} has no {'trace' if trace.by == 'torch' else 'tree'}: {words.clean(trace.missing)}"
    if trace.census and trace.census.missing:
        yield f"{side}'s launches are not known: {words.clean(trace.census.missing)}"
