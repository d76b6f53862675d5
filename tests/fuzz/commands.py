"""Run command lines in this process: each ends with a documented exit code and without a traceback."""

import contextlib
import io
import unicodedata
from pathlib import Path

import pytest

from abprof.cli import run_command_line
from abprof.records.errors import AbprofError, Exit


class Asker:
    """Runs command lines with its own state and cache folders."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.said = b""  # standard output of the last command
        self.err = ""  # its standard error
        monkeypatch.setenv("ABPROF_STATE_DIR", str(self.state))
        monkeypatch.setenv("ABPROF_CACHE_DIR", str(folder / "cache"))

    def __call__(self, *words: str | Path) -> int:
        """Return the exit code. Fail on an internal error, and on a refusal without one clear line."""
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_command_line([str(word) for word in words])
            out.flush()
        self.said = out.buffer.getvalue()  # type: ignore[attr-defined]
        self.err = err.getvalue()
        for text in (self.err, self.said.decode()):
            assert not steering(text), f"{steering(text)!a} in {ascii(text)[:2000]}"
        log = self.state / "bug.log"
        if code == Exit.BUG:
            raise AssertionError(log.read_text() if log.exists() else err.getvalue())
        if code == Exit.CANNOT_RUN:
            lines = [line for line in err.getvalue().splitlines() if line.startswith("abprof: ")]
            assert len(lines) == 1, err.getvalue()
            assert len(lines[0]) < 3000, lines[0][:400]
        return code


def steering(text: str) -> str:
    """Return the first control or surrogate character except a line end; "" if there is none."""
    return next((sign for sign in text if unicodedata.category(sign) in ("Cc", "Cs") and sign != "\n"), "")


def one_clear_line(error: AbprofError) -> None:
    """Check an error for users: one line, short, without control characters."""
    assert error.what
    assert "\n" not in error.line
    assert not steering(error.line), ascii(error.line)
    assert len(error.line) < 3000, error.line[:400]
