"""`abprof selfcheck`: measure abprof's false alarms, its detection of known changes, and how often intervals are right.

Compares, on this machine, two branches of a small repository made from tree/: on one branch some cells do extra work of
known size. Then judges the measured times at several thresholds.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from abprof import session, store
from abprof.records import LOOKS, Block, Machine, Record, Run
from abprof.records.options import Options
from abprof.records.quantities import plural
from abprof.report import environment
from abprof.report.text import code
from abprof.report.text import markdown as escape
from abprof.sides import NewRepository
from abprof.system import certificate, paths
from abprof.system.console import View
from abprof.verdict import CellData, aggregate, decide, stats

__all__ = ["CLASSES", "GROUP", "Selfcheck", "as_markdown", "examine", "make", "read", "run"]

_TREE = Path(__file__).parent / "tree"
_SHARED = "kernels/meter/__init__.py"


def run(config: Options, view: View) -> tuple[Selfcheck, Path]:
    """Measure and judge the selfcheck; return the result and the run's folder. Uses the options `config`, but with refs
    and repository of the selfcheck. Raises AbprofError if the run cannot be measured."""
    runs_dir = str(Path(config.runs_dir or "runs").absolute())
    with tempfile.TemporaryDirectory(prefix="abprof-selfcheck-") as place:
        repo = Path(place) / "repository"
        make(repo)
        # Base is also the second target: an unchanged cell then gives three unchanged pairs of sides, a changed cell gives one.
        own = {"specs": ("main", "injected", "main"), "repo": str(repo), "runs_dir": runs_dir}
        made, folder = session.run(msgspec.structs.replace(config, **own), view)
    found = read(folder)
    # A part of the cells or of the epochs shows too little.
    whole = made.status == "complete" and not config.only and all(row.epochs >= GROUP for row in made.comparisons)
    if found.cells and whole:
        certificate.keep(paths.state_dir(), found.machine, found.run, found.fault)
    return found, folder


def read(folder: Path) -> Selfcheck:
    """Judge the rounds in a selfcheck's run folder. Write selfcheck.json and selfcheck.md there; return the result."""
    head, blocks, _ = store.read(folder)
    found = examine(head, blocks)
    (folder / "selfcheck.json").write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
    (folder / "selfcheck.md").write_text(as_markdown(found, folder))
    return found


