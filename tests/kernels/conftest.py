"""Run kernels in Triton's interpreter."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def interpreted(tmp_path: Path) -> Callable[..., None]:
    """`interpreted(MODULE, *NAMES)`: these checks of a module of this folder must be right."""
    pytest.importorskip("triton")
    env = os.environ | {"ABPROF_BUILD_DIR": str(tmp_path), "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}

    def run(module: str, *names: str) -> None:
        command = [sys.executable, "-m", "tests.kernels.interpret", module, *names]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        assert done.stdout.splitlines() == [f"{name}: right" for name in names], done.stderr

    return run
