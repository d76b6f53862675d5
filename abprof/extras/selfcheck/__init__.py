"""`abprof selfcheck`: measure abprof's false alarms, its detection of known changes, and how often intervals are right.

Compares, on this machine, two branches of a small repository made from tree/: on one branch some cells do extra work of
known size. Then judges the measured times at several thresholds.
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec
from markupsafe import Markup
from markupsafe import escape as html

from abprof import session, store
from abprof.builds import interpreter
from abprof.devices import lease
from abprof.records import LOOKS, Block, Cell, Machine, Record, Run
from abprof.records.options import Options
from abprof.records.quantities import plural
from abprof.report import asset, environment
from abprof.report.text import code
from abprof.report.text import markdown as escape
from abprof.sides import NewRepository
from abprof.system import certificate, paths, processes
from abprof.system.console import View
from abprof.verdict import CellData, aggregate, decide, stats

__all__ = ["CLASSES", "GROUP", "PAGES", "Selfcheck", "as_markdown", "examine", "make", "pages", "read", "run"]

_TREE = Path(__file__).parent / "tree"
_SHARED = "kernels/meter/__init__.py"
# Branches as a user checks them out, one after the other: the sides base, target and target2.
SIDES = {"base": "main", "target": "injected", "target2": "main"}
# Kind of device -> protocols of tree/bench.py.
PROTOCOLS = {"cuda": ("do_bench", "original"), "cpu": ("autorange", "original")}
_LIMIT = 240.0  # seconds of one process
_SOURCE = Path(__file__).parents[3]  # abprof's own folder is in it: the workload imports abprof.kit


class Timed(Record, frozen=True, kw_only=True):
    """What a protocol measured of one cell."""

    cell: str
    ns: dict[str, float]  # side -> time of a call
    seconds: float  # of measuring the cell on all sides


class Recording(Record, frozen=True, kw_only=True):
    """What one protocol measured of all cells. `fault`: why there is nothing; "": it measured all of them."""

    protocol: str  # a name of PROTOCOLS
    seconds: float  # of its processes, from the first's start to the last's end
    load: float | None = None  # the host's load average, mean over the ends of its processes
    fault: str = ""
    cells: tuple[Timed, ...] = ()


def run(config: Options, view: View, *, compared: bool = False) -> tuple[Selfcheck, Path]:
    """Measure and judge the selfcheck; return the result and the run's folder. Uses the options `config`, but with refs
    and repository of the selfcheck. `compared`: also time the cells as other tools do, and write the pages that compare
    them with abprof. Raises AbprofError if the run cannot be measured."""
    runs_dir = str(Path(config.runs_dir or "runs").absolute())
    with tempfile.TemporaryDirectory(prefix="abprof-selfcheck-") as place:
        repo = Path(place) / "repository"
        repository = make(repo)
        # Base is also the second target: an unchanged cell then gives three unchanged pairs of sides, a changed cell gives one.
        own = {"specs": ("main", "injected", "main"), "repo": str(repo), "runs_dir": runs_dir}
        made, folder = session.run(msgspec.structs.replace(config, **own), view)
        found = read(folder)
        # A part of the cells or of the epochs shows too little.
        whole = made.status == "complete" and not config.only and all(row.epochs >= GROUP for row in made.comparisons)
        if found.cells and whole:
            certificate.keep(paths.state_dir(), found.machine, found.fault)
        if compared and found.cells and made.status == "complete":
            python, log = interpreter(config, "base"), folder / store.LOGS / "protocols.log"
            with processes.signals():
                found = read(folder, tuple(record(repository, made.cells, made.machine, python, log, view)))
    return found, folder


def read(folder: Path, recordings: tuple[Recording, ...] = ()) -> Selfcheck:
    """Judge the rounds in a selfcheck's run folder, and `recordings` of other protocols (by default those stored there).

    Write selfcheck.json, selfcheck.md and, with recordings, certificate.md and certificate.html. Return the result.
    """
    head, blocks, _ = store.read(folder)
    stored = folder / "selfcheck.json"
    if not recordings and stored.exists():
        loose = msgspec.json.decode(stored.read_bytes())
        recordings = msgspec.convert(loose.get("recordings", ()), tuple[Recording, ...])
    found = examine(head, blocks, recordings)
    stored.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
    (folder / "selfcheck.md").write_text(as_markdown(found, folder))
    for name, page in pages(found).items() if recordings and found.tallies else ():
        (folder / name).write_text(page)
    return found


def make(path: Path) -> NewRepository:
    """Create the repository at `path` with two branches: `main`, and `injected`, which turns the extra work on."""
    repository = NewRepository(path, "main")
    shutil.copytree(_TREE, path, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    repository.commit("Kernels of known time", {".gitignore": "runs/\n"})
    repository.branch("injected")
    source = (path / _SHARED).read_text()
    repository.commit("Do the injected work", {_SHARED: source.replace("SHARE = 0.0", "SHARE = 1.0")})
    repository.switch("main")
    return repository


def as_markdown(found: Selfcheck, folder: Path) -> str:
    """Return the result `found` as Markdown tables. The layout is templates/selfcheck.md."""
    template = environment(escape).get_template("selfcheck.md")
    command = code(" ".join(("abprof", *found.arguments)))
    return template.render(found=found, command=command, folder=code(folder), rate=_rate, bound=stats.false_alarm_bound)


PAGES = ("certificate.md", "certificate.html")


def pages(found: Selfcheck) -> dict[str, str]:
    """Return file name -> page that compares abprof with the other protocols. Layouts: templates/certificate.*."""
    rows = {(row.protocol, row.duration_class, row.threshold, row.inject): row for row in found.tallies + found.others}
    here = {
        "found": found,
        "protocols": list(dict.fromkeys(name for name, *_ in rows)),
        "classes": [name for name, _ in CLASSES if any(row.duration_class == name for row in found.tallies)],
        "thresholds": list(dict.fromkeys(row.threshold for row in found.tallies))[:2],
        "sizes": sorted({row.inject for row in found.tallies} - {0.0}),
        "tally": lambda *key: rows.get(key),
        "sums": partial(_sums, rows.values()),
        "precision": {row.duration_class: row for row in found.precision},
        "seconds": {"abprof": found.whole_seconds} | {of.protocol: of.seconds for of in found.recordings},
        "loads": {"abprof": found.load} | {of.protocol: of.load for of in found.recordings},
        "bound": stats.false_alarm_bound,
        "command": " ".join(("abprof", *found.arguments)),
    }
    style = Markup(asset("report.css") + asset("certificate.css"))  # noqa: S704 - abprof's own
    layouts = zip(PAGES, (escape, html), strict=True)
    return {name: environment(by).get_template(name).render(**here, style=style) for name, by in layouts}


def _sums(rows: Iterable[Tally], protocol: str, threshold: float) -> tuple[int, int, int, int]:
    """Return false alarms, unchanged pairs, planted changes beyond the threshold that were found, and their number."""
    here = [row for row in rows if (row.protocol, row.threshold) == (protocol, threshold)]
    same, more = [row for row in here if not row.inject], [row for row in here if row.inject > threshold]
    alarms, found = sum(row.slower + row.faster for row in same), sum(row.slower for row in more)
    return alarms, sum(row.cells for row in same), found, sum(row.cells for row in more)


def _rate(count: int, of: int) -> str:
    return f"{count} of {of} ({100 * count / of:.3g} %)" if of else "none"


# Upper bounds of a call's time in ns: the duration classes of docs/MEASUREMENT.md.
CLASSES = (("under 20 us", 20_000.0), ("20 us to 0.3 ms", 300_000.0), ("0.3 ms and longer", float("inf")))
# (threshold, margin) in per cent; the first is the default of `abprof run`.
THRESHOLDS = {"cuda": ((1.5, 0.5), (0.5, 0.5), (0.25, 0.25)), "cpu": ((5.0, 5.0), (2.0, 2.0), (1.0, 1.0))}
GROUP = LOOKS[0]  # epochs of one plain interval
# Only `target` does extra work: `target2` is base's commit, measured again.
_PAIRS = (("base", "target"), ("target2", "target"), ("base", "target2"))


class Tally(Record, frozen=True, kw_only=True):
    """Counts of verdicts, at one threshold, on cells of one duration class with the same extra work. Without extra
    work, each `slower` or `faster` is a false alarm. A cell counts once for each pair of sides compared."""

    protocol: str = "abprof"  # or that of a recording
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
    seconds: float = 0.0  # mean seconds of measuring a cell, all sides, until a run would have stopped


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
    whole_seconds: float = 0.0  # of the run, with builds, workers' start and profiling
    load: float | None = None  # the host's load average, mean over the blocks; None: not recorded
    versions: dict[str, str] = {}
    recordings: tuple[Recording, ...] = ()  # of --certificate: the same cells by other protocols
    others: tuple[Tally, ...] = ()  # of the recordings


@dataclass(frozen=True)
class _Pair:
    """Two sides of a cell. `inject`: extra work in per cent; `values`: log ratios of times, one per epoch; `seconds`: of
    measuring the cell in each epoch."""

    inject: float
    duration_class: str
    values: tuple[float, ...]
    seconds: tuple[float, ...]


_Rule = Callable[[Sequence[float], float, float], tuple[str, int]]  # log ratios, threshold, margin -> verdict, epochs


def examine(run: Run, blocks: Sequence[Block], recordings: tuple[Recording, ...] = ()) -> Selfcheck:
    """Return the result of a finished selfcheck's run. Leaves out cells that were not measured on both sides."""
    judged = [block for block in blocks if block.judged]
    loads = [block.state.load1 for block in judged if block.state.load1 is not None]
    cells, at = aggregate(run, blocks), datetime.fromisoformat
    evidence = cells.values()
    pairs = [pair for item in evidence for pair in _pairs(item)]
    settings = THRESHOLDS.get(run.machine.kind, THRESHOLDS["cpu"])
    tallies = tuple(_tallies("abprof", stopped, pairs, settings))
    others = [
        row
        for it in recordings
        for row in _tallies(it.protocol, partial(called, it.protocol), _recorded(it, cells), settings)
    ]
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
        whole_seconds=(at(run.ended) - at(run.began)).total_seconds() if run.ended else 0.0,
        load=statistics.mean(loads) if loads else None,
        versions=run.versions,
        recordings=recordings,
        others=tuple(others),
    )


