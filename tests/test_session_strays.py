"""What code under test leaves behind does not live to see the results written."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from abprof import session
from abprof.system.console import View


def test_a_process_that_hid_ends_before_the_results_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a session of its own and without the mark in its environment; ^C or not."""
    left: list[subprocess.Popen[bytes]] = []

    def begun(*_: Any) -> None:
        left.append(subprocess.Popen(["/bin/sleep", "600"], env={}, start_new_session=True))
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "watched", begun)
    place: Any = SimpleNamespace(cache=tmp_path, config=SimpleNamespace(executor=""))
    record: Any = SimpleNamespace(interrupted=False, view=View(quiet=True))
    try:
        session.measure(place, SimpleNamespace(), record, View(quiet=True))  # type: ignore[arg-type]
        assert record.interrupted
        left[0].wait(timeout=30)  # raises where it sleeps on
    finally:
        left[0].kill()
