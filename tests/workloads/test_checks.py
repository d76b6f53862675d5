"""The whole contract on a stand-in package: right answers pass, and every planted slip is found and named."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from abprof.worker.api import Check
from tests.workloads import standin
from tests.workloads.conftest import case, cases, load

LOW = pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
CELLS = [
    pytest.param(load(name), one, id=f"{name}-{one.get('mask_type', one.get('sparsity_ratio'))}-{one['direction']}")
    for name in ("dense", "block_sparse")
    for one in cases(load(name), "smoke")
]


def judged(module: ModuleType, one: dict[str, Any], spoil: Callable[[Any], Any] = lambda outputs: outputs) -> Check:
    """One cell on the stand-in: inputs, call, reference, check."""
    inputs = module.inputs(one, "cpu", 7)
    outputs = module.prepare(standin, None, one, inputs).call()
    return module.check(one, spoil(outputs), module.reference(one, inputs))


@pytest.mark.parametrize(("module", "one"), CELLS)
def test_every_smoke_cell_passes(module: ModuleType, one: dict[str, Any]) -> None:
    found = judged(module, one)
    assert found.ok, found.reason
    assert found.max_abs is not None
    assert 0 < found.max_abs < 1e-4
    assert found.max_rel is not None
    assert 0 < found.max_rel < 1e-5


@LOW
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_every_dtype_passes_with_room(either: ModuleType, dtype: str, direction: str) -> None:
    """Within half of the tolerance too, so that no correct kernel fails on another seed."""
    one = case(either, dtype=dtype, direction=direction, nhq=4, nhk=2)
    reference = either._reference
    tolerance = reference.TOLERANCE[dtype]
    reference.TOLERANCE[dtype] = tolerance / 2
    try:
        found = judged(either, one)
    finally:
        reference.TOLERANCE[dtype] = tolerance
    assert found.ok, found.reason


@pytest.mark.parametrize("mask_type", ["full", "causal", "varlen_full", "varlen_causal"])
@pytest.mark.parametrize("hd", [64, 128])
def test_masks_head_sizes_and_groups(dense: ModuleType, mask_type: str, hd: int) -> None:
    for direction in ("fwd", "bwd"):
        found = judged(dense, case(dense, mask_type=mask_type, hd=hd, nhq=6, nhk=2, seqlen=300, direction=direction))
        assert found.ok, found.reason


def test_reference_is_what_autograd_gives_in_float64(either: ModuleType) -> None:
    """The reference's formulas against torch's own differentiation of plain attention, every row of every head."""
    one = case(either, direction="bwd", dtype="fp32", nhq=4, nhk=2)
    inputs = either.inputs(one, "cpu", 5)
    expected = either.reference(one, inputs)
    leaves = [inputs[name].double().requires_grad_() for name in ("q", "k", "v")]
    op = _wide(either, one, inputs, leaves)
    gradients = torch.autograd.grad(op, leaves, inputs["dout"].double())
    for name, exact in zip(("dq", "dk", "dv"), gradients, strict=True):
        want = expected[name]
        torch.testing.assert_close(exact[want["rows"], want["heads"][:, None]], want["values"], rtol=1e-9, atol=1e-11)


def _wide(
    module: ModuleType, one: dict[str, Any], inputs: dict[str, torch.Tensor], leaves: list[torch.Tensor]
) -> torch.Tensor:
    rows = torch.arange(one["seqlen"])
    mask = _mask(module, one, inputs)
    outs = []
    for head in range(one["nhq"]):
        at = head * one["nhk"] // one["nhq"]
        scores = leaves[0][:, head] @ leaves[1][:, at].T / one["hd"] ** 0.5
        outs.append(scores.masked_fill(~mask(at, rows), -torch.inf).softmax(1) @ leaves[2][:, at])
    return torch.stack(outs, 1)


def _mask(
    module: ModuleType, one: dict[str, Any], inputs: dict[str, torch.Tensor]
) -> Callable[[int, torch.Tensor], torch.Tensor]:
    if module.SUITE == "dense":
        return module.row_intervals(one, torch.device("cpu")).allowed
    dense = torch.zeros(one["nhk"], one["seqlen"] // 64, one["seqlen"] // 64, dtype=torch.bool)
    for head, row in torch.cartesian_prod(torch.arange(dense.shape[0]), torch.arange(dense.shape[1])).tolist():
        dense[head, row, inputs["kv_indices"][head, row].long()] = True
    grown = dense.repeat_interleave(64, 1).repeat_interleave(64, 2)
    return lambda head, rows: grown[head, rows]


# ---------------------------------------------------------------- slips


@LOW
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("scale", [8.0, 0.97])
def test_wrong_scale_is_found(either: ModuleType, dtype: str, direction: str, scale: float) -> None:
    """8 is a scale left out at hd 64."""
    with standin.slip(scale=scale):
        assert "rows are wrong" in judged(either, case(either, dtype=dtype, direction=direction)).reason


@LOW
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("mask_type", ["causal", "varlen_causal"])
@pytest.mark.parametrize("shift", [-64, -1, 1, 64])
def test_wrong_diagonal_is_found(dense: ModuleType, dtype: str, direction: str, mask_type: str, shift: int) -> None:
    with standin.slip(shift=shift):
        found = judged(dense, case(dense, dtype=dtype, direction=direction, mask_type=mask_type))
    assert "rows are wrong" in found.reason


@LOW
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_one_missing_block_of_one_row_of_one_head_is_found(
    block_sparse: ModuleType, dtype: str, direction: str
) -> None:
    with standin.slip(drop_block=(1, 3)):
        found = judged(block_sparse, case(block_sparse, dtype=dtype, direction=direction, sparsity_ratio=1.0))
    assert "rows are wrong" in found.reason


def test_one_missing_block_is_found_where_rows_are_sampled(block_sparse: ModuleType) -> None:
    """4096 rows, of which 256 a head are looked at: a wrong query block of 64 has four of them."""
    one = case(block_sparse, dtype="bf16", seqlen=4096, nhq=2, nhk=2, sparsity_ratio=1.0)
    assert judged(block_sparse, one).ok
    with standin.slip(drop_block=(0, 31)):
        found = judged(block_sparse, one)
    assert "4 of 512 sampled rows are wrong" in found.reason
    row = int(found.reason.split("; row ")[1].split()[0])
    assert 31 * 64 <= row < 32 * 64
    assert "of head 0 " in found.reason


@pytest.mark.parametrize("mask_type", ["full", "varlen_full"])
def test_missing_first_keys_are_found(dense: ModuleType, mask_type: str) -> None:
    with standin.slip(drop_keys=64):
        assert not judged(dense, case(dense, mask_type=mask_type, dtype="bf16", seqlen=2048, nhq=1, nhk=1)).ok


def test_float32_computed_in_bfloat16_is_found(either: ModuleType) -> None:
    with standin.slip(round_to=torch.bfloat16):
        assert not judged(either, case(either)).ok


def one_value(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Put the value at one place."""

    def spoil(out: torch.Tensor) -> torch.Tensor:
        out = out.clone()
        out[33, 1, 2] = value
        return out

    return spoil


