"""The presentation model: a run as headline, notes, tables and facts, before any format. HTML, Markdown and terminal print it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from abprof.records import Block as Measured
from abprof.records import Run
from abprof.records.quantities import plural
from abprof.report import charts, details, facts, probes, rows, sentences, workload_tables
from abprof.report.details import Detail
from abprof.report.rows import Block, Failed, Group, Line, Section
from abprof.report.sentences import weaker
from abprof.report.text import clean

PHASES_UP_TO = 40  # rows of a group: above it phases stand in the rows' details alone


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
    ids, left_out = details.choose(list(zip(groups, lines, strict=True)))
    measured = details.by_cell(blocks)
    lacking = weaker(run)
    words = run.arguments if run.arguments[:1] == ("abprof",) else ("abprof", *run.arguments)
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
        workloads=tuple(_workload(run, *pair, ids, measured) for pair in zip(groups, lines, strict=True)),
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


def _workload(
    run: Run,
    group: Group,
    lines: Sequence[Line],
    ids: dict[tuple[object, ...], str],
    measured: dict[str, list[Measured]],
) -> Workload:
    causes = [(line.case, sentences.cause_sentence(line.row.comparison)) for line in lines]
    found = {i: id for i in range(len(lines)) if (id := ids.get((*group.key, i)))}
    return Workload(
        group=group,
        title=group.title(run),
        lines=lines,
        axis=charts.Axis((row.comparison for row in group.rows), run.options),
        causes=tuple((case, sentence) for case, sentence in causes if sentence),
        blocks=tuple(_blocks(run, group)),
        detail_ids=found,
        details=lambda: details.details(run, group, lines, ids, measured) if found else iter(()),
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
    if variables := facts.environment(run):
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
