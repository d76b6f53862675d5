"""Whoever has the GPU to itself has it so, and gets it."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from tests.gpus import its_share


def test_one_that_is_alone_waits_for_who_was_there_and_is_before_who_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    seen: list[str] = []

    def inside(name: str, *, alone: bool) -> None:
        with its_share(alone=alone):
            seen.append(f"{name} in")
            time.sleep(0.1)
            seen.append(f"{name} out")

    others = [threading.Thread(target=inside, args=("alone",), kwargs={"alone": True})]
    others += [threading.Thread(target=inside, args=(name,), kwargs={"alone": False}) for name in ("third", "fourth")]
    with its_share(alone=False):
        inside("second", alone=False)
        others[0].start()
        while not _held(tmp_path / f"abprof-gpu-tests-{os.getuid()}" / "door"):
            time.sleep(0.01)
        for other in others[1:]:
            other.start()
        time.sleep(0.2)
        assert seen == ["second in", "second out"]
    for other in others:
        other.join()
    assert seen[2:4] == ["alone in", "alone out"]
    assert {*seen[4:]} == {"third in", "third out", "fourth in", "fourth out"}


def _held(lock: Path) -> bool:
    with open(lock, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
