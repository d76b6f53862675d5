"""`abprof selfcheck`: what abprof says on this machine where the answer is known, and what others would say of it.

A repository of its own has one package of kernels of known time. On the branch some cells have known work injected, the
others are unchanged. They are measured by an ordinary run of a fixed number of epochs; its rounds are then judged again
at several thresholds as the stopping rule would have, and by the usual protocols.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from abprof import devices, session
from abprof.extras.selfcheck.examine import Detection, Selfcheck, examine
from abprof.extras.selfcheck.studies import PROTOCOLS, one_after_the_other, studies
from abprof.measure import Plan
from abprof.records import Block
from abprof.records.errors import AbprofError
from abprof.records.options import Options
from abprof.report.render import environment
from abprof.report.text import code, duration
from abprof.report.text import markdown as escape
from abprof.sides import NewRepository
from abprof.store import runfolder
from abprof.system.console import View
from abprof.verdict import stats

TREE = Path(__file__).parent / "tree"
SHARE = "kernels/meter/share.py"
RESULT = "selfcheck.json"


def run(config: Options, view: View, *, quick: bool, against: Sequence[str] = ()) -> tuple[Selfcheck, Path]:
    """Measure, examine, write. `config` has no refs and no repository. `against`: protocols to compare with; () for all that
    time this device. `quick` leaves the studies out. Returns the result and the run's folder. Raises AbprofError."""
    protocols = _against(tuple(against), devices.choose(config.device).kind)
    runs_dir = str(Path(config.runs_dir or "runs").absolute())
    with tempfile.TemporaryDirectory(prefix="abprof-selfcheck-") as place:
        repo = Path(place) / "repository"
        make(repo)
        # Base a second time: an unchanged cell then tells of three pairs of processes, an injected one of three, too.
        specs = ("main", "injected") if quick else ("main", "injected", "main")
        asked = {"specs": specs, "repo": str(repo), "runs_dir": runs_dir}

        def also(plan: Plan, epoch: int) -> Iterator[Block]:
            for protocol in protocols:
                yield from one_after_the_other(plan, protocol, epoch)
            if not quick:
                yield from studies(plan, epoch + 1)

        _, folder = session.run(msgspec.structs.replace(config, **asked), view, also)
    return read(folder), folder


def read(folder: Path) -> Selfcheck:
    """The result of a selfcheck's run folder, from its rounds, written beside them. Raises AbprofError."""
    head, blocks, _ = runfolder.read(folder)
    found = examine(head, blocks)
    (folder / RESULT).write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
    (folder / "selfcheck.md").write_text(as_markdown(found, folder))
    return found


def make(path: Path) -> None:
    """The repository: branch main, and branch injected where one file says that the injected work is done."""
    repository = NewRepository(path, "main")
    for kind in ("kernels", "workloads"):
        shutil.copytree(TREE / kind, path / kind, ignore=shutil.ignore_patterns("__pycache__"))
    repository.commit("Kernels of known time", {".gitignore": "runs/\n"})
    repository.branch("injected")
    source = (path / SHARE).read_text()
    repository.commit("Do the injected work", {SHARE: source.replace("SHARE = 0.0", "SHARE = 1.0")})
    repository.switch("main")


def _against(names: tuple[str, ...], kind: str) -> tuple[str, ...]:
    usable = [name for name, protocol in PROTOCOLS.items() if kind in protocol.kinds]
    for name in names:
        if name not in PROTOCOLS:
            raise AbprofError(f"no protocol {name!r}", where="--against", advice=f"one of {', '.join(PROTOCOLS)}")
        if name not in usable:
            raise AbprofError(f"{name} does not time a {kind} device", where="--against", advice="leave it out")
    return names or tuple(usable)


def as_json(found: Selfcheck, folder: Path) -> str:
    """selfcheck.json's content plus `run_dir`."""
    return msgspec.json.encode({**msgspec.to_builtins(found), "run_dir": str(folder)}).decode()


def as_markdown(found: Selfcheck, folder: Path) -> str:
    """The tables for people, by templates/selfcheck.md."""
    columns = list(dict.fromkeys((row.protocol, row.threshold) for row in found.detection))
    return (
        environment(escape)
        .get_template("selfcheck.md")
        .render(
            found=found,
            command=code(" ".join(("abprof", *found.arguments))),
            folder=code(folder),
            heads=[f"{protocol} {threshold:g} %" if threshold else protocol for protocol, threshold in columns],
            detected=list(_detected(found.detection, columns)),
            thresholds=sorted({row.threshold for row in found.alarms if row.protocol == "abprof"}, reverse=True),
            duration=duration,
            rate=rate,
            bound=stats.false_alarm_bound,
        )
    )


def _detected(
    rows: Sequence[Detection], columns: Sequence[tuple[str, float]]
) -> Iterable[tuple[str, str, str, list[str]]]:
    """(injected, time of a call, measured, called slower by each column)."""
    for how, percent, name in dict.fromkeys((row.how, row.inject, row.duration_class) for row in rows):
        here = {(row.protocol, row.threshold): row for row in rows if (row.how, row.inject) == (how, percent)
                and row.duration_class == name}  # fmt: skip
        mean = next(iter(here.values())).mean_pct
        called = [_called(here[column]) if column in here else "-" for column in columns]
        yield f"{how} +{percent:g} %", name, f"{mean:+.2f} %", called


def _called(row: Detection) -> str:
    wrong = f", {row.faster} faster" if row.faster else ""
    return f"{row.slower} of {row.cells}{wrong}"


def rate(count: int, of: int) -> str:
    """ "3 of 40 (7.5 %)"."""
    return f"{count} of {of} ({100 * count / of:.3g} %)" if of else "none"
