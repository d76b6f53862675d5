"""The error class for problems that the user can fix, and the exit codes of all commands."""

from __future__ import annotations

from enum import IntEnum

from abprof.records.visible import visible


class Exit(IntEnum):
    """Exit codes, the same for every command (docs/DESIGN.md, "Exit codes, everywhere")."""

    OK = 0
    SLOWER = 1
    CANNOT_RUN = 2
    BUG = 3
    UNTRUSTED = 4
    INTERRUPTED = 130


def place_of(key: str, file: str) -> str:
    """Return the place of `key` in a file, like `abprof.toml, defaults.preset`."""
    return f"{file}, {key}" if key else file


_LONGEST = 2000  # characters of a message, which may quote any file


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


class AbprofError(Exception):
    """An error that the user can fix: what is wrong, where, and what to do about it."""

    def __init__(self, what: str, *, where: str = "", advice: str = "") -> None:
        self.what = _clipped(" ".join(visible(what).split()), _LONGEST)
        self.where = _clipped(visible(where), _LONGEST // 4)
        self.advice = _clipped(visible(advice), _LONGEST)
        super().__init__(self.line)

    @property
    def line(self) -> str:
        """Return the error as one line: `WHERE: WHAT (ADVICE)`."""
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text} ({self.advice})" if self.advice else text

    def as_json(self) -> dict[str, dict[str, str]]:
        """Return the object that `--json` prints with exit code 2."""
        return {"error": {"what": self.what, "where": self.where, "advice": self.advice}}
