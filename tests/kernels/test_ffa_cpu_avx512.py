"""The AVX-512 code path on any x86-64 machine: its tile shapes and algorithm, with the vector wrapper replaced."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{path.name} no longer says {old!r}"
    path.write_text(text.replace(old, new))


@pytest.mark.slow
def test_the_avx512_path_with_its_wrapper_in_halves(tmp_path):
    ignore = shutil.ignore_patterns("cuda", "__pycache__")
    package = Path(shutil.copytree(ROOT / "kernels" / "ffa", tmp_path / "kernels" / "ffa", ignore=ignore)) / "cpu"
    shutil.copy(HERE / "data" / "simd_512_in_halves.h", package / "csrc" / "simd_avx512.h")
    flags = '["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mprefer-vector-width=512"]'
    replace(package / "library.py", flags, '["-mavx2", "-mfma", "-Wno-psabi"]')
    replace(package / "csrc" / "dispatch.cpp", '__builtin_cpu_supports("avx512f") &&', "true ||")
    for name in ("ffa_reference.py", "test_ffa_cpu.py"):
        shutil.copy(HERE / name, tmp_path)
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    env.pop("ABPROF_BUILD_DIR", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "avx512", "test_ffa_cpu.py"]
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-1000:]
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout
