"""Where the processors' time went on both sides (--probe perf): a table of functions for each row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from abprof.evidence.causes.wording import ns
from abprof.records import Run, Sampled
from abprof.report import tables, traces, view, words
from abprof.report.lines import TextTable

TITLE = "Sampled by perf"
TEXT = (
    "Calls after all timing, with perf looking on: where their time is, of all threads together, and not how much it is. "
    "A difference of few samples is chance: of n samples the square root of n is."
)
MOST = 20  # functions that a page shows of a row
HEADER = ("cell", "variant", "function", "object", "own", "from", "to", "from_samples", "to_samples", "from_ns", "to_ns",
          "difference_ns")  # fmt: skip


@dataclass(frozen=True)
class Part:
    """One row of the run: what is missing, what was sampled, and both sides' functions beside each other."""

    title: str
    lines: tuple[str, ...]
    table: TextTable
    further: int  # functions that the table leaves out


@dataclass(frozen=True)
class Found:
    """One function: samples, and processor time in a call (ns), of the first side and the second."""

    name: str
    object: str
    own: bool
    samples: tuple[int, int]
    ns: tuple[float, float]


def parts(run: Run) -> list[Part]:
    """A part for each row that was looked at, and target."""
    return [_part(run, before, after) for before, after in traces.pairs(run, run.sampled)]


def files(run: Run) -> dict[str, str]:
    """samples.csv, where anything was sampled."""
    return {"samples.csv": tables.csv_text(HEADER, _lines(run))} if run.sampled else {}


def found(before: Sampled, after: Sampled | None) -> list[Found]:
    """Every function that either side was found in, the largest difference first; of one side alone the longest."""
    both = [_counts(before), _counts(after)]
    made = []
    for name, file, own in dict.fromkeys((*both[0], *both[1])):
        one, two = (counts.get((name, file, own), 0) for counts in both)
        made.append(Found(name, file, own, (one, two), (one * _ns(before), two * _ns(after))))
    return sorted(made, key=lambda f: -abs(f.ns[1] - f.ns[0]) if after else -f.ns[0])


def _counts(of: Sampled | None) -> dict[tuple[str, str, bool], int]:
    return {(one.name, one.object, one.own): one.samples for one in of.functions} if of else {}


def _ns(of: Sampled | None) -> float:
    """What a sample stands for in a call: a second of processor time has `hz` of them."""
    return 1e9 / of.hz / of.calls if of and of.hz and of.calls else 0.0


def _known(before: Sampled, after: Sampled | None) -> bool:
    """Whether both were sampled: what is not known of one side must not read as absent there."""
    return not any(one.missing for one in (before, after) if one)


def _part(run: Run, before: Sampled, after: Sampled | None) -> Part:
    both = [one for one in (before, after) if one]
    sides = [view.arm(run, one.arm).side for one in both]
    rows = found(before, after) if _known(before, after) else []
    header = ["function", "in", *(f"{side}, samples" for side in sides), *(f"{side}, a call" for side in sides)]
    variant = view.arm(run, before.arm).variant
    return Part(
        title=words.clean(f"{before.cell} {variant}".strip()) + (f", {' and '.join(sides)}" if after else ""),
        lines=tuple(_said(side, one) for side, one in zip(sides, both, strict=True)),
        table=TextTable(
            tuple(header + (["difference"] if after else [])),
            tuple(_row(one, compared=after is not None) for one in rows[:MOST]),
            2,
        ),
        further=max(0, len(rows) - MOST),
    )


def _said(side: str, one: Sampled) -> str:
    if one.missing:
        return f"{side} was not sampled: {words.clean(one.missing)}"
    calls, taken = words.plural(one.calls, "call"), words.plural(one.samples, "sample")
    return f"{side}: {taken} of {words.clean(one.event)} in {calls}, {one.hz} in a second"


def _row(one: Found, *, compared: bool) -> tuple[str, ...]:
    count = 2 if compared else 1
    name = words.clean(one.name, 120)
    texts = [name, words.clean(one.object, 60) + (" (own)" if one.own else "")]
    texts += [str(number) for number in one.samples[:count]] + [ns(time) for time in one.ns[:count]]
    if compared:
        more = one.ns[1] - one.ns[0]
        texts.append(f"{'+' if more > 0 else '-' if more < 0 else ''}{ns(abs(more))}")
    return tuple(texts)


def _lines(run: Run) -> Iterator[tables.Line]:
    for before, after in traces.pairs(run, run.sampled):
        first, second = view.arm(run, before.arm), view.arm(run, after.arm) if after else None
        for one in found(before, after) if _known(before, after) else []:
            line = {"cell": before.cell, "variant": first.variant, "function": one.name, "object": one.object}
            line |= {"own": str(one.own).lower(), "from": first.side, "to": second.side if second else ""}
            line |= {"from_samples": str(one.samples[0]), "from_ns": str(one.ns[0])}
            if second:
                line |= {"to_samples": str(one.samples[1]), "to_ns": str(one.ns[1])}
                line["difference_ns"] = str(one.ns[1] - one.ns[0])
            yield {name: tables.plain(text) for name, text in line.items()}
