"""The worker's exam of an arm: what it is judged by, and on which inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from abprof.records import messages as wire
from abprof.worker import outputs
from abprof.worker.bench import Bench
from abprof.worker.checks import OVERWRITTEN

WORKLOAD = """
import torch
from abprof.kit import Check, Op, compare
API, KERNEL, PRESETS = 1, "k", {"default": {"n": [64]}}
def inputs(case, device, seed):
    return {"x": torch.randn(case["n"])}  # the process's own generator: abprof seeds it
def prepare(kernel, variant, case, inputs):
    kept = inputs["x"].clone()
    return Op(lambda: kernel.double(inputs["x"]), (lambda: inputs["x"].copy_(kept)) if RESETS else None)
def reference(case, inputs):
    return inputs["x"].double() * 2
def check(case, outputs, expected):
    return compare(outputs, expected, rtol=1e-6, atol=0.0)
"""


def correct(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def destroys(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    x.zero_()
    return y


def in_place(x: torch.Tensor) -> torch.Tensor:
    return x.mul_(2)


def examined(
    folder: Path, double: Callable[[torch.Tensor], torch.Tensor], *, resets: bool = False
) -> tuple[wire.Checked, Bench]:
    """What a worker that holds this kernel answers to `check`, after `open` has called it several times."""
    source = folder / ("with_reset.py" if resets else "without.py")  # a worker imports a workload once
    source.write_text(f"RESETS = {resets}\n" + WORKLOAD)
    bench = Bench(wire.Start("cpu", "base", workloads={source.stem: str(source)}, scratch=str(folder)))
    bench.kernel = SimpleNamespace(double=double)  # type: ignore[assignment]
    bench.open(wire.Open(source.stem, {"n": 64}, "base", seed=7, placement=3))
    return bench.check(wire.Check("base", "case.expected", "base.sample", "")), bench


def test_a_base_that_destroys_its_inputs_does_not_spoil_the_exam_of_the_target(tmp_path: Path) -> None:
    base, _ = examined(tmp_path, destroys)
    assert (base.ok, base.reason) == (False, OVERWRITTEN)
    target, _ = examined(tmp_path, correct)
    assert (target.ok, target.max_abs) == (True, 0.0)


def test_a_kernel_that_destroys_its_inputs_is_judged_by_its_first_call(tmp_path: Path) -> None:
    """Its answer was right, so that the reason named is the overwriting and not the zeros of a later call."""
    checked, _ = examined(tmp_path, destroys)
    assert (checked.max_abs, checked.reason) == (0.0, OVERWRITTEN)


def test_a_wrong_answer_is_called_wrong_whatever_it_did_to_its_inputs(tmp_path: Path) -> None:
    checked, _ = examined(tmp_path, lambda x: x.zero_())
    assert not checked.ok
    assert "largest error" in checked.reason


def test_an_in_place_kernel_with_a_reset_passes(tmp_path: Path) -> None:
    checked, _ = examined(tmp_path, in_place, resets=True)
    assert (checked.ok, checked.reason) == (True, "")


def test_the_arm_is_open_after_its_exam_and_takes_turns(tmp_path: Path) -> None:
    calls: list[int] = []
    _, bench = examined(tmp_path, lambda x: (calls.append(1), x * 2)[1])
    seen = len(calls)
    assert bench.turn(wire.Turn("base", 5, "cpu_clock")).value > 0
    assert len(calls) >= seen + 5


def test_an_arm_whose_exam_raised_is_not_timed(tmp_path: Path) -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) > opened:
            raise RuntimeError("out of luck")
        return x * 2

    calls: list[int] = []
    opened = 1 << 30
    _, bench = examined(tmp_path, fails)
    opened = 0
    with pytest.raises(RuntimeError, match="out of luck"):
        bench.check(wire.Check("base", "case.expected", "base.sample", ""))
    with pytest.raises(KeyError):
        bench.turn(wire.Turn("base", 5, "cpu_clock"))


@dataclasses.dataclass
class Held:
    x: torch.Tensor
    name: str = "held"


@pytest.mark.parametrize("wrap", [
    lambda x: x, lambda x: (x, "text", 3), lambda x: [{"a": {"x": x}}], Held, lambda x: [x.t()],
])  # fmt: skip
def test_a_changed_input_is_seen_wherever_it_is_held(wrap: Callable[[torch.Tensor], Any]) -> None:
    x = torch.full((4, 8), float("nan"), dtype=torch.bfloat16)
    before = outputs.input_digests(wrap(x))
    assert before == outputs.input_digests(wrap(x))
    x[2, 3] = 1
    assert before != outputs.input_digests(wrap(x))


def test_inputs_without_tensors_have_nothing_to_compare() -> None:
    assert outputs.input_digests("text") == outputs.input_digests(None) == []
    assert len(outputs.input_digests([torch.tensor(1.0), torch.empty(0)])) == 2
