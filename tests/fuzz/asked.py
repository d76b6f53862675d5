"""A command line in this process, and the promise of all of them: a documented exit code, and never a traceback."""

from __future__ import annotations

import contextlib
import io
import unicodedata
from pathlib import Path

import pytest

from abprof.cli import run_command_line
from abprof.records.errors import AbprofError, Exit


class Asker:
    """Runs command lines with folders of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.said = b""  # standard output of the last
        self.told = ""  # and standard error
        monkeypatch.setenv("ABPROF_STATE_DIR", str(self.state))
        monkeypatch.setenv("ABPROF_CACHE_DIR", str(folder / "cache"))

    def __call__(self, *words: str | Path) -> int:
        """The exit code. Fails where abprof calls itself broken, or refuses without a clear line."""
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_command_line([str(word) for word in words])
            out.flush()
        self.said = out.buffer.getvalue()  # type: ignore[attr-defined]
        self.told = err.getvalue()
        for text in (self.told, self.said.decode()):
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
    """The first letter that a terminal obeys, or that is none; the ends of lines are ours."""
    return next((sign for sign in text if unicodedata.category(sign) in ("Cc", "Cs") and sign != "\n"), "")


def one_clear_line(error: AbprofError) -> None:
    """What a person is told."""
    assert error.what
    assert "\n" not in error.line
    assert not steering(error.line), ascii(error.line)
    assert len(error.line) < 3000, error.line[:400]


@pytest.fixture
def asker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asker:
    return Asker(tmp_path, monkeypatch)
