"""Whether outputs are right: compare and agree of the workload API, and the checks of a worker."""

import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from abprof.records import messages as wire
from abprof.worker import checks
from abprof.worker.api import agree, compare
from tests.workloads.worker import Side, written

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("out", "ref", "reason"),
    [
        ([1.0, 2.0], [1.0, 2.0], ""),
        ([1.0, 2.5], [1.0, 2.0], "output 0: largest error 0.5, allowed 0.02"),
        ([1.0, NAN], [1.0, NAN], "output 0: 1 of 2 values are NaN"),
        ([2.0, -INF], [2.0, -INF], ""),  # the log-sum-exp of a row that is masked whole
        ([3.0, INF], [2.0, INF], "output 0: largest error 1, allowed 0.02"),  # an infinite scale would allow anything
        ([2.0, INF], [2.0, -INF], "output 0: 1 of 2 values are infinite on one side only"),
        ([2.0, 1.0], [2.0, INF], "output 0: 1 of 2 values are infinite on one side only"),
    ],
)
def test_compare_wants_every_element_and_infinities_in_place(out: list[float], ref: list[float], reason: str) -> None:
    checked = compare(torch.tensor(out), torch.tensor(ref), rtol=0.01, atol=0.0)
    assert (checked.ok, checked.reason) == (not reason, reason)


@pytest.mark.parametrize(
    ("out", "ref", "reason"),
    [
        (torch.tensor([1.0, NAN]), torch.tensor([1.0005, NAN]), ""),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, NAN]), "output 0: 1 of 2 values are NaN"),
        (torch.tensor([NAN]), torch.tensor([NAN]), "output 0: every value is NaN on both sides"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "output 0: largest error 1, allowed 0"),
        (torch.ones(2).half(), torch.ones(2), "outputs are float16, those of the other side float32"),
        (torch.ones(2).bfloat16() * 1.01, torch.ones(2).bfloat16(), ""),
        (torch.ones(2), torch.ones(3), "output 0: shape (2,), expected (3,)"),
        ([torch.ones(2), torch.ones(2)], [torch.ones(2), torch.zeros(2)], "output 1: largest error 1, allowed 0"),
        ([], [], ""),
    ],
)
def test_agree_goes_by_the_dtype(out: object, ref: object, reason: str) -> None:
    found = agree(out, ref)
    assert (found.ok, found.reason.removeprefix("the sides do not agree: ")) == (not reason, reason)


# ---------------------------------------------------------------- what a call returned


class Late(torch.Tensor):
    """A tensor that could compute when it is read."""


class Lazy(list[torch.Tensor]):
    def __getitem__(self, at: Any) -> Any:
        raise AssertionError("read")


@pytest.mark.parametrize(
    ("results", "by_hand", "strict"),
    [
        (torch.ones(1), "", ""),
        (torch.nn.Parameter(torch.ones(1)), "", ""),
        ({"a": [torch.ones(1), None, 3], "b": (torch.ones(1),)}, "", ""),
        (torch.ones(2).max(0), "", "max, which may compute when it is read: return a tuple"),
        (torch.ones(1).to_sparse(), "", "tensor of layout torch.sparse_coo: return a dense one"),
        (torch.ones(1).as_subclass(Late), "Late, which may compute when it is read: return a torch.Tensor", "Late"),
        ([Lazy([torch.ones(1)])], "Lazy, which may compute when it is read: return a list", "Lazy"),
        (iter([torch.ones(1)]), "list_iterator: return tensors, or lists", "list_iterator"),
        (torch.ones(1).numpy(), "", "ndarray: return tensors"),
    ],
)
def test_outputs_that_could_compute_when_they_are_read(results: Any, by_hand: str, strict: str) -> None:
    for said, reason in ((checks.lazy(results), by_hand), (checks.lazy(results, strict=True), strict)):
        assert (reason in said) if reason else not said


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
CYCLE = Any_(out=ONE)
CYCLE.__dict__["back"] = CYCLE


