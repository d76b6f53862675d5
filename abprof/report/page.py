"""The presentation model: a run as headline, notes, tables and facts, before any format. HTML, Markdown and terminal print it."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from abprof.evidence.causes.sides import Part, Sides
from abprof.evidence.causes.wording import dims, ns
from abprof.records import HOST, SUSTAINED, Census, Kernel, Launch, Observation, Run
from abprof.records import Block as Measured
from abprof.records.quantities import plural
from abprof.report import charts, facts, probes, rows, sentences, workload_tables
from abprof.report.rows import (
    Block,
    Failed,
    Group,
    Line,
    Row,
    Section,
    arm,
    breakdown,
    gbps,
    metric,
    own_interval,
    tflops,
    time_text,
    value,
)
from abprof.report.sentences import weaker
from abprof.report.text import LONGEST, NOT_RECORDED, clean, duration, interval, rate, signed, size

DETAILS_UP_TO = 300  # rows of a run that have a detail; a larger run has those of rows that need a person
PHASES_UP_TO = 40  # rows of a group: above it phases stand in the rows' details alone
Texts = tuple[str, ...]  # a label, then one text for all sides or one per side


@dataclass(frozen=True)
class Detail:
    """What the page says of one row beyond its line in the table."""

    id: str
    line: Line
    picture: Markup
    rows: tuple[Texts, ...]
    logs: tuple[str, ...]
    epochs: int
    command: str
    counted: bool  # whether a cause rests on Nsight Compute's counters


@dataclass(frozen=True)
class Workload:
    """The rows of one workload against one target."""

    group: Group
    title: str
    lines: Sequence[Line]
    axis: charts.Axis
    causes: tuple[tuple[str, str], ...]  # case, sentence
    blocks: tuple[Block, ...]
    detail_ids: dict[int, str]  # index of a line -> the id of its detail
    details: Callable[[], Iterator[Detail]]  # made when they are printed: they are most of a page
    peak: str  # what the percentages behind rates are shares of

    @property
    def brief(self) -> list[Line]:
        """The lines that need a person."""
        return [line for line in self.lines if not line.folded]


@dataclass(frozen=True)
class Page:
    """All that a report of this run shows, in order."""

    run: Run
    headline: str
    where: str
    alerts: tuple[tuple[str, str], ...]  # what forbids to act on the run, and why
    counts: Sequence[tuple[str, int]]
    notes: tuple[str, ...]  # weaker guarantees, then notes about the sides
    weaker: tuple[str, ...]
    warnings: Sequence[tuple[str, str, tuple[str, ...]]]  # text, advice, cells
    trust: Sequence[tuple[str, str]]
    trusted: str
    strip: charts.Strip
    overview: tuple[Block, ...]
    workloads: tuple[Workload, ...]
    left_out: str  # rows without a detail
    probes: tuple[Section, ...]
    failed: Sequence[Failed]
    about: tuple[Section, ...]  # machine, builds, environments; method and words
    command: str


def page(run: Run, blocks: Sequence[Measured], groups: Sequence[Group] = ()) -> Page:
    """The model of a judged run and its blocks."""
    groups = groups or rows.groups(run)
    lines = [rows.lines(group) for group in groups]
    ids, left_out = _chosen(lines)
    measured = _by_cell(blocks)
    lacking = weaker(run)
    words = run.options.arguments
    words = words if words[:1] == ("abprof",) else ("abprof", *words)
    return Page(
        run=run,
        headline=sentences.headline(run),
        where=facts.where(run),
        alerts=tuple(_alerts(run)),
        counts=facts.counts(run),
        notes=(*lacking, *run.notes),
        weaker=lacking,
        warnings=rows.warnings(run, groups),
        trust=facts.trust(run, blocks),
        trusted=facts.trusted(run),
        strip=charts.Strip((row.comparison for g in groups for row in g.rows if row.comparison), run.options),
        overview=tuple(rows.overview(groups)),
        workloads=tuple(_workload(run, *of, measured) for of in zip(groups, lines, ids, strict=True)),
        left_out=left_out,
        probes=tuple(probes.sections(run)),
        failed=rows.all_failures(run, groups),
        about=tuple(_about(run, blocks)),
        command=" ".join(words),
    )


def _alerts(run: Run) -> Iterator[tuple[str, str]]:
    if run.status != "complete":
        yield f"This run is {run.status}", "what is missing was not measured"
    if run.header and not run.header.trusted:
        tampered = "files that it rests on changed while it ran"
        control = "a control, the same code twice, moved beyond the margin"
        yield "This run cannot be trusted", tampered if run.header.counts.get("tampered") else control
    if run.options.allow_wrong:
        yield "Wrong outputs were timed too (--allow-wrong)", "the time of a wrong answer says nothing about speed"


def _chosen(lines: Sequence[Sequence[Line]]) -> tuple[list[dict[int, str]], str]:
    """(of each group index of a line -> its detail's id, what is left out): all lines of a small run, else those that need a
    person."""
    count = sum(map(len, lines))
    numbers = itertools.count(1)
    ids: list[dict[int, str]] = []
    for group in lines:
        kept = (i for i, line in enumerate(group) if count <= DETAILS_UP_TO or not line.folded)
        ids.append({i: f"c{number}" for i in kept if (number := next(numbers)) <= DETAILS_UP_TO})
    made = sum(map(len, ids))
    if made == count:
        return ids, ""
    first = f", the first {DETAILS_UP_TO} of them" if made == DETAILS_UP_TO else ""
    left_out = f"Of {count} rows {made} have a detail: those that changed, broke or are not decided{first}. "
    return ids, left_out + "cells.csv and rounds.jsonl hold the numbers of all."


def _workload(
    run: Run, group: Group, lines: Sequence[Line], ids: dict[int, str], measured: dict[str, list[Measured]]
) -> Workload:
    causes = [(line.case, sentences.cause_sentence(line.row.comparison)) for line in lines]
    return Workload(
        group=group,
        title=group.title(run),
        lines=lines,
        axis=charts.Axis((row.comparison for row in group.rows), run.options),
        causes=tuple((case, sentence) for case, sentence in causes if sentence),
        blocks=tuple(_blocks(run, group)),
        detail_ids=ids,
        details=lambda: _details(run, group, lines, ids, measured),
        peak=facts.peak_sentence(run, group),
    )


def _blocks(run: Run, group: Group) -> Iterator[Block]:
    """The tables below the rows. With a target a terminal shows none of them unless --all."""
    alone = group.target is None
    if alone:
        yield Block(tables=(rows.alone_table(group),))
    phases, peers, pairs = rows.phase_table(group), rows.peer_table(group), rows.pair_table(run, group)
    if phases.rows and (alone or len(group.rows) <= PHASES_UP_TO):
        yield Block("" if alone else "Phases of a call", tables=(phases,), folded=not alone, brief=alone)
    elif phases.rows:
        yield Block(text=("Phases stand in the detail of each cell, and in cells.csv.",), brief=False)
    yield from (replace(block, brief=alone) for block in workload_tables.blocks(group))
    if peers.rows:
        yield Block(tables=(peers,), brief=alone)
    if pairs.rows:
        title = f"{plural(len(pairs.rows), 'comparison')} with peers and between variants"
        yield Block(title, tables=(pairs,), folded=not alone, brief=alone)


def _about(run: Run, blocks: Sequence[Measured]) -> Iterator[Section]:
    found = [Block(facts=facts.machine(run))]
    if len(run.sides) > 1:
        sentence, differing = facts.differences(run, blocks)
        found.append(Block("Environments of the sides", (sentence,), tables=(differing,) if differing.rows else ()))
    if builds := facts.builds(run):
        found.append(Block("Builds", facts=builds))
    loaded = facts.artefacts(run)
    if loaded.rows:
        found.append(
            Block(f"Loaded by the workers ({plural(len(loaded.rows), 'file')})", tables=(loaded,), folded=True)
        )
    variables = [(clean(name, 80), clean(value)) for name, value in run.environment.items()]
    variables += [("withheld", ", ".join(map(clean, run.withheld)))] if run.withheld else []
    if variables:
        found.append(Block("Environment of the workers", facts=variables, folded=True))
    yield Section("Machine, builds, proofs", tuple(found))
    found = [Block(facts=facts.method(run, blocks))]
    if len(run.sides) > 1 or run.comparisons or run.within:
        found.append(Block("The verdicts", facts=[*sentences.VERDICTS.items()]))
    glossary = [*sentences.GLOSSARY, *sentences.STATUSES.items()]
    yield Section("How it was measured", (*found, Block("Glossary", facts=glossary, folded=True)))


def folded_title(lines: Sequence[Line]) -> str:
    """`31 same, 2 unsupported`: what the rows are that a page folds away or a terminal hides."""
    verdicts = [line.verdict for line in lines]
    return ", ".join(f"{verdicts.count(verdict)} {clean(verdict)}" for verdict in dict.fromkeys(verdicts))


# ---------------------------------------------------------------- one cell in detail


def _details(
    run: Run, group: Group, lines: Sequence[Line], ids: Mapping[int, str], blocks: Mapping[str, list[Measured]]
) -> Iterator[Detail]:
    """Of each line that has an id. `blocks`: those of a cell that verdicts rest on, in the order they were measured."""
    for i, id in ids.items():
        line, row = lines[i], lines[i].row
        tail = f":{row.variant}" if row.variant else ""
        arms = {"base": f"base{tail}"} | ({"target": f"{group.target.id}{tail}"} if group.target else {})
        sides = [row.base, row.target] if group.target else [row.base]
        turns = [
            {block.arms[turn.arm]: turn for turn in played}
            for block in blocks.get(row.cell.id, ())
            for number, played in enumerate(block.rounds)
            if number not in block.rejected
        ]
        clocks = [[r[one].mhz for r in turns if one in r and r[one].mhz > 0] for one in arms.values()]
        yield Detail(
            id=id,
            line=line,
            picture=charts.turns({kind: [t[arm].value for t in turns if arm in t] for kind, arm in arms.items()}),
            rows=(*_numbers(run, row, sides, clocks), *_code(run, row)),
            logs=tuple(dict.fromkeys(rows.log_path(seen.log) for seen in sides if seen and seen.log)),
            epochs=max((seen.epochs for seen in sides if seen), default=0),
            command=clean(shlex.join(("abprof", "rerun", f"runs/{run.id}", "--only", row.cell.id)), LONGEST),
            counted=any("ncu" in cause.evidence for cause in (row.comparison and row.comparison.causes) or ()),
        )


def _by_cell(blocks: Sequence[Measured]) -> dict[str, list[Measured]]:
    """Cell -> the blocks that verdicts rest on, in the order they were measured."""
    found: dict[str, list[Measured]] = {}
    for block in sorted(blocks, key=lambda block: (block.epoch, block.began)):
        if block.rounds and block.judged:
            found.setdefault(block.cell, []).append(block)
    return found


def _numbers(run: Run, row: Row, sides: Sequence[Observation | None], clocks: Sequence[list[float]]) -> Iterator[Texts]:
    """Label and a text per side; nothing of what no side has."""
    cell, judged = row.cell, row.comparison
    times = [row.ns(seen) for seen in sides]
    sentence = [time_text(seen, row.metric) for seen in sides]
    around = [own_interval(seen, row.metric) for seen in sides]
    yield from _shown(
        "time", [s if t is None else f"{s} ({a})" for s, t, a in zip(sentence, times, around, strict=True)]
    )
    reasons = [clean(seen.reason) if seen else "" for seen in sides]
    yield from _shown("why", [reason or "–" for reason in reasons] if any(reasons) else [])
    yield from _shown("clock", [mhz and f"{sum(mhz) / len(mhz):.0f} MHz" for mhz in clocks])
    timers = [metric(seen, row.metric) for seen in sides]
    yield from _shown("timer", [clean(one.protocol, 100) if one else "" for one in timers])
    yield from _shown("host, to enqueue", [_ns(value(seen, HOST)) for seen in sides])
    if judged is not None and judged.cycles_pct is not None and judged.clock_pct is not None:
        more, faster = ("more", "fewer")[judged.cycles_pct < 0], ("faster", "slower")[judged.clock_pct < 0]
        clock = f"the clock was {abs(judged.clock_pct):.2f} % {faster}"
        yield "in cycles", f"{abs(judged.cycles_pct):.2f} % {more} (time x clock); {clock} in the target’s turns"
    if judged is not None and judged.read_pct is not None and judged.clock_pct is not None:
        yield "at one clock", f"all times here; {signed(judged.read_pct, 2)} as read"
    if judged is not None and judged.sustained_low_pct is not None and judged.sustained_high_pct is not None:
        yield "without a pause", interval(judged.sustained_low_pct, judged.sustained_high_pct)
        yield from _shown("– time", [_ns(value(seen, SUSTAINED)) for seen in sides])
    if row.metric != "wall":
        yield from _shown("wall clock", [_ns(value(seen, "wall")) for seen in sides])
    for unit, of in (("TFLOP/s", tflops), ("GB/s", gbps)):
        best = facts.peak(run, unit)
        label = f"{unit} of {rate(best)}" if best else unit
        yield from _shown(label, [facts.share_of_peak(run, unit, of(cell, time)) for time in times])
    peaks = [value(seen, "peak_mem_bytes") for seen in sides]
    yield from _shown("memory", [peak and size(peak) for peak in peaks])
    parts = [breakdown(cell, seen) for seen in sides]
    for name in dict.fromkeys(name for part in parts for name in part.all):
        yield from _shown(f"– {clean(name, 40)}", [_ns(part.all.get(name)) for part in parts])
    yield from _shown("– residual", [_ns(part.residual) for part in parts])
    yield from _shown("profiled", [_ns(part.total) for part in parts])
    digests = {seen.check.digest if seen and seen.check else "" for seen in sides}
    equal = len(sides) > 1 and len(digests) == 1 and "" not in digests
    yield from _shown("error", [_error(seen, equal=equal) for seen in sides])
    known = [seen.facts if seen else {} for seen in sides]
    for name in dict.fromkeys(name for known in known for name in known):
        yield from _shown(clean(name, 40), [sentences.fact(known[name]) if name in known else None for known in known])


def _ns(time: float | None) -> str | None:
    return None if time is None else duration(time)


def _error(seen: Observation | None, *, equal: bool) -> str:
    """The largest error against the reference, and from base's output unless the outputs are `equal`."""
    check = seen.check if seen else None
    if check is not None and not check.compared:
        return "not known: nothing was compared"
    if check is None or check.max_abs is None:
        return ""
    sentence = f"{check.max_abs:.2g}" + ("" if check.max_rel is None else f" ({check.max_rel:.2g} relative)")
    if equal:
        return f"{sentence}; sides bit-equal"
    return sentence + ("" if check.base_max_abs is None else f"; {check.base_max_abs:.2g} from base’s output")


def _shown(label: str, texts: Sequence[object], mark: str = "") -> Iterator[Texts]:
    """A row, unless no side has anything; once where all sides say the same, else with the mark."""
    known = ["" if text is None else str(text) for text in texts]
    if any(known):
        sentence = [text or NOT_RECORDED for text in known]
        yield (label, sentence[0]) if len(set(sentence)) == 1 else (f"{mark}{label}", *sentence)


# ---------------------------------------------------------------- kernels of both sides

_MOST = 4  # kernels of a row that the page shows, those that differ first
_DIFFERENT = "≠ "


def _instructions(classes: Mapping[str, int] | None, missing: str = "") -> str:
    if classes is None:
        return f"{NOT_RECORDED}: {clean(missing, 80)}" if missing else ""
    return ", ".join(f"{name} {count}" for name, count in classes.items() if count)


_OF_KERNEL: dict[str, Callable[[Kernel], str | None]] = {
    "stack": lambda k: None if k.stack_bytes is None else f"{k.stack_bytes} B",
    "shared memory": lambda k: None if k.shared_bytes is None else f"{k.shared_bytes} B",
    "warps, stages": lambda k: ", ".join("-" if n is None else str(n) for n in (k.warps, k.stages)).strip("-, "),
    "constants": lambda k: clean(" ".join(f"{name}={of}" for name, of in sorted(k.constants.items())), 200),
    "instructions": lambda k: _instructions(k.classes, k.missing),
    "machine code": lambda k: k.code[:8],
    "compiled in": lambda k: None if k.seconds is None else f"{k.seconds:.2f} s",
}
_OF_OBJECT: dict[str, Callable[[Kernel], str | None]] = {
    "compiler": lambda k: clean(k.compiler, 80),
    "flags": lambda k: clean(k.flags, 200),
    "functions": lambda k: _instructions(None, k.missing),
}


def _code(run: Run, row: Row) -> Iterator[Texts]:
    """What a row launches and what it is made of. Rows that did not change have one line, one branch its launches."""
    judged = row.comparison
    censuses = row.base.census if row.base else None, row.target.census if row.target else None
    if judged is None:
        yield from _launches(censuses[0])
        return
    names = [arm(run, id).side for id in (judged.from_, judged.to)]
    before, after = (tuple(k for k in run.kernels if (k.side, k.package) == (name, row.cell.kernel)) for name in names)
    sides = Sides(row=judged, on_gpu=run.machine.kind == "cuda", base_ns=0.0, census=censuses, kernels=(before, after),
                  phases=(None, None))  # fmt: skip
    if judged.causes is None:
        own = [pair.same_code for pair in sides.pairs if pair.before.kernel or pair.after.kernel]
        if sides.on_gpu and sides.same_launches and own and all(own):
            sentence = f"{plural(len(sides.pairs), 'kernel')}, the same code and launches on both sides"
            heaviest = max(censuses[0].launches, key=lambda launch: launch.ns, default=None) if censuses[0] else None
            found = [*_resources(heaviest)] if heaviest else []
            more = ", ".join((clean(heaviest.name, 40), *found)) if heaviest and found else ""
            yield "kernels", "; ".join(filter(None, (sentence, more)))
        return
    missing = [clean(census.missing if census else "not recorded", 120) for census in censuses]
    if any(missing):
        yield "launches", *(f"{NOT_RECORDED}: {why}" if why else "recorded" for why in missing)
    ordered = sorted(sides.pairs, key=lambda p: (bool(p.same_code) and p.before.shape == p.after.shape, -p.after.ns))
    for pair in ordered[:_MOST]:
        parts = pair.before, pair.after
        noun = "kernel" if sides.on_gpu else "operation"
        yield from _shown(noun, [f"{clean(part.name, 60)}, {_launched(part)}" for part in parts], _DIFFERENT)
        yield from _shown("– registers", [part.registers for part in parts], _DIFFERENT)
        yield from _shown("– autotuned", [clean(part.choice[0], 120) for part in parts], _DIFFERENT)
        yield from _compared(_OF_KERNEL, [part.kernel for part in parts])
    for label, alone in (("only base launches", sides.gone), ("only target launches", sides.new)):
        if alone:
            sentence = ", ".join(f"{clean(part.name, 60)} ({part.count}×, {ns(part.ns)})" for part in alone[:_MOST])
            yield f"{_DIFFERENT}{label}", sentence
    if len(ordered) > _MOST:
        yield "further kernels", f"{len(ordered) - _MOST}, in run.json"
    for both in sides.objects:
        named = [f"{clean(both[0].key, 60)}, code {k.code[:8] or NOT_RECORDED}" for k in both]
        yield from _shown("object", named, _DIFFERENT)
        yield from _compared(_OF_OBJECT, both)
        known = [{f.name: f.classes for f in kernel.functions} for kernel in both]
        for name in list(dict.fromkeys(name for side in known for name in side))[:6]:
            texts = (_instructions(side[name]) if name in side else "not there" for side in known)
            yield f"{_DIFFERENT}{clean(name, 60)}", *texts


def _compared(of: Mapping[str, Callable[[Kernel], str | None]], both: Sequence[Kernel | None]) -> Iterator[Texts]:
    for label, text in of.items():
        yield from _shown(f"– {label}", [text(kernel) if kernel else None for kernel in both], _DIFFERENT)


def _launches(census: Census | None) -> Iterator[Texts]:
    """What one branch's call launches on the device, the longest first."""
    launches = sorted(census.launches, key=lambda launch: -launch.ns) if census and census.on_device else []
    for launch in launches[:_MOST]:
        parts = (_launched(Part(launch.name, (launch,), None)), ns(launch.ns), *_resources(launch))
        yield "kernel", ", ".join((clean(launch.name, 60), *parts))
    if len(launches) > _MOST:
        yield "further kernels", f"{len(launches) - _MOST}, in run.json"


def _resources(launch: Launch) -> Iterator[str]:
    if launch.registers is not None:
        yield f"{launch.registers} registers"
    if launch.shared_bytes:
        yield f"{size(launch.shared_bytes)} shared"


def _launched(part: Part) -> str:
    grids = ", ".join(dict.fromkeys(dims(launch.grid) for launch in part.launches if launch.grid))
    blocks = ", ".join(dict.fromkeys(dims(launch.block) for launch in part.launches if launch.block))
    return f"{part.count}×" + (f" grid {grids}" if grids else "") + (f" block {blocks}" if blocks else "")
