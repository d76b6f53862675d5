"""`abprof selfcheck`: false alarms, detection of planted changes, and coverage of intervals on this machine.

In: options without refs. Out: a `Selfcheck` and the run's folder. An ordinary run compares the branches of a small repository
(tree/): on the branch some cells do known extra work, the others are unchanged. Its blocks are then judged at several
thresholds, as the stopping rule would have.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import msgspec

from abprof import session, store
from abprof.extras.selfcheck.examine import CLASSES, GROUP, Selfcheck, examine
from abprof.records.options import Options
from abprof.report.render import environment
from abprof.report.text import code
from abprof.report.text import markdown as escape
from abprof.sides import NewRepository
from abprof.system.console import View
from abprof.verdict import stats

__all__ = ["CLASSES", "GROUP", "Selfcheck", "as_json", "as_markdown", "examine", "make", "read", "run"]

_TREE = Path(__file__).parent / "tree"
_SHARED = "kernels/meter/__init__.py"


def run(config: Options, view: View) -> tuple[Selfcheck, Path]:
    """Measure, examine, write. `config` has no refs and no repository. Raises AbprofError."""
    runs_dir = str(Path(config.runs_dir or "runs").absolute())
    with tempfile.TemporaryDirectory(prefix="abprof-selfcheck-") as place:
        repo = Path(place) / "repository"
        make(repo)
        # Base a second time: an unchanged cell has three pairs of processes, and one with injected work has an unchanged pair.
        own = {"specs": ("main", "injected", "main"), "repo": str(repo), "runs_dir": runs_dir}
        _, folder = session.run(msgspec.structs.replace(config, **own), view)
    return read(folder), folder


def read(folder: Path) -> Selfcheck:
    """The result of a selfcheck's run folder, from its blocks; written beside them. Raises AbprofError."""
    head, blocks, _ = store.read(folder)
    found = examine(head, blocks)
    (folder / "selfcheck.json").write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
    (folder / "selfcheck.md").write_text(as_markdown(found, folder))
    return found


def make(path: Path) -> None:
    """The repository: branch main, and branch injected, on which one line says that the injected work is done."""
    repository = NewRepository(path, "main")
    shutil.copytree(_TREE, path, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    repository.commit("Kernels of known time", {".gitignore": "runs/\n"})
    repository.branch("injected")
    source = (path / _SHARED).read_text()
    repository.commit("Do the injected work", {_SHARED: source.replace("SHARE = 0.0", "SHARE = 1.0")})
    repository.switch("main")


def as_json(found: Selfcheck, folder: Path) -> str:
    """selfcheck.json's content plus `run_dir`."""
    return msgspec.json.encode({**msgspec.to_builtins(found), "run_dir": str(folder)}).decode()


def as_markdown(found: Selfcheck, folder: Path) -> str:
    """The tables for people, by templates/selfcheck.md."""
    template = environment(escape).get_template("selfcheck.md")
    command = code(" ".join(("abprof", *found.arguments)))
    return template.render(found=found, command=command, folder=code(folder), rate=_rate, bound=stats.false_alarm_bound)


def _rate(count: int, of: int) -> str:
    """ "3 of 40 (7.5 %)"."""
    return f"{count} of {of} ({100 * count / of:.3g} %)" if of else "none"