def make(path: Path) -> None:
    """Create the repository at `path` with two branches: `main`, and `injected`, which turns the extra work on."""
    repository = NewRepository(path, "main")
    shutil.copytree(_TREE, path, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    repository.commit("Kernels of known time", {".gitignore": "runs/\n"})
    repository.branch("injected")
    source = (path / _SHARED).read_text()
    repository.commit("Do the injected work", {_SHARED: source.replace("SHARE = 0.0", "SHARE = 1.0")})
    repository.switch("main")


def as_markdown(found: Selfcheck, folder: Path) -> str:
    """Return the result `found` as Markdown tables. The layout is templates/selfcheck.md."""
    template = environment(escape).get_template("selfcheck.md")
    command = code(" ".join(("abprof", *found.arguments)))
    return template.render(found=found, command=command, folder=code(folder), rate=_rate, bound=stats.false_alarm_bound)


def _rate(count: int, of: int) -> str:
    return f"{count} of {of} ({100 * count / of:.3g} %)" if of else "none"


# ---------------------------------------------------------------- from blocks to the result

# Upper bounds of a call's time in ns: the duration classes of docs/MEASUREMENT.md.
CLASSES = (("under 20 us", 20_000.0), ("20 us to 0.3 ms", 300_000.0), ("0.3 ms and longer", float("inf")))
# (threshold, margin) in per cent; the first is the default of `abprof run`.
THRESHOLDS = {"cuda": ((1.5, 0.5), (0.5, 0.5), (0.25, 0.25)), "cpu": ((5.0, 5.0), (2.0, 2.0), (1.0, 1.0))}
GROUP = LOOKS[0]  # epochs of one plain interval


class Tally(Record, frozen=True, kw_only=True):
    """Counts of verdicts, at one threshold, on cells of one duration class with the same extra work.

    Without extra work, each `slower` or `faster` is a false alarm. A cell counts once for each pair of sides compared.
    """

    inject: float  # per cent more work on the branch
    duration_class: str  # a name of CLASSES
    threshold: float  # per cent
    margin: float  # per cent
    cells: int
    slower: int
    faster: int
    same: int
    slight: int
    unclear: int
    epochs: float  # mean number of epochs after which a run would have stopped
    mean_pct: float  # mean of the measured changes of time, per cent


class Precision(Record, frozen=True, kw_only=True):
    """How many 95 % intervals of unchanged cells contain zero, and how wide the intervals are."""

    duration_class: str  # a name of CLASSES
    cells: int
    plain: int  # number of Student intervals of GROUP epochs
    plain_covered: int
    repeated: int  # number of repeated intervals; all looks of a cell count as one
    repeated_covered: int
    epoch_sd: float  # median over cells of the standard deviation between epochs, per cent
    first_look: float  # median half-width of the repeated interval at the first look, per cent
    last_look: float  # the same at the last look


class Selfcheck(Record, frozen=True, kw_only=True):
    """The result of a selfcheck: the content of selfcheck.json."""

    schema: int = 2
    run: str
    began: str
    arguments: tuple[str, ...]
    machine: Machine
    cells: int
    epochs: int  # largest number of epochs of a cell
    seconds: float  # from the first block to the last
    false_alarms: int  # at the default threshold
    fault: str = ""  # why this machine must not fail a run in CI; "": it may
    tallies: tuple[Tally, ...]
    precision: tuple[Precision, ...]


@dataclass(frozen=True)
class _Pair:
    """Two sides of a cell. `inject`: extra work in per cent; `values`: log ratios of times, one per epoch."""

    inject: float
    duration_class: str
    values: tuple[float, ...]


def examine(run: Run, blocks: Sequence[Block]) -> Selfcheck:
    """Return the result of a finished selfcheck's run. Leaves out cells that were not measured on both sides."""
    judged = [block for block in blocks if block.judged]
    evidence = aggregate(run, blocks).values()
    pairs = [pair for item in evidence for pair in _pairs(item)]
    settings = THRESHOLDS.get(run.machine.kind, THRESHOLDS["cpu"])
    tallies = tuple(_tallies(pairs, settings))
    own = [row for row in tallies if not row.inject and row.threshold == settings[0][0]]
    return Selfcheck(
        run=run.id,
        began=run.began,
        arguments=run.options.arguments,
        machine=run.machine,
        cells=sum(bool(item.epoch_values("base", "target")) for item in evidence),
        epochs=max((len(pair.values) for pair in pairs), default=0),
        seconds=max((b.began + b.seconds for b in judged), default=0.0) - min((b.began for b in judged), default=0.0),
        false_alarms=sum(row.slower + row.faster for row in own),
        fault=_fault(tallies, settings[0][0]),
        tallies=tallies,
        precision=tuple(_precision(pairs)),
    )


def _fault(tallies: Sequence[Tally], threshold: float) -> str:
    """Return why the selfcheck failed at `threshold` per cent: a false alarm, or the largest change not found; "": it passed."""
    here = [row for row in tallies if row.threshold == threshold]
    alarms, most = (
        sum(row.slower + row.faster for row in here if not row.inject),
        max((row.inject for row in here), default=0.0),
    )
    known = [row for row in here if row.inject == most]
    found, of = sum(row.slower for row in known), sum(row.cells for row in known)
    if alarms or not any(row.cells for row in here if not row.inject):
        return f"{plural(alarms, 'false alarm')} on unchanged code" if alarms else "no unchanged cell was measured"
    return "" if most and found == of else f"+{most:g} % was found in {found} of {of} cells"


def _pairs(item: CellData) -> Iterable[_Pair]:
    """Yield each measured pair of sides. Only `target` does extra work: `target2` is base's commit, measured again."""
    times = item.epoch_medians("base")
    for before, after in (("base", "target"), ("target2", "target"), ("base", "target2")):
        if times and (values := item.epoch_values(before, after)):
            inject = float(item.cell.params["inject"])  # a workload that was not described has no params, and no times
            name = next(name for name, below in CLASSES if statistics.median(times) < below)
            yield _Pair(inject if after == "target" else 0.0, name, tuple(values))


def stopped(values: Sequence[float], threshold: float, margin: float) -> tuple[str, int]:
    """Return (verdict, epochs) of the first look with a verdict; without one, `unclear` and the number of epochs."""
    for look in (look for look in LOOKS if look <= len(values)):
        verdict = decide(values[:look], threshold, margin)
        if verdict is not None:
            return verdict, look
    return "unclear", len(values)


def _tallies(pairs: Sequence[_Pair], settings: Sequence[tuple[float, float]]) -> Iterable[Tally]:
    for inject in sorted({pair.inject for pair in pairs}):
        for name, here in _classes([pair for pair in pairs if pair.inject == inject]):
            for threshold, margin in settings:
                found = [stopped(pair.values, threshold, margin) for pair in here]
                verdicts = [verdict for verdict, _ in found]
                yield Tally(
                    inject=inject,
                    duration_class=name,
                    threshold=threshold,
                    margin=margin,
                    cells=len(here),
                    epochs=statistics.mean(epochs for _, epochs in found),
                    mean_pct=statistics.mean(stats.percent(statistics.mean(pair.values)) for pair in here),
                    **{word: verdicts.count(word) for word in ("slower", "faster", "same", "slight", "unclear")},
                )


def _precision(pairs: Sequence[_Pair]) -> Iterable[Precision]:
    for name, here in _classes([pair for pair in pairs if not pair.inject and len(pair.values) >= GROUP]):
        groups = [p.values[i : i + GROUP] for p in here for i in range(0, len(p.values) - GROUP + 1, GROUP)]
        plain = [stats.student_interval(group, 0.05) for group in groups]
        looks = [[p.values[:look] for look in LOOKS if look <= len(p.values)] for p in here]
        tried = [[i for i in map(stats.repeated_interval, values) if i is not None] for values in looks]
        last = [stats.repeated_interval(pair.values) for pair in here]
        yield Precision(
            duration_class=name,
            cells=len(here),
            plain=len(plain),
            plain_covered=sum(i.low <= 0 <= i.high for i in plain),
            repeated=len(tried),
            repeated_covered=sum(all(i.low <= 0 <= i.high for i in intervals) for intervals in tried),
            epoch_sd=100 * statistics.median(statistics.stdev(pair.values) for pair in here),
            first_look=statistics.median(stats.half_width_pct(intervals[0]) for intervals in tried),
            last_look=statistics.median(stats.half_width_pct(i) for i in last if i is not None),
        )


def _classes(pairs: Sequence[_Pair]) -> Iterable[tuple[str, list[_Pair]]]:
    for name, _ in CLASSES:
        if here := [pair for pair in pairs if pair.duration_class == name]:
            yield name, here
