from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from abprof.system import locks as leases

ROOT = Path(__file__).parents[1]


def free(lock: Path) -> bool:
    with leases.abandoned(lock) as acquired:
        return acquired


def test_held_until_dropped(tmp_path: Path) -> None:
    lock = tmp_path / "a.lock"
    assert leases.hold(lock)
    assert not leases.hold(lock)
    assert not free(lock)
    leases.drop(lock)
    assert not lock.exists()
    assert free(lock)
    leases.drop(lock)


def test_shared_by_several_processes(tmp_path: Path) -> None:
    lock = tmp_path / "a.use"
    assert leases.hold(lock, shared=True)
    assert leases.hold(lock, shared=True)
    script = (
        "import sys; from pathlib import Path; from abprof.system import locks as leases; lock = Path(sys.argv[1])\n"
    )
    script += "print(leases.hold(lock), leases.hold(lock, shared=True))"
    done = subprocess.run(
        [sys.executable, "-c", script, str(lock)],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False True\n"
    leases.drop(lock)


def test_who_waited_for_a_deleted_lock_takes_the_new_one(tmp_path: Path) -> None:
    lock = tmp_path / "a.lock"
    leases.hold(lock)
    inside, leave = threading.Event(), threading.Event()

    def wait() -> None:
        with leases.locked(lock):
            inside.set()
            leave.wait(120)

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert not inside.wait(0.3)
    leases.drop(lock)
    assert inside.wait(120)
    assert not free(lock)
    leave.set()
    waiter.join()
    assert free(lock)