def _fault(tallies: Sequence[Tally], threshold: float) -> str:
    here = [row for row in tallies if row.threshold == threshold]
    same, most = [row for row in here if not row.inject], max((row.inject for row in here), default=0.0)
    if not any(row.cells for row in same):
        return "no unchanged cell was measured"
    if alarms := sum(row.slower + row.faster for row in same):
        return f"{plural(alarms, 'false alarm')} on unchanged code"
    known = [row for row in here if row.inject == most]
    found, of = sum(row.slower for row in known), sum(row.cells for row in known)
    return "" if most and found == of else f"+{most:g} % was found in {found} of {of} cells"


def _pairs(item: CellData) -> Iterable[_Pair]:
    seconds = tuple(block.seconds for block in item.blocks)
    for before, after in _PAIRS if item.epoch_medians("base") else ():
        if values := item.epoch_values(before, after):
            yield _Pair(*_kind(item, after), tuple(values), seconds)


def _recorded(of: Recording, cells: Mapping[str, CellData]) -> list[_Pair]:
    """Return the pairs of a recording: one value each. Leaves out cells that abprof did not measure."""
    return [
        _Pair(*_kind(item, after), (math.log(timed.ns[after] / timed.ns[before]),), (timed.seconds,))
        for timed in of.cells
        if (item := cells[timed.cell]).epoch_medians("base")
        for before, after in _PAIRS
    ]


