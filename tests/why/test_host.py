"""Causes on a CPU, from real compilers' objects: each is named, and nothing is where the code is the same."""

from __future__ import annotations

import functools
import hashlib
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import msgspec
import pytest

from abprof.evidence.machine_code import kernels
from abprof.evidence.machine_code.disassembly import X86_CLASSES
from abprof.evidence.machine_code.reader import Reader
from abprof.records import (
    Artefact,
    Build,
    Cause,
    Census,
    Comparison,
    Function,
    Kernel,
    Launch,
    Outcome,
    Proof,
    Range,
    Run,
)
from tests import blocks
from tests.planted import cpu
from tests.why.cases import explain, kinds

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
        argv = ["g++", optimisation, "-fno-math-errno", "-shared", "-fPIC", "-o", "k.so", "k.cpp"]
        subprocess.run(argv, check=True, cwd=folder)
        return (Path(folder) / "k.so").read_bytes()


def loaded(folder: Path, side: str, made: Sources) -> tuple[Build, Proof]:
    """A side whose one object was compiled from this."""
    home = folder / side
    home.mkdir()
    (home / "k.so").write_bytes(made_of(*made))
    digest = hashlib.sha256(made_of(*made)).hexdigest()
    artefact = Artefact(kind="object", name="k.so", path=str(home / "k.so"), sha256=digest)
    build = Build(side=side, kernel="ffa", key=side, path=str(home))
    return build, Proof(epoch=1, side=side, kernel="ffa", ok=True, artefacts=(artefact,))


def read(folder: Path, before: Sources, after: Sources) -> tuple[Kernel, ...]:
    builds, proofs = zip(loaded(folder, "base", before), loaded(folder, "target", after), strict=True)
    return kernels.read_all(blocks.head(builds=builds, proofs=proofs), (), Reader(folder.parent / "read"))


def judged(
    found: tuple[Kernel, ...], pct: float, censuses: tuple[Census | None, Census | None] = (PLAIN, PLAIN)
) -> Comparison:
    ratio = 1 + pct / 100
    status = {arm: Outcome(status="ok", census=seen) for arm, seen in zip(("base", "target"), censuses, strict=True)}
    made = [blocks.block(n, {"base": 1.0, "target": ratio}, status=status if n == 2 else None) for n in range(1, 7)]
    [row] = explain(blocks.head(kernels=found), made).comparisons
    return row


BASE = (cpu.SOURCE, "-O3")
PASS = (cpu.BRANCHES["extra_pass"][0]["kernels/blend/blend.cpp"], "-O3")


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


def test_an_operation_that_took_another_s_place_is_not_added(tmp_path: Path) -> None:
    found = read(tmp_path, BASE, BASE)

    def with_one(name: str, ns: float) -> Census:
        return Census(launches=(*PLAIN.launches, Launch(name=name, count=1, ns=ns)), hidden_ns=0.0)

    assert kinds(judged(found, 30.0, (with_one("aten::mm", 5e5), with_one("aten::addmm", 5e5)))) == []
    [cause] = judged(found, 30.0, (with_one("aten::mm", 2e5), with_one("aten::addmm", 5e5))).causes or ()
    assert cause.text.startswith(
        "operations of torch replaced: aten::addmm 0 -> 1 times a call (500 µs), aten::mm 1 -> 0"
    )


@pytest.mark.parametrize("pct", [-20.0, 20.0])
def test_the_same_code_is_told_from_a_change(tmp_path: Path, pct: float) -> None:
    [cause] = judged(read(tmp_path, BASE, ("\n\n" + cpu.SOURCE, "-O3")), pct).causes or ()
    assert (cause.kind, cause.text) == (
        "same_code",
        "same machine code on both sides, different time; calls into C++ are not counted on a CPU",
    )


def test_a_range_more_is_not_the_same_though_the_code_is(tmp_path: Path) -> None:
    found = read(tmp_path, BASE, BASE)
    marked = [msgspec.structs.replace(PLAIN, ranges=(Range(name="run", count=n, ns=1e3),)) for n in (1, 2)]
    assert kinds(judged(found, 20.0, (marked[0], marked[0]))) == ["same_code"]
    assert kinds(judged(found, 20.0, (marked[0], marked[1]))) == []


def test_what_only_got_another_name_is_no_pass(tmp_path: Path) -> None:
    renamed = (PASS[0].replace("rescale", "rescaled"), PASS[1])
    assert kinds(judged(read(tmp_path, PASS, renamed), 20.0)) == ["same_code"]


