"""Building kernels/ffa for the CPU: real compilers, in processes of their own, on copies of the package."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.ffa.cpu import extension
from kernels.ffa.transpose import transpose_with_torch

PACKAGE = Path(__file__).parents[2] / "kernels" / "ffa"
BUILD = "import gc; gc.disable(); import ffa; ffa.build(verbose=False)"  # no collection: torch is imported sooner
CALL = """
import gc; gc.disable()
import torch, ffa
x = torch.ones(3, 1, 64)
print(ffa.ffa_attention(x, x, x, [(0, 3)], [(0, 3)], [1]).sum().item())
"""


class Copy:
    """A copy of the package's CPU half in `folder`, with a build folder and a compiler that counts its calls.

    The compiler does not optimise: which bytes it makes is asked here, and not how fast they are.
    """

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
        """Compilations so far; asking for the version is none."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return sum("--version" not in line for line in lines)

    def commands(self) -> list[str]:
        """What the compiler was called with, but for the scratch folder's name; the sources are compiled side by side."""
        lines = self.calls.read_text().splitlines()
        return sorted(re.sub(r"\S*/ffa_cpu-\w+/", "", line) for line in lines if "--version" not in line)

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


@pytest.mark.slow
def test_same_content_same_bytes_from_any_folder_verbose_or_not(tmp_path):
    one = Copy(tmp_path / "one", tmp_path / "build")
    assert one.python(BUILD).returncode == 0
    other = Copy(tmp_path / "quite" / "another", tmp_path / "build2")
    verbose = other.python(BUILD.replace("False", "True"))
    assert verbose.returncode == 0, verbose.stderr
    assert other.libraries() == one.libraries()
    assert other.commands() == one.commands() != []


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


def test_a_compiler_error_is_named_and_leaves_nothing(copy):
    source = copy.package / "cpu" / "csrc" / "problem.h"
    source.write_text(source.read_text().replace("int64_t q_len, k_len;", "int64_t q_len k_len;"))
    failed = copy.python(BUILD)
    assert failed.returncode
    assert "RuntimeError: the C++ compiler failed: problem.h:" in failed.stderr.splitlines()[-1]
    assert "error: expected" in failed.stderr.splitlines()[-1]
    assert "error: expected" in failed.stdout  # the whole output is in the log
    assert not list(copy.build.iterdir())


def test_missing_build_is_an_error_inside_abprof(copy):
    copy.build.mkdir()
    called = copy.python(CALL)
    assert called.returncode
    assert called.stderr.splitlines()[-1].startswith("RuntimeError: ")
    assert not copy.compiled()


def test_plain_use_builds_into_the_users_cache_and_shares_torchs_threads(copy, tmp_path):
    code = CALL + "print({x.split()[-1] for x in open('/proc/self/maps') if 'libgomp' in x})"
    called = copy.python(code, ABPROF_BUILD_DIR=None, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert called.returncode == 0, called.stderr
    assert called.stdout.splitlines()[0] == "192.0"  # the compiler's output is not on stdout
    (library,) = (tmp_path / "cache" / "ffa").rglob("*.so")
    assert library.parent.name in library.name
    if (Path(torch.__file__).parent / "lib" / "libgomp.so.1").exists():  # else torch's goes by another name: two pools
        assert called.stdout.splitlines()[1].count("libgomp") == 1


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_torch_extension_equals_the_tensor_operations(copy, tmp_path):
    env = {"FFA_TORCH_EXTENSION": "1"}
    built = copy.python(BUILD.replace("False", "True"), **env)
    assert built.returncode == 0, built.stderr
    assert "-DTORCH_EXTENSION_NAME=ffa_transpose_" in built.stdout  # ninja's own command line
    assert "extension: up to date" in copy.python(BUILD, **env).stdout
    check = f"""
import sys, torch
sys.path.insert(0, {str(Path(__file__).parent)!r})
from ffa.cpu import extension
from ffa.transpose import transpose_lists, transpose_with_torch
torch.manual_seed(0)
for heads, n_q, n_k in ((1, 1, 1), (3, 17, 9), (2, 5, 40), (2, 0, 4)):
    num = torch.randint(0, n_k + 1, (heads, n_q), dtype=torch.int32)
    lists = torch.argsort(torch.rand(heads, n_q, n_k), -1).int()
    one, other = transpose_lists(num, lists, n_k), transpose_with_torch(num, lists, n_k)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(one, other))
print(extension.load().__file__)
"""
    ran = copy.python(check, **env)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip().startswith(str(copy.build))

    other = Copy(tmp_path / "elsewhere", tmp_path / "build2")
    assert other.python("from ffa.cpu import extension; extension.build(verbose=False)", **env).returncode == 0
    ((name, bytes),) = other.libraries().items()
    assert copy.libraries()[name] == bytes


def test_the_extension_is_never_built_on_the_quiet(monkeypatch, tmp_path):
    monkeypatch.setenv("ABPROF_BUILD_DIR", str(tmp_path))
    extension.load.cache_clear()
    with pytest.raises(RuntimeError, match="FFA_TORCH_EXTENSION=1 first"):
        extension.load()
    num = torch.ones(1, 2, dtype=torch.int32)
    assert transpose_with_torch(num, num[..., None] * 0, 1)[0].tolist() == [[2]]
