"""A workload without a reference: the sides' outputs are compared with each other, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from abprof.records import CheckResult
from abprof.records import messages as wire
from abprof.verdict.guarantees import weaker
from abprof.worker.api import Unsupported, agree
from abprof.worker.returned import refuse_incomparable, returned
from tests import runs
from tests.workloads.worker import side

PACKAGE = """
import torch
def double(x, wrong=0.0): return x * 2 + wrong
class Pair:
    def __init__(self, x, wrong=0.0):
        self.out, self.lse, self._scratch, self.name = x * 2, x.sum() + wrong, torch.empty(9), "a word"
"""
WORKLOAD = """
import torch
from abprof.kit import Op
API = 1
KERNEL = "tiny"
PRESETS = {"default": {"what": ["tensor", "wrong", "nothing", "own", "own wrong"]}}

def inputs(case, device, seed):
    return torch.randn(64)

def prepare(kernel, variant, case, x):
    return Op({"tensor": lambda: kernel.double(x), "wrong": lambda: (kernel.double(x, 0.5), "a word"),
               "nothing": lambda: None, "own": lambda: kernel.Pair(x), "own wrong": lambda: kernel.Pair(x, 0.5)}[case["what"]])
"""


def test_base_tells_what_the_others_are_to_agree_with(tmp_path: Path) -> None:
    (tmp_path / "kernels" / "tiny").mkdir(parents=True)
    (tmp_path / "kernels" / "tiny" / "__init__.py").write_text(PACKAGE)
    load = tmp_path / "alone.py"
    load.write_text(WORKLOAD)
    with side(tmp_path / "kernels", "tiny", [load], tmp_path) as worker:
        assert worker.ask(wire.Describe("alone")).checked == "sides"
        worker.open("alone", {"what": "tensor"})
        assert worker.check().ok
        worker.open("alone", {"what": "tensor"}, arm="target")
        same = worker.check("target")
        assert (same.ok, same.max_abs) == (True, 0.0)
        worker.open("alone", {"what": "wrong"}, arm="target2")
        other = worker.check("target2")
        assert not other.ok
        assert other.reason.startswith("the sides do not agree: output 0: largest error 0.5")
        worker.open("alone", {"what": "nothing"}, arm="base")
        nothing = worker.check("base", expected="other")
        assert (nothing.ok, nothing.facts) == (True, {"checked": "nothing: a call returns no tensor"})
        assert (nothing.digest, nothing.max_abs) == ("", None), "of nothing no bits are equal"
        assert not nothing.compared, "that is no agreement"
        worker.open("alone", {"what": "own"}, arm="base")
        assert worker.check("base", expected="own").ok
        worker.open("alone", {"what": "own wrong"}, arm="target")
        own = worker.check("target", expected="own")
        assert (own.ok, own.reason[:46]) == (False, "the sides do not agree: output 0: largest erro")
        assert (own.compared, own.digest) == (True, "")
        assert own.facts == {"checked": "2 tensors; not compared: Pair._scratch, Pair.name"}


@pytest.mark.parametrize(
    ("out", "ref", "said"),
    [
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0005, float("nan")]), ""),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, float("nan")]), "output 0: 1 of 2 values are NaN"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "output 0: largest error 1, allowed 0"),
        (torch.ones(2).half(), torch.ones(2), "outputs of float16, and base's are of float32"),
        (torch.ones(2).bfloat16() * 1.01, torch.ones(2).bfloat16(), ""),
        (torch.ones(2), torch.ones(3), "output 0: shape (2,), expected (3,)"),
        ([torch.ones(2), torch.ones(2)], [torch.ones(2), torch.zeros(2)], "output 1: largest error 1, allowed 0"),
        ([], [], ""),
    ],
)
def test_outputs_agree_by_the_dtype(out: object, ref: object, said: str) -> None:
    found = agree(out, ref)
    assert found.ok == (not said)
    assert found.reason.removeprefix("the sides do not agree: ") == said


def test_every_page_says_that_there_was_no_reference() -> None:
    plain = runs.run()
    assert weaker(plain) == ()
    load, *others = plain.workloads
    (line,) = weaker(runs.changed(plain, workloads=(runs.changed(load, checked="sides"), *others)))
    assert line.startswith("Weaker guarantee: dense has no reference. That the sides' outputs agree is all")


def test_of_one_branch_alone_it_says_that_nothing_was_checked() -> None:
    plain = runs.single()
    load, *others = plain.workloads
    (line,) = weaker(runs.changed(plain, workloads=(runs.changed(load, checked="sides"), *others)))
    assert line.endswith(
        "one branch alone has no other side whose outputs could agree: what a call returns was not checked."
    )


def test_what_is_nan_throughout_agrees_with_nothing() -> None:
    nans = torch.full((3,), float("nan"))
    found = agree([torch.ones(1), nans], [torch.ones(1), nans.clone()])
    assert (found.ok, found.reason) == (False, "output 1: every value is NaN on both sides: nothing can be compared")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: [torch.ones(2, 2).to_sparse()], "a tensor of layout torch.sparse_coo"),
        (lambda: {"out": (torch.ones(1), (one for one in [torch.ones(1)]))}, "a generator"),
    ],
)
def test_outputs_that_would_be_passed_over_are_unsupported(made: Callable[[], object], said: str) -> None:
    with pytest.raises(Unsupported, match=f"a call returns {said}"):
        refuse_incomparable(made())
    refuse_incomparable([torch.ones(1), "a word", None, object()])


@dataclass
class Both:
    out: torch.Tensor
    beside: object = None


class Slotted:
    __slots__ = ("lse", "out")

    def __init__(self, out: torch.Tensor, lse: torch.Tensor) -> None:
        self.out, self.lse = out, lse


class Any_:
    def __init__(self, **held: object) -> None:
        self.__dict__.update(held)


ONE, TWO = torch.ones(1), torch.full((2,), 2.0)
AROUND = Any_(out=ONE)
AROUND.__dict__["back"] = AROUND


@pytest.mark.parametrize(
    ("results", "tensors", "line"),
    [
        ((ONE, None, {"a": [TWO]}), [ONE, TWO], ""),
        (Both(ONE, Both(TWO)), [ONE, TWO], ""),
        (Slotted(TWO, ONE), [ONE, TWO], ""),
        (Any_(b=TWO, a=ONE), [ONE, TWO], ""),
        (AROUND, [ONE], ""),
        (TWO.numpy(), [TWO], ""),
        ((ONE, 3, 4, "a word"), [ONE], "1 tensor; not compared: int, str"),
        (Any_(out=ONE, stream=object(), _kept=TWO, _n=3), [ONE], "1 tensor; not compared: Any_._kept, Any_.stream"),
        (Both(ONE, TWO.to_sparse()), [ONE], "1 tensor; not compared: Both.beside"),
        (Both(ONE, torch.relu), [ONE], "1 tensor; not compared: Both.beside"),
        (Any_(_n=3), [], "nothing: a call returns no tensor, but Any_"),
        (7, [], "nothing: a call returns no tensor, but int"),
        ([Any_(**{f"x{n}": n for n in range(8)})], [], "Any_.x4 and 3 more"),
        (None, [], "nothing: a call returns no tensor"),
        ([], [], "nothing: a call returns no tensor"),
    ],
)
def test_tensors_are_found_wherever_they_are_and_the_rest_is_named(
    results: object, tensors: list[torch.Tensor], line: str
) -> None:
    found = returned(results)
    assert [tuple(t.tolist()) for t in found.tensors] == [tuple(t.tolist()) for t in tensors]
    assert found.line.endswith(line)
    assert bool(found.line) == bool(line)


def test_cells_of_which_nothing_was_compared_are_told() -> None:
    plain = runs.run()
    load, *others = plain.workloads
    seen, *rest = [one for one in plain.observations if one.check]
    blind = runs.changed(seen, check=CheckResult(ok=True, compared=False))
    run = runs.changed(
        plain, workloads=(runs.changed(load, checked="sides"), *others), observations=(blind, *plain.observations)
    )
    _, line = weaker(run)
    assert line.startswith("Of 1 cell not even that")
    assert rest
