"""Folders and links in a circle in the place of files, in a run folder and on a command line. Each is refused in one
line or passed over."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import runs
from tests.fuzz.commands import Asker, asker

__all__ = ["asker"]
KINDS: dict[str, Callable[[Path], object]] = {"folder": Path.mkdir, "loop": lambda path: path.symlink_to(path.name)}
each = pytest.mark.parametrize("kind", KINDS)


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
@pytest.mark.parametrize("verb", ["memory", "compare", "waive", "abprof.toml"])
def test_named_on_the_command_line(asker: Asker, verb: str, kind: str) -> None:
    (asker.folder / ".git").mkdir()
    name = {"waive": "abprof-waivers.toml", "abprof.toml": "abprof.toml"}.get(verb, "x.csv")
    file = asker.folder / name
    put(file, kind)
    words: dict[str, tuple[str | Path, ...]] = {
        "memory": ("memory", "--from", file, "--warmup", "1", "--runs", "1"),
        "compare": ("compare", file, file, asker.folder / "out.csv"),
        "waive": (
            "waive",
            "*",
            *["--most", "5", "--reason", "r", "--owner", "o", "--until", "2999-01-01", "--repo"],
            asker.folder,
        ),
        "abprof.toml": ("list", "--repo", asker.folder),
    }
    assert asker(*words[verb]) in ((0, 2) if verb == "waive" and kind == "loop" else (2,))