def test_without_a_disassembler_no_cause_is_made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(tmp_path, BASE, (cpu.SOURCE, "-O1"))
    lost = tuple(type(k)(side=k.side, package=k.package, name=k.name, kind=k.kind, key=k.key, code=k.code,
                         missing="no objdump here") for k in found)  # fmt: skip
    assert judged(lost, 80.0).causes == ()


def sides_of(*objects: tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]) -> tuple[Kernel, ...]:
    """Both sides' objects, from what each function counts: name -> class -> instructions, of base and of target."""
    made = []
    for place, both in enumerate(objects):
        for side, functions in zip(("base", "target"), both, strict=True):
            told = tuple(
                Function(name=name, code=f"{side} {name}", classes=dict.fromkeys(X86_CLASSES, 0) | counts)
                for name, counts in functions.items()
            )
            made.append(Kernel(side=side, package="ffa", name=f"{place}.so", kind="object", key=f"{place}.so",
                               code=f"{side}{place}", functions=told, missing=""))  # fmt: skip
    return tuple(made)


def test_in_a_function_of_several_widths_the_widest_counts() -> None:
    mixed = {"256-bit arithmetic": 4, "128-bit arithmetic": 2, "scalar arithmetic": 1}
    narrow = {"256-bit arithmetic": 0, "128-bit arithmetic": 9, "scalar arithmetic": 1}
    [cause] = judged(sides_of(({"f": mixed}, {"f": narrow})), 80.0).causes or ()
    assert cause.kind == "vectorisation"
    assert cause.text.startswith("vectorisation lost in f (256-bit arithmetic 4 -> 0, 128-bit arithmetic 2 -> 9)")
    less = mixed | {"256-bit arithmetic": 1, "128-bit arithmetic": 8}
    assert kinds(judged(sides_of(({"f": mixed}, {"f": less})), 80.0)) == [], "both have 256 bits"
    wider = {"512-bit arithmetic": 4, "128-bit arithmetic": 2}
    assert kinds(judged(sides_of(({"f": mixed}, {"f": wider})), -30.0)) == ["vectorisation"]
    assert kinds(judged(sides_of(({"f": mixed}, {"f": wider})), 30.0)) == []
    both = ({"f": mixed, "g": narrow}, {"f": narrow, "g": mixed})
    assert kinds(judged(sides_of(both), 80.0)) == [], "one lost what the other gained"


def test_functions_of_one_name_in_two_objects_are_told_apart() -> None:
    same = {"helper": {"loops": 1, "loads": 1, "stores": 1}}
    more = {"helper": {"loops": 2, "loads": 3, "stores": 2}}
    fewer = {"helper": {"loops": 1, "loads": 2, "stores": 1}}
    for objects in (((same, more), (same, fewer)), ((same, fewer), (same, more))):
        [cause] = judged(sides_of(*objects), 40.0).causes or ()
        assert (cause.kind, cause.kernels) == ("pass", ("helper",))
        assert "loops 1 -> 2, loads 1 -> 3, stores 1 -> 2" in cause.text


def test_of_objects_without_symbols_no_function_is_named_and_the_same_code_is_still_the_same() -> None:
    one, two = sides_of(({}, {}))
    bare = [msgspec.structs.replace(kernel, missing="stripped of its symbols", code="1") for kernel in (one, two)]
    assert kinds(judged(tuple(bare), 20.0)) == ["same_code"]
    assert judged((bare[0], msgspec.structs.replace(bare[1], code="2")), 20.0).causes == ()
    named = msgspec.structs.replace(two, functions=sides_of(({}, {"f": {"loops": 1, "loads": 1}}))[1].functions)
    assert judged((bare[0], named), 20.0).causes == (), "what one side does not tell is not new on the other"
    unread = [msgspec.structs.replace(kernel, code="") for kernel in bare]
    assert judged(tuple(unread), 20.0).causes == (), "two files that were not read are not the same"


def test_an_object_that_only_one_side_has_leaves_open_where_the_time_is() -> None:
    mixed, narrow = {"256-bit arithmetic": 4}, {"128-bit arithmetic": 9}
    both = sides_of(({"f": mixed}, {"f": narrow}))
    assert kinds(judged(both, 80.0)) == ["vectorisation"]
    further = sides_of(({}, {}), ({}, {}))[-1]
    assert judged((*both, further), 80.0).causes == ()


def test_a_run_that_calls_operations_launches_is_read() -> None:
    run = blocks.head()
    old = Cause(
        kind="launches", text="operations of torch added: aten::clone 0 -> 2 times a call", evidence=("census",)
    )
    row = msgspec.structs.replace(judged((), 30.0), causes=(old,))
    kept = msgspec.json.encode(msgspec.structs.replace(run, comparisons=(row,)))
    assert msgspec.json.decode(kept, type=Run).comparisons[0].causes == (old,)
