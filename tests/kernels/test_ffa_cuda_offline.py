"""The CUDA backend without a GPU: work lists by brute force, the Triton kernels in Triton's interpreter, the Gluon kernels
in an emulator, all of them compiled for sm_90a with gates on the machine code, the CUDA C++ by nvcc where there is one."""

from __future__ import annotations

import heapq
import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.ffa.schedule import CAUSAL, FULL, Blocks, Options, Slices, UnsupportedOption, merge_slices
from tests.kernels import ffa_cuda_cases as cases

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")


def run(module: str, *args: str, tmp_path: Path, **env: str) -> str:
    """What `python -m module` prints; it must exit with 0."""
    variables = os.environ | {"ABPROF_BUILD_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"} | env
    command = [sys.executable, "-m", f"tests.kernels.{module}", *args]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---------------------------------------------------------------- the kernels' logic

QUICK = ("causal_more_keys", "varlen_causal", "gaps", "blocks_64_dense_tails", "blocks_odd")


def test_triton_kernels_in_the_interpreter(tmp_path: Path) -> None:
    printed = run("ffa_cuda_interpret", *QUICK, tmp_path=tmp_path, TRITON_INTERPRET="1")
    assert printed.count(": right") == len(QUICK)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_triton_kernels_in_the_interpreter_on_every_other_schedule(tmp_path: Path) -> None:
    others = [case.name for case in (*cases.slice_cases(96), *cases.block_cases()) if case.name not in QUICK]
    printed = run("ffa_cuda_interpret", *others, tmp_path=tmp_path, TRITON_INTERPRET="1")
    assert printed.count(": right") == len(others) > 10


def test_gluon_kernels_in_the_emulator(tmp_path: Path) -> None:
    printed = run("ffa_cuda_emulate", tmp_path=tmp_path, TRITON_INTERPRET="1")
    assert printed.count("gluon+gluon: right") >= 8
    assert "varlen_causal both+both: right" in printed


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_gluon_kernels_are_right_in_other_orders_of_events(seed: str, tmp_path: Path) -> None:
    run("ffa_cuda_emulate", tmp_path=tmp_path, TRITON_INTERPRET="1", SEED=seed)


