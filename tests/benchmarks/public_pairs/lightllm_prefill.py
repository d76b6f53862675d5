"""Causal attention over prompts by LightLLM, without and with a cached part of the prompt (`cached` tokens)."""

import torch

from abprof.kit import Op, compare

API, KERNEL = 1, "prefill"
SHAPE = ("batch", "seqlen", "cached", "heads", "kv_heads", "dim")
PRESETS = {
    "smoke": {SHAPE: [(2, 40, 0, 2, 1, 16), (2, 40, 24, 2, 1, 16)]},
    "default": {
        SHAPE: [(1, 1024, 0, 32, 8, 128), (8, 512, 0, 32, 8, 128), (4, 1024, 0, 32, 32, 128),
                (2, 2048, 0, 32, 32, 64), (1, 4096, 0, 32, 8, 128), (1, 8192, 0, 32, 8, 128),
                (8, 256, 1024, 32, 8, 128), (4, 512, 1024, 32, 8, 128), (2, 1024, 2048, 32, 32, 64),
                (1, 1024, 4096, 32, 8, 128), (2, 2048, 512, 32, 8, 128), (1, 4096, 4096, 32, 8, 128)],
    },
}  # fmt: skip
CHECKED = 2  # heads of the first prompt that are compared with the reference


def inputs(case, device, seed):
    draw = torch.Generator(device).manual_seed(seed)

    def randn(*shape):
        return torch.randn(*shape, generator=draw, device=device, dtype=torch.float16)

    batch, seqlen, total = case["batch"], case["seqlen"], case["seqlen"] + case["cached"]
    k, v = (randn(batch * total, case["kv_heads"], case["dim"]) for _ in range(2))
    slots = torch.arange(batch * total, device=device, dtype=torch.int32)
    if case["cached"]:  # tokens lie anywhere in the pool
        slots = slots[torch.randperm(batch * total, generator=draw, device=device)]
    return {"q": randn(batch * seqlen, case["heads"], case["dim"]), "k": k, "v": v, "slots": slots.view(batch, total)}


def prepare(kernel, variant, case, inputs):
    q, k, v, slots = (inputs[name] for name in ("q", "k", "v", "slots"))
    batch, seqlen, cached = case["batch"], case["seqlen"], case["cached"]
    out = torch.empty_like(q)
    request = torch.arange(batch, device=q.device, dtype=torch.int32)
    start, length = request * seqlen, torch.full_like(request, seqlen + cached)
    prompt = torch.full_like(request, cached)

    def plain():
        kernel.context_attention_fwd_no_prompt_cache(q, k, v, out, start, length, seqlen)
        return out

    def with_cache():
        kernel.context_attention_fwd(q, k, v, out, request, start, length, prompt, seqlen, slots)
        return out

    return Op(with_cache if cached else plain)


def reference(case, inputs):
    seqlen, cached = case["seqlen"], case["cached"]
    rows = inputs["slots"][0].long()
    group = case["heads"] // case["kv_heads"]
    q = inputs["q"][:seqlen, :CHECKED].float().transpose(0, 1)
    k, v = (inputs[name][rows].float().repeat_interleave(group, 1)[:, :CHECKED].transpose(0, 1) for name in ("k", "v"))
    mask = torch.ones(seqlen, seqlen + cached, dtype=torch.bool, device=q.device).tril(cached)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(0, 1)


def check(case, outputs, expected):
    return compare(outputs[: case["seqlen"], :CHECKED], expected, rtol=1e-2, atol=1e-2)
