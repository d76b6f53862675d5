"""The selfcheck's workload: kernels of known duration, some with known extra work on one branch."""

from __future__ import annotations

import torch

from abprof.kit import Check, Op, Work, compare

API = 1
KERNEL = "meter"
SUITE = "meter"

# Steps of each operation, short to long. The measured time decides a cell's class (under 20 us, to 0.3 ms, above).
SIZES = {
    "cpu": {"chain": (40_000, 400_000), "copy": (2_000_000,)},
    "cuda": {"chain": (400, 4_000, 100_000), "copy": (1 << 20, 1 << 24, 1 << 27)},
}
AXES = ("op", "steps", "inject", "copy")
INJECTED = {"cpu": (1.0, 2.0, 5.0, 10.0, 20.0), "cuda": (0.5, 1.0, 1.5, 2.0, 5.0)}  # per cent of the longest case


def _matrix(kind: str, unchanged: int, changed: int) -> dict:
    """Return `unchanged` cases of each size and, of the longest, `changed` cases for each amount of extra work."""
    rows = [(op, n, 0.0, i) for op, sizes in SIZES[kind].items() for n in sizes for i in range(unchanged)]
    rows += [(op, n[-1], p, i) for op, n in SIZES[kind].items() for p in INJECTED[kind] for i in range(changed)]
    return {AXES: rows}


PRESETS = {
    "ci": lambda kind: {AXES: [(op, n[-1], p, 0) for op, n in SIZES[kind].items() for p in (0.0, INJECTED[kind][-1])]},
    "quick": lambda kind: _matrix(kind, 2, 1),
    "certificate": lambda kind: _matrix(kind, 4, 2),
    "default": lambda kind: _matrix(kind, 10, 3) if kind == "cuda" else _matrix(kind, 4, 2),
    "full": lambda kind: _matrix(kind, 40, 6),
}


def inputs(case, device, seed):
    # Drawn on the device: inputs are made again every other round, at another address.
    how = {"generator": torch.Generator(device).manual_seed(seed), "device": device}
    if case["op"] == "chain":
        return (torch.rand(132 * 1024 if device.type == "cuda" else 1, **how),)
    room = int(1.3 * case["steps"])
    # Drawn once and repeated: a gigabyte of random numbers would take longer than everything measured on it.
    return (torch.rand(1 << 16, **how).repeat(room // (1 << 16) + 1)[:room],)


def prepare(kernel, variant, case, inputs):
    # A chain works in place, on a copy; a copy writes to memory of its own.
    operands = () if case["op"] == "chain" else inputs
    out = inputs[0].clone() if case["op"] == "chain" else torch.zeros_like(inputs[0])
    return Op(lambda: kernel.call(case["op"], *operands, out, wanted=case["steps"], percent=case["inject"]))


def reference(case, inputs):
    found = _sampled(case, inputs[0])
    return found if case["op"] == "copy" else torch.ones_like(found)  # some thirty steps of a chain reach 1 exactly


def _sampled(case, output):
    flat = output.reshape(-1)[: case["steps"] if case["op"] == "copy" else None]
    return flat[:: max(1, flat.numel() >> 16)]


def check(case, outputs, expected) -> Check:
    return compare(_sampled(case, outputs), expected, rtol=1e-3, atol=0.0)


def work(case) -> Work:
    n = case["steps"]
    if case["op"] == "copy":
        return Work(flops=n, bytes=8.0 * n, convention="read-write")
    return Work()  # a chain has another number of lanes on a CPU than on a GPU
