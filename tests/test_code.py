"""Machine code by content, with real compilers and disassemblers, and the messages if they are missing."""

import contextlib
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abprof.evidence import machine_code
from abprof.evidence.machine_code import Content, Reading, content, elf_sections, sass, x86
from abprof.records import Artefact, Build, Proof
from tests import blocks

SOURCE = """
extern "C" void scale(const float *__restrict x, float *__restrict y, long n) {
  for (long i = 0; i < n; ++i) y[i] = 2.0f * x[i] + y[i];
}
extern "C" void other(float *y) { y[0] = 1.0f; }
"""
# As cuobjdump prints it; the addresses are made up.
SASS = """
 Function fwd:
  REG:168 STACK:24 SHARED:0 LOCAL:0 CONSTANT[0]:536 TEXTURE:0 SURFACE:0 SAMPLER:0

	code for sm_90a
		Function : fwd
        /*0000*/                   LDC R1, c[0x0][0x28] ;               /* 0x00000a00ff017b82 */
                                                                        /* 0x000fe20000000800 */
        /*0010*/              @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;     /* 0x0000000402007981 */
        /*0020*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8] ; /* 0x0000000402007986 */
        /*0030*/                   STL.64 [R1+0x8], R6 ;                /* 0x0000000402007987 */
        /*0040*/              @UP1 UTMALDG.4D [UR16], [UR18] ;          /* 0x0000000402007988 */
        /*0050*/                   MUFU.EX2 R3, R4 ;                    /* 0x0000000402007989 */
        /*0060*/                   NOP ;                                /* 0x0000000000007918 */
"""
on_x86 = pytest.mark.skipif(
    platform.machine() != "x86_64" or not shutil.which("objdump"), reason="reads x86-64 by objdump"
)


def built(folder: Path, *flags: str, name: str = "k.so", source: str = SOURCE) -> Path:
    (folder / "k.cpp").write_text(source)
    out = folder / name
    subprocess.run(["g++", "-shared", "-fPIC", *flags, "-o", str(out), str(folder / "k.cpp")], check=True)
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return built(tmp_path_factory.mktemp("elf"), "-O2").read_bytes()


@on_x86
@given(at=st.sampled_from([40, 58, 60, 62]), number=st.integers(0, 2**64 - 1))
def test_a_damaged_elf_is_a_value_error(at: int, number: int, whole: bytes) -> None:
    data = bytearray(whole)
    width = 8 if at == 40 else 2
    data[at : at + width] = (number % 256**width).to_bytes(width, "little")
    with contextlib.suppress(ValueError):
        elf_sections(bytes(data))


@on_x86
def test_vector_width_of_real_code(tmp_path: Path) -> None:
    wide = content(str(built(tmp_path, "-O3", "-mavx2", "-mfma", name="wide.so")), tmp_path / "cache")
    plain = content(str(built(tmp_path, "-O1", name="plain.so")), tmp_path / "cache")
    assert (wide.missing, plain.missing) == ("", "")
    assert wide.functions["scale"].classes["256-bit arithmetic"] >= 1
    assert plain.functions["scale"].classes["256-bit arithmetic"] == 0
    assert plain.functions["scale"].classes["scalar arithmetic"] >= 1
    assert plain.functions["scale"].classes["loops"] == 1
    assert (plain.functions["other"].classes["stores"], plain.functions["other"].classes["loops"]) == (1, 0)
    assert wide.functions["scale"].code != plain.functions["scale"].code


# As objdump prints it: a loop aligned by nops, prefixes, a comparison with memory, calls, and padding up to the next function.
OBJDUMP = """
0000000000001100 <f(int)>:
    1100:\tc5 fc 28\tvmulps (%rdi),%ymm0,%ymm0
    1104:\tdata16 cs nopw 0x0(%rax,%rax,1)
    1110:\tvfmadd231ss %xmm1,%xmm2,%xmm0
    1114:\tcmp    0x8(%rdi),%rax
    1118:\tlock addl $0x1,(%rsi)
    111c:\tlea    0x2e(%rip),%rdi        # 2000 <g(int) [clone ._omp_fn.0]>
    1120:\tjne    1110 <f(int)+0x10>
    1122:\tcall   1080 <h(long)@plt>
    1128:\tjmp    1300 <tail(int)>
    112d:\tnopl   (%rax)
    1130:\txchg   %ax,%ax
""".replace("c5 fc 28\t", "")


