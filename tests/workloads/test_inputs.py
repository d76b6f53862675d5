"""Inputs: the same seed gives the same bytes, another one others; never zeros; the masks are what they say."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from abprof.worker.api import Unsupported
from tests.workloads.conftest import case, cases


def test_every_smoke_case_has_inputs(either: ModuleType) -> None:
    for one in cases(either, "smoke"):
        made = either.inputs(one, "cpu", 1)
        assert made["q"].shape == (one["seqlen"], one["nhq"], one["hd"])
        assert made["k"].shape == made["v"].shape == (one["seqlen"], one["nhk"], one["hd"])
        assert ("dout" in made) == (one["direction"] == "bwd")
        for name in set(made) & {"q", "k", "v", "dout"}:
            assert 0.95 < float(made[name].std()) < 1.05


def test_same_seed_same_bytes(either: ModuleType) -> None:
    one = case(either, direction="bwd")
    first, again, other = (either.inputs(one, "cpu", seed) for seed in (3, 3, 4))
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["q"], other["q"])
    assert len({float(first[name].flatten()[0]) for name in ("q", "k", "v", "dout")}) == 4


@pytest.mark.parametrize("mask_type", ["full", "causal", "varlen_full", "varlen_causal"])
def test_slices_cover_the_tokens_once(dense: ModuleType, mask_type: str) -> None:
    slices = dense.slices(case(dense, "full", mask_type=mask_type))
    assert [end - begin for begin, end, _ in slices] == dense.lengths(mask_type, 8192)
    assert [begin for begin, _, _ in slices] == [0, *(end for _, end, _ in slices[:-1])]
    assert {kind for _, _, kind in slices} == {dense.CAUSAL if mask_type.endswith("causal") else dense.FULL}


def test_impossible_case_is_unsupported(either: ModuleType) -> None:
    with pytest.raises(Unsupported, match="no multiple"):
        either.inputs(case(either, nhq=6, nhk=4), "cpu", 1)
