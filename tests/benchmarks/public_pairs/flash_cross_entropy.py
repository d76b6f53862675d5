"""Cross entropy of flash-attention, forward and backward."""

import torch

from abprof.kit import Op, compare

API, KERNEL = 1, "cross_entropy"
SIZES = ("rows", "vocabulary")
PRESETS = {
    "smoke": {SIZES: [(32, 500)], "pass": ["fwd", "bwd"]},
    "default": {
        SIZES: [(4096, 8192), (4096, 32000), (2048, 50257), (2048, 128256), (8192, 128256), (1024, 151936)],
        "pass": ["fwd", "bwd"],
    },
}


def inputs(case, device, seed):
    draw = torch.Generator(device).manual_seed(seed)
    rows, vocabulary = case["rows"], case["vocabulary"]
    logits = torch.randn(rows, vocabulary, generator=draw, device=device, dtype=torch.bfloat16)
    labels = torch.randint(vocabulary, (rows,), generator=draw, device=device)
    return {"logits": logits, "labels": labels, "dloss": torch.rand(rows, generator=draw, device=device)}


def prepare(kernel, variant, case, inputs):
    if case["pass"] == "fwd":
        return Op(lambda: kernel.cross_entropy_loss(inputs["logits"], inputs["labels"])[0])
    logits = inputs["logits"].requires_grad_()
    loss = kernel.cross_entropy_loss(logits, inputs["labels"])[0]
    return Op(lambda: torch.autograd.grad(loss, logits, inputs["dloss"], retain_graph=True)[0])


def reference(case, inputs):  # of every 16th row: a large vocabulary would not fit as float32
    logits, labels = inputs["logits"].detach()[::16].float().requires_grad_(), inputs["labels"][::16]
    loss = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    return loss.detach() if case["pass"] == "fwd" else torch.autograd.grad(loss, logits, inputs["dloss"][::16])[0]


def check(case, outputs, expected):
    return compare(outputs[::16], expected, rtol=1e-2, atol=1e-3)
