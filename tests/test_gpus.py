"""Whoever has the GPU to itself has it so, and gets it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.gpus import INSIDE, its_share

HERE = Path(__file__).parent


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
        for _ in range(1000):
            if _held(tmp_path / f"abprof-gpu-tests-{os.getuid()}" / "door"):
                break
            time.sleep(0.01)
        else:
            pytest.fail("nobody waits at the door")
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


MODULE = """
import fcntl, os, tempfile
from pathlib import Path
import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


def free():
    lock = Path(tempfile.gettempdir()) / f"abprof-gpu-tests-{os.getuid()}" / "share"
    if not lock.exists():
        return True
    with open(lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@pytest.fixture(scope="module")
def whole_run():
    yield free()
    assert not free()


def test_it(whole_run):
    assert not whole_run
    assert not free()
"""


def test_what_a_module_makes_for_its_tests_has_the_gpu_to_itself_too(tmp_path: Path) -> None:
    """It is made before anything that is made for each test: whole runs that several tests read are."""
    (tmp_path / "test_module.py").write_text(MODULE)
    options = ("-q", "-p", "tests.conftest", "-p", "no:cacheprovider", "-c", "pyproject.toml", "-m", "gpu")
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", str(tmp_path), str(tmp_path / "test_module.py")]
    env = {name: value for name, value in os.environ.items() if name != INSIDE and "PYTEST" not in name}
    env["TMPDIR"] = str(tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=HERE.parent, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
