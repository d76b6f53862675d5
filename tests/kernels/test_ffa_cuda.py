"""The CUDA backend on a GPU: every mask, forward and backward, against float64; exact repeats; large offsets; phases."""

import pytest
import torch

from kernels import ffa
from kernels.ffa import cuda
from kernels.ffa.cuda import dispatch
from kernels.ffa.schedule import CAUSAL, FULL, Blocks
from tests.gpus import NEEDS_GPU
from tests.kernels import ffa_cases as cases
from tests.workloads.conftest import load

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240), NEEDS_GPU]
DEVICE = torch.device("cuda")
SMALL = [*cases.slice_cases(128), *cases.block_cases()]
WIDE = [
    cases.Case("full_2k", 2048, 2048, 8, 2, lambda _: cases.documents([2048], FULL)),
    cases.Case("causal_2k", 2048, 2048, 8, 8, lambda _: cases.documents([2048], CAUSAL)),
    cases.Case("causal_2k_of_8", 2048, 2048, 16, 2, lambda _: cases.documents([2048], CAUSAL)),
    cases.Case("varlen_2k", 2048, 2048, 8, 4, lambda _: cases.documents([900, 300, 130, 40, 1, 2, 5, 670], CAUSAL)),
    cases.Case("varlen_full_2k", 2048, 2048, 8, 8, lambda _: cases.documents([1025, 64, 511, 1, 447], FULL)),
    cases.Case("blocks128_2k", 2048, 2048, 8, 4, cases.blocks(4, 2048, 2048, 128, 128, 0.3)),
    cases.Case("blocks64_2k", 2048, 2048, 8, 4, cases.blocks(4, 2048, 2048, 64, 64, 0.3)),
    cases.Case("blocks128x64_2k", 2048, 2048, 8, 4, cases.blocks(4, 2048, 2048, 128, 64, 0.3)),
    cases.Case("blocks64x128_2k", 2048, 2048, 8, 4, cases.blocks(4, 2048, 2048, 64, 128, 0.3)),
    cases.Case("blocks64_dim64_2k", 2048, 2048, 8, 4, cases.blocks(4, 2048, 2048, 64, 64, 0.3), dim=64),
    cases.Case("dim64_2k", 2048, 2048, 8, 2, lambda _: cases.documents([1500, 548], CAUSAL), dim=64),
]


@pytest.mark.parametrize("case", [*SMALL, *WIDE], ids=str)
def test_right_in_bfloat16(case: cases.Case) -> None:
    scale = case.dim**-0.5
    data = cases.draw(case, torch.bfloat16, DEVICE, seed=1)
    assert cases.wrong(cases.attend(case, data, scale), data, case, scale) == ""


@pytest.mark.parametrize(
    "case", [c for c in SMALL if c.name in ("varlen_causal", "dim64", "blocks_128", "blocks_64")], ids=str
)
def test_right_in_float16(case: cases.Case) -> None:
    data = cases.draw(case, torch.float16, DEVICE, seed=2)
    assert cases.wrong(cases.attend(case, data, 0.07), data, case, 0.07) == ""


OFTEN = [case for case in WIDE if case.name in ("causal_2k_of_8", "varlen_2k", "blocks128_2k", "blocks64_2k")]


@pytest.mark.parametrize("case", OFTEN, ids=str)
def test_parts_of_other_tensors(case: cases.Case) -> None:
    """q, k and v split off one product; and an output's gradient that begins at 2 bytes, as torch.cat's backward makes it."""
    data = cases.draw(case, torch.bfloat16, DEVICE, seed=7)
    heads = [data[name].shape[1] for name in "qkv"]
    together = torch.cat([data[name] for name in "qkv"], 1).split(heads, 1)
    late = torch.cat([data["dout"].new_zeros(1), data["dout"].flatten()])[1:].view_as(data["dout"])
    assert late.data_ptr() % 16 == 2
    others = dict(zip("qkv", together, strict=True)) | {"dout": late}
    (out, lse, (_, dk, dv)), (out2, lse2, (_, dk2, dv2)) = (cases.attend(case, of, 0.09) for of in (data, others))
    assert all(map(torch.equal, (out, lse, dk, dv), (out2, lse2, dk2, dv2)))


@pytest.mark.parametrize("case", OFTEN, ids=str)
def test_a_nan_is_seen(case: cases.Case) -> None:
    """Of the last key that the last row sees: the rows that see it are NaN, and others do not change."""
    data = cases.draw(case, torch.bfloat16, DEVICE, seed=8)
    out, lse, _ = cases.attend(case, data, 0.09)
    shown = cases.visible(cases.merged(case.schedule(DEVICE)), data["q"].shape[1])
    key = int(shown[0, -1].nonzero()[-1])
    data["k"][key] = torch.nan
    rows = shown[..., key].T.to(DEVICE)
    out2, lse2, _ = cases.attend(case, data, 0.09)
    assert out2[rows].isnan().all()
    assert lse2.T[rows].isnan().all()
    assert torch.equal(out2[~rows], out[~rows])
    assert torch.equal(lse2.T[~rows], lse.T[~rows])