@pytest.mark.parametrize(
    ("results", "tensors", "line"),
    [
        ((ONE, None, {"a": [TWO]}), [ONE, TWO], ""),
        (Both(ONE, Both(TWO)), [ONE, TWO], ""),
        (Slotted(TWO, ONE), [ONE, TWO], ""),
        (Any_(b=TWO, a=ONE), [ONE, TWO], ""),
        (CYCLE, [ONE], ""),
        (TWO.numpy(), [TWO], ""),
        ((ONE, 3, 4, "a word"), [ONE], "1 tensor; not compared: int, str"),
        (Any_(out=ONE, stream=object(), _kept=TWO, _n=3), [ONE], "1 tensor; not compared: Any_._kept, Any_.stream"),
        (Both(ONE, TWO.to_sparse()), [ONE], "1 tensor; not compared: Both.beside"),
        (Any_(_n=3), [], "nothing: a call returns no tensor, but Any_"),
        ([Any_(**{f"x{n}": n for n in range(8)})], [], "Any_.x4 and 3 more"),
        (None, [], "nothing: a call returns no tensor"),
    ],
)
def test_tensors_are_found_and_the_rest_is_named(results: object, tensors: list[torch.Tensor], line: str) -> None:
    found, beside = checks.returned(results)
    assert [tuple(t.tolist()) for t in found] == [tuple(t.tolist()) for t in tensors]
    words = checks.not_compared(found, beside)
    assert words.endswith(line)
    assert bool(words) == bool(line)


@pytest.mark.parametrize("wrap", [
    lambda x: x, lambda x: (x, "text", 3), lambda x: [{"a": {"x": x}}], Both, lambda x: [x.t()],
])  # fmt: skip
def test_a_changed_input_is_seen_in_sequences_mappings_and_dataclasses(wrap: Callable[[torch.Tensor], Any]) -> None:
    x = torch.full((4, 8), NAN, dtype=torch.bfloat16)
    before = checks.sampled_digests(wrap(x))
    assert before == checks.sampled_digests(wrap(x))
    x[2, 3] = 1
    assert before != checks.sampled_digests(wrap(x))
    assert checks.sampled_digests(None) == []


# ---------------------------------------------------------------- in a worker

PACKAGE = """
import torch
tuned = []
def double(x, how):
    if how == "wrong": return x * 2 + 0.5, "a word"
    if how == "nothing": return None
    if how == "sparse": return [x.to_sparse()]
    if how == "generator": return {"out": (one for one in [x])}
    if how in ("own", "own wrong"): return Pair(x, 1e4 if how == "own wrong" else 0.0)
    if how == "in place": return x.mul_(2)
    y = x * 2
    if how == "tunes" and not tuned: tuned.append(y.add_(1))
    if how == "varies": y = y * (1 + 1e-7 * torch.rand(1))
    if how == "last bit": y[12_345] = y[12_345].nextafter(torch.tensor(1e9))
    if how in ("destroys", "fills"): x.zero_()
    if how == "accumulates": (x.requires_grad_() * 2).sum().backward()
    return x if how == "fills" else y
class Pair:
    def __init__(self, x, wrong):
        self.out, self.lse, self._scratch, self.name = x * 2, x.sum() + wrong, torch.empty(9), "a word"
"""
ALONE = """
import torch
from abprof.kit import Check, Op, compare
API = 1
KERNEL = "tiny"
PRESETS = {"default": {"how": ["right"]}}
def inputs(case, device, seed):
    if case["how"] == "integers": return torch.arange(140_000)
    return torch.randn(140_000)  # torch's own generator: seeded by the worker
def prepare(kernel, variant, case, x):
    kept = x.clone()
    if case["how"] == "fixed": return Op(lambda: torch.ones_like(x))
    if case["how"] == "its copy":
        return Op(lambda: kernel.double(kept, "in place"))
    return Op(lambda: kernel.double(x, case["how"]), (lambda: x.copy_(kept)) if case["how"] == "in place" else None)
"""
JUDGED = (
    ALONE
    + """
def reference(case, x):
    if case["how"] == "sampled": return torch.randint(1 << 30, ())
    return torch.ones_like(x).double() if case["how"] == "fixed" else x.double() * 2
def check(case, outputs, expected):
    if case["how"] == "sampled": return Check(False, f"looked at {expected}")
    return compare(outputs, expected, rtol=1e-6, atol=0.0)
"""
)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    with written(tmp_path_factory.mktemp("checks"), PACKAGE, alone=ALONE, judged=JUDGED) as made:
        yield made


def checked(worker: Side, workload: str, how: str, arm: str = "base", expected: str = "", against: str = "") -> Any:
    assert worker.open(workload, {"how": how}, arm=arm).call_ns > 0
    request = wire.Check(arm, expected or f"{workload}.expected", f"sample.{arm}", against)
    return worker.ask(request)


def test_outputs_are_compared_with_a_reference_of_inputs_no_kernel_saw(worker: Side) -> None:
    for how, reason in (
        ("destroys", checks.OVERWRITTEN),
        ("accumulates", checks.OVERWRITTEN),
        ("right", ""),
        ("in place", ""),
    ):
        found = checked(worker, "judged", how)
        assert (found.ok, found.reason, found.max_abs) == (not reason, reason, 0.0)
    found = checked(worker, "judged", "fills")
    assert not found.ok
    assert "largest error" in found.reason, "a wrong answer, whatever it did to its inputs"
    assert worker.ask(wire.Turn("base", 5, "cpu_clock")).value > 0, "the arm is open after its check"


