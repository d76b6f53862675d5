"""Schedules that reach every branch of the kernels, the float64 reference, and how outputs are judged."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any
from unittest import mock

import torch
from torch.profiler import ProfilerActivity, profile

from kernels.ffa.schedule import CAUSAL, FULL, Blocks, Schedule, Slices, merge_slices

Grads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Outputs = tuple[torch.Tensor, torch.Tensor, Grads]  # out, lse, (dq, dk, dv)


@dataclass(frozen=True)
class Case:
    """Shapes and a schedule; `dim` 128 unless it says otherwise."""

    name: str
    sq: int
    sk: int
    heads: int
    kv_heads: int
    schedule: Callable[[torch.device], Schedule]
    dim: int = 128

    def __str__(self) -> str:
        return self.name


def slices(q: list[tuple[int, int]], k: list[tuple[int, int]], masks: list[int], sq: int, sk: int) -> Slices:
    """As a caller gives them; `merged` makes what the kernels get."""
    return Slices(tuple(q), tuple(k), tuple(masks), sq, sk)


def merged(schedule: Schedule) -> Schedule:
    if isinstance(schedule, Blocks):
        return schedule
    return merge_slices(schedule.q_ranges, schedule.k_ranges, schedule.mask_types, schedule.q_len, schedule.k_len)


def documents(lengths: list[int], mask: int) -> Slices:
    """Self-attention inside each document."""
    ranges = list(pairwise([0, *accumulate(lengths)]))
    return slices(ranges, ranges, [mask] * len(ranges), sum(lengths), sum(lengths))


def blocks(kv_heads: int, sq: int, sk: int, q_block: int, k_block: int, density: float, **options: Any) -> Any:
    """Random lists of random length about `density`, some of them empty; unused entries hold rubbish."""

    def make(device: torch.device) -> Blocks:
        nq, nk = -(-sq // q_block), -(-sk // k_block)
        generator = torch.Generator().manual_seed(sq * 7 + sk)
        order = torch.rand(kv_heads, nq, nk, generator=generator).argsort(-1).to(torch.int32)
        wanted = (torch.rand(kv_heads, nq, nk, generator=generator) < density).sum(-1).to(torch.int32)
        if 0 < density < 1:
            wanted[:, 0] = 0
        rubbish = torch.arange(nk) >= wanted[..., None]
        lists = torch.where(rubbish, 10**6, order).to(torch.int32)
        return Blocks(wanted.to(device), lists.to(device), q_block, k_block, sq, sk, **options)

    return make


def slice_cases(unit: int) -> Iterator[Case]:
    """Slices, in lengths about `unit` (a multiple of 128 makes whole tiles)."""
    u = unit
    yield Case("full", 2 * u, 2 * u, 2, 2, lambda _: slices([(0, 2 * u)], [(0, 2 * u)], [FULL], 2 * u, 2 * u))
    rows, keys = 4 * u + 17, 3 * u  # whole tiles of keys, and rows enough to cut them up
    yield Case("full_pieces", rows, keys, 4, 2, lambda _: slices([(0, rows)], [(0, keys)], [FULL], rows, keys))
    yield Case("causal", 2 * u, 2 * u, 2, 1, lambda _: slices([(0, 2 * u)], [(0, 2 * u)], [CAUSAL], 2 * u, 2 * u))
    a, b = u + 17, 2 * u + 35
    yield Case("full_tails", a, b, 2, 1, lambda _: slices([(0, a)], [(0, b)], [FULL], a, b))
    yield Case("causal_more_keys", a, b, 2, 2, lambda _: slices([(0, a)], [(0, b)], [CAUSAL], a, b))
    yield Case("causal_more_rows", b, a, 2, 2, lambda _: slices([(0, b)], [(0, a)], [CAUSAL], b, a))
    lengths = [u + 5, 1, 7, u - 3, 2 * u - 9, 2, 64]
    yield Case("varlen_full", sum(lengths), sum(lengths), 2, 2, lambda _: documents(lengths, FULL))
    yield Case("varlen_causal", sum(lengths), sum(lengths), 4, 2, lambda _: documents(lengths, CAUSAL))
    long = [u + 40, u, u + 73]
    yield Case("varlen_long", sum(long), sum(long), 2, 1, lambda _: documents(long, CAUSAL))
    # Rows and keys that nothing covers, keys shared by two slices, a slice without rows of its own before it.
    yield Case("gaps", 3 * u, 3 * u, 2, 1, lambda _: slices([(9, u), (u + 20, 2 * u + 50)], [(5, u + 5), (u + 30, 3 * u)],
                                                            [FULL, CAUSAL], 3 * u, 3 * u))  # fmt: skip
    yield Case("shared_keys", 2 * u, 2 * u, 2, 1, lambda _: slices([(0, u), (u, 2 * u)], [(0, u + 60), (0, 2 * u)],
                                                                   [FULL, CAUSAL], 2 * u, 2 * u))  # fmt: skip
    yield Case("one_token", 1, 1, 1, 1, lambda _: slices([(0, 1)], [(0, 1)], [CAUSAL], 1, 1), dim=64)
    yield Case("one_row", 1, 5 * u, 4, 1, lambda _: slices([(0, 1)], [(0, 5 * u)], [CAUSAL], 1, 5 * u))
    yield Case("unsorted", 3 * u, 3 * u, 2, 2, lambda _: slices([(2 * u, 3 * u), (0, 0), (0, u), (u, 2 * u)],
                                                                [(7, u + 7), (3, 9), (u, 3 * u), (5, 5)],
                                                                [CAUSAL, FULL, CAUSAL, FULL], 3 * u, 3 * u))  # fmt: skip
    yield Case("dim64", a, b, 2, 1, lambda _: slices([(0, a)], [(0, b)], [CAUSAL], a, b), dim=64)
    yield Case("dim64_full", u, u, 2, 2, lambda _: slices([(0, u)], [(0, u)], [FULL], u, u), dim=64)


def block_cases() -> Iterator[Case]:
    """Lists of blocks: whole, tails, odd sizes, dense, empty, grouped heads."""
    yield Case("blocks_128", 384, 512, 4, 2, blocks(2, 384, 512, 128, 128, 0.5))
    yield Case("blocks_128x256", 384, 512, 2, 2, blocks(2, 384, 512, 128, 256, 0.6))
    yield Case("blocks_128_tails", 300, 420, 2, 1, blocks(1, 300, 420, 128, 128, 0.6))
    yield Case("blocks_64", 256, 192, 2, 2, blocks(2, 256, 192, 64, 64, 0.5))
    yield Case("blocks_64_dense_tails", 200, 150, 4, 2, blocks(2, 200, 150, 64, 64, 1.1))
    yield Case("blocks_64_last_rows", 200, 192, 4, 2, blocks(2, 200, 192, 64, 64, 0.5))
    yield Case("blocks_128x192", 384, 576, 4, 2, blocks(2, 384, 576, 128, 192, 0.6))
    yield Case("blocks_odd", 100, 130, 2, 1, blocks(1, 100, 130, 24, 40, 0.5))
    yield Case("blocks_256", 300, 300, 2, 1, blocks(1, 300, 300, 256, 256, 1.1))
    yield Case("blocks_dim64", 256, 256, 2, 1, blocks(1, 256, 256, 128, 128, 0.7), dim=64)
    yield Case("blocks_none", 128, 128, 2, 2, blocks(2, 128, 128, 128, 128, 0.0))


def draw(case: Case, dtype: torch.dtype, device: torch.device, seed: int) -> dict[str, torch.Tensor]:
    """Fresh q, k, v, dout. Rows and keys outside what slices show are NaN, so that reading them into a result shows."""
    generator = torch.Generator(device).manual_seed(seed)
    shapes = {"q": (case.sq, case.heads), "k": (case.sk, case.kv_heads), "v": (case.sk, case.kv_heads),
              "dout": (case.sq, case.heads)}  # fmt: skip
    made = {
        name: torch.randn(*shape, case.dim, generator=generator, device=device).to(dtype)
        for name, shape in shapes.items()
    }
    schedule = case.schedule(device)
    if isinstance(schedule, Slices):
        seen = visible(schedule, 1)[0]
        for name, dimension in (("q", 1), ("dout", 1), ("k", 0), ("v", 0)):
            made[name][~seen.any(dimension).to(device)] = torch.nan
    return made


def visible(schedule: Schedule, heads: int) -> torch.Tensor:
    """bool [heads, Sq, Sk] on the CPU."""
    if isinstance(schedule, Slices):
        seen = torch.zeros(schedule.q_len, schedule.k_len, dtype=torch.bool)
        for (q0, q1), (k0, k1), mask in zip(schedule.q_ranges, schedule.k_ranges, schedule.mask_types, strict=True):
            part = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool)
            seen[q0:q1, k0:k1] = part.tril(k1 - k0 - (q1 - q0)) if mask == CAUSAL else part
        return seen.expand(heads, -1, -1)
    kv_num, lists = schedule.kv_num.cpu(), schedule.kv_indices.cpu()
    kv_heads, nq, _ = lists.shape
    coarse = torch.zeros(kv_heads, nq, -(-schedule.k_len // schedule.k_block), dtype=torch.bool)
    for h in range(kv_heads):
        for i in range(nq):
            coarse[h, i, lists[h, i, : kv_num[h, i]].long()] = True
    fine = coarse.repeat_interleave(schedule.q_block, 1).repeat_interleave(schedule.k_block, 2)
    return fine[:, : schedule.q_len, : schedule.k_len].repeat_interleave(heads // kv_heads, 0)


@dataclass(frozen=True)
class Expected:
    """Outputs of the reference, float64 (or the naive algorithm's, in the inputs' dtype)."""

    out: torch.Tensor
    lse: torch.Tensor
    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor


def reference(
    data: dict[str, torch.Tensor], seen: torch.Tensor, scale: float, dtype: torch.dtype = torch.float64
) -> Expected:
    """Attention and its gradients by definition, in `dtype` throughout, one matrix product after the other."""
    wide = {name: torch.nan_to_num(t.to(dtype)).transpose(0, 1) for name, t in data.items()}
    group = wide["q"].shape[0] // wide["k"].shape[0]
    q, dout, seen = wide["q"], wide["dout"], seen.to(wide["q"].device)
    k, v = (wide[name].repeat_interleave(group, 0) for name in ("k", "v"))
    score = (q @ k.transpose(1, 2) * scale).masked_fill(~seen, -torch.inf)
    lse = torch.logsumexp(score, -1)
    p = torch.where(seen, torch.exp(score - lse[..., None]), 0.0).to(dtype)
    out = p @ v
    dp = dout @ v.transpose(1, 2)
    ds = p * (dp - (out * dout).sum(-1, keepdim=True))
    dq, dk, dv = ds @ k * scale, ds.transpose(1, 2) @ q * scale, p.transpose(1, 2) @ dout
    dk, dv = (t.unflatten(0, (-1, group)).sum(1) for t in (dk, dv))
    return Expected(out.transpose(0, 1), lse, *(t.transpose(0, 1) for t in (dq, dk, dv)))


def judge(name: str, got: torch.Tensor, ref: torch.Tensor, naive: torch.Tensor | None) -> str:
    """ "" when `got` is right, else what is wrong.

    FlashAttention's rule, largest error at most twice that of the naive algorithm in the inputs' dtype plus a rounding
    at magnitude 0.3, and besides a relative Frobenius error of at most 1e-2. Without `naive` a largest error of float32
    arithmetic: 1e-5 of the largest number or of 1. NaN never passes.
    """
    if got.shape != ref.shape:
        return f"{name}: shape {tuple(got.shape)}, expected {tuple(ref.shape)}"
    wide, error = got.double(), (got.double() - ref).abs().max()
    if naive is None:
        allowed = 1e-5 * ref.abs().max().clamp(min=1)
        return "" if error <= allowed else f"{name}: largest error {float(error):.3g} (allowed {float(allowed):.3g})"
    rounding = 2 * (ref + 0.3 - 0.3 - ref).abs().max() + 2**-9 * 0.3
    allowed = 2 * (naive.double() - ref).abs().max() + rounding
    relative = float((wide - ref).norm() / ref.norm().clamp_min(1e-30)) if bool(ref.any()) else float(wide.norm())
    if not (error <= allowed and relative <= 1e-2):
        return f"{name}: largest error {float(error):.3g} (allowed {float(allowed):.3g}), relative {relative:.3g}"
    return ""


def wrong(got: Outputs, data: dict[str, torch.Tensor], case: Case, scale: float, lse_error: float = 2e-3) -> str:
    """Return all errors of (out, lse, (dq, dk, dv)); "" if there are none."""
    seen, dtype = visible(case.schedule(data["q"].device), case.heads), data["q"].dtype
    ref = reference(data, seen, scale)
    naive = None if dtype == torch.float32 else reference(data, seen, scale, dtype)
    out, lse, grads = got
    found = [] if {t.dtype for t in (out, *grads)} == {dtype} else ["dtype"]
    blind = torch.isneginf(ref.lse)
    if not torch.equal(torch.isneginf(lse), blind):
        found.append("lse is not -inf exactly where a row sees nothing")
    elif not float((lse.double() - ref.lse)[~blind].abs().max() if bool((~blind).any()) else 0) < lse_error:
        found.append("lse")
    if bool(out.transpose(0, 1)[blind].any()) or bool(grads[0].transpose(0, 1)[blind].any()):
        found.append("a row that sees nothing is not zero")
    named = zip(("out", "dq", "dk", "dv"), (out, *grads), strict=True)
    found += [judge(n, g, getattr(ref, n), naive and getattr(naive, n)) for n, g in named]
    return "; ".join(filter(None, found))


@contextmanager
def poisoned() -> Iterator[None]:
    """torch.empty and torch.empty_like return NaN, which shows memory that a kernel does not write."""
    empty, empty_like = torch.empty, torch.empty_like

    def poison(t: torch.Tensor) -> torch.Tensor:
        return t.fill_(torch.nan) if t.is_floating_point() else t

    with (
        mock.patch.object(torch, "empty", lambda *a, **k: poison(empty(*a, **k))),
        mock.patch.object(torch, "empty_like", lambda *a, **k: poison(empty_like(*a, **k))),
    ):
        yield


def attend(case: Case, data: dict[str, torch.Tensor], scale: float) -> Outputs:
    """Forward and backward of the CUDA backend, into memory full of NaN."""
    from kernels.ffa import cuda

    q, k, v, schedule = data["q"], data["k"], data["v"], merged(case.schedule(data["q"].device))
    with poisoned():
        out, lse = cuda.forward(q, k, v, schedule, scale)
        return out, lse, cuda.backward(data["dout"], q, k, v, out, lse, schedule, scale)


def ranges_marked(run: Callable[[], object]) -> set[str]:
    # Without acc_events torch 2.11 warns that a profile of several cycles keeps the last one.
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as recorded:
        run()
    return {event.key for event in recorded.key_averages() if event.key.startswith("ffa_")}


def interpreted(case: Case) -> str:
    dtype, scale = torch.bfloat16 if case.dim == 128 else torch.float16, case.dim**-0.5
    data = draw(case, dtype, torch.device("cpu"), seed=len(case.name))
    return wrong(attend(case, data, scale), data, case, scale)


def dq_cast() -> str:
    """dQ's cast by Triton, which GPUs without nvcc take: its float32 sum has a thread's eight columns of 32 side by side."""
    from kernels.ffa.cuda import prepost

    total, dims = torch.randn(3, 70, 128, generator=torch.Generator().manual_seed(1)), torch.arange(128)
    expected = (total[:, :, (dims & ~30) | ((dims & 6) << 2) | ((dims & 24) >> 2)] * 0.5).transpose(0, 1).half()
    return "" if torch.equal(prepost.postprocess(total, 0.5, torch.float16), expected) else "another order of columns"


def a_nan_is_seen() -> str:
    """Of a key: rows that see it are NaN, and so are gradients that depend on them. Outputs of others are not."""
    case = Case("causal", 150, 150, 1, 1, lambda _: documents([150], CAUSAL), dim=64)
    data = draw(case, torch.float16, torch.device("cpu"), seed=3)
    data["k"][100] = torch.nan
    out, lse, (dq, _, dv) = attend(case, data, 0.1)
    rows = torch.arange(150) >= 100
    seen = [bool(t.reshape(150, -1).isnan().all(1)[rows].all()) for t in (out, lse.T, dq, dv)]
    clean = [not t.reshape(150, -1)[~rows].isnan().any() for t in (out, lse.T)]
    return "" if all(seen + clean) else f"rows that see a NaN: {seen}, others: {clean}"


CHECKS = {case.name: partial(interpreted, case) for case in [*slice_cases(96), *block_cases()]} | {
    "dq_cast": dq_cast, "a_nan_is_seen": a_nan_is_seen,
}  # fmt: skip
