"""The bundled packages without a GPU: Triton's interpreter against float64, and bad arguments; test_ffa_api.py has ffa's."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels import ladder, memtraffic, wsattn
from kernels.dmask import masked_attention
from kernels.memtraffic import BlockLists

IN_THE_INTERPRETER = {
    "ffa_cases": ("causal_more_keys", "varlen_causal", "gaps", "blocks_64_dense_tails", "blocks_odd", "dq_cast",
                  "a_nan_is_seen"),
    "dmask_cases": ("choice", "a_nan_is_seen", "random_sparse", "one_query", "planes_of_both_kinds", "one_pair"),
    "memtraffic_cases": ("fused-full-150-64-float16", "fused-blocks0.5-300-64-float16", "unfused-full-1-64-float32",
                         "unfused-blocks0.5-300-64-float16"),
    "ladder_cases": tuple(f"{shape} {rung}" for shape in ("33 128 full torch.bfloat16", "33 64 causal torch.float16")
                          for rung in ladder.RUNGS),
}  # fmt: skip


@pytest.mark.parametrize("module", IN_THE_INTERPRETER)
def test_outputs_and_gradients_in_the_interpreter(interpreted: Callable[..., None], module: str) -> None:
    interpreted(module, *IN_THE_INTERPRETER[module])


def zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def masked(**changes: torch.Tensor) -> torch.Tensor:
    made = {"q": zeros(2, 10, 4, 64), "k": zeros(2, 12, 2, 64), "v": zeros(2, 12, 2, 64)}
    return masked_attention(**{**made, "mask": zeros(2, 4, 10, 12, dtype=torch.bool), **changes})


def lists(*sizes: int, dtype: torch.dtype = torch.int32) -> BlockLists:
    return BlockLists(*(torch.zeros(n, dtype=dtype) for n in sizes))


def traffic(variant: str, *arguments: Any) -> torch.Tensor:
    functions = getattr(memtraffic, variant)
    return (functions.block_attention if len(arguments) > 3 else functions.full_attention)(*arguments)


ONE = torch.zeros(1, 2, 100, 64)
Q, K = torch.zeros(1, 2, 64, 128).half(), torch.zeros(1, 2, 64, 128).half()
RUNG = [torch.zeros(1, 1, 16, 64).half()] * 3
BAD: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: masked(q=zeros(10, 4, 64)), ValueError, r"q must be \[batch, tokens, heads, head dim\]"),
    (lambda: masked(k=zeros(2, 12, 2, 64).float()), ValueError, "dtype and device: k is float32 on cpu, q bfloat16"),
    (lambda: masked(v=zeros(2, 11, 2, 64)), ValueError, "k and v must have equal shapes"),
    (lambda: masked(q=zeros(1, 10, 4, 64)), ValueError, "equal batch and head dimension"),
    (lambda: masked(q=zeros(2, 10, 3, 64)), ValueError, "multiple of key heads, not 3 and 2"),
    (lambda: masked(mask=zeros(2, 4, 10, 12).float()), ValueError, "mask must be bool on cpu, not float32"),
    (lambda: masked(mask=zeros(2, 2, 10, 12).bool()), ValueError, r"\[2 or 1, 4 or 1, 10, 12\], not \[2, 2, 10, 12\]"),
    (lambda: masked(mask=zeros(10, 12).bool()), ValueError, r"not \[10, 12\]"),
    (lambda: ladder.fmha(*RUNG, rung="top"), ValueError, "basic, exp2, memory, full, cutile_basic, .*, not 'top'"),
    (lambda: ladder.fmha(*RUNG, scale=0.0), ValueError, "positive"),
    (lambda: ladder.fmha(*RUNG, scale=float("nan")), ValueError, "finite"),
    (lambda: ladder.fmha(*RUNG), ladder.UnsupportedOption, "needs an NVIDIA GPU, and this is cpu"),
    (lambda: ladder.configuration("full", "cpu"), ladder.UnsupportedOption, "NVIDIA GPU"),
    (lambda: wsattn.ws_attention(Q, K, K, variant="fast"), ValueError, "ws, ws_pipelined, not 'fast'"),
    (lambda: wsattn.ws_attention(Q, K, K, 0.0), ValueError, "positive"),
    (lambda: wsattn.ws_attention(Q[0], K, K), ValueError, r"q must be \[B, H, N, D\]"),
    (lambda: wsattn.ws_attention(Q, K[:, :1], K[:, :1]), ValueError, "B, H and D of q"),
    (lambda: wsattn.ws_attention(Q, K, K[:, :, :9]), ValueError, "B, H and D of q"),
    (lambda: wsattn.ws_attention(Q, K[:, :, :0], K[:, :, :0]), ValueError, "no keys"),
    (lambda: wsattn.ws_attention(Q, K.bfloat16(), K), ValueError, "k is torch.bfloat16"),
    (lambda: wsattn.ws_attention(*[x.float() for x in (Q, K, K)]), wsattn.UnsupportedOption, "dtype float32"),
    (lambda: wsattn.ws_attention(*[x[..., :64] for x in (Q, K, K)]), wsattn.UnsupportedOption, "head dimension 64"),
    (lambda: wsattn.ws_attention(Q, K, K), wsattn.UnsupportedOption, r"needs a Hopper GPU.* this is cpu"),
    (lambda: wsattn.configuration(Q, K, K), wsattn.UnsupportedOption, "Hopper"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[message for *_, message in BAD])
def test_bad_arguments_give_one_line(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as reported:
        call()
    assert "\n" not in str(reported.value)


@pytest.mark.parametrize("variant", memtraffic.VARIANTS)
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((ONE[0], ONE[0], ONE[0]), ValueError, r"\[batch, heads, tokens, head dim\], not \[2, 100, 64\]"),
        ((ONE, ONE[:, :1], ONE), ValueError, "of one shape"),
        ((ONE, ONE.half(), ONE), ValueError, "share dtype and device"),
        ((ONE, ONE, ONE, lists(2, 4, 4)), ValueError, r"begin \[3\]"),
        ((ONE, ONE, ONE, lists(3, 4, 5)), ValueError, "as many rows as columns"),
        ((ONE, ONE, ONE, lists(3, 4, 4, dtype=torch.int64)), ValueError, "lists.begin must be int32"),
        ((ONE.double(), ONE.double(), ONE.double()), NotImplementedError, "not in torch.float64"),
        ((ONE[..., :32], ONE[..., :32], ONE[..., :32]), NotImplementedError, "head dimension 32"),
        ((ONE, ONE, ONE), NotImplementedError, "NVIDIA GPU: its tensors are on cpu"),
        ((ONE, ONE, ONE, lists(3, 4, 4)), NotImplementedError, "NVIDIA GPU: its tensors are on cpu"),
    ],
)
def test_both_variants_refuse(variant: str, arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    test_bad_arguments_give_one_line(lambda: traffic(variant, *arguments), error, message)


def test_without_cutile_its_rungs_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.ladder import api

    class OnGpu:
        is_cuda = True

    q: Any = OnGpu()
    monkeypatch.delitem(sys.modules, "kernels.ladder.cutile", raising=False)
    monkeypatch.setitem(sys.modules, "cuda.tile", None)
    with pytest.raises(ladder.UnsupportedOption, match=r"cuTile \(package cuda-tile\) is not installed"):
        api._run_cutile(q, q, q, q, rung="cutile_full")


def test_the_packages_import_without_abprof_and_triton() -> None:
    code = (
        "import sys, kernels.dmask, kernels.ladder, kernels.memtraffic\n"
        "assert not {name.split('.')[0] for name in sys.modules} & {'abprof', 'triton'}"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True)
