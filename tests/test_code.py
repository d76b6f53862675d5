"""Machine code by content: real compilers and real disassemblers, and what is said where they are not there."""

from __future__ import annotations

import contextlib
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abprof.evidence.machine_code import kernels
from abprof.evidence.machine_code.disassembly import Reading, sass, x86
from abprof.evidence.machine_code.reader import Content, Reader, Unread, differing, parse_elf
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


@on_x86
def test_a_global_that_starts_as_another_number_is_other_code(tmp_path: Path) -> None:
    source = 'int stride = 4;\nextern "C" int step() { return stride; }\n'
    one = built(tmp_path, "-O2", name="one.so", source=source)
    two = built(tmp_path, "-O2", name="two.so", source=source.replace("4", "1"))
    alike = built(tmp_path, "-O2", name="three.so", source="\n\n" + source)
    codes = [parse_elf(path.read_bytes()).code for path in (one, two, alike)]
    assert codes[0] != codes[1]
    assert codes[0] == codes[2]


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
        parse_elf(bytes(data))


@on_x86
def test_vector_width_of_real_code(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "cache")
    wide = reader.read(built(tmp_path, "-O3", "-mavx2", "-mfma", name="wide.so"))
    plain = reader.read(built(tmp_path, "-O1", name="plain.so"))
    assert (wide.missing, plain.missing) == ("", "")
    assert wide.functions["scale"].classes["256-bit arithmetic"] >= 1
    assert plain.functions["scale"].classes["256-bit arithmetic"] == 0
    assert plain.functions["scale"].classes["scalar arithmetic"] >= 1
    assert plain.functions["scale"].classes["loops"] == 1
    assert (plain.functions["other"].classes["stores"], plain.functions["other"].classes["loops"]) == (1, 0)
    assert "scale" in differing([wide.functions, plain.functions])
    assert differing([wide.functions, wide.functions]) == set()
    assert "GCC" in wide.compiler or "clang" in wide.compiler


# As objdump prints it: loops aligned by nops of every kind, an endless jump, prefixes, and padding up to the next function.
PADDED = """
0000000000001100 <f>:
    1100:\ttest   %rdx,%rdx
    1103:\tjle    1130 <f+0x30>
    1105:\tdata16 cs nopw 0x0(%rax,%rax,1)
    1110:\tnopl   0x0(%rax,%rax,1)
    1114:\txchg   %ax,%ax
    1116:\tmovss  (%rdi,%rax,4),%xmm0
    111b:\tmulss  %xmm1,%xmm0
    111f:\tlock xadd %eax,(%rsi)
    1123:\txchg   %ecx,(%rsi)
    1125:\trep stos %al,%es:(%rdi)
    1128:\tdata16 lea 0x2ee0(%rip),%rdi        # 3ff0 <x>
    112a:\tjne    1116 <f+0x16>
    112e:\tjmp    112e <f+0x2e>
    1130:\tret
    1131:\tcs nopw 0x0(%rax,%rax,1)
    113b:\tint3
    113c:\tnopl   0x0(%rax)
"""


def test_what_only_fills_a_processors_code_is_no_instruction_and_no_loop() -> None:
    [(name, reading)] = x86(PADDED).items()
    counted = {kind: count for kind, count in reading.classes.items() if count}
    assert name == "f"
    # test, jle, movss, lock xadd, xchg, rep stos, data16 lea, jne, jmp, ret; the second jump leads to itself
    assert counted == {"scalar arithmetic": 1, "loads": 1, "stores": 3, "loops": 1, "other": 10}
    shorter = PADDED[: PADDED.index("    1131:")]
    assert x86(shorter)["f"] == reading, "what fills up to the next function is none of its own"
    unaligned = "".join(line for line in shorter.splitlines(True) if "nop" not in line and "%ax,%ax" not in line)
    assert x86(unaligned)["f"].classes == reading.classes
    for change in (("lock xadd", "xadd"), ("rep stos", "stos"), ("mulss  %xmm1", "mulss  %xmm2")):
        assert x86(shorter.replace(*change))["f"].code != reading.code


@on_x86
def test_static_functions_of_one_name_are_read_together(tmp_path: Path) -> None:
    def both(first: str, second: str, name: str) -> Content:
        objects = []
        for place, body in (("a", first), ("b", second)):
            caller = f'extern "C" void {place}(float *y, long n) {{ helper(y, n); }}'
            text = f"static void helper(float *y, long n) {{ {body} }}\n{caller}\n"
            (tmp_path / f"{place}.cpp").write_text(text)
            objects.append(tmp_path / f"{name}-{place}.o")
            argv = ["g++", "-O1", "-fno-inline", "-fPIC", "-c", "-o", objects[-1], tmp_path / f"{place}.cpp"]
            subprocess.run(argv, check=True)
        subprocess.run(["g++", "-shared", "-o", tmp_path / f"{name}.so", *objects], check=True)
        return Reader(tmp_path / "cache").read(tmp_path / f"{name}.so")

    one, two = "for (long i = 0; i < n; ++i) y[i] *= 3.0f;", "y[n] = 1.0f;"
    base = both(one, two, "base")
    helper = base.functions["helper(float*, long)"]
    assert helper.classes["loops"] == 1, "of the first, though the second comes after it"
    assert helper.classes["stores"] == 2
    assert differing([base.functions, both(two, one, "swapped").functions]) & {"helper(float*, long)"} == set()
    for name, first, second in (("first", one + one, two), ("second", one, two + two.replace("n", "2 * n"))):
        assert "helper(float*, long)" in differing([base.functions, both(first, second, name).functions]), name


