"""Real git repositories in temporary folders."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Works on a machine without any git configuration, and is not bent by one.
ENVIRONMENT = {
    "GIT_AUTHOR_NAME": "A. Tester", "GIT_AUTHOR_EMAIL": "tester@example.org", "GIT_COMMITTER_NAME": "A. Tester",
    "GIT_COMMITTER_EMAIL": "tester@example.org", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
}  # fmt: skip


@dataclass(frozen=True)
class GitRepo:
    """A git repository with its work tree at `path`."""

    path: Path

    def git(self, *args: str) -> str:
        """Run git here; standard output without its last newline."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        done = subprocess.run(
            ["git", "-c", "protocol.file.allow=always", *args],
            cwd=self.path,
            env={**clean, **ENVIRONMENT},
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"git {' '.join(args)}: {os.fsdecode(done.stderr)}")
        return os.fsdecode(done.stdout).removesuffix("\n")

    def write(self, files: Mapping[str, str | bytes]) -> None:
        """Write files, path -> content, making their folders."""
        for name, content in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def commit(self, message: str, files: Mapping[str, str | bytes] | None = None) -> str:
        """Write `files`, commit everything there is (also nothing), and give the commit's hash."""
        self.write(files or {})
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--no-verify", "-m", message)
        return self.git("rev-parse", "HEAD")

    def branch(self, name: str) -> None:
        """Make a branch here and switch to it."""
        self.git("switch", "--quiet", "--create", name)

    def checkout(self, name: str) -> None:
        """Switch to a branch, tag or commit."""
        self.git("checkout", "--quiet", name)


def make_repo(path: Path) -> GitRepo:
    """An empty repository at `path` with the branch main."""
    path.mkdir(parents=True, exist_ok=True)
    repo = GitRepo(path)
    repo.git("init", "--quiet", "--initial-branch=main", "--template=")
    return repo