def test_a_first_call_that_is_right_is_a_check_and_any_other_is_checked_again_on_new_inputs(worker: Side) -> None:
    """The kernel `tunes` returns another answer once, as one does whose tuner writes to the outputs."""
    for workload, how, known, right in (
        ("judged", "right", True, True),
        ("judged", "in place", True, True),
        ("judged", "tunes", False, True),
        ("judged", "destroys", False, False),
        ("judged", "fills", False, False),
        ("alone", "right", False, True),
    ):
        request = wire.Check("base", f"first {workload}.expected", "sample.base")
        opened: wire.Opened = worker.ask(wire.Open(workload, {"how": how}, "base", check=request))
        assert (opened.checked is not None) == known, how
        found = worker.ask(request)
        assert found.ok is right, (how, found.reason)
        assert opened.checked in (None, found)
        assert worker.ask(wire.Turn("base", 3, "cpu_clock")).value > 0


@pytest.mark.parametrize("workload", ["judged", "alone"])
def test_what_the_timed_calls_left_is_checked_too(worker: Side, workload: str) -> None:
    """A copy of the inputs that `prepare` made is changed by every call: only the first answer is right."""
    for how, right in (("right", True), ("in place", True), ("varies", True), ("its copy", False)):
        name = f"{workload}.{how}"
        assert checked(worker, workload, how, expected=name).ok
        worker.ask(wire.Turn("base", 3, "cpu_clock"))
        again = worker.ask(wire.Check("base", name, "sample.base", again=True))
        assert again.ok is right, (how, again.reason)


def test_any_other_bit_is_another_digest_and_the_largest_sampled_difference_is_known(worker: Side) -> None:
    right = checked(worker, "judged", "right")
    assert right.digest == checked(worker, "judged", "right", "other").digest
    last = checked(worker, "judged", "last bit", "target", against="sample.base")
    assert last.ok
    assert last.digest != right.digest, "an element that is not among the sampled ones"
    assert last.base_max_abs == 0.0
    assert checked(worker, "judged", "destroys", "target", against="nowhere").base_max_abs is None


def test_without_a_reference_the_sides_are_compared_with_each_other(worker: Side) -> None:
    assert worker.ask(wire.Describe("alone")).checked == "sides"
    assert checked(worker, "alone", "right").ok
    assert checked(worker, "alone", "right", "target").max_abs == 0.0
    other = checked(worker, "alone", "wrong", "target")
    assert (other.ok, other.reason[:47]) == (False, "the sides do not agree: output 0: largest error")
    nothing = checked(worker, "alone", "nothing", expected="nothing")
    assert (nothing.ok, nothing.compared, nothing.digest) == (True, False, "")
    assert nothing.facts == {"checked": "nothing: a call returns no tensor"}
    assert checked(worker, "alone", "own", expected="own").ok
    own = checked(worker, "alone", "own wrong", "target", expected="own")
    assert (own.ok, own.compared, own.digest) == (False, True, "")
    assert own.facts == {"checked": "2 tensors; not compared: Pair._scratch, Pair.name"}
    for how, kind in (("sparse", "a tensor of layout torch.sparse_coo"), ("generator", "a generator")):
        with pytest.raises(Exception, match=f"a call returns {kind}") as fault:
            checked(worker, "alone", how)
        assert fault.value.status == "unsupported"


class Planted:
    """An object whose loading makes a file."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.made,)


def test_a_planted_file_runs_no_code(worker: Side, tmp_path: Path) -> None:
    """A reference is computed anew; the first side's outputs, a sample and handed outputs are refused."""
    scratch, ran = worker.worker.log.path.parent / "scratch", tmp_path / "ran"
    for name in ("planted", "sample.planted", "handed"):
        torch.save([Planted(ran)], scratch / name)
    assert checked(worker, "judged", "right", expected="planted").ok
    with pytest.raises(Exception, match="outputs must be tensors"):
        checked(worker, "alone", "right", expected="planted")
    with pytest.raises(Exception, match="Weights only"):
        checked(worker, "judged", "right", against="sample.planted")
    assert "outputs must be tensors" in worker.ask(wire.Examine("judged", {"how": "right"}, 3, "handed")).reason
    assert not ran.exists()


def test_outputs_are_handed_over_and_examined(worker: Side) -> None:
    for how, again, ok in (("right", None, True), ("right", 5, True), ("fills", None, False)):
        worker.open("judged", {"how": how})
        worker.ask(wire.Hand("base", 4, "handed", again, anew=again is not None))
        found = worker.ask(wire.Examine("judged", {"how": how}, 4, "handed", again))
        assert found.ok is ok
    assert worker.ask(wire.Turn("base", 2, "cpu_clock")).value > 0, "the arm is open as before"


