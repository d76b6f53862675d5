"""Building kernels/ffa for the CPU: real compilers, in processes of their own, on copies of the package."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "kernels" / "ffa"
BUILD = "import gc; gc.disable(); import ffa; ffa.build(verbose=False)"  # no collection: torch is imported sooner
CALL = """
import gc; gc.disable()
import torch, ffa
x = torch.ones(3, 1, 64)
print(ffa.ffa_attention(x, x, x, [(0, 3)], [(0, 3)], [1]).sum().item())
"""


class Copy:
    """A copy of the package's CPU half in `folder`, with a build folder and a compiler that counts its calls. The
    compiler does not optimise: which bytes it makes is requested here, and not how fast they are."""

    def __init__(self, folder: Path, build: Path) -> None:
        ignore = shutil.ignore_patterns("cuda", "__pycache__")
        self.package = Path(shutil.copytree(PACKAGE, folder / "ffa", ignore=ignore))
        self.folder, self.build = folder, build
        self.calls = folder / "calls"
        self.cxx = folder / "counting-cxx"
        self.cxx.write_text(f'#!/bin/sh\necho "$@" >> {self.calls}\nexec {shutil.which("c++")} "$@" -O0\n')
        self.cxx.chmod(0o755)

    def python(self, code: str, **env: str | None) -> subprocess.CompletedProcess[str]:
        here = {**os.environ, "PYTHONPATH": str(self.folder), "ABPROF_BUILD_DIR": str(self.build), "CXX": str(self.cxx)}
        here.update({name: value for name, value in env.items() if value is not None})
        for name in (name for name, value in env.items() if value is None):
            del here[name]
        return subprocess.run([sys.executable, "-c", code], env=here, capture_output=True, text=True, check=False)

    def compiled(self) -> int:
        """Return the compilations so far, without calls for the version."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return sum("--version" not in line for line in lines)

    def libraries(self) -> dict[str, str]:
        return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in self.build.glob("*.so")}


@pytest.fixture
def copy(tmp_path):
    return Copy(tmp_path / "one", tmp_path / "build")


def test_build_once_load_by_path_and_rebuild_on_change(copy):
    built = copy.python(BUILD)
    assert built.returncode == 0, built.stderr
    assert f"$ {copy.cxx} -std=c++17 -O3" in built.stdout
    assert "kernels_avx512.cpp" in built.stdout
    assert built.stdout.splitlines()[-1].startswith("ffa cpu: built ")
    assert (compilations := copy.compiled()) == 4  # three sources and the link
    assert sorted(p.suffix for p in copy.build.iterdir()) == [".json", ".so"]  # nothing half-made is left

    again = copy.python(BUILD)
    assert "up to date" in again.stdout
    assert copy.compiled() == compilations

    called = copy.python(CALL, PATH="/nonexistent", CXX="/nonexistent/c++")  # a worker needs no compiler
    assert called.stdout.strip() == "192.0", called.stderr

    (facts,) = copy.build.glob("*.json")  # a record of another compiler: build sees it, a worker does not care
    facts.write_text(facts.read_text().replace('"compiler": "', '"compiler": "older '))
    assert copy.python(BUILD).stdout.splitlines()[-1].startswith("ffa cpu: built ")
    assert copy.compiled() == 2 * compilations

    source = copy.package / "cpu" / "csrc" / "forward.h"
    source.write_text(source.read_text() + "// changed\n")
    missing = copy.python(CALL)
    assert missing.returncode
    assert "run ffa.build(verbose=True) before the first call" in missing.stderr.splitlines()[-1]
    assert copy.python(BUILD).returncode == 0
    assert copy.compiled() == 3 * compilations
    assert len(copy.libraries()) == 2


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (
            {"CXX": "/nonexistent/c++"},
            "RuntimeError: no C++ compiler: CXX names '/nonexistent/c++', which is not on PATH",
        ),
        ({"CXX": None, "PATH": "/nonexistent"}, "RuntimeError: no C++ compiler: none of c++, g++, clang++ is on PATH"),
    ],
)
def test_a_missing_compiler_is_a_clear_error(copy, env, says):
    failed = copy.python(BUILD, **env)
    assert failed.returncode
    assert failed.stderr.splitlines()[-1].startswith(says)
