"""The folder of a run that is made, and what is left of one that was killed before it had anything to keep."""

from __future__ import annotations

import contextlib
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from abprof.store import runfolder
from abprof.store.runfolder import RunFolder
from abprof.system import locks as leases
from abprof.system import paths
from abprof.system.console import View

_NOTES = "unfinished"  # in the state folder: a file for each living run


@contextlib.contextmanager
def new_folder(runs_dir: Path, id: str, view: View) -> Iterator[RunFolder]:
    """A folder of this run's own with its log. Removed again if the run ends before run.json stands in it.

    What kill -9 leaves is found by its note: a file in abprof's state folder, held while the run lives, that names the
    folder before it is made.
    """
    notes = paths.state_dir() / _NOTES
    for line in sweep(notes.parent, runs_dir):
        view.say(line)
    note = notes / uuid.uuid4().hex
    while not leases.hold(note):  # somebody who sweeps had it in hand in the moment it was made
        note = notes / uuid.uuid4().hex
    try:
        folder = runfolder.create(runs_dir, id, lambda path: note.write_text(str(path), errors="surrogateescape"))
        view.attach(folder.path / "output.txt")
        try:
            yield folder
        finally:
            view.detach()
            if not (folder.path / runfolder.RUN).exists():
                runfolder.discard(folder)
    finally:
        leases.drop(note)


def sweep(state: Path, runs_dir: Path | None = None) -> list[str]:
    """Remove run folders of killed runs without run.json (in `runs_dir` alone, if given); a line for each."""
    lines = []
    for note in sorted((state / _NOTES).glob("*")):
        folder = _named(note)
        if folder is None or (runs_dir is not None and folder.parent != runs_dir):
            continue
        with leases.abandoned(note) as dead:
            ours = re.fullmatch(r"\d{8}T\d{6}Z-.+", folder.name) and folder.is_dir()
            # A run that was killed before it made the folder may have named what is another's. That one's note is
            # older than its folder, so it stands here if the folder does.
            if dead and ours and not (folder / runfolder.RUN).exists() and not _claimed(folder, note):
                shutil.rmtree(folder, ignore_errors=True)
                lines.append(f"removed {folder}, which a killed run left without {runfolder.RUN}")
    return lines


def _named(note: Path) -> Path | None:
    """The folder that a note names, None when its run has just ended."""
    try:
        return Path(note.read_text(errors="surrogateescape") or "/")
    except FileNotFoundError:
        return None


def _claimed(folder: Path, besides: Path) -> bool:
    """Whether a living run's note names the folder."""
    for note in besides.parent.glob("*"):
        if note != besides and _named(note) == folder:
            with leases.abandoned(note) as dead:
                if not dead:
                    return True
    return False