PLANTED = {
    "dS is overwritten while it is read": ("    mbarrier.wait(dq_done.index(1 - W), (it & 1) ^ 1)\n", ""),
    "dQ's tile is overwritten while it is added": ("    tma.store_wait(0)\n    dq_s", "    dq_s"),
    "a wait for the wrong phase": ("(it // NB) & 1, pred=more", "((it // NB) & 1) ^ 1, pred=more"),
    "the diagonal is off by one": ("key[:, None] <= last", "key[:, None] < last"),
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", PLANTED)
def test_the_emulator_notices_planted_mistakes(mistake: str, tmp_path: Path) -> None:
    source = (ROOT / "kernels" / "ffa" / "cuda" / "gluon_bwd.py").read_text(encoding="utf-8")
    before, after = PLANTED[mistake]
    assert source.count(before) == 1
    planted = tmp_path / "gluon_bwd.py"
    planted.write_text(source.replace(before, after), encoding="utf-8")
    with pytest.raises(AssertionError, match=r"Deadlock|error"):
        run("ffa_cuda_emulate", "varlen_long", tmp_path=tmp_path, TRITON_INTERPRET="1", FFA_BACKWARD=str(planted))


# ---------------------------------------------------------------- machine code

GLUON = ("gluon fwd full 128", "gluon fwd causal 128", "gluon bwd full 128", "gluon bwd causal 128")
TRITON = ("triton fwd causal 128", "triton dkdv causal 128", "triton dq blocks64 128 to bfloat16")
# Spill instructions that are there today. All are addresses and descriptors, none is a tile's element.
SPILLS = {
    "gluon bwd full 128": 62,
    "gluon bwd full in pieces 128": 48,
    "gluon bwd causal 128": 87,
    "gluon bwd blocks128 128": 40,
}
SPILLS |= {"triton dkdv blocks64 128": 40, "triton dkdv causal 128": 40}


def gates(facts: dict[str, Any]) -> list[str]:
    """What is wrong with a kernel's machine code."""
    label, found = facts["label"], []
    spilled = facts["STL"] + facts["LDL"]
    if spilled > SPILLS.get(label, 0) or (facts["stack"] and label not in SPILLS):
        found.append(f"{spilled} spill instructions, {facts['stack']} bytes of stack")
    if "process" in label or "join" in label:
        return found
    if not facts["HGMMA"]:
        found.append("no wgmma")
    if facts["WARPGROUP.DEPBAR"] * 2 > facts["HGMMA"]:
        found.append("ptxas serialised the wgmma instructions")
    if label.startswith("gluon") and not facts["UTMALDG"]:
        found.append("no TMA load")
    if label.startswith("gluon bwd") and not facts["UTMAREDG"]:
        found.append("no TMA reduce")
    if label.startswith("gluon fwd"):
        if not facts["UTMASTG"]:
            found.append("no TMA store")
        # One softmax of a 64 x 128 tile is 64 exponentials per thread; both consumers, each of their loops.
        if len(facts["overlaps"]) < 2 or min(facts["overlaps"]) < 64:
            found.append(f"P·V is waited for before the softmax: {facts['overlaps']}")
    if label.startswith("triton") and not facts["LDGSTS"]:
        found.append("loads are not pipelined")
    return found


def test_machine_code(tmp_path: Path) -> None:
    printed = run("offline_driver", *GLUON, *TRITON, tmp_path=tmp_path)
    kernels = [json.loads(line) for line in printed.splitlines()]
    assert {facts["label"] for facts in kernels} == {*GLUON, *TRITON}
    assert {facts["label"]: gates(facts) for facts in kernels if gates(facts)} == {}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_machine_code_of_every_kernel(tmp_path: Path) -> None:
    kernels = [json.loads(line) for line in run("offline_driver", tmp_path=tmp_path).splitlines()]
    assert len(kernels) > 20
    assert {facts["label"]: gates(facts) for facts in kernels if gates(facts)} == {}


# ---------------------------------------------------------------- CUDA C++


def test_nvcc_compiles_the_same_bytes_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kernels.ffa.cuda import native

    if native.find_nvcc() is None:
        pytest.skip("no nvcc")
    source = native.SOURCE
    made = []
    for name in ("one", "another"):
        folder = tmp_path / name
        folder.mkdir()
        copy = folder / source.name
        copy.write_bytes(source.read_bytes())
        monkeypatch.setattr(native, "SOURCE", copy)
        monkeypatch.setenv("ABPROF_BUILD_DIR", str(folder / "build"))
        path = native.compile_library(verbose=name == "one")
        assert path is not None
        made.append(path.read_bytes())
        assert sorted(p.name for p in path.parent.iterdir()) == [path.name]
    assert made[0] == made[1]
    log = capsys.readouterr().out
    assert "0 bytes spill stores" in log
    assert "arch=compute_90a,code=sm_90a" in log
    before = path.stat().st_mtime_ns
    assert native.compile_library(verbose=True) == path
    assert path.stat().st_mtime_ns == before


def test_a_failing_nvcc_gives_its_first_error_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.ffa.cuda import native

    if native.find_nvcc() is None:
        pytest.skip("no nvcc")
    broken = tmp_path / "broken.cu"
    broken.write_text("int nothing = undeclared;\n")
    monkeypatch.setattr(native, "SOURCE", broken)
    monkeypatch.setenv("ABPROF_BUILD_DIR", str(tmp_path / "build"))
    with pytest.raises(RuntimeError, match=r"nvcc failed: .*undeclared"):
        native.compile_library(verbose=False)
    assert list((tmp_path / "build").iterdir()) == []


def test_without_nvcc_the_build_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kernels.ffa.cuda import native, warmup

    monkeypatch.setattr(native, "find_nvcc", lambda: None)
    monkeypatch.setenv("ABPROF_BUILD_DIR", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    warmup.build(verbose=True)
    assert "no nvcc" in capsys.readouterr().out


# ---------------------------------------------------------------- work lists and the rule


def random_slices(seed: int) -> Slices:
    """Disjoint query ranges with gaps, key ranges that overlap at will."""
    draw = random.Random(seed)
    sk = draw.randint(1, 700)
    q, k, masks, at = [], [], [], 0
    for _ in range(draw.randint(1, 6)):
        begin = at + draw.choice((0, 0, draw.randint(1, 90)))
        at = begin + draw.choice((1, 30, 64, 128, draw.randint(1, 300)))
        k0 = draw.choice((0, draw.randint(0, sk - 1)))
        k1 = draw.choice((sk, draw.randint(k0, sk)))
        q.append((begin, at))
        k.append((k0, k1))
        masks.append(draw.choice((FULL, CAUSAL)))
    return merge_slices(tuple(q), tuple(k), tuple(masks), at + draw.choice((0, 50)), sk)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("tile", [(64, 128), (128, 64)], ids=str)
def test_work_lists_cover_each_visible_pair_once(seed: int, tile: tuple[int, int]) -> None:
    from kernels.ffa.cuda import plan

    slices = random_slices(seed)
    rows, keys = tile
    seen = cases.visible(slices, 1)[0].int()
    for direction in ("fwd", "bwd"):
        for which in (("all",), ("long", "rest")):
            parts = [plan.Part(direction, one) for one in which]
            by_query, by_key = torch.zeros_like(seen), torch.zeros_like(seen)
            written_rows, written_keys = torch.zeros(slices.q_len), torch.zeros(slices.k_len)
            for part in parts:
                items = plan.query_items(slices, rows, keys, CPU, part)
                for q0, q1, k0, k1, off in items.table.tolist() if items else []:
                    end = min(q0 + rows, q1)
                    written_rows[q0:end] += 1
                    for i in range(q0, end):
                        by_query[i, k0 : max(k0, min(k1, i + off + 1))] += 1
                made = plan.key_items(slices, keys, rows, CPU, part)
                if made:
                    check_key_items(made, by_key, written_keys, rows, keys)
            assert torch.equal(by_query, seen)
            assert torch.equal(by_key, seen)
            assert bool((written_rows == 1).all())
            assert bool((written_keys == 1).all())


def check_key_items(made: Any, by_key: torch.Tensor, written: torch.Tensor, rows: int, keys: int) -> None:
    """Count the pairs of each tile; a tile without a mask must be visible whole."""
    for k0, k1, lo, hi, n_masked, n in made.table.tolist():
        written[k0:k1] += 1
        entries = made.entries[lo:hi].tolist()
        assert n == sum(e[5] - e[3] for e in entries)
        assert n_masked == sum(e[4] - e[3] for e in entries)
        for q0, q1, off, first, whole, end in entries:
            for t in range(first, end):
                for i in range(q0 + t * rows, min(q0 + (t + 1) * rows, q1)):
                    sees = max(k0, min(k1, i + off + 1))
                    by_key[i, k0:sees] += 1
                    assert t < whole or (sees == k1 and k1 - k0 == keys)


def test_the_last_wave_is_filled_with_pieces() -> None:
    """64 items of 64 heads on an H200's 132 multiprocessors: 31 full waves, and four items for the last."""
    from kernels.ffa.cuda import plan

    def items(tokens: int, mask: int, lengths: int = 1) -> Any:
        whole = Slices(*[tuple((i * tokens, (i + 1) * tokens) for i in range(lengths))] * 2, (mask,) * lengths,
                       tokens * lengths, tokens * lengths)  # fmt: skip
        return plan.key_items(whole, 128, 64, CPU, plan.Part("bwd"))

    assert plan.split(items(8192, FULL), 64, 132) == plan.Split(whole=4092, tail=4, pieces=32)
    assert plan.split(items(8192, FULL), 66, 132) is None  # 32 full waves
    assert plan.split(items(1024, FULL, 8), 8, 132) is None  # 116 of 132 are busy in the last wave
    assert plan.split(items(1024, FULL), 8, 132) == plan.Split(whole=0, tail=64, pieces=2)
    assert plan.split(items(256, FULL), 1, 132) is None  # four tiles an item: not worth a piece's own cost
    assert plan.split(items(8192, CAUSAL), 64, 132) is None  # rows of many lengths, the short ones last
    assert plan.split(items(8192, FULL), 64, 0) is None


def finished(items: Any, order: Any, heads: int, processors: int) -> int:
    """When the last of the launch's programs ends, each taken by the processor that is free first."""
    lengths = items.lengths
    groups = range(heads // order.heads_per_group)
    queue = [n for _ in groups for n in lengths[: order.grouped] for _ in range(order.heads_per_group)]
    queue += [n for n in lengths[order.grouped :] for _ in range(heads)]
    assert sorted(queue) == sorted(lengths * heads)
    busy = [0] * processors
    for n in queue:
        heapq.heapreplace(busy, busy[0] + n)
    return max(busy)


@pytest.mark.parametrize(("tokens", "heads", "group"), [(4096, 8, 4), (8192, 8, 4), (16384, 8, 4), (8192, 64, 1)])
def test_all_processors_end_together(tokens: int, heads: int, group: int) -> None:
    """Causal backward on 132 multiprocessors. By groups alone 4,096 tokens of 8 key heads take 1.5 times the mean."""
    from kernels.ffa.cuda import plan

    causal = Slices(((0, tokens),), ((0, tokens),), (CAUSAL,), tokens, tokens)
    items = plan.key_items(causal, 128, 64, CPU, plan.Part("bwd"))
    assert items is not None
    size = tokens * 128 * 8 * group
    mean = sum(items.lengths) * heads / 132
    by_groups = plan.Order(plan.heads_per_group(heads, items, size), items.count)
    order = plan.order(items, heads, size, 132)
    assert finished(items, order, heads, 132) <= 1.03 * mean
    if tokens == 4096:
        assert finished(items, by_groups, heads, 132) > 1.45 * mean
    if group == 1:
        assert order == by_groups


@pytest.mark.parametrize(("grouped", "per_group"), [(5, 1), (3, 2), (1, 2), (4, 4)])
def test_every_item_of_every_head_has_one_program(grouped: int, per_group: int) -> None:
    from kernels.ffa.cuda.gluon_order import place
    from tests.kernels.gluon_emulator import Program, translate

    language = Program(0, 0).language()
    by_kernel = translate(place, language)
    found = [tuple(map(int, by_kernel(torch.tensor(pid), grouped, per_group, 4))) for pid in range(5 * 4)]
    assert sorted(found) == [(item, head) for item in range(5) for head in range(4)]
    assert [item for item, _ in found[grouped * 4 :]] == [item for item in range(grouped, 5) for _ in range(4)]


def test_tensors_that_the_copy_engine_can_read_are_not_copied() -> None:
    from kernels.ffa.cuda.launch import readable

    whole = torch.randn(10, 6, 128).bfloat16()
    q, k, v = whole.split([4, 1, 1], 1)
    assert all(readable(t) is t for t in (whole, q, k, v))
    for other in (whole[:, ::2], whole.transpose(0, 1), whole.transpose(1, 2).contiguous().transpose(1, 2),
                  whole[:1].expand(10, 6, 128), whole.view(-1)[1 : 1 + 9 * 768].view(9, 6, 128)):  # fmt: skip
        copy = readable(other)
        assert copy is not other
        assert copy.is_contiguous()
        assert torch.equal(copy, other)


@pytest.mark.parametrize("seed", range(40))
def test_long_slices_have_what_the_gluon_kernels_need(seed: int) -> None:
    from kernels.ffa.cuda import plan

    slices = random_slices(seed)
    for (k0, k1), long in zip(slices.k_ranges, plan.long_slices(slices, "fwd"), strict=True):
        assert long == (k1 - k0 >= 128)
    long = plan.long_slices(slices, "bwd")
    assert all(q1 - q0 >= 64 for (q0, q1), is_long in zip(slices.q_ranges, long, strict=True) if is_long)
    made = plan.key_items(slices, 128, 64, CPU, plan.Part("bwd", "long"))
    for k0, k1, *_ in made.table.tolist() if made else []:
        begin = max(border for r in slices.k_ranges for border in (*r, 0) if border <= k0)
        assert k1 - begin >= 128, "a tile that is filled up from before its start would leave its slice"


@pytest.mark.parametrize(
    ("schedule", "because"),
    [
        (cases.blocks(2, 256, 256, 64, 128, 0.5), "blocks of 64 queries"),
        (cases.blocks(2, 256, 256, 128, 64, 0.5), "blocks of 64 keys"),
        (cases.blocks(2, 256, 250, 128, 128, 0.5), "the last key block is not whole"),
        (cases.blocks(2, 256, 256, 128, 128, 0.5, options=Options(ref_block=(64, 64))), "the compute tile is given"),
        (lambda _: cases.documents([100, 90], FULL), "2 of 2 slices are shorter"),
    ],
)
def test_why_the_rule_takes_triton(schedule: Any, because: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.ffa.cuda import dispatch

    q, made = torch.empty(256, 2, 128), schedule(CPU)
    assert dispatch.choose("fwd", q, made, 0.1) == dispatch.Choice("triton", "not a Hopper GPU")
    monkeypatch.setattr(dispatch, "is_hopper", lambda device: True)
    choice = dispatch.choose("fwd", q, made, 0.1)
    assert choice.kernel == "triton"
    assert choice.because.startswith(because)
    assert dispatch.choose("fwd", q, made, -0.1).because == "the scale is not positive"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (Options(swap_ab=True), "swap_ab"),
        (Options(sparse_load=True), "sparse_load"),
        (Options(pack_gqa=True), "pack_gqa"),
        (Options(ref_block=(128, 128)), "over blocks of 64"),
        (Options(ref_block=(48, 64)), "compute tile of 48"),
    ],
    ids=str,
)
def test_options_that_are_not_there_are_refused(options: Options, word: str) -> None:
    from kernels.ffa.cuda import dispatch

    schedule: Blocks = cases.blocks(1, 128, 128, 64, 64, 0.5, options=options)(CPU)
    q, k = torch.empty(128, 2, 128, dtype=torch.bfloat16), torch.empty(128, 1, 128, dtype=torch.bfloat16)
    with pytest.raises(UnsupportedOption, match=word):
        dispatch.check_supported(q, k, k, schedule)


def test_dtypes_and_head_dimensions_that_are_not_there_are_refused() -> None:
    from kernels.ffa.cuda import dispatch

    schedule = cases.documents([64], FULL)
    with pytest.raises(UnsupportedOption, match="float32"):
        dispatch.check_supported(*[torch.empty(64, 1, 128)] * 3, schedule)
    with pytest.raises(UnsupportedOption, match="head dimension 96"):
        dispatch.check_supported(*[torch.empty(64, 1, 96, dtype=torch.bfloat16)] * 3, schedule)


def test_the_package_imports_without_abprof() -> None:
    code = "import sys, kernels.ffa.cuda; assert not [m for m in sys.modules if m.split('.')[0] == 'abprof']"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
