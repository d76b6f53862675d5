"""Library implementations of attention that workloads compare with. Names and how they are called are the same everywhere.

| peer | what |
|---|---|
| `sdpa` | torch's scaled_dot_product_attention by cuDNN alone; on a CPU torch's own choice |
| `sdpa_flash` | the same by torch's FlashAttention-2 alone |
| `flex`, `flex_tma`, `flex_flash` | compiled flex_attention: by its Triton kernel, with loads by TMA, by FlashAttention-4 |
| `varlen_attn` | torch.nn.attention.varlen's, for documents in one sequence |
| `fa3`, `fa4` | FlashAttention-3 (package fa3-fwd: forward alone) and -4 (flash-attn-4), where they are installed |

One that this machine does not have, or that cannot do the case, raises kit.Unsupported with the reason. What a peer needs
beside q, k and v (masks, document ends) is made once, before the calls that are timed.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from abprof.kit import Unsupported

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

# The compiler's options of each. A torch without BACKEND does not know FlashAttention-4.
FLEX: dict[str, dict[str, Any]] = {"flex": {}, "flex_tma": {"USE_TMA": True}, "flex_flash": {"BACKEND": "FLASH"}}
NAMES = ("sdpa", "sdpa_flash", *FLEX, "varlen_attn", "fa3", "fa4")
_BACKENDS = {"sdpa": SDPBackend.CUDNN_ATTENTION, "sdpa_flash": SDPBackend.FLASH_ATTENTION}


@dataclass(frozen=True)
class Problem:
    """Self-attention inside each of the documents of one sequence; `scale` of the scores is 1/sqrt(D) if None."""

    lengths: tuple[int, ...]
    causal: bool
    device: torch.device
    scale: float | None = None


def attend(name: str, problem: Problem) -> Attend:
    """The peer as a function of q, k, v [B, H, N, D]. Raises Unsupported."""
    if name in _BACKENDS:
        return _sdpa(name, problem)
    if name in FLEX:
        return flex(_document_mask(problem), problem.device, name, scale=problem.scale)
    if name == "varlen_attn":
        return _by_tokens(_varlen(problem))
    return _flash(problem, *(_flash_attention_3 if name == "fa3" else _flash_attention_4)(problem.device))


def _on_gpu(what: str, device: torch.device) -> None:
    if device.type != "cuda":
        raise Unsupported(f"{what} is measured on GPUs, and this is {device.type}")


def tokens_first(heads_first: Attend) -> Attend:
    """A function of [B, H, N, D] as one of [N, H, D]."""
    return lambda q, k, v: heads_first(*(x.transpose(0, 1)[None] for x in (q, k, v)))[0].transpose(0, 1)


def _by_tokens(tokens: Attend) -> Attend:
    """A function of [N, H, D] as one of [1, H, N, D]."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if q.shape[0] != 1:
            raise Unsupported("documents in one sequence, and this is a batch")
        return tokens(*(x[0].transpose(0, 1) for x in (q, k, v))).transpose(0, 1)[None]

    return attend


# ---------------------------------------------------------------- torch's scaled_dot_product_attention


def _sdpa(name: str, problem: Problem) -> Attend:
    """By one backend alone: left to itself, torch takes flash first even where cuDNN's is the faster."""
    if len(problem.lengths) != 1:
        raise Unsupported("scaled_dot_product_attention has no documents")
    if name != "sdpa":
        _on_gpu("torch's FlashAttention-2", problem.device)
    on_gpu = problem.device.type == "cuda"
    backends = [_BACKENDS[name]] if on_gpu else list(SDPBackend.__members__.values())

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        options: dict[str, Any] = {"is_causal": problem.causal, "scale": problem.scale}
        with sdpa_kernel(backends):
            try:
                out: torch.Tensor = scaled_dot_product_attention(
                    q, k, v, enable_gqa=q.shape[1] != k.shape[1], **options
                )
            except RuntimeError as error:
                if "No available kernel" in str(error):
                    raise Unsupported(f"torch's {name} cannot do this case here") from error
                raise
        return out

    return attend


# ---------------------------------------------------------------- flex_attention


def flex(mask: Any, device: torch.device, name: str, *, scale: float | None = None) -> Attend:
    """The peer of FLEX under a BlockMask, or None for full attention; as a function of [B, H, N, D].

    Blocks below 128 have a forward alone. A case that it cannot compile is Unsupported.
    """
    compiled, options = compiled_flex(device, name), FLEX[name]
    if mask is not None and min(mask.BLOCK_SIZE) < 128 and name != "flex_flash":
        options = options | {"fwd_BLOCK_M": min(mask.BLOCK_SIZE[0], 128), "fwd_BLOCK_N": min(mask.BLOCK_SIZE[1], 64)}

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        arguments = {"scale": scale, "enable_gqa": q.shape[1] != k.shape[1], "kernel_options": options or None}
        try:
            out: torch.Tensor = compiled(q, k, v, block_mask=mask, **arguments)
        except Exception as error:
            if type(error).__module__.startswith(("torch._inductor", "torch._dynamo")):
                line = str(error).strip().split("\n")[0]
                raise Unsupported(f"flex_attention cannot be compiled for this case: {line}") from error
            raise
        return out

    return attend


