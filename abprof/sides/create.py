"""Make a repository of our own: the demo's. Never touches one that exists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from abprof.records.errors import AbprofError
from abprof.sides.git import Git

_WHO = {
    "GIT_AUTHOR_NAME": "abprof demo",
    "GIT_AUTHOR_EMAIL": "demo@abprof.invalid",
    "GIT_COMMITTER_NAME": "abprof demo",
    "GIT_COMMITTER_EMAIL": "demo@abprof.invalid",
}


class NewRepository:
    """A repository under construction at `path`, which must be empty or not there. Raises AbprofError otherwise."""

    def __init__(self, path: Path, branch: str) -> None:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise AbprofError("not an empty folder", where=str(path))
        self.path = path
        self._git = Git(str(path)).using(**_WHO)
        self._git.text("init", "--quiet", f"--initial-branch={branch}")

    def commit(self, message: str, files: Mapping[str, str] | None = None) -> None:
        """Write `files` (path -> text) and commit everything that is there."""
        for name, text in (files or {}).items():
            place = self.path / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        self._git.text("add", "--all")
        self._git.text("-c", "commit.gpgSign=false", "commit", "--quiet", "--no-verify", "-m", message)

    def branch(self, name: str) -> None:
        """Begin a branch here and stand on it."""
        self._git.text("checkout", "--quiet", "-b", name)

    def switch(self, name: str) -> None:
        """Stand on a branch that exists."""
        self._git.text("checkout", "--quiet", name)
