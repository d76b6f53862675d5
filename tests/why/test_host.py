"""Causes on a CPU, from real compilers' objects: each is named, and nothing is where the code is the same."""

import functools
import hashlib
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import msgspec
import pytest

from abprof.evidence import machine_code
from abprof.records import (
    Artefact,
    Build,
    Census,
    Comparison,
    Kernel,
    Launch,
    Machine,
    Outcome,
    Proof,
)
from tests import blocks
from tests.planted import cpu, marked
from tests.why.cases import kinds, row_of

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not shutil.which("objdump"), reason="reads x86-64 by objdump"
)
Sources = tuple[str, str]  # C++, optimisation
PLAIN = Census(launches=(Launch(name="aten::empty_like", count=1, ns=3e3),), hidden_ns=0.0)


@functools.cache
def made_of(source: str, optimisation: str) -> bytes:
    """The shared object that a compiler makes of this."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "k.cpp").write_text(source)
        argv = ["g++", *optimisation.split(), "-fno-math-errno", "-shared", "-fPIC", "-o", "k.so", "k.cpp"]
        subprocess.run(argv, check=True, cwd=folder)
        return (Path(folder) / "k.so").read_bytes()


def loaded(folder: Path, side: str, compiled: bytes) -> tuple[Build, Proof]:
    """A side with this one object."""
    home = folder / side
    home.mkdir()
    (home / "k.so").write_bytes(compiled)
    digest = hashlib.sha256(compiled).hexdigest()
    artefact = Artefact(kind="object", name="k.so", path=str(home / "k.so"), sha256=digest)
    build = Build(side=side, kernel="ffa", key=side, path=str(home))
    return build, Proof(epoch=1, side=side, kernel="ffa", ok=True, artefacts=(artefact,))


def read_objects(folder: Path, before: bytes, after: bytes) -> tuple[Kernel, ...]:
    builds, proofs = zip(loaded(folder, "base", before), loaded(folder, "target", after), strict=True)
    return machine_code.read_kernels(blocks.head(builds=builds, proofs=proofs), (), folder.parent / "read")


def read(folder: Path, before: Sources, after: Sources) -> tuple[Kernel, ...]:
    return read_objects(folder, made_of(*before), made_of(*after))


def judged(
    found: tuple[Kernel, ...],
    pct: float,
    censuses: tuple[Census | None, Census | None] = (PLAIN, PLAIN),
    cell: str = "dense/n=0",
) -> Comparison:
    status = {arm: Outcome(status="ok", census=seen) for arm, seen in zip(("base", "target"), censuses, strict=True)}
    head = blocks.head(kernels=found)
    head = msgspec.structs.replace(head, cells=(msgspec.structs.replace(head.cells[0], id=cell),))
    return row_of(head, pct, status, cell=cell)


BASE = (cpu.SOURCE, "-O3")
PASS = (cpu.PASS, "-O3")


def test_lost_vectorisation_is_named(tmp_path: Path) -> None:
    found = read(tmp_path, BASE, (cpu.SOURCE, "-O1"))
    [cause] = judged(found, 80.0).causes or ()
    assert (cause.kind, cause.kernels) == ("vectorisation", ("blend",))
    assert cause.text.startswith("vectorisation lost in blend (128-bit arithmetic ")
    assert "-> 0, scalar arithmetic" in cause.text


def test_vectorisation_that_is_gained_makes_it_faster_and_nothing_else(tmp_path: Path) -> None:
    found = read(tmp_path, (cpu.SOURCE, "-O1"), BASE)
    assert kinds(judged(found, -40.0)) == ["vectorisation"]
    assert kinds(judged(found, 40.0)) == []


def test_an_extra_pass_is_named(tmp_path: Path) -> None:
    found = read(tmp_path, BASE, PASS)
    [cause] = judged(found, 40.0).causes or ()
    assert (cause.kind, cause.kernels) == ("pass", ("rescale(float*, long)",))
    assert cause.text.startswith("an extra pass over memory: rescale(float*, long) (")


def test_a_pass_that_is_gone_is_named(tmp_path: Path) -> None:
    [cause] = judged(read(tmp_path, PASS, BASE), -30.0).causes or ()
    assert (cause.kind, cause.text.split(":")[0]) == ("pass", "a pass over memory less")


@pytest.mark.parametrize("branch", marked.SETS["cpu"])
def test_a_cause_at_a_known_line_is_named_and_not_in_the_other_direction(tmp_path: Path, branch: str) -> None:
    (base, flags), (target, _) = [
        (marked.files(changes)["kernels/lined_cpu/parts.cpp"], "-O3 -march=x86-64-v3") for changes in (None, [branch])
    ]
    found, expected = read(tmp_path, (base, flags), (target, flags)), marked.BRANCHES[branch]
    [cause] = judged(found, 40.0).causes or ()
    assert (cause.kind, cause.kernels) == (expected.kinds[0], (expected.part,))
    assert not {*kinds(judged(found, -30.0))} & {*expected.kinds}


def test_a_cell_that_names_a_function_blames_no_other(tmp_path: Path) -> None:
    (base, flags), (target, _) = [
        (marked.files(changes)["kernels/lined_cpu/parts.cpp"], "-O3 -march=x86-64-v3")
        for changes in (None, ["swept", "divided"])
    ]
    found = read(tmp_path, (base, flags), (target, flags))
    for part, kind in (("turned", "pass"), ("scaled", "arithmetic")):
        [cause] = judged(found, 40.0, cell=f"dense/part={part}").causes or ()
        assert (cause.kind, cause.kernels) == (kind, (part,))


def test_an_integer_division_is_named_beside_one_of_floats_that_went(tmp_path: Path) -> None:
    ring = 'extern "C" void ring(const float *x, float *y, long n, long p) {\n  for (long i = 0; i < n; ++i) y[i] = %s;\n}\n'
    found = read(tmp_path, (ring % "x[i & (p - 1)] / 3.0f", "-O2"), (ring % "x[i % p] * 0.3f", "-O2"))
    [cause] = judged(found, 40.0).causes or ()
    assert cause.text.startswith("more integer divisions in ring (integer divisions 0 -> ")


def test_a_call_that_is_added_or_gone_is_named_by_what_is_called(tmp_path: Path) -> None:
    rounded = """#include <cmath>
