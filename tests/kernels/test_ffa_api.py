"""The public functions of kernels/ffa: their errors, schedules and phases; and its machine code for Hopper."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels import ffa
from kernels.ffa.schedule import CAUSAL, FULL, Options, UnsupportedOption
from tests.kernels import ffa_cases as cases


def qkv(sq=8, sk=8, hq=2, hk=1, d=64, dtype=torch.float32):
    return torch.zeros(sq, hq, d, dtype=dtype), torch.zeros(sk, hk, d, dtype=dtype), torch.zeros(sk, hk, d, dtype=dtype)


def attend(*tensors, q_ranges=((0, 8),), k_ranges=((0, 8),), masks=(0,), **options):
    return ffa.ffa_attention(*(tensors or qkv()), q_ranges, k_ranges, masks, **options)


q, k, v = qkv()
REFUSED = {
    r"q must be float32 or bfloat16, not float16": lambda: attend(q.half(), k, v),
    r"k must be float32 or bfloat16, not int64": lambda: attend(q, k.long(), v),
    r"share dtype and device: v is bfloat16 on cpu, q float32 on cpu": lambda: attend(q, k, v.bfloat16()),
    r"share dtype and device: k is float32 on meta, q float32 on cpu": lambda: attend(q, k.to("meta"), v),
    r"q must be \[tokens, heads, head dim\], not of shape \[1, 8, 2, 64\]": lambda: attend(q[None], k, v),
    r"equal shapes, not \[8, 1, 64\] and \[7, 1, 64\]": lambda: attend(q, k, v[:7]),
    r"64 or 128, not 32 \(q\) and 32 \(k, v\)": lambda: attend(*qkv(d=32)),
    r"64 or 128, not 64 \(q\) and 128 \(k, v\)": lambda: attend(q, *qkv(d=128)[1:]),
    r"multiple of key heads, not 3 and 2": lambda: attend(*qkv(hq=3, hk=2)),
    r"multiple of key heads, not 0 and 1": lambda: attend(*qkv(hq=0)),
    r"scale = nan is not finite": lambda: attend(scale=float("nan")),
    r"1 q_ranges, 2 k_ranges and 1 mask_types": lambda: attend(k_ranges=((0, 8), (0, 8))),
    r"q_ranges must be integers \[R, 2\]": lambda: attend(q_ranges=((0, 4, 8),)),
    r"q_ranges must be integers": lambda: attend(q_ranges=torch.tensor([0, 8])),
    r"k_ranges must be integers": lambda: attend(k_ranges=((0, 8.7),)),
    r"mask_types must be R integers": lambda: attend(masks=0),
    r"mask_types must be R integers, each FULL": lambda: attend(masks=torch.tensor([0.9])),
    r"q_ranges\[0\] = \[0, 9\) is not a range inside \[0, 8\)": lambda: attend(q_ranges=((0, 9),)),
    r"k_ranges\[0\] = \[-1, 8\) is not a range inside \[0, 8\)": lambda: attend(k_ranges=((-1, 8),)),
    r"k_ranges\[0\] = \[5, 3\) is not a range": lambda: attend(k_ranges=((5, 3),)),
    r"mask_types\[0\] = 2 is neither FULL \(0\) nor CAUSAL \(1\)": lambda: attend(masks=(2,)),
    r"q_ranges\[2\] = \[0, 5\) and q_ranges\[0\] = \[4, 8\) overlap": lambda: attend(
        q_ranges=((4, 8), (0, 0), (0, 5)), k_ranges=((0, 8),) * 3, masks=(0, 0, 0)
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_bad_arguments_are_one_clear_line(message):
    with pytest.raises(ValueError, match=message) as caught:
        REFUSED[message]()
    assert "\n" not in str(caught.value)


def sparse(num=None, indices=None, q_block=4, k_block=4, **options):
    num = torch.ones(1, 2, dtype=torch.int32) if num is None else num
    indices = torch.zeros(1, 2, 2, dtype=torch.int32) if indices is None else indices
    return ffa.ffa_block_sparse(*qkv(), num, indices, q_block=q_block, k_block=k_block, **options)


REFUSED_LISTS = {
    r"kv_num must be int32 on cpu, not int64 on cpu": {"num": torch.ones(1, 2, dtype=torch.int64)},
    r"kv_indices must be int32 on cpu, not int32 on meta": {
        "indices": torch.zeros(1, 2, 2, dtype=torch.int32).to("meta")
    },
    r"kv_num must be \[Hk, nq\] = \[1, 2\], not \[2, 1\]": {"num": torch.ones(2, 1, dtype=torch.int32)},
    r"kv_indices must be \[Hk, nq, max\] = \[1, 2, max\], not \[1, 3, 2\]": {
        "indices": torch.zeros(1, 3, 2, dtype=torch.int32)
    },
    r"at least 1, not 0 and 4": {"q_block": 0},
    r"ref_block must be two integers, query rows and keys, not 64": {"ref_block": 64},
    r"ref_block must be two integers, query rows and keys, not \(64, None\)": {"ref_block": (64, None)},
    r"kv_num must lie in 0..2": {"num": torch.tensor([[1, 3]], dtype=torch.int32)},
    r"kv_num must lie in 0..2, the": {"num": torch.tensor([[1, -1]], dtype=torch.int32)},
    r"kv_indices must lie in 0..1": {"indices": torch.tensor([[[0, 0], [2, 0]]], dtype=torch.int32)},
    r"kv_indices must lie in 0..1, the": {"indices": torch.tensor([[[0, 0], [-1, 0]]], dtype=torch.int32)},
    r"names a key block twice": {"num": torch.tensor([[1, 2]], dtype=torch.int32)},
}


@pytest.mark.parametrize("message", REFUSED_LISTS)
def test_bad_block_lists_are_one_clear_line(message):
    with pytest.raises(ValueError, match=message) as caught:
        sparse(**REFUSED_LISTS[message])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ref_block", [(129, 64), (64, 224), (64, 48), (0, 32)])
def test_compute_tiles_the_cpu_lacks_are_unsupported(ref_block):
    with pytest.raises(UnsupportedOption, match=f"ref_block {ref_block[0]}x{ref_block[1]} is not implemented"):
        sparse(ref_block=ref_block)


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
def test_options_that_a_gpu_lacks_are_unsupported(options, word):
    pytest.importorskip("triton")
    from kernels.ffa.cuda import dispatch

    schedule = cases.blocks(1, 128, 128, 64, 64, 0.5, options=options)(torch.device("cpu"))
    q, k = torch.empty(128, 2, 128, dtype=torch.bfloat16), torch.empty(128, 1, 128, dtype=torch.bfloat16)
    with pytest.raises(UnsupportedOption, match=word):
        dispatch.check_supported(q, k, k, schedule)
    with pytest.raises(UnsupportedOption, match="float32"):
        dispatch.check_supported(q.float(), k.float(), k.float(), schedule)


@pytest.mark.parametrize(
    ("blocks", "ref_block", "fwd", "bwd"),
    [
        ((128, 128), None, "", ""),
        ((128, 128), (128, 128), "", ""),
        ((64, 64), None, "", "blocks of 64 keys"),
        ((64, 64), (64, 64), "", "the compute tile is given as (64, 64)"),
        ((128, 64), (128, 64), "", "the compute tile is given as (128, 64)"),
        ((64, 128), None, "", ""),
        ((64, 128), (64, 128), "the compute tile is given as (64, 128)", ""),
        ((128, 192), None, "", "blocks of 192 keys"),
        ((256, 256), None, "blocks of 256 queries", ""),
        ((32, 32), None, "blocks of 32 queries", "blocks of 32 queries"),
    ],
)
def test_which_blocks_the_hopper_kernels_take(blocks, ref_block, fwd, bwd, monkeypatch):
    pytest.importorskip("triton")
    from kernels.ffa.cuda import dispatch

    monkeypatch.setattr(dispatch, "is_hopper", lambda _device: True)
    schedule = cases.blocks(1, 768, 768, *blocks, 0.5, options=Options(ref_block=ref_block))(torch.device("cpu"))
    q = torch.empty(768, 2, 128, dtype=torch.bfloat16)
    assert [dispatch.choose(way, q, schedule, 1.0).because for way in ("fwd", "bwd")] == [fwd, bwd]


def test_the_backward_of_open_order_is_not_taken_where_torch_is_to_be_deterministic(monkeypatch):
    pytest.importorskip("triton")
    from kernels.ffa.cuda import dispatch

    q, schedule = torch.empty(128, 2, 128, dtype=torch.bfloat16), cases.merged(cases.documents([128], CAUSAL))
    monkeypatch.setattr(dispatch, "is_hopper", lambda _device: True)
    torch.use_deterministic_algorithms(True)
    try:
        strict = [dispatch.choose(way, q, schedule, 1.0) for way in ("fwd", "bwd")]
    finally:
        torch.use_deterministic_algorithms(False)
    assert [one.because for one in strict] == ["", "torch.use_deterministic_algorithms is on"]
    assert [one.kernel for one in strict] == ["gluon", "triton"]


def test_a_tensor_that_begins_anywhere_is_copied_to_where_kernels_can_read_it():
    pytest.importorskip("triton")
    from kernels.ffa.cuda import launch

    whole = torch.arange(64 * 2 * 64).view(64, 2, 64).bfloat16()
    part = torch.cat([whole.new_zeros(1), whole.flatten()])[1:].view_as(whole)
    assert part.data_ptr() % 16 == 2
    for found in (launch.packed(part), launch.readable(part)):
        assert found.data_ptr() % 16 == 0
        assert torch.equal(found, whole)
    assert launch.packed(whole) is launch.readable(whole) is whole


def test_products_stay_in_flight(tmp_path):
    """Short of registers, ptxas waits after every wgmma, or moves accumulators to memory and back."""
    pytest.importorskip("triton")
    labels = ["gluon bwd causal 128", "gluon bwd full in pieces 128", "gluon fwd blocks64 128"]
    command = [sys.executable, "-m", "tests.kernels.machine_code", *labels]
    env = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    machine_code = json.loads(done.stdout)
    forward = machine_code.pop(labels[2])
    # One warpgroup: S of the first tile (8); S (8) and P V (4) in the loop; P V of the last tile (4).
    assert (forward["HGMMA"], forward.get("LDL", 0) + forward.get("STL", 0)) == (24, 0)
    assert forward["WARPGROUP.DEPBAR.LE"] <= 4
    assert forward["shared bytes"] <= 233_472 // 2 - 1024, "two programs a multiprocessor"
    for label, found in machine_code.items():
        # Two warpgroups: S before the loop (9); S, dP (9 each), dQ (8), dV and dK (4 each) in it.
        assert found["HGMMA"] == 2 * (9 + 34), label
        assert found["WARPGROUP.DEPBAR.LE"] <= 2 * 8, label
        assert found.get("LDL", 0) + found.get("STL", 0) < 60, label
        assert found["UTMAREDG"] == 2, label


@pytest.mark.parametrize(
    ("tokens", "heads", "cut"),
    [(16384, (64, 8), (924, 100, 5)), (8192, (64, 64), (4092, 4, 33)), (8192, (64, 8), None), (8448, (8, 2), None),
     (256, (8, 8), None)],
)  # fmt: skip
def test_the_last_wave_of_a_full_backward_is_cut_where_that_ends_sooner(tokens, heads, cut):
    """On 132 multiprocessors: 1,024 programs in pieces; four alone, in many; 512, whose last wave is almost full; 132; 16
    too short to be cut."""
    pytest.importorskip("triton")
    from kernels.ffa.cuda import plan

    everything = [(0, tokens)]
    items = plan.key_items(
        cases.slices(everything, everything, [FULL], tokens, tokens), 128, 64, torch.device("cpu"), plan.Part("bwd")
    )
    found = plan.split(items, heads[1], heads[0] // heads[1], 132)
    assert found == (cut and plan.Split(*cut))


def test_phases_are_marked():
    tensors = [torch.randn_like(x).requires_grad_() for x in qkv()]
    made = []
    assert cases.ranges_marked(lambda: made.append(attend(*tensors))) == {
        "ffa_fwd_range_merge",
        "ffa_fwd_prepare",
        "ffa_fwd_run",
    }
    backward = {"ffa_bwd_prepare", "ffa_bwd_preprocess", "ffa_bwd_run", "ffa_bwd_postprocess"}
    assert cases.ranges_marked(lambda: made[0].sum().backward()) == backward
    num, lists = torch.ones(1, 2, dtype=torch.int32), torch.zeros(1, 2, 1, dtype=torch.int32)
    out = ffa.ffa_block_sparse(*tensors, num, lists, q_block=4, k_block=4)
    assert cases.ranges_marked(lambda: out.sum().backward()) == backward | {"ffa_bwd_range_merge"}
