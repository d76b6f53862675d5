"""Files that are no files: folders, links in a circle, pipes that nobody writes, devices without an end, where abprof reads a run
folder that somebody sent, its own state, and what a command line names. Each is refused in one line or done without."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import runs
from tests.fuzz.asked import Asker, asker

__all__ = ["asker"]
KINDS: dict[str, Callable[[Path], object]] = {
    "folder": Path.mkdir,
    "loop": lambda path: path.symlink_to(path.name),
    "pipe": os.mkfifo,
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "full": lambda path: path.symlink_to("/dev/full"),
    "null": lambda path: path.symlink_to("/dev/null"),
}
each = pytest.mark.parametrize("kind", KINDS)


class Waits(BaseException):
    """Nobody's error: what handles any would take it for a fault of what waits."""


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    """A pipe that nobody writes is waited for without an end: that is a failure here."""

    def late(*_: object) -> None:
        raise Waits

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(240)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def put(path: Path, kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    KINDS[kind](path)


@each
@pytest.mark.parametrize("name", ["run.json", "rounds.jsonl", "evidence.jsonl", "output.txt", "logs", "report.html"])
def test_in_a_run_folder(asker: Asker, name: str, kind: str) -> None:
    folder = runs.write(asker.folder / "runs", runs.run())
    put(folder / name, kind)
    code = asker("report", folder, "--format", "artifact")
    assert code == 2 or name not in ("run.json", "rounds.jsonl", "evidence.jsonl")
    asker("report", folder)
    asker("report", folder, folder, "--format", "md")


@each
@pytest.mark.parametrize("verb", ["memory", "compare-csv", "waive", "abprof.toml"])
def test_named_on_the_command_line(asker: Asker, verb: str, kind: str) -> None:
    (asker.folder / ".git").mkdir()
    name = {"waive": "abprof-waivers.toml", "abprof.toml": "abprof.toml"}.get(verb, "x.csv")
    file = asker.folder / name
    if verb in ("memory", "compare-csv") and kind in ("pipe", "zero", "full"):
        pytest.skip("what a person names may be another program's pipe, and is read to its end")
    put(file, kind)
    words: dict[str, tuple[str | Path, ...]] = {
        "memory": ("memory", "--from", file, "--warmup", "1", "--runs", "1"),
        "compare-csv": ("compare-csv", file, file, asker.folder / "out.csv"),
        "waive": (
            "waive",
            "*",
            *["--most", "5", "--reason", "r", "--owner", "o", "--until", "2999-01-01", "--repo"],
            asker.folder,
        ),
        "abprof.toml": ("list", "--repo", asker.folder),
    }
    assert asker(*words[verb]) in ((0, 2) if verb == "waive" and kind in ("null", "loop") else (2,))