def test_what_a_reference_draws_follows_from_the_judges_number_alone(worker: Side) -> None:
    """A side knows the seeds of its inputs."""
    case = {"how": "sampled"}
    worker.open("judged", case)
    seen = []
    for seed, sample_seed in ((4, 1), (4, 2), (5, 1)):
        worker.ask(wire.Hand("base", seed, "handed"))
        seen.append(worker.ask(wire.Examine("judged", case, seed, "handed", sample_seed=sample_seed)).reason)
    assert seen[0] == seen[2] != seen[1]


def test_what_timed_calls_returned_is_read_call_by_call(worker: Side) -> None:
    """Whatever a worker says of it: a layout is data, and must fit into the file."""
    draw, case, folder = [1, 2, 3], {"how": "right"}, worker.worker.log.path.parent / "scratch"
    worker.open("judged", case)
    said = worker.ask(wire.Turn("base", 3, "cpu_clock", draw=draw, outputs="calls"))
    request = wire.Examine("judged", case, 0, "calls", draw=draw, calls=3, layouts=said.layouts)

    def found(**changes: Any) -> wire.CheckResult:
        return worker.ask(dataclasses.replace(request, **changes))

    assert [found(pick=number).ok for number in range(3)] == [True] * 3
    for calls in (2, 4):  # in the same file
        more = worker.ask(wire.Turn("base", calls, "cpu_clock", draw=draw, outputs="calls"))
        assert [found(pick=n, calls=calls, layouts=more.layouts).ok for n in range(calls)] == [True] * calls
        assert (folder / "calls").stat().st_size == calls * 560_000
    worker.ask(wire.Turn("base", 3, "cpu_clock", draw=draw, outputs="calls"))
    assert not found(draw=[1, 2, 4]).ok, "other inputs"
    one = json.loads(said.layouts)[0]
    for layouts in ([one], [one, one, {**one, "shape": [10**12]}], [one, one, {**one, "shape": [-4]}], [one, one, 7], {},
                    [one, one, {**one, "dtype": "ops"}], [one, one, {"type": "Lazy"}]):  # fmt: skip
        assert not found(layouts=json.dumps(layouts), pick=2).ok
    assert "outputs of 1 of 3 calls" in found(layouts=json.dumps([one]), pick=0).reason
    data = (folder / "calls").read_bytes()
    size, third = len(data), len(data) // 3
    for place, piece, late in ((third, data[third:][:64], False), (third, bytes(64), True), (0, bytes(64), False),
                               (size - 1, data[-1:], False), (2 * third - 1, data[2 * third - 1 :][:64], False)):  # fmt: skip
        assert found(pick=1, seen=[[size, ""], [place, piece.hex()]]).ok is not late
    assert "written after the reply" in found(seen=[[size - 1, ""]]).reason
    with (folder / "calls").open("r+b") as file:
        file.write(bytes(4))
    assert not found(pick=1).ok, "a call's inputs follow from what the call before it returned"
    assert found(pick=2).ok
    (folder / "calls").unlink()
    os.mkfifo(folder / "calls")
    assert "regular file" in found().reason


def test_inputs_that_cannot_change_are_not_timed(worker: Side) -> None:
    worker.open("judged", {"how": "integers"})
    with pytest.raises(Exception, match="none that it can mix"):
        worker.ask(wire.Turn("base", 1, "cpu_clock", draw=[1, 2, 3], outputs="calls"))


def test_a_reference_that_does_not_depend_on_inputs_that_change_is_not_timed(worker: Side) -> None:
    worker.open("judged", {"how": "fixed"})
    said = worker.ask(wire.Turn("base", 2, "cpu_clock", draw=[1, 2, 3], outputs="fixed"))
    request = wire.Examine("judged", {"how": "fixed"}, 0, "fixed", draw=[1, 2, 3], calls=2, layouts=said.layouts)
    assert worker.ask(request).ok
    assert worker.ask(request).ok, "the same inputs"
    with pytest.raises(Exception, match="does not depend on them"):
        worker.ask(dataclasses.replace(request, pick=1))


@pytest.mark.gpu
def test_a_reference_is_read_on_the_device_where_it_was_made(tmp_path: Path) -> None:
    made = {"there": torch.arange(3.0, device="cuda"), "here": torch.arange(3.0)}
    for read in (checks._expected(tmp_path / "expected", make) for make in (lambda: made, dict)):
        assert [value.device.type for value in read.values()] == ["cuda", "cpu"]
