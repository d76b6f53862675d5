"""The pre-pass of kernels/dmask by brute force, and that the lists are used just when they should be.

Each question answers with what is wrong, "" if nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from unittest import mock

import torch

from kernels import dmask
from kernels.dmask import prepass
from tests.kernels import dmask_cases as cases
from tests.workloads.conftest import load


def mixed(device: str) -> torch.Tensor:
    """[2, 2, 300, 500]: empty, full, partial tiles and tails; one plane without anything, one with everything."""
    generator = torch.Generator().manual_seed(3)
    coarse = torch.randint(0, 3, (2, 2, 5, 8), generator=generator)
    fine = coarse.repeat_interleave(64, 2).repeat_interleave(64, 3)[..., :300, :500]
    mask = (fine == 2) | ((fine == 1) & (torch.rand(fine.shape, generator=generator) < 0.001))
    mask[0, 1], mask[1, 1] = False, True
    mask[1, 1, 70, 200] = False  # nearly full is partial
    return mask.to(device)


def expected_classes(mask: torch.Tensor) -> torch.Tensor:
    planes = torch.nn.functional.pad(mask.flatten(0, 1), (0, 12, 0, 20)).unflatten(2, (8, 64)).unflatten(1, (5, 64))
    kept = planes.sum((2, 4))
    return (kept > 0).to(torch.uint8) + (kept == 4096).to(torch.uint8)


def classes(device: str) -> str:
    mask = mixed(device)
    found = prepass.classify(mask)
    if not torch.equal(found.tiles, expected_classes(mask)) or len(found.tiles.unique()) < 3:
        return "classes"
    if not torch.equal(found.counts[:, 0], found.tiles.bool().flatten(1).sum(1)):
        return "visited tiles"
    return "" if torch.equal(found.counts[:, 1], mask.flatten(0, 1).flatten(1).sum(1)) else "kept pairs"


def lists(device: str) -> str:
    found = prepass.classify(mixed(device))
    for made, tiles in ((prepass.row_lists(found), found.tiles), (prepass.column_lists(found), found.tiles.mT)):
        for plane, i in torch.cartesian_prod(*map(torch.arange, tiles.shape[:2])).tolist():
            line = tiles[plane, i].tolist()
            full, part = ([t for t, c in enumerate(line) if c == want] for want in (2, 1))
            if made.num[plane, i].tolist() != [len(full), len(full + part)]:
                return f"lengths of list {i} of plane {plane}"
            if made.index[plane, i, : len(full + part)].tolist() != full + part:
                return f"list {i} of plane {plane}"
    return ""


def choice(device: str) -> str:
    """With lists that lie, a density of exactly 0.85 goes wrong and one above it does not, in every output."""
    if _with_lies("exactly", device) != [True] * 4:
        return "lists are not used at 0.85"
    return "lists are used above 0.85" if _with_lies("above", device) != [False] * 4 else ""


def _with_lies(name: str, device: str) -> list[bool]:
    """Which outputs are wrong if every list claims to be empty."""
    case = next(cases.named(f"tiles_{name}_0.85"))
    data = cases.draw(case, torch.float16, device, seed=4)
    make = prepass._lists

    def lie(*args: object) -> prepass.Lists:
        made = make(*args)  # type: ignore[arg-type]
        return replace(made, num=torch.zeros_like(made.num))

    with mock.patch.object(prepass, "_lists", lie):
        got = cases.attend(data, None)
    exact, naive = cases.reference(data, None), cases.reference(data, None, torch.float16)
    return [bool(cases.judge(n, got[n], exact[n], naive[n])) for n in cases.NAMES]


def unvisited(device: str) -> str:
    """Blocks outside the lists are not read: NaN in them has no effect."""
    case = next(cases.named("strips"))
    data = cases.draw(case, torch.float16, device, seed=5)
    mask = torch.zeros_like(data["mask"])
    mask[..., :64, :128] = True
    mask[..., 128:, 128:192] = True  # rows 64 to 128 see nothing, no row sees keys from 192 on
    clean = cases.attend(data | {"mask": mask}, None)
    data["q"][:, 64:128], data["dout"][:, 64:128] = torch.nan, torch.nan
    data["k"][:, 192:], data["v"][:, 192:] = torch.nan, torch.nan
    spoilt = cases.attend(data | {"mask": mask}, None)
    return ", ".join(name for name in cases.NAMES if not torch.equal(spoilt[name], clean[name]))


QUESTIONS = (classes, lists, choice, unvisited)


def of_case(case: cases.Case) -> str:
    dtype = torch.bfloat16 if case.dim == 128 else torch.float16
    data = cases.draw(case, dtype, "cpu", seed=len(case.name))
    return cases.wrong(cases.attend(data, case.scale), data, case.scale)


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
    **{case.name: partial(of_case, case) for case in cases.CASES},
}