def _kind(item: CellData, after: str) -> tuple[float, str]:
    median = statistics.median(item.epoch_medians("base"))
    inject = float(item.cell.params["inject"])  # a workload that was not described has no params, and no times
    return inject if after == "target" else 0.0, next(name for name, below in CLASSES if median < below)


def stopped(values: Sequence[float], threshold: float, margin: float) -> tuple[str, int]:
    """Return the verdict and the epochs of calls up to 50 ms, in a run whose budget lasts for all `values`."""
    verdict = None
    for look in (look for look in LOOKS if look <= len(values)):
        verdict = decide(values[:look], threshold, margin)
        if verdict is not None and (verdict != "same" or look >= stats.epochs_for_same(margin)):
            return verdict, look
    return verdict or "unclear", len(values)


def _tallies(
    protocol: str, rule: _Rule, pairs: Sequence[_Pair], settings: Sequence[tuple[float, float]]
) -> Iterable[Tally]:
    for inject in sorted({pair.inject for pair in pairs}):
        for name, here in _classes([pair for pair in pairs if pair.inject == inject]):
            for threshold, margin in settings:
                found = [rule(pair.values, threshold, margin) for pair in here]
                verdicts = [verdict for verdict, _ in found]
                yield Tally(
                    protocol=protocol,
                    inject=inject,
                    duration_class=name,
                    threshold=threshold,
                    margin=margin,
                    cells=len(here),
                    epochs=statistics.mean(epochs for _, epochs in found),
                    mean_pct=statistics.mean(stats.percent(statistics.mean(pair.values)) for pair in here),
                    seconds=statistics.mean(sum(p.seconds[:n]) for p, (_, n) in zip(here, found, strict=True)),
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


def record(
    repository: NewRepository, cells: Sequence[Cell], machine: Machine, python: str, log: Path, view: View
) -> Iterator[Recording]:
    """Yield what each protocol measures of `cells` in the selfcheck's repository, while it holds the machine's device.
    `python`: the interpreter of its processes, whose output is appended to `log`."""
    place = repository.path.with_name("protocols")
    place.mkdir()
    (place / "cases.json").write_bytes(msgspec.json.encode([cell.params for cell in cells]))
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_SOURCE), os.environ.get("PYTHONPATH")))),
        "PYTHONDONTWRITEBYTECODE": "1",  # the branches' files have equal sizes, and may have equal times
        "ABPROF_BUILD_DIR": str(place),
        "TRITON_CACHE_DIR": str(place / "triton"),
        "CUDA_VISIBLE_DEVICES": machine.uuid,
    }

    def times(protocol: str, side: str) -> tuple[list[tuple[float, float]], float]:
        view.say(f"measuring by {protocol}: {side}")
        repository.switch(SIDES[side])
        out = place / f"{protocol}-{side}.json"
        argv = (python, "bench.py", protocol, machine.kind, str(place / "cases.json"), str(out))
        code = processes.logged(argv, env=env, cwd=repository.path, log=log, timeout=_LIMIT)
        if code:
            raise processes.WorkerDied(f"{processes.how_ended(code)}, see {log.name}")
        return msgspec.json.decode(out.read_bytes(), type=list[tuple[float, float]]), os.getloadavg()[0]

    label = "abprof selfcheck --certificate"
    with processes.no_orphans(), lease(paths.state_dir(), machine.uuid or "cpu", wait=True, label=label, say=view.say):
        for protocol in PROTOCOLS.get(machine.kind, ()):
            began = time.monotonic()
            try:
                sides, loads = zip(*[times(protocol, side) for side in SIDES], strict=True)
            except processes.WorkerDied as error:
                view.warn(f"{protocol}: {error.reason}")
                yield Recording(protocol=protocol, seconds=time.monotonic() - began, fault=error.reason)
                continue
            timed = [
                Timed(
                    cell=cell.id,
                    ns={side: ns for side, (ns, _) in zip(SIDES, row, strict=True)},
                    seconds=sum(seconds for _, seconds in row),
                )
                for cell, row in zip(cells, zip(*sides, strict=True), strict=True)
            ]
            seconds, load = time.monotonic() - began, sum(loads) / len(loads)
            yield Recording(protocol=protocol, seconds=seconds, load=load, cells=tuple(timed))


def called(protocol: str, values: Sequence[float], threshold: float, _margin: float = 0.0) -> tuple[str, int]:
    """Return slower, faster or unclear, as the protocol's rule calls a change of time, and the number of its values, 1.

    `values`: the log ratio of the times, after / before. The original scripts compare TFLOP/s, the inverse of times; the
    others compare times. `threshold`: per cent.
    """
    (value,) = values
    change = -math.expm1(-value) if protocol == "original" else math.expm1(value)
    return "unclear" if 100 * abs(change) <= threshold else "slower" if value > 0 else "faster", 1
