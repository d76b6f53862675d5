"""Who has the GPU among the tests: several side by side under pytest-xdist, but for one that needs it to itself.

Where `alone` marks a test, it measures, or runs an abprof that refuses a GPU which somebody else uses.
"""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

NEEDS_GPU = pytest.mark.skipif("not __import__('torch').cuda.is_available()", reason="needs an NVIDIA GPU")
INSIDE = "ABPROF_GPU_TESTS_INSIDE"  # in the environment of tests that a test runs: it has their share


@contextlib.contextmanager
def its_share(*, alone: bool) -> Iterator[None]:
    """While it is entered no other process of this user is inside that is, or wants to be, alone. Whoever waits to be alone holds
    up those who come later, so that its turn comes."""
    if INSIDE in os.environ:
        yield
        return
    folder = Path(tempfile.gettempdir()) / f"abprof-gpu-tests-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    with open(folder / "share", "a") as share:
        with open(folder / "door", "a") as door:
            fcntl.flock(door, fcntl.LOCK_EX)
            fcntl.flock(share, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