@on_x86
def test_an_object_without_symbols_says_so_and_keeps_its_hash(tmp_path: Path) -> None:
    """objdump would name regions after the nearest exported function, and say `scale-0xc0`."""
    reader = Reader(tmp_path / "cache")
    whole, bare = (
        reader.read(built(tmp_path, "-O2", *more, name=name)) for more, name in (((), "a.so"), (("-s",), "b.so"))
    )
    assert set(whole.functions) == {"scale", "other"}
    assert (bare.functions, bare.missing) == ({}, "stripped of its symbols: its functions cannot be told apart")
    assert bare.code == whole.code != ""


@on_x86
def test_a_function_that_only_moved_is_the_same(tmp_path: Path) -> None:
    more = SOURCE.replace(
        "extern", 'extern "C" void first(float *y) { for (int i = 0; i < 9; ++i) y[i] /= 3; }\nextern', 1
    )
    reader = Reader(tmp_path / "cache")
    before = reader.read(built(tmp_path, "-O2", name="before.so"))
    after = reader.read(built(tmp_path, "-O2", name="after.so", source=more))
    assert differing([before.functions, after.functions]) == {"first"}


@on_x86
def test_the_same_code_with_other_names_and_lines_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = built(tmp_path / "a", "-O2", "-g")
    two = built(tmp_path / "b", "-O2", "-g", source="\n\n" + SOURCE)
    assert one.read_bytes() != two.read_bytes()
    assert parse_elf(one.read_bytes()).code == parse_elf(two.read_bytes()).code


@on_x86
def test_a_file_is_disassembled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from abprof.system import processes as proc

    path = built(tmp_path, "-O2")
    first = Reader(tmp_path / "cache").read(path)
    monkeypatch.setattr(proc, "output", lambda *args, **more: pytest.fail("it was read before"))
    assert Reader(tmp_path / "cache").read(path) == first


def test_what_cannot_be_read_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(tmp_path / "cache")
    with pytest.raises(Unread, match="No such file"):
        reader.read(tmp_path / "gone.so")
    (tmp_path / "text.so").write_text("not one")
    with pytest.raises(Unread, match="not a 64-bit ELF file"):
        reader.read(tmp_path / "text.so")


@on_x86
def test_without_a_disassembler_the_code_still_has_its_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = built(tmp_path, "-O2")
    monkeypatch.setattr(shutil, "which", lambda *args, **more: None)
    found = Reader(tmp_path / "cache").read(path)
    assert (found.functions, found.code) == ({}, parse_elf(path.read_bytes()).code)
    assert found.missing == "no objdump here (binutils has it)"
    assert not list((tmp_path / "cache").glob("*"))  # another day it may be there


@given(st.binary(max_size=300), st.integers(0, 80))
def test_any_bytes_are_an_elf_file_or_a_value_error(noise: bytes, at: int) -> None:
    for data in (noise, b"\x7fELF\x02\x01" + noise, (b"\x7fELF\x02\x01" + bytes(58) + noise)[: 64 + at]):
        try:
            parse_elf(data)
        except ValueError:
            continue


def test_a_gpus_instructions_are_put_into_classes() -> None:
    [(name, reading)] = sass(SASS).items()
    assert (name, reading.registers, reading.stack_bytes) == ("fwd", 168, 24)
    assert {kind: count for kind, count in reading.classes.items() if count} == {
        "global loads": 1, "tensor": 1, "local stores": 1, "asynchronous copies": 1, "special functions": 1, "other": 1,
    }  # fmt: skip
    moved = sass(SASS.replace("Function : fwd", "Function : gwd").replace("Function fwd", "Function gwd"))
    assert moved["gwd"].code == reading.code
    assert sass(SASS.replace("0402007981", "0402007980"))["fwd"].code != reading.code


def test_kernels_of_cuda_cpp_are_records_of_their_own(tmp_path: Path) -> None:
    """Known by the names that a profiler shows; the host's functions in the same object are none."""
    gpu = Reading(code="1", classes={"local stores": 9}, registers=40, stack_bytes=8)
    host = Reading(code="2", classes={"loops": 1})
    content = Content("ab", "GCC", {"scale(float*, int)": gpu, "launch": host})
    reader = Reader(tmp_path)
    reader.read = lambda path: content  # type: ignore[method-assign]  # what a toolkit's compiler would have made
    artefact = Artefact(kind="object", name="k.so", path="/b/k.so", sha256="0")
    run = blocks.head(
        builds=(Build(side="base", kernel="ffa", key="1", path="/b"),),
        proofs=(Proof(epoch=1, side="base", kernel="ffa", ok=True, artefacts=(artefact,)),),
    )
    whole, kernel = kernels.read_all(run, (), reader)
    assert (whole.kind, whole.classes) == ("object", {"loops": 1})
    assert (kernel.kind, kernel.name, kernel.registers, kernel.missing) == ("cuda", "scale(float*, int)", 40, "")