@pytest.mark.parametrize("case", WIDE, ids=str)
def test_repeats(case: cases.Case) -> None:
    """Bit-equal forward, dK and dV: any difference is a race. dQ of the Gluon kernel is a sum in open order."""
    data = cases.draw(case, torch.bfloat16, DEVICE, seed=4)
    out, lse, (dq, dk, dv) = cases.attend(case, data, 0.09)
    exact = dispatch.choose("bwd", data["q"], cases.merged(case.schedule(DEVICE)), 0.09).kernel == "triton"
    for _ in range(19):
        out2, lse2, (dq2, dk2, dv2) = cases.attend(case, data, 0.09)
        assert torch.equal(out, out2)
        assert torch.equal(lse, lse2)
        assert torch.equal(dk, dk2)
        assert torch.equal(dv, dv2)
        # Two float32 sums of the same numbers, rounded to bfloat16: at most one unit in the last place apart.
        assert torch.equal(dq, dq2) if exact else torch.allclose(dq.float(), dq2.float(), rtol=2**-7, atol=1e-4)


@pytest.mark.parametrize(
    "case", [c for c in WIDE if c.name in ("causal_2k_of_8", "varlen_2k", "blocks128_2k")], ids=str
)
def test_gradients_repeat_where_torch_is_to_be_deterministic(case: cases.Case) -> None:
    def strictly() -> cases.Outputs:  # cuBLAS, in the reference, would want an environment variable
        torch.use_deterministic_algorithms(True)
        try:
            return cases.attend(case, data, 0.09)
        finally:
            torch.use_deterministic_algorithms(False)

    data = cases.draw(case, torch.bfloat16, DEVICE, seed=6)
    first = strictly()
    assert cases.wrong(first, data, case, 0.09) == ""
    for _ in range(9):
        assert all(map(torch.equal, strictly()[2], first[2]))


@pytest.mark.parametrize("heads", [(64, 64), (64, 8)], ids=str)
@pytest.mark.parametrize("mask", [FULL, CAUSAL])
def test_gradients_of_32768_tokens(mask: int, heads: tuple[int, int]) -> None:
    """Sampled rows of every head against float32: the check of workloads/dense.py."""
    dense = load("dense")
    one = {"seqlen": 32768, "mask_type": "causal" if mask == CAUSAL else "full", "direction": "bwd", "dtype": "bf16"}
    one |= {"nhq": heads[0], "nhk": heads[1], "hd": 128}
    inputs = dense.inputs(one, DEVICE, 7)
    found = dense.check(one, dense.prepare(ffa, None, one, inputs).call(), dense.reference(one, inputs))
    assert found.ok, found.reason


@pytest.mark.parametrize("block", [64, 128])
def test_offsets_beyond_32_bits(block: int) -> None:
    """q, k and v of 2.4 G elements each (300 k tokens, 64 heads of 128): a few rows at the far end against float64."""
    tokens, heads = 299_008, 64
    n = tokens // block
    lists = torch.tensor([0, n // 2, n - 1], dtype=torch.int32, device=DEVICE).expand(heads, n, 3).contiguous()
    schedule = Blocks(torch.full((heads, n), 3, dtype=torch.int32, device=DEVICE), lists, block, block, tokens, tokens)
    generator = torch.Generator(DEVICE).manual_seed(5)
    q, k, v = (torch.randn(tokens, heads, 128, generator=generator, device=DEVICE, dtype=torch.bfloat16) for _ in "qkv")
    assert dispatch.choose("fwd", q, schedule, 0.1).kernel == "gluon"
    out, lse = cuda.forward(q, k, v, schedule, 0.1)
    keys = torch.cat([torch.arange(block) + block * i for i in (0, n // 2, n - 1)]).to(DEVICE)
    rows = slice(tokens - 70, tokens)
    for head in (0, heads - 1):
        score = q[rows, head].double() @ k[keys, head].double().T * 0.1
        expected = score.softmax(-1) @ v[keys, head].double()
        assert float((out[rows, head].double() - expected).norm() / expected.norm()) < 1e-2
        assert torch.allclose(lse[head, rows].double(), score.logsumexp(-1), atol=2e-3)


def test_phases_are_ranges_of_every_call() -> None:
    q, k, v = (torch.randn(256, 4, 128, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in "qkv")
    seen = cases.ranges_marked(lambda: ffa.ffa_attention(q, k, v, [(0, 256)], [(0, 256)], [CAUSAL]).sum().backward())
    wanted = {f"ffa_fwd_{phase}" for phase in ("range_merge", "prepare", "run", "postprocess", "cast")}
    wanted |= {f"ffa_bwd_{phase}" for phase in ("prepare", "preprocess", "run", "postprocess", "cast")}
    assert wanted <= seen


def test_a_captured_call_keeps_its_work_tables() -> None:
    """Tables of schedules go when many others were used; a graph has only their addresses."""
    q, k, v = (torch.randn(1024, 2, 128, device=DEVICE, dtype=torch.bfloat16) for _ in range(3))

    def call(end: int) -> torch.Tensor:
        ranges = ((0, end), (end, 1024))
        return ffa.ffa_attention(q, k, v, ranges, ranges, (CAUSAL, CAUSAL))

    expected, graph = call(512), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call(512)
    for end in range(128, 896, 2):
        call(end)
    graph.replay()
    assert torch.equal(out, expected)
