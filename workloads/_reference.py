"""Attention in higher precision on sampled rows, and the check against it.

What is sampled. `out` and `dq` at query rows of every head, `dk` and `dv` at key rows: all of them up to 256, else one
random row of each of at least 256 strata of at most 128 rows, which is the size of tile attention kernels work in, and
the first and the last row. Each head draws its own rows from torch's generator. The judge of `--check outside` seeds it
by a number that the package cannot know: otherwise a package could compute those rows alone. `dk` and `dv` of a row
need the statistics of every query row; where that is too much for all heads, it is done for some random key heads, two
at least. A kernel goes wrong by tile, by head or everywhere, seldom in one row; and all of every output must be finite
and of the right shape.

The tolerance. Each sampled row's error, |out - ref| in the Euclidean norm over hd, may be TOLERANCE[dtype] times the
row's scale: the larger of |ref| and of what the row would be if its terms had random signs,
    out_i: sqrt(sum_j P_ij^2 |v_j|^2)        dq_i: sqrt(sum_j P_ij^2 (dP_ij^2 + D_i) |k_j|^2 / hd)
with D_i = delta_i^2 + |dout_i|^2 |out_i|^2 / hd for delta_i = dout_i . out_i, and likewise for dv and dk: rounding
errors grow with the terms and not with the sum where terms cancel, as in a causal mask's first rows, where dP = delta.
Correct kernels, torch's among them, were seen to err by 0.0035 to 0.008 of that scale in the worst of 32768 rows with
bfloat16, 0.0005 to 0.0012 with float16, and 2e-6 with float32. A left-out block of 64 keys among n changes a row by
sqrt(64 / n) of it: 0.09 at n = 8192 and 0.036 at n = 49152.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch

from abprof.kit import Check

from ._attention import DTYPES, Case, Tensors

TOLERANCE = {"fp32": 2e-5, "fp16": 2.5e-3, "bf16": 1.5e-2}
_STATISTICS_FLOPS = {"cpu": 1e10, "cuda": 6e12}  # for dk and dv: well under a second
_SLAB = {"cpu": 2**18, "cuda": 2**27}  # elements of one slab of scores: what a cache holds, and a small part of memory


class Mask(Protocol):
    """Which (query, key) pairs attend to each other."""

    def allowed(self, head: int, rows: torch.Tensor) -> torch.Tensor:
        """[len(rows), Sk] bool for one key head."""
        ...


class RowIntervals:
    """Row i attends to the keys lo[i] <= j < hi[i], the same for every head."""

    def __init__(self, lo: torch.Tensor, hi: torch.Tensor, keys: int) -> None:
        self.lo, self.hi = lo, hi
        self.keys = torch.arange(keys, device=lo.device)

    def allowed(self, head: int, rows: torch.Tensor) -> torch.Tensor:  # noqa: ARG002 - heads do not differ
        return (self.keys >= self.lo[rows, None]) & (self.keys < self.hi[rows, None])


class KeptBlocks:
    """`kept` [key heads, query blocks, key blocks] bool says which blocks attend."""

    def __init__(self, kept: torch.Tensor, q_block: int, k_block: int, keys: int) -> None:
        self.kept, self.q_block, self.k_block, self.keys = kept, q_block, k_block, keys

    def allowed(self, head: int, rows: torch.Tensor) -> torch.Tensor:
        return self.kept[head, rows // self.q_block].repeat_interleave(self.k_block, dim=1)[:, : self.keys]


def reference(case: Case, inputs: Tensors, mask: Mask, scale: float | None = None) -> dict[str, Tensors]:
    """Expected values by output name: heads [m], rows [m, n], values [m, n, hd], scale [m, n].

    `scale` multiplies the scores, 1/sqrt(hd) if None; another one is for forward cases only.
    float64 for float32 inputs and on a CPU, else float32 from the upcast inputs (which TF32 represents exactly, so a
    kernel package that turns TF32 on cannot spoil it).
    """
    work = torch.float64 if case["dtype"] == "fp32" or inputs["q"].device.type == "cpu" else torch.float32
    draw = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
    rows = _sample(case["nhq"], case["seqlen"], draw).to(inputs["q"].device)
    if case["direction"] == "fwd":
        sharpness = 1.0 if scale is None else scale * math.sqrt(case["hd"])
        return {"out": _query_side(inputs, mask, rows, work, sharpness)["out"]}
    heads = _sample_heads(case, inputs["q"].device.type, draw).to(inputs["q"].device)
    keys = _sample(len(heads), case["seqlen"], draw).to(inputs["q"].device)
    return {"dq": _query_side(inputs, mask, rows, work)["dq"], **_key_side(inputs, mask, heads, keys, work)}


def check(
    case: Case,
    outputs: torch.Tensor | Sequence[torch.Tensor],
    expected: dict[str, Tensors],
    tolerance: float | None = None,
) -> Check:
    """Every output finite and of the right shape everywhere, and within the tolerance, that of the dtype if None, at the
    sampled rows."""
    allowed = TOLERANCE[case["dtype"]] if tolerance is None else tolerance
    outs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    if len(outs) != len(expected):
        return Check(False, f"{len(outs)} outputs, {len(expected)} expected")
    worst_abs = worst_rel = 0.0
    for (name, sampled), out in zip(expected.items(), outs, strict=True):
        reason = _malformed(case, name, out)
        if reason:
            return Check(False, f"{name}: {reason}")
        want = {part: tensor.to(out.device) for part, tensor in sampled.items()}
        error = out.detach()[want["rows"], want["heads"][:, None]].double() - want["values"].double()
        worst_abs = max(worst_abs, float(error.abs().max()))
        worst_rel = max(worst_rel, float(error.abs().max()) / max(float(want["values"].abs().max()), 1e-30))
        floor = max(1e-6 * float(want["scale"].max()), 1e-30)  # rows that attend to nothing are zero, or nearly
        share = error.norm(dim=-1) / want["scale"].double().clamp_min(floor)
        if float(share.max()) > allowed:
            return Check(False, f"{name}: {_where(share, want, allowed)}", worst_abs, worst_rel)
    return Check(True, "", worst_abs, worst_rel)


def _malformed(case: Case, name: str, out: torch.Tensor) -> str:
    shape = (case["seqlen"], case["nhk"] if name in ("dk", "dv") else case["nhq"], case["hd"])
    if tuple(out.shape) != shape:
        return f"shape {tuple(out.shape)}, expected {shape}"
    if out.dtype != DTYPES[case["dtype"]]:
        return f"{out.dtype}, expected {DTYPES[case['dtype']]}"
    bad = sum(int((~part.isfinite()).sum()) for part in out.detach().split(4096))
    return f"{bad} of {out.numel()} values are NaN or infinite" if bad else ""


def _where(share: torch.Tensor, want: Tensors, tolerance: float) -> str:
    head, place = divmod(int(share.argmax()), share.shape[1])
    at = f"row {int(want['rows'][head, place])} of head {int(want['heads'][head])}"
    wrong = int((share > tolerance).sum())
    size = float(share.max())
    worst = f"{at} is off by {size:.3g} of its scale, allowed {tolerance:g}"
    return f"{wrong} of {share.numel()} sampled rows are wrong; {worst}"


def _query_side(
    inputs: Tensors, mask: Mask, rows: torch.Tensor, work: torch.dtype, sharpness: float = 1.0
) -> dict[str, Tensors]:
    """`out`, and `dq` where there is a dout, at rows [nhq, n] of every query head. `sharpness` multiplies the usual
    scale, for `out` alone."""
    group = inputs["q"].shape[1] // inputs["k"].shape[1]
    found = []
    for head, at in enumerate(rows):
        k, v = (inputs[name][:, head // group].to(work) for name in ("k", "v"))
        parts = []
        for some in at.split(_slab(k)):
            q = inputs["q"][some, head].to(work) * sharpness
            dout = inputs["dout"][some, head].to(work) if "dout" in inputs else None
            parts.append(_query_terms(q, dout, k, v, mask.allowed(head // group, some)))
        found.append([torch.cat(terms) for terms in zip(*parts, strict=True)])
    heads = torch.arange(len(found), device=rows.device)
    names = ("out", "dq") if "dout" in inputs else ("out",)
    return {name: _expected(heads, rows, [f[2 * i : 2 * i + 2] for f in found]) for i, name in enumerate(names)}


def _query_terms(
    q: torch.Tensor, dout: torch.Tensor | None, k: torch.Tensor, v: torch.Tensor, allowed: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """`out`, its squared scale, and with dout `dq` and its squared scale, of some query rows of one head."""
    p = _softmax(q @ k.T * _scale(k), allowed)
    out = p @ v
    square = p.square()
    if dout is None:
        return out, square @ _squares(v)
    dp = dout @ v.T
    delta, noise = _delta(dout, out)
    dq = (p * (dp - delta)) @ k * _scale(k)
    return out, square @ _squares(v), dq, (square * (dp.square() + noise)) @ _squares(k) * _scale(k) ** 2


def _key_side(
    inputs: Tensors, mask: Mask, heads: torch.Tensor, keys: torch.Tensor, work: torch.dtype
) -> dict[str, Tensors]:
    """`dk` and `dv` at keys [m, n] of the key heads [m], summed over the query heads of each group."""
    group = inputs["q"].shape[1] // inputs["k"].shape[1]
    found = []
    for head, at in zip(heads.tolist(), keys, strict=True):
        k, v = (inputs[name][:, head].to(work) for name in ("k", "v"))
        sums = [torch.zeros((), dtype=work, device=k.device)] * 4
        for q_head in range(head * group, (head + 1) * group):
            q, dout = (inputs[name][:, q_head].to(work) for name in ("q", "dout"))
            for rows in torch.arange(len(q), device=q.device).split(_slab(k)):
                terms = _key_terms(q[rows], dout[rows], k, v, at, mask.allowed(head, rows))
                sums = [total + term for total, term in zip(sums, terms, strict=True)]
        found.append(sums)
    return {name: _expected(heads, keys, [f[i : i + 2] for f in found]) for name, i in (("dk", 0), ("dv", 2))}


def _key_terms(
    q: torch.Tensor, dout: torch.Tensor, k: torch.Tensor, v: torch.Tensor, at: torch.Tensor, allowed: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """What some query rows of one head add to dk, dk's squared scale, dv and dv's squared scale at the keys `at`."""
    whole = _softmax(q @ k.T * _scale(k), allowed)
    delta, noise = _delta(dout, whole @ v)
    p = whole[:, at]
    dp = dout @ v[at].T
    square = p.square()
    return (
        (p * (dp - delta)).T @ q * _scale(k),
        (square * (dp.square() + noise)).T @ _squares(q) * _scale(k) ** 2,
        p.T @ dout,
        square.T @ _squares(dout),
    )


def _delta(dout: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Row sums of dout * out [n, 1], and D of the module's docstring."""
    delta = (dout * out).sum(1, keepdim=True)
    return delta, delta.square() + (_squares(dout) * _squares(out) / dout.shape[1])[:, None]


