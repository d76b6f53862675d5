"""Digests and samples of outputs, and the reference that is computed once."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from abprof.worker import outputs


def digest(values: Any, folder: Path) -> str:
    return outputs.sample(values, folder / "digest.sample", None)[0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8, torch.bool])
def test_equal_bits_are_equal_digests(tmp_path: Path, dtype: torch.dtype) -> None:
    values = (torch.arange(200_000) % 2).to(dtype)
    assert digest(values, tmp_path) == digest([values.clone()], tmp_path)
    other = values.clone()
    other[123_457] = 1 - other[123_457].int()
    assert digest(other, tmp_path) != digest(values, tmp_path), "one element that is not among the sampled ones"


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (torch.tensor([1.0]), torch.tensor([1.0]).nextafter(torch.tensor([2.0]))),
        (torch.tensor([0.0]), torch.tensor([-0.0])),
        (torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.zeros(2, dtype=torch.float32), torch.zeros(2, dtype=torch.int32)),
        ([torch.zeros(1), torch.ones(1)], [torch.ones(1), torch.zeros(1)]),
    ],
)
def test_any_other_bits_are_another_digest(tmp_path: Path, one: Any, two: Any) -> None:
    assert digest(one, tmp_path) != digest(two, tmp_path)


def test_a_view_counts_as_what_it_shows(tmp_path: Path) -> None:
    values = torch.randn(64, 32)
    assert digest(values.t(), tmp_path) == digest(values.t().contiguous(), tmp_path)


def test_the_largest_difference_from_the_base(tmp_path: Path) -> None:
    base = [torch.zeros(1000), torch.zeros(0)]
    _, none = outputs.sample(base, tmp_path / "base", None)
    target = [torch.zeros(1000), torch.zeros(0)]
    target[0][17] = -0.25
    _, worst = outputs.sample(target, tmp_path / "target", tmp_path / "base")
    assert (none, worst) == (None, 0.25)
    target[0][3] = float("nan")
    assert outputs.sample(target, tmp_path / "target", tmp_path / "base")[1] is None, "JSON has no NaN"
    assert outputs.sample([torch.zeros(3)], tmp_path / "t", tmp_path / "base")[1] is None, "other shapes"
    assert outputs.sample(target, tmp_path / "t", tmp_path / "not there")[1] is None


def test_the_reference_is_computed_once_for_all_workers(tmp_path: Path) -> None:
    made = []

    def make() -> dict[str, torch.Tensor]:
        made.append(1)
        return {"out": torch.arange(3.0)}

    for _ in range(3):
        assert outputs.expected(tmp_path / "expected", make)["out"].tolist() == [0.0, 1.0, 2.0]
    assert made == [1]


def test_a_reference_that_fails_leaves_no_half_file(tmp_path: Path) -> None:
    with pytest.raises(AttributeError):  # a lambda cannot be stored
        outputs.expected(tmp_path / "expected", lambda: lambda: None)
    assert list(tmp_path.iterdir()) == []


class Planted:
    """An object whose loading makes a file."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.made,)


@pytest.mark.gpu
def test_a_reference_is_read_on_the_device_where_it_was_made(tmp_path: Path) -> None:
    """Or a check would meet it on the device in the first worker, and on the host in all others."""
    made = {"there": torch.arange(3.0, device="cuda"), "here": torch.arange(3.0)}
    for read in (outputs.expected(tmp_path / "expected", lambda: made), outputs.expected(tmp_path / "expected", dict)):
        assert [value.device.type for value in read.values()] == ["cuda", "cpu"]


@pytest.mark.parametrize("read", [outputs.expected, outputs.agreed])
def test_a_planted_file_brings_no_code_along(tmp_path: Path, read: Any) -> None:
    """Who may not be told apart from a worker may have written it. A reference is computed anew; where the first side's
    outputs are all there is, nothing stands in for them."""
    torch.save({"out": Planted(tmp_path / "ran")}, tmp_path / "expected")
    if read is outputs.expected:
        assert read(tmp_path / "expected", lambda: 7) == 7
    else:
        with pytest.raises(ValueError, match="hold more than tensors"):
            read(tmp_path / "expected", lambda: 7)
    assert not (tmp_path / "ran").exists()


def test_a_planted_sample_brings_no_code_along(tmp_path: Path) -> None:
    torch.save([Planted(tmp_path / "ran")], tmp_path / "base")
    with pytest.raises(pickle.UnpicklingError):
        outputs.sample([torch.zeros(1)], tmp_path / "target", tmp_path / "base")
    assert not (tmp_path / "ran").exists()


def test_a_reference_of_any_objects_still_works(tmp_path: Path) -> None:
    """Each worker has its own, then."""
    for _ in range(2):
        values = outputs.expected(tmp_path / "expected", lambda: Held(torch.arange(3.0), {}))
        assert values.q.tolist() == [0.0, 1.0, 2.0]


def test_outputs_that_are_no_tensors(tmp_path: Path) -> None:
    for bad in (3.0, [torch.zeros(1), "text"]):
        with pytest.raises(TypeError, match="outputs must be tensors, not"):
            outputs.sample(bad, tmp_path / "x", None)


@dataclass
class Held:
    q: torch.Tensor
    more: dict[str, Any]


def test_inputs_are_seen_through_sequences_mappings_and_dataclasses() -> None:
    inputs = Held(torch.zeros(3), {"k": [torch.zeros(3), (torch.zeros(3), "text")], "n": 3})
    before = outputs.input_digests(inputs)
    assert len(before) == 3
    inputs.more["k"][1][0][2] = 1.0
    after = outputs.input_digests(inputs)
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True, False]


def test_finite() -> None:
    assert [outputs.finite(value) for value in (None, float("nan"), float("inf"), -1.5)] == [None, None, None, -1.5]