extern "C" void quantise(const float *x, float *y, long n) { for (long i = 0; i < n; ++i) y[i] = std::%s(x[i]); }
"""
    found = read(tmp_path, (rounded % "fabs", "-O2"), (rounded % "round", "-O2"))
    [cause] = judged(found, 40.0).causes or ()
    assert (cause.kind, cause.text) == ("calls", "quantise calls roundf (calls 0 -> 1)")
    assert cause.note == "whether this row calls it is not recorded on a CPU"
    back = [msgspec.structs.replace(one, side=side) for one, side in zip(found, ("target", "base"), strict=True)]
    [cause] = judged(tuple(back), -40.0).causes or ()
    assert cause.text == "quantise no longer calls roundf (calls 1 -> 0)"


def test_a_division_outside_of_loops_is_no_cause(tmp_path: Path) -> None:
    helper = 'extern "C" float half(float a, float b) { return a / b%s; }\n'
    sides = [(helper % more + cpu.SOURCE, "-O3") for more in ("", " / a")]
    assert kinds(judged(read(tmp_path, sides[0], sides[1]), 30.0)) == []


def test_a_loop_more_in_the_same_function_is_named(tmp_path: Path) -> None:
    twice = cpu.SOURCE.replace(
        "    z[i] = a;\n  }\n", "    z[i] = a;\n  }\n  for (long i = 0; i < n; ++i) z[i] /= 3.0f;\n"
    )
    [cause] = judged(read(tmp_path, BASE, (twice, "-O3")), 30.0).causes or ()
    assert (cause.kind, cause.kernels) == ("pass", ("blend",))


def test_an_added_operation_is_named_and_one_that_takes_no_time_is_not(tmp_path: Path) -> None:
    found = read(tmp_path, BASE, BASE)
    added = Census(launches=(*PLAIN.launches, Launch(name="aten::clone", count=2, ns=2.9e5)), hidden_ns=0.0)
    [cause] = judged(found, 30.0, (PLAIN, added)).causes or ()
    assert cause.text == "operations of torch added: aten::clone 0 -> 2 times a call (290 µs)"
    assert cause.kind == "operations", "launches are a GPU's"
    tiny = Census(launches=(*PLAIN.launches, Launch(name="aten::view", count=1, ns=900.0)), hidden_ns=0.0)
    assert kinds(judged(found, 30.0, (PLAIN, tiny))) == []


@pytest.mark.parametrize("pct", [-20.0, 20.0])
def test_the_same_code_is_distinguished_from_a_change(tmp_path: Path, pct: float) -> None:
    [cause] = judged(read(tmp_path, BASE, ("\n\n" + cpu.SOURCE, "-O3")), pct).causes or ()
    assert (cause.kind, cause.text) == (
        "same_code",
        "same machine code on both sides, different time; calls into C++ are not counted on a CPU",
    )


def test_what_only_got_another_name_is_no_pass(tmp_path: Path) -> None:
    renamed = (PASS[0].replace("rescale", "rescaled"), PASS[1])
    assert kinds(judged(read(tmp_path, PASS, renamed), 20.0)) == ["same_code"]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("nvcc"), reason="compiles CUDA C++")
@pytest.mark.parametrize(
    "branch",
    [pytest.param(name, marks=pytest.mark.nightly if at % 2 else ()) for at, name in enumerate(marked.SETS["cuda"])],
)
def test_a_cause_in_cuda_at_a_known_line_is_named(tmp_path: Path, branch: str) -> None:
    compiled, part = [], f"{marked.BRANCHES[branch].part}_kernel"
    for changes in (None, {branch}):
        (tmp_path / "parts.cu").write_text(marked.files(changes)["kernels/lined_cuda/parts.cu"])
        argv = ["nvcc", "-O3", "-shared", "-Xcompiler", "-fPIC", "-gencode=arch=compute_90a,code=sm_90a"]
        subprocess.run([*argv, "-o", "parts.so", "parts.cu"], check=True, cwd=tmp_path)
        compiled.append((tmp_path / "parts.so").read_bytes())
    found = read_objects(tmp_path, compiled[0], compiled[1])
    [called] = {one.name for one in found if one.kind == "cuda" and one.name.startswith(part)}
    launch = [Launch(name=called, count=1, ns=ns, grid=(8, 1, 1), block=(256, 1, 1)) for ns in (1e6, 1.3e6)]
    status = {
        arm: Outcome(status="ok", census=Census(launches=(one,), hidden_ns=0.0, on_device=True))
        for arm, one in zip(("base", "target"), launch, strict=True)
    }
    machine = Machine(host="test", device="NVIDIA H200", kind="cuda")
    row = row_of(blocks.head(machine=machine, kernels=found), 30.0, status, base_ns=1e6, metric="gpu_span")
    assert [kind in marked.BRANCHES[branch].kinds for kind in kinds(row)] == [True]