@functools.cache
def compiled_flex(device: torch.device, name: str) -> Callable[..., Any]:
    """flex_attention through torch.compile, one graph for each case. Raises Unsupported where the peer is not there."""
    _on_gpu("compiled flex_attention", device)
    if name == "flex_flash":
        _flash_attention_4(device)
    from torch._dynamo import config as dynamo
    from torch._functorch import config as functorch
    from torch.nn.attention.flex_attention import flex_attention

    # A run has more shapes than the eight after which torch would fall back to eager attention, and say nothing.
    dynamo.recompile_limit = max(dynamo.recompile_limit, 1000)
    dynamo.accumulated_recompile_limit = max(dynamo.accumulated_recompile_limit, 10000)
    functorch.donated_buffer = False  # gradients are taken of one graph many times
    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=False)
    return compiled


@functools.lru_cache(maxsize=8)
def _document_mask(problem: Problem) -> Any:
    """The BlockMask of the problem, None where everything sees everything."""
    from torch.nn.attention.flex_attention import create_block_mask

    if len(problem.lengths) == 1 and not problem.causal:
        return None
    length = sum(problem.lengths)
    lengths = torch.tensor(problem.lengths, device=problem.device)
    document = torch.arange(len(lengths), dtype=torch.int32, device=problem.device).repeat_interleave(lengths)

    def same(_b: Any, _h: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return document[q] == document[k]

    def causal(_b: Any, _h: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return q >= k

    def both(b: Any, h: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return causal(b, h, q, k) & same(b, h, q, k)

    seen = same if not problem.causal else causal if len(problem.lengths) == 1 else both
    return create_block_mask(seen, None, None, length, length, device=problem.device)


def block_mask(
    kv_num: torch.Tensor, kv_indices: torch.Tensor, q_block: int, k_block: int, length: int, group: int
) -> Any:
    """The BlockMask of lists of whole key blocks, kv_num [Hk, nq] and kv_indices [Hk, nq, kept], for each query head.

    The rule for blocks that are kept in part, of which there are none, is not the default: FlashAttention-4 leaves the lists
    of that out.
    """
    from torch.nn.attention.flex_attention import BlockMask

    columns = length // k_block
    wide = torch.zeros(*kv_indices.shape[:2], columns, dtype=torch.int32, device=kv_indices.device)
    wide[..., : kv_indices.shape[2]] = kv_indices
    num, indices = (x.repeat_interleave(group, 0)[None].contiguous() for x in (kv_num, wide))
    size = (q_block, k_block)
    return BlockMask.from_kv_blocks(torch.zeros_like(num), indices, num, indices, size, mask_mod=_every_row)


def _every_row(_b: Any, _h: Any, q: torch.Tensor, _k: Any) -> torch.Tensor:
    return q >= 0


# ---------------------------------------------------------------- documents in one sequence


def _ends(problem: Problem) -> torch.Tensor:
    return torch.tensor([0, *accumulate(problem.lengths)], dtype=torch.int32, device=problem.device)


def _varlen(problem: Problem) -> Attend:
    """As a function of [N, H, D]."""
    _on_gpu("varlen_attn", problem.device)
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        raise Unsupported("this torch has no varlen_attn") from error
    known = inspect.signature(varlen_attn).parameters  # torch 2.10 says is_causal, 2.11 and later window_size
    options: dict[str, Any] = {} if problem.scale is None else {"scale": problem.scale}
    if problem.causal:
        options |= {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
    ends, longest = _ends(problem), max(problem.lengths)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] and "enable_gqa" in known else {}
        out: torch.Tensor = varlen_attn(q, k, v, ends, ends, longest, longest, **options, **grouped)
        return out

    return attend


# ---------------------------------------------------------------- FlashAttention by its own packages


def _flash_attention_3(device: torch.device) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Its functions for one sequence and for documents."""
    _on_gpu("FlashAttention-3", device)
    try:
        from fa3_fwd_interface import flash_attn_func, flash_attn_varlen_func
    except Exception as error:
        raise Unsupported(f"FlashAttention-3 (package fa3-fwd) cannot be imported: {error}") from error

    def forward(function: Callable[..., Any], q: torch.Tensor, *args: Any, **options: Any) -> Any:
        if q.requires_grad:
            raise Unsupported("package fa3-fwd has no backward")
        if q.dtype != torch.bfloat16:
            raise Unsupported("package fa3-fwd is built for bfloat16")
        return function(q, *args, **options)

    return functools.partial(forward, flash_attn_func), functools.partial(forward, flash_attn_varlen_func)


def _flash_attention_4(device: torch.device) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """As _flash_attention_3."""
    _on_gpu("FlashAttention-4", device)
    try:
        from flash_attn.cute import flash_attn_func, flash_attn_varlen_func
    except Exception as error:
        raise Unsupported(f"FlashAttention-4 (package flash-attn-4) cannot be imported: {error}") from error
    # Its compiler says of each kernel that it cannot convert an argument which is None.
    warnings.filterwarnings("ignore", message="Argument aux_data .* cannot be converted")
    return flash_attn_func, flash_attn_varlen_func


def _flash(problem: Problem, one: Callable[..., Any], documents: Callable[..., Any]) -> Attend:
    """By functions of q, k, v [B, N, H, D] and [N, H, D]."""
    options: dict[str, Any] = {"softmax_scale": problem.scale, "causal": problem.causal}
    if len(problem.lengths) == 1:
        return lambda q, k, v: _first(one(*(x.transpose(1, 2) for x in (q, k, v)), **options)).transpose(1, 2)
    ends, longest = _ends(problem), max(problem.lengths)
    options |= {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": longest, "max_seqlen_k": longest}
    return _by_tokens(lambda q, k, v: _first(documents(q, k, v, **options)))


def _first(found: Any) -> torch.Tensor:
    """The output, of a function that may give statistics besides."""
    out: torch.Tensor = found[0] if isinstance(found, tuple) else found
    return out