def _softmax(scores: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Row softmax over the allowed keys, in place; a row without any is zero."""
    scores.masked_fill_(~allowed, -math.inf)
    top = scores.amax(1, keepdim=True)
    scores.sub_(top.where(top.isfinite(), 0)).exp_()
    return scores.div_(scores.sum(1, keepdim=True).clamp_min(1e-30))


def _scale(k: torch.Tensor) -> float:
    return 1 / math.sqrt(k.shape[1])


def _squares(rows: torch.Tensor) -> torch.Tensor:
    return rows.square().sum(1)


def _slab(k: torch.Tensor) -> int:
    """Query rows whose scores are held at once."""
    return max(1, _SLAB[k.device.type] // len(k))


def _expected(heads: torch.Tensor, rows: torch.Tensor, found: list[list[torch.Tensor]]) -> Tensors:
    """(values [n, hd], squared random-sign scale [n]) of each head as one record."""
    values = torch.stack([value for value, _ in found])
    scale = torch.stack([square for _, square in found]).sqrt()
    return {"heads": heads, "rows": rows, "values": values, "scale": torch.maximum(scale, values.norm(dim=-1))}


def _sample(heads: int, length: int, draw: torch.Generator) -> torch.Tensor:
    """Sorted row indices [heads, n]: all, or one of each stratum and the first and the last row."""
    count = max(min(length, 256), math.ceil(length / 128))
    edges = torch.arange(count + 1) * length // count
    inside = (torch.rand(heads, count, generator=draw) * (edges[1:] - edges[:-1])).long()
    ends = torch.tensor([0, length - 1]).expand(heads, 2) if count < length else inside[:, :0]
    return torch.cat([edges[:-1] + inside, ends], 1).sort(1).values


def _sample_heads(case: Case, device: str, draw: torch.Generator) -> torch.Tensor:
    """Sorted key heads whose dk and dv are looked at: as many as the budget allows, at least two."""
    cost = 4.0 * case["seqlen"] ** 2 * case["hd"] * case["nhq"] / case["nhk"]
    count = min(case["nhk"], max(2, int(_STATISTICS_FLOPS[device] / cost)))
    return torch.randperm(case["nhk"], generator=draw)[:count].sort().values