def test_a_processors_instructions_are_put_into_classes() -> None:
    reading = x86(OBJDUMP.splitlines())["f(int)"]
    assert {kind: count for kind, count in reading.classes.items() if count} == {
        "256-bit arithmetic": 1, "scalar arithmetic": 1, "calls": 2, "other": 4, "loads": 2, "stores": 1, "loops": 1,
    }  # fmt: skip
    assert reading.calls == ("g(int) [clone ._omp_fn.0]", "h(long)", "tail(int)")
    moved = re.sub(
        r"^( *)1([0-9a-f]{3}):|(?<=jne    )1", lambda m: m[0].replace("1", "7", 1), OBJDUMP, flags=re.MULTILINE
    )
    moved = moved.replace("0000001100 <", "0000007100 <").replace("0x2e(%rip)", "0x3e(%rip)").replace("nopl", "nopw")
    assert x86(moved.splitlines())["f(int)"].code == reading.code
    assert x86(OBJDUMP.replace("$0x1,", "$0x2,").splitlines())["f(int)"].code != reading.code


@on_x86
def test_an_object_without_symbols_says_so_and_keeps_its_hash(tmp_path: Path) -> None:
    """objdump would name regions after the nearest exported function, and say `scale-0xc0`."""
    whole, bare = (content(str(built(tmp_path, "-O2", *more, name=name)), tmp_path / "cache")
                   for more, name in (((), "a.so"), (("-s",), "b.so")))  # fmt: skip
    assert set(whole.functions) == {"scale", "other"}
    assert (bare.functions, bare.missing) == ({}, "stripped of its symbols")
    assert bare.code == whole.code != ""


@on_x86
def test_the_same_code_with_other_names_and_lines_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = built(tmp_path / "a", "-O2", "-g")
    two = built(tmp_path / "b", "-O2", "-g", source="\n\n" + SOURCE)
    assert one.read_bytes() != two.read_bytes()
    assert content(str(one), tmp_path / "cache").code == content(str(two), tmp_path / "cache").code != ""


@on_x86
def test_a_file_is_disassembled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from abprof.system import processes as proc

    path = str(built(tmp_path, "-O2"))
    first = content(path, tmp_path / "cache")
    monkeypatch.setattr(proc, "output", lambda *args, **more: pytest.fail("it was read before"))
    assert content(path, tmp_path / "cache") == first


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    assert content(str(tmp_path / "gone.so"), tmp_path) == Content(
        missing="the file could not be read: No such file or directory"
    )
    (tmp_path / "text.so").write_text("not one")
    assert content(str(tmp_path / "text.so"), tmp_path).missing == "the file could not be read: not a 64-bit ELF file"
    own, fifo, linked, sparse = (tmp_path / name for name in ("build", "build/fifo", "build/linked", "build/sparse"))
    own.mkdir()
    os.mkfifo(fifo)
    linked.symlink_to(tmp_path / "text.so")
    with sparse.open("wb") as file:
        file.truncate(1 << 40)
    for path, why in {
        fifo: "not a regular file",
        linked: "Too many levels",
        sparse: "larger than",
        own / "../text.so": "not below",
    }.items():
        assert why in content(str(path), tmp_path, [own]).missing


def test_a_gpus_instructions_are_put_into_classes() -> None:
    [(name, reading)] = sass(SASS).items()
    assert (name, reading.registers, reading.stack_bytes) == ("fwd", 168, 24)
    assert {kind: count for kind, count in reading.classes.items() if count} == {
        "global loads": 1, "tensor": 1, "local stores": 1, "asynchronous copies": 1, "special functions": 1, "other": 1,
    }  # fmt: skip
    moved = sass(SASS.replace("Function : fwd", "Function : gwd").replace("Function fwd", "Function gwd"))
    assert moved["gwd"].code == reading.code
    assert sass(SASS.replace("0402007981", "0402007980"))["fwd"].code != reading.code


def test_kernels_of_cuda_cpp_are_records_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known by the names that a profiler shows; the host's functions in the same object are none."""
    gpu = Reading(code="1", classes={"local stores": 9}, registers=40, stack_bytes=8)
    host = Reading(code="2", classes={"loops": 1})
    made = Content("ab", {"scale(float*, int)": gpu, "launch": host})
    monkeypatch.setattr(
        machine_code, "content", lambda path, cache, homes: made
    )  # what a toolkit's compiler would have made
    artefact = Artefact(kind="object", name="k.so", path="/b/k.so", sha256="0")
    run = blocks.head(
        builds=(Build(side="base", kernel="ffa", key="1", path="/b"),),
        proofs=(Proof(epoch=1, side="base", kernel="ffa", ok=True, artefacts=(artefact,)),),
    )
    whole, kernel = machine_code.read_kernels(run, (), tmp_path)
    assert (whole.kind, whole.classes) == ("object", {"loops": 1})
    assert (kernel.kind, kernel.name, kernel.registers, kernel.missing) == ("cuda", "scale(float*, int)", 40, "")
