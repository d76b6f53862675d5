"""Run git through GitPython, with settings that keep the user's repository untouched. No other module runs git."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from abprof.records.errors import AbprofError
from abprof.system.processes import how_ended

# A git hook may start abprof. Most variables that git sets for hooks would redirect every git command: they are dropped, except
# those that configure the connection to a server.
_KEPT = re.compile(r"GIT_(CONFIG_\w+|SSH\w*|ASKPASS|ALLOW_PROTOCOL|(HTTP|SSL|PROXY|CURL|TRACE)_?\w*)")

_ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",  # `git status` would refresh the user's index
    "GIT_NO_REPLACE_OBJECTS": "1",  # a commit's hash must stand for its content
    "GIT_LFS_SKIP_SMUDGE": "1",
    # A snapshot's commit depends on nothing but its content.
    "GIT_AUTHOR_NAME": "abprof",
    "GIT_AUTHOR_EMAIL": "abprof@localhost",
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "abprof",
    "GIT_COMMITTER_EMAIL": "abprof@localhost",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z",
}

_SETTINGS = {
    "safe.directory": "*",  # a repository owned by another user; on the command line, so no config file is edited
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.splitIndex": "false",  # a split index would write its shared half into the user's .git
    "core.untrackedCache": "false",
    "core.safecrlf": "false",
    "core.sparseCheckout": "false",
    "index.sparse": "false",
    "add.ignoreErrors": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "advice.detachedHead": "false",
    "i18n.logOutputEncoding": "UTF-8",
    "commit.gpgSign": "false",
    # Pointer files stay pointer files on every side, whether or not git-lfs is installed.
    "filter.lfs.clean": "",
    "filter.lfs.smudge": "",
    "filter.lfs.process": "",
    "filter.lfs.required": "false",
}


class GitError(AbprofError):
    """A git command failed. The message has the first error that git printed, without passwords."""

    def __init__(self, verb: str, status: int, stderr: str) -> None:
        self.stderr = re.sub(r"://[^/@\s]+@", "://", stderr)
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip() and not line.startswith("hint:")]
        telling = [line.split(": ", 1)[1] for line in lines if line.startswith(("error: ", "fatal: "))]
        self.line_of_git = next(iter([*telling, *lines, how_ended(status)]))
        super().__init__(f"git {verb}: {self.line_of_git}")


@dataclass(frozen=True)
class Git:
    """Runs git in the folder `cwd`, with the variables in `env` added to the environment."""

    cwd: str
    env: Mapping[str, str] = field(default_factory=dict)

    def using(self, **env: str) -> Git:
        """Return a copy of this object with more environment variables."""
        return replace(self, env={**self.env, **env})

    def status(self, *args: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
        """Run `git ARGS`. Return exit status, output and error output. Raises AbprofError if git cannot start."""
        try:
            import git
        except ImportError as error:  # importing GitPython searches for the git program
            raise AbprofError("git is not installed, or not on PATH") from error
        if not os.access(self.cwd, os.X_OK):
            # GitPython would run the command in another folder.
            raise AbprofError("cannot enter the folder", where=self.cwd)
        options = [word for key, value in _SETTINGS.items() for word in ("-c", f"{key}={value}")]
        program = git.Git.GIT_PYTHON_GIT_EXECUTABLE or shutil.which("git") or "git"
        # GitPython can only add variables to the inherited environment; `env -u` removes variables.
        given = {**_ENVIRONMENT, **self.env}
        drop = [name for name in os.environ if name.startswith("GIT_") and not _KEPT.fullmatch(name)]
        unset = [word for name in drop if name not in given for word in ("-u", name)]
        with tempfile.TemporaryFile() as feed:
            feed.write(stdin)
            feed.seek(0)
            status, out, err = git.Git(self.cwd).execute(
                ["env", *unset, str(program), "--no-pager", *options, *args],
                istream=feed,
                with_extended_output=True,
                with_exceptions=False,
                stdout_as_string=False,
                strip_newline_in_stdout=False,
                env=given,
            )
        return int(status), bytes(out), err if isinstance(err, str) else os.fsdecode(err)

    def raw(self, *args: str, stdin: bytes = b"") -> bytes:
        """Run `git ARGS`, and return the output as bytes. Raises GitError if the command fails."""
        status, out, err = self.status(*args, stdin=stdin)
        if status != 0:
            raise GitError(args[0], status, err)
        return out

    def text(self, *args: str, stdin: bytes = b"") -> str:
        """Run `git ARGS`, and return the output without the last newline. Raises GitError if the command fails."""
        return os.fsdecode(self.raw(*args, stdin=stdin)).removesuffix("\n")

    def maybe(self, *args: str) -> str | None:
        """Run `git ARGS`, and return the output without the last newline; None if the command fails."""
        status, out, _ = self.status(*args)
        return os.fsdecode(out).removesuffix("\n") if status == 0 else None

    def records(self, *args: str) -> list[str]:
        """Run a git command with `-z`, and return the NUL-separated records. Raises GitError if the command fails."""
        return [record for record in os.fsdecode(self.raw(*args)).split("\0") if record]
