"""Inputs of timed calls under --untrusted (abprof/worker/drawn.py)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from abprof.worker import drawn

CPU = torch.device("cpu")


def made(seed: int, **more: Any) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(seed)
    mask = torch.rand(8, 8, generator=draw) > 0.5
    return {"x": torch.randn(64, generator=draw), "mask": mask, "first": mask.int().argmax(1), **more}


def calls(make: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    """The inputs of forty calls."""
    inputs, found = make(1), []
    mixing = drawn.mixer(inputs, drawn.mixtures(make(1), make(2)), CPU)
    for number in range(40):
        mixing(drawn.seed(7, number, []))
        found.append({name: t.clone() for name, t in inputs.items() if name in made(1)})
    return found


def test_inputs_without_a_mixture_stay_as_they_are() -> None:
    indexes = torch.arange(4)
    drawn.mixer([indexes], [None], CPU)(3)
    assert indexes.tolist() == [0, 1, 2, 3]


def test_masks_and_the_indexes_made_of_them_change_together() -> None:
    found = calls(made)
    masks = {str(each["mask"].tolist()) for each in found}
    assert masks == {str(made(seed)["mask"].tolist()) for seed in (1, 2)}
    assert all(torch.equal(each["first"], each["mask"].int().argmax(1)) for each in found)
    assert len({str(each["x"].tolist()) for each in found}) == 40


@pytest.mark.parametrize(
    "more",
    [
        lambda seed: {"longest": seed},
        lambda seed: {"lengths": torch.arange(seed)},
        lambda seed: {"one_for_all": torch.tensor([seed]).expand(5)},
        lambda seed: {"plan": object()},
    ],
)
def test_masks_stay_where_values_that_cannot_change_may_belong_to_them(more: Callable[[int], dict[str, Any]]) -> None:
    found = calls(lambda seed: made(seed, **more(seed)))
    assert {str(each["mask"].tolist()) for each in found} == {str(made(1)["mask"].tolist())}
    assert len({str(each["x"].tolist()) for each in found}) == 40


def test_what_a_call_returned_does_not_choose_the_next_integers() -> None:
    """The float inputs depend on it; the integers come in turns, so a side cannot have the quicker ones more often."""
    returned = [torch.full((4,), float(number)) for number in range(20)]
    seeds = [[drawn.seed(8, number, before) for before in returned] for number in range(4)]
    assert [len(set(each)) for each in seeds] == [20] * 4
    assert [{seed & 1 for seed in each} for each in seeds] == [{0}, {1}, {0}, {1}]
