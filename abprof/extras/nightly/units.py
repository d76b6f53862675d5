"""A systemd service with its timer, and a crontab's lines, that start the nightly job. templates/nightly/ has their words.

Paths and names of branches are foreign text: each goes in as one word, quoted by the rules of the file that it stands in.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from abprof.records.errors import AbprofError
from abprof.system.bundled import bundled

NAMES = ("abprof-nightly.service", "abprof-nightly.timer", "crontab")


@dataclass(frozen=True)
class Timed:
    """What a timer starts, where and when."""

    repo: Path
    branch: str
    at: str  # HH:MM
    python: str  # the interpreter that abprof is installed in
    path: str  # of executables: a timer's own holds no compilers
    more: tuple[str, ...] = ()  # further options

    @property
    def command(self) -> tuple[str, ...]:
        """The nightly job as its words."""
        return (
            self.python,
            "-m",
            "abprof",
            "nightly",
            "--quiet",
            "--repo",
            str(self.repo),
            "--branch",
            self.branch,
            *self.more,
        )


def units(timed: Timed) -> dict[str, str]:
    """Name -> text. Raises AbprofError for a time that is none, and for a name that no such file can hold."""
    clock = re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d)", timed.at)
    if not clock:
        raise AbprofError(f"{timed.at!r} is no time of day", where="--at", advice="write 02:17")
    for text in (*timed.command, timed.path):
        if not text.isprintable():
            raise AbprofError(f"{text!r} cannot stand in a timer's files", where="abprof init --nightly")
    places = {
        "BRANCH": timed.branch.replace("%", "%%").replace("\\", "/"),
        "AT": timed.at,
        "HOUR": str(int(clock[1])),
        "MINUTE": str(int(clock[2])),
        "REPO": _unquoted(str(timed.repo)),
        "PATH": _systemd([f"PATH={timed.path}"], dollar="$"),
        "PLAIN_PATH": timed.path,
        "COMMAND": _systemd(timed.command, dollar="$$"),
        "CRON_REPO": _cron([str(timed.repo)]),
        "CRON_COMMAND": _cron(timed.command),
    }
    folder = bundled("templates") / "nightly"
    return {name: _filled((folder / name).read_text(encoding="utf-8"), places) for name in NAMES}


def _filled(text: str, places: dict[str, str]) -> str:
    return re.sub("@([A-Z_]+)@", lambda match: places[match[1]], text)


def _systemd(words: Sequence[str], dollar: str) -> str:
    """Words of a command or an assignment (systemd.service(5), Command lines): quoted, specifiers and variables off."""
    made = []
    for word in words:
        safe = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", dollar)
        made.append(f'"{safe}"')
    return " ".join(made)


def _unquoted(path: str) -> str:
    """A path where systemd takes the whole line."""
    return path.replace("%", "%%")


def _cron(words: Sequence[str]) -> str:
    """Shell words; a per cent sign ends a crontab's command unless it is escaped, and is read before the shell's quotes are."""
    return shlex.join(words).replace("%", "\\%")
