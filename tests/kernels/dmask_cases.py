"""Masks that reach every branch of kernels/dmask, the float64 reference, and the tolerances; that the lists of tiles are used
just when they should be, and nothing beside them is read."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from unittest import mock

import torch

from kernels import dmask
from kernels.dmask import masked_attention, prepass
from tests.kernels.ffa_cases import judge, poisoned
from tests.workloads.conftest import load

NAMES = ("out", "dq", "dk", "dv")
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """Shapes, and the mask [planes of the batch, planes of the heads, sq, sk] that `draw` makes."""

    name: str
    sq: int
    sk: int
    mask: Callable[[torch.Tensor], torch.Tensor]  # fills an all-False mask
    batch: int = 1
    heads: int = 2
    kv_heads: int = 1
    planes: tuple[int, int] = (1, 1)
    dim: int = 64
    scale: float | None = None

    def __str__(self) -> str:
        return self.name


def random(density: float, seed: int = 1) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda m: torch.rand(m.shape, generator=torch.Generator().manual_seed(seed)) < density


def everything(m: torch.Tensor) -> torch.Tensor:
    return ~m


def causal(m: torch.Tensor) -> torch.Tensor:
    return (~m).tril(m.shape[3] - m.shape[2])


def tiles(visited: int, seed: int = 2) -> Callable[[torch.Tensor], torch.Tensor]:
    """Exactly `visited` tiles of 64 x 64 are not empty, of each plane others; every third of them is only partial."""

    def fill(m: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        across = -(-m.shape[3] // 64)
        for plane in m.flatten(0, 1):
            chosen = torch.randperm(-(-m.shape[2] // 64) * across, generator=generator)[:visited].tolist()
            for n, tile in enumerate(chosen):
                i, j = tile // across * 64, tile % across * 64
                plane[i : i + 64, j : j + 64] = True
                if n % 3 == 0:
                    plane[i + 5, j + 7] = False
        return m

    return fill


def strips(m: torch.Tensor) -> torch.Tensor:
    """Every other strip of 48 rows sees nothing at all, no row sees every other strip of 80 keys."""
    rows, keys = torch.arange(m.shape[2]) // 48 % 2, torch.arange(m.shape[3]) // 80 % 2
    return m | (rows[:, None] * keys[None, :] == 1)


def one_pair(m: torch.Tensor) -> torch.Tensor:
    m[..., 70, 130] = True
    return m


CASES = [
    Case("random", 130, 130, random(0.5), batch=2, planes=(2, 2)),
    Case("random_sparse", 190, 200, random(0.01), heads=2, kv_heads=2, planes=(1, 2)),  # rows without a key
    Case("causal_fewer_queries", 70, 200, causal, heads=4, kv_heads=2),
    Case("causal_fewer_keys", 200, 70, causal, heads=2),  # the first 130 rows see nothing
    Case("strips", 256, 256, strips, heads=1),
    Case("strips_tails", 250, 255, strips, dim=128, heads=1),
    Case("all", 192, 128, everything),
    Case("all_tails", 100, 130, everything, dim=128),
    Case("none", 128, 192, lambda m: m, batch=2),
    Case("one_pair", 128, 192, one_pair),
    Case("tiny", 1, 1, everything),
    Case("one_query", 1, 300, random(0.3)),
    Case("one_key", 150, 1, random(0.5)),
    Case("tiles_exactly_0.85", 256, 320, tiles(17), heads=1),  # 20 tiles: with lists
    Case("tiles_above_0.85", 256, 320, tiles(18), heads=1),  # without
    Case(
        "planes_of_both_kinds",
        256,
        320,
        lambda m: torch.cat([tiles(18)(m[:, :1]), tiles(3)(m[:, 1:])], 1),
        planes=(1, 2),
    ),
    Case("batches_share_heads_masks", 128, 192, tiles(3), batch=2, heads=2, kv_heads=2, planes=(1, 2)),
    Case("heads_share_batches_masks", 128, 192, tiles(3), batch=2, heads=2, planes=(2, 1)),
    Case("negative_scale", 100, 130, random(0.5), scale=-0.2),
]


def named(*names: str) -> Iterator[Case]:
    for name in names:
        yield next(case for case in CASES if case.name == name)


def draw(case: Case, dtype: torch.dtype, device: torch.device | str, seed: int) -> Tensors:
    """Fresh q, k, v, dout and the mask."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(tokens: int, heads: int) -> torch.Tensor:
        return torch.randn(case.batch, tokens, heads, case.dim, generator=generator, device=device).to(dtype)

    mask = case.mask(torch.zeros(*case.planes, case.sq, case.sk, dtype=torch.bool)).to(device)
    return {
        "q": normal(case.sq, case.heads),
        "k": normal(case.sk, case.kv_heads),
        "v": normal(case.sk, case.kv_heads),
        "dout": normal(case.sq, case.heads),
        "mask": mask,
    }


def reference(data: Tensors, scale: float | None, dtype: torch.dtype = torch.float64) -> Tensors:
    """out, dq, dk, dv by definition, in `dtype` throughout, with autograd."""
    leaves = [data[name].detach().to(dtype).requires_grad_() for name in ("q", "k", "v")]
    group = leaves[0].shape[2] // leaves[1].shape[2]
    q, k, v = (x.transpose(1, 2).repeat_interleave(g, 1) for x, g in zip(leaves, (1, group, group), strict=True))
    score = q @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    seen = data["mask"].any(-1, keepdim=True)
    p = score.masked_fill(~data["mask"], -torch.inf).masked_fill(~seen, 0.0).softmax(-1) * seen
    out = (p @ v).transpose(1, 2)
    grads = torch.autograd.grad(out, leaves, data["dout"].to(dtype))
    return dict(zip(NAMES, (out.detach(), *grads), strict=True))