SPOILS: list[tuple[str, Callable[[torch.Tensor], torch.Tensor], str]] = [
    ("one NaN", one_value(torch.nan), "1 of"),
    ("one infinity", one_value(torch.inf), "1 of"),
    ("one value off", one_value(3.0), "1 of"),
    ("wrong shape", lambda t: t[:-1], "shape"),
    ("heads first", lambda t: t.transpose(0, 1), "shape"),
    ("wrong dtype", lambda t: t.double(), "torch.float64"),
    ("zeros", torch.zeros_like, "rows are wrong"),
    ("last head untouched", lambda t: torch.cat([t[:, :-1], torch.zeros_like(t[:, -1:])], 1), "rows are wrong"),
    ("last row untouched", lambda t: torch.cat([t[:-1], torch.zeros_like(t[-1:])]), "rows are wrong"),
    ("heads swapped", lambda t: t.flip(1), "rows are wrong"),
]


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize(("spoil", "said"), [pytest.param(s, r, id=name) for name, s, r in SPOILS])
def test_spoilt_outputs_are_found(
    either: ModuleType, index: int, spoil: Callable[[torch.Tensor], torch.Tensor], said: str
) -> None:
    def one_of(outputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        return [spoil(out) if i == index else out for i, out in enumerate(outputs)]

    found = judged(either, case(either, direction="bwd"), one_of)
    assert not found.ok
    assert said in found.reason
    assert found.reason.startswith(("dq", "dk", "dv")[index])


def test_a_nan_in_a_row_that_is_not_sampled_is_found(dense: ModuleType) -> None:
    one = case(dense, seqlen=2048, nhq=1, nhk=1)
    inputs = dense.inputs(one, "cpu", 7)
    expected = dense.reference(one, inputs)
    row = next(r for r in range(2048) if r not in set(expected["out"]["rows"].flatten().tolist()))
    out = dense.prepare(standin, None, one, inputs).call()
    assert dense.check(one, out, expected).ok
    out[row, 0, 5] = torch.nan
    assert "1 of" in dense.check(one, out, expected).reason


def test_an_output_too_few_is_found(either: ModuleType) -> None:
    assert judged(either, case(either, direction="bwd"), lambda outputs: outputs[:2]).reason == "2 outputs, 3 expected"


# ---------------------------------------------------------------- sampling


def test_every_stratum_of_128_rows_is_looked_at(dense: ModuleType) -> None:
    draw = torch.Generator().manual_seed(1)
    rows = dense._reference._sample(3, 49152, draw)
    assert rows.shape == (3, 384)
    assert all(set((head // 128).tolist()) == set(range(384)) for head in rows)
    assert rows[:, 0].tolist() == [0, 0, 0]
    assert rows[:, -1].tolist() == [49151] * 3
    assert not torch.equal(rows[0], rows[1])


def test_another_seed_looks_at_other_rows(dense: ModuleType) -> None:
    one = case(dense, seqlen=2048, nhq=1, nhk=1)
    first, again, other = (dense.reference(one, dense.inputs(one, "cpu", s))["out"]["rows"] for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_expected_values_survive_being_stored(either: ModuleType, tmp_path: Any) -> None:
    one = case(either, direction="bwd")
    inputs = either.inputs(one, "cpu", 7)
    torch.save(either.reference(one, inputs), tmp_path / "expected")
    stored = torch.load(tmp_path / "expected", weights_only=True)
    assert either.check(one, either.prepare(standin, None, one, inputs).call(), stored).ok


@pytest.mark.parametrize(("module", "one"), CELLS)
def test_checking_a_smoke_cell_takes_under_half_a_second(module: ModuleType, one: dict[str, Any]) -> None:
    inputs = module.inputs(one, "cpu", 7)
    outputs = module.prepare(standin, None, one, inputs).call()
    began = time.process_time()
    module.check(one, outputs, module.reference(one, inputs))
    assert time.process_time() - began < 0.5  # processor time of one thread, whatever else the machine does
