"""Attention of one new token over a paged cache by Conch: 32 query heads, 8 of keys and values, 128 wide."""

import torch

from abprof.kit import Op, compare

API, KERNEL, SUITE, PAGE = 1, "conch", "conch", 32
PRESETS = {"smoke": {"batch": [1], "context": [128]}, "default": {"batch": [2, 8], "context": [32768]}}


def inputs(case, device, seed):
    draw = {"generator": torch.Generator(device).manual_seed(seed), "device": device}
    pages = case["batch"] * case["context"] // PAGE
    cache = torch.randn(2, pages, PAGE, 8, 128, **draw, dtype=torch.float16)
    query = torch.randn(case["batch"], 32, 128, **draw, dtype=torch.float16)
    return query, cache, torch.randperm(pages, **draw).int().view(case["batch"], -1)


def prepare(kernel, variant, case, inputs):
    from conch.ops.attention.varlen_attention import varlen_attention

    query, (keys, values), table = inputs
    starts = torch.arange(case["batch"] + 1, dtype=torch.int32, device=query.device)
    lengths = torch.full_like(starts[1:], case["context"])
    return Op(lambda: varlen_attention(query, keys, values, starts, 1, lengths, case["context"], table))


def reference(case, inputs):
    query, cache, table = inputs
    keys, values = (pages[table].flatten(1, 2).float() for pages in cache)
    weights = torch.einsum("bkgd,bnkd->bkgn", query.float().unflatten(1, (8, 4)), keys).div(128**0.5).softmax(-1)
    return torch.einsum("bkgn,bnkd->bkgd", weights, values).flatten(1, 2)


def check(case, outputs, expected):
    return compare(outputs, expected, rtol=2e-2, atol=1e-2)