def attend(data: Tensors, scale: float | None) -> Tensors:
    """out, dq, dk, dv of the package, into memory full of NaN."""
    leaves = [data[name].detach().requires_grad_() for name in ("q", "k", "v")]
    mask = data["mask"].to(torch.uint8)
    mask[..., ::2] *= 255  # True may be any byte but 0, as `view` makes it
    with poisoned():
        out = masked_attention(*leaves, mask.view(torch.bool), scale=scale)
        grads = torch.autograd.grad(out, leaves, data["dout"])
    return dict(zip(NAMES, (out.detach(), *grads), strict=True))


def wrong(got: Tensors, data: Tensors, scale: float | None) -> str:
    """Return all errors of out, dq, dk and dv; "" if there are none."""
    exact, naive = reference(data, scale), reference(data, scale, data["q"].dtype)
    exact = {name: t.where(t.abs() > 1e-12, 0.0) for name, t in exact.items()}  # zero: rows that see one key, say
    found = [judge(name, got[name], exact[name], naive[name]) for name in NAMES]
    planes = data["mask"].expand(data["q"].shape[0], data["q"].shape[2], -1, -1)
    blind = ~planes.any(-1).transpose(1, 2)
    if bool(got["out"][blind].any()) or bool(got["dq"][blind].any()):
        found.append("a row that sees nothing is not zero")
    group = data["q"].shape[2] // data["k"].shape[2]
    unseen = ~planes.any(-2).unflatten(1, (-1, group)).any(2).transpose(1, 2)
    if bool(got["dk"][unseen].any()) or bool(got["dv"][unseen].any()):
        found.append("a key that no row sees has a gradient")
    return "; ".join(filter(None, found))


# ---------------------------------------------------------------- questions: what is wrong, "" if nothing


def choice(device: str) -> str:
    """With lists that lie, a density of exactly 0.85 goes wrong and one above it does not, in every output."""
    if _with_lies("exactly", device) != [True] * 4:
        return "lists are not used at 0.85"
    return "lists are used above 0.85" if _with_lies("above", device) != [False] * 4 else ""


def _with_lies(name: str, device: str) -> list[bool]:
    """Which outputs are wrong if every list claims to be empty."""
    case = next(named(f"tiles_{name}_0.85"))
    data = draw(case, torch.float16, device, seed=4)
    make = prepass._lists

    def lie(*args: object) -> prepass.Lists:
        made = make(*args)  # type: ignore[arg-type]
        return replace(made, num=torch.zeros_like(made.num))

    with mock.patch.object(prepass, "_lists", lie):
        got = attend(data, None)
    exact, naive = reference(data, None), reference(data, None, torch.float16)
    return [bool(judge(n, got[n], exact[n], naive[n])) for n in NAMES]


def unvisited(device: str) -> str:
    """Blocks outside the lists are not read: NaN in them has no effect."""
    case = next(named("strips"))
    data = draw(case, torch.float16, device, seed=5)
    mask = torch.zeros_like(data["mask"])
    mask[..., :64, :128] = True
    mask[..., 128:, 128:192] = True  # rows 64 to 128 see nothing, no row sees keys from 192 on
    clean = attend(data | {"mask": mask}, None)
    data["q"][:, 64:128], data["dout"][:, 64:128] = torch.nan, torch.nan
    data["k"][:, 192:], data["v"][:, 192:] = torch.nan, torch.nan
    spoilt = attend(data | {"mask": mask}, None)
    return ", ".join(name for name in NAMES if not torch.equal(spoilt[name], clean[name]))


def a_nan_is_seen(device: str) -> str:
    """Of a key: the rows that see it are NaN, no others, and so is dv of every key that such a row sees."""
    (case,) = named("random_sparse")
    data = draw(case, torch.float16, device, seed=4)
    data["k"][:, 100] = torch.nan
    got = attend(data, None)
    mask = data["mask"].expand(case.batch, case.heads, -1, -1)
    rows, group = mask[..., 100], case.heads // case.kv_heads
    keys = (mask & rows[..., None]).any(2).unflatten(1, (-1, group)).any(2).transpose(1, 2)
    same = torch.equal(got["out"].isnan().any(3), rows.transpose(1, 2))
    return "" if same and rows.any() and not rows.all() and got["dv"][keys].isnan().all() else "other rows are NaN"


QUESTIONS = (choice, unvisited, a_nan_is_seen)


def of_case(case: Case) -> str:
    dtype = torch.bfloat16 if case.dim == 128 else torch.float16
    data = draw(case, dtype, "cpu", seed=len(case.name))
    return wrong(attend(data, case.scale), data, case.scale)


def of_workload() -> str:
    """Of workloads/dynamic_mask.py with the package: inputs, call, reference, check, both directions."""
    module = load("dynamic_mask")
    shape = {"seqlen": 130, "batch": 2, "nhq": 1, "nhk": 1, "mask_heads": 1, "hd": 64, "dtype": "fp16"}
    reasons = []
    for direction in ("fwd", "bwd"):
        one = {**shape, "pattern": "structured", "sparsity": 0.7, "direction": direction}
        inputs = module.inputs(one, "cpu", 3)
        found = module.check(one, module.prepare(dmask, None, one, inputs).call(), module.reference(one, inputs))
        reasons.append(found.reason)
    return "; ".join(filter(None, reasons))


CHECKS: dict[str, Callable[[], str]] = {
    **{question.__name__: partial(question, "cpu") for question in QUESTIONS},
    "workload": of_workload,
    **{case.name: partial(of_case, case) for case in CASES},
}
