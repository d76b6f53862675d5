"""Bundled workloads on stand-in packages: right answers pass, and every planted slip is found and named."""

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from abprof.worker.api import Unsupported
from tests.workloads import standin
from tests.workloads.conftest import case, cases, half_the_tolerance, judged, load
from tests.workloads.standin import attend

LOW = pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])


@LOW
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_every_dtype_passes_with_room(either: ModuleType, dtype: str, direction: str) -> None:
    with half_the_tolerance(either._reference, dtype):
        found = judged(either, case(either, dtype=dtype, direction=direction, nhq=4, nhk=2), standin)
    assert found.ok, found.reason


@LOW
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("scale", [8.0, 0.97])
def test_wrong_scale_is_found(either: ModuleType, dtype: str, direction: str, scale: float) -> None:
    """8 is a scale left out at hd 64."""
    with standin.slip(scale=scale):
        assert "rows are wrong" in judged(either, case(either, dtype=dtype, direction=direction), standin).reason


@LOW
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_one_missing_block_of_one_row_of_one_head_is_found(
    block_sparse: ModuleType, dtype: str, direction: str
) -> None:
    with standin.slip(drop_block=(1, 3)):
        one = case(block_sparse, dtype=dtype, direction=direction, sparsity_ratio=1.0)
        found = judged(block_sparse, one, standin)
    assert "rows are wrong" in found.reason


def one_value(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Put the value at one place."""

    def spoil(out: torch.Tensor) -> torch.Tensor:
        out = out.clone()
        out[33, 1, 2] = value
        return out

    return spoil


SPOILS: list[tuple[str, Callable[[torch.Tensor], torch.Tensor], str]] = [
    ("one NaN", one_value(torch.nan), "1 of"),
    ("one value off", one_value(3.0), "1 of"),
    ("wrong shape", lambda t: t[:-1], "shape"),
    ("wrong dtype", lambda t: t.double(), "torch.float64"),
    ("zeros", torch.zeros_like, "rows are wrong"),
    ("last row untouched", lambda t: torch.cat([t[:-1], torch.zeros_like(t[-1:])]), "rows are wrong"),
    ("heads swapped", lambda t: t.flip(1), "rows are wrong"),
]


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize(("spoil", "message"), [pytest.param(s, r, id=name) for name, s, r in SPOILS])
def test_spoilt_outputs_are_found(
    either: ModuleType, index: int, spoil: Callable[[torch.Tensor], torch.Tensor], message: str
) -> None:
    def one_of(outputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        return [spoil(out) if i == index else out for i, out in enumerate(outputs)]

    found = judged(either, case(either, direction="bwd"), standin, one_of)
    assert not found.ok
    assert message in found.reason
    assert found.reason.startswith(("dq", "dk", "dv")[index])


def test_any_row_of_any_head_may_be_looked_at(either: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that knew which would compute those alone: right in every check, and quicker."""
    monkeypatch.setitem(either._reference._STATISTICS_FLOPS, "cpu", 1.0)  # two key heads
    one = case(either, direction="bwd", seqlen=320, nhq=8, nhk=8)
    inputs = either.inputs(one, torch.device("cpu"), 1)
    seen: dict[str, set[tuple[int, int]]] = {name: set() for name in ("dq", "dk")}
    for sample in range(40):
        torch.manual_seed(sample)
        expected = either.reference(one, inputs)
        for name, places in seen.items():
            heads = expected[name]["heads"].tolist()
            places |= {
                (head, row) for head, rows in zip(heads, expected[name]["rows"], strict=True) for row in rows.tolist()
            }
    assert len(seen["dq"]) == 8 * 320
    assert {head for head, _ in seen["dk"]} == set(range(8))
    torch.manual_seed(sample)
    again = either.reference(one, inputs)
    assert torch.equal(expected["dk"]["rows"], again["dk"]["rows"]), "within a process the checks of a cell can agree"


# ---------------------------------------------------------------- a function of q, k, v [batch, heads, tokens, dim] and a mask

Attention = Callable[..., Any]  # of q, k, v, mask (None: all is seen) and scale (None: the usual one)
MASKS = {"seqlen": 256, "nhq": 2, "nhk": 2, "mask_heads": 2}
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "fmha": ("fmha_scaling", {"seq_len": 300, "batch": 2, "n_heads": 3, "head_dim": 64, "causal": True}),
    "hopper_ws": ("hopper_ws", {"N_CTX": 300, "B": 2, "H": 3, "D": 64, "sm_scale": 0.2}),
    "flash2": ("memory_traffic", {"subject": "flash2", "seqlen": 256, "batch": 2, "nhq": 2, "hd": 64, "dtype": "fp16"}),
    "bigbird": ("memory_traffic", {"subject": "bigbird", "seqlen": 768, "batch": 2, "nhq": 1, "hd": 128, "dtype": "fp32"}),
    **{
        f"{pattern} {direction}": ("dynamic_mask", MASKS | {"pattern": pattern, "sparsity": sparsity, "direction": direction})
        for direction in ("fwd", "bwd")
        for pattern, sparsity in {"random": 0.5, "block": 0.5, "diagonal": 0.7, "structured": 0.7, "tiles": 0.7, "dense": 0.0}.items()
    },
}  # fmt: skip
EVERY = pytest.mark.parametrize("name", SMALL)


def small(name: str, **changes: Any) -> tuple[ModuleType, dict[str, Any]]:
    workload, axes = SMALL[name]
    module = load(workload)
    return module, {**cases(module, "smoke", "cuda")[0], **axes, **changes}


def package(module: ModuleType, one: dict[str, Any], attention: Attention = attend) -> SimpleNamespace:
    """A kernel package that computes this, in every variant."""

    def batched(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **__: Any) -> Any:
        shape = module.shape(one)
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
        return attention(q, k, v, seen.tril() if shape.causal else seen, shape.scale)

    def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = attention(*(x.transpose(1, 2) for x in (q, k, v)), mask, q.shape[3] ** -0.5)
        return out.transpose(1, 2)

    def full(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return attention(q, k, v, torch.ones(q.shape[2], k.shape[2], dtype=torch.bool), q.shape[3] ** -0.5)

    def blocks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lists: tuple[torch.Tensor, ...]) -> Any:
        n = q.shape[2] // 64
        seen = torch.zeros(n, n, dtype=torch.bool)
        for i in range(n):
            seen[i, lists[2][int(lists[0][i]) : int(lists[0][i + 1])].long()] = True
        seen = seen.repeat_interleave(64, 0).repeat_interleave(64, 1)
        return attention(q, k, v, seen, q.shape[3] ** -0.5)

    both = SimpleNamespace(full_attention=full, block_attention=blocks)
    return SimpleNamespace(
        fmha=batched, ws_attention=batched, masked_attention=masked, fused=both, unfused=both, BlockLists=lambda *a: a
    )


@EVERY
def test_right_answers_pass_with_room(name: str) -> None:
    for dtype in (SMALL[name][1].get("dtype"),) if "dtype" in SMALL[name][1] else ("fp16", "bf16"):
        module, one = small(name, dtype=dtype)
        reference = getattr(module, "_batched", module)._reference
        with half_the_tolerance(reference, dtype):
            found = judged(module, one, package(module, one))
        assert found.ok, found.reason


def one_tile(mask: torch.Tensor) -> torch.Tensor:
    """A tile of keys is left out, where there are planes of the last one."""
    mask = mask.clone()
    mask[(-1,) * (mask.ndim - 2)][192:, 64:128] = False
    return mask


def one_row_more(mask: torch.Tensor) -> torch.Tensor:
    """A row of head 0 that should see nothing sees all."""
    mask = mask.clone()
    mask[0, 0, int((~mask[0, 0].any(1)).nonzero()[0])] = True
    return mask


SLIPS: dict[str, Attention] = {
    "scale": lambda q, k, v, m, s: attend(q, k, v, m, 1.05 * s),
    "a tile is left out": lambda q, k, v, m, s: attend(q, k, v, one_tile(m), s),
    "batches swapped": lambda q, k, v, m, s: attend(q, k, v, m, s).flip(0),
    "keys off by a row": lambda q, k, v, m, s: attend(q, k, v.roll(1, 2), m, s),
}
OF_MASKS: dict[str, Attention] = {
    "the mask is off by a row": lambda q, k, v, m, s: attend(q, k, v, m.roll(1, 2), s),
    "another head's mask": lambda q, k, v, m, s: attend(q, k, v, m.flip(1), s),
    "another batch entry's mask": lambda q, k, v, m, s: attend(q, k, v, m.flip(0), s),
}


@pytest.mark.parametrize("slip", SLIPS)
@pytest.mark.parametrize("name", ["fmha", "hopper_ws", "flash2", "bigbird", "dense fwd", "dense bwd"])
def test_slips_are_found(name: str, slip: str) -> None:
    module, one = small(name)
    assert "rows are wrong" in judged(module, one, package(module, one, SLIPS[slip])).reason


@pytest.mark.parametrize("slip", OF_MASKS)
@pytest.mark.parametrize("name", ["random fwd", "random bwd"])
def test_slips_of_masks_are_found(name: str, slip: str) -> None:
    module, one = small(name)
    assert "rows are wrong" in judged(module, one, package(module, one, OF_MASKS[slip])).reason


@pytest.mark.parametrize("name", ["block fwd", "block bwd"])
def test_a_masked_row_that_is_not_zero_is_found(name: str) -> None:
    module, one = small(name)
    found = judged(module, one, package(module, one, lambda q, k, v, m, s: attend(q, k, v, one_row_more(m), s)))
    assert "rows are wrong" in found.reason


@pytest.mark.parametrize("name", ["fmha", "hopper_ws", "flash2", "random fwd"])
def test_other_shapes_and_numbers_of_outputs_are_found(name: str) -> None:
    module, one = small(name)
    assert "shape" in judged(module, one, package(module, one), lambda out: out.transpose(1, 2)).reason
    if name != "random fwd":
        assert "one tensor" in judged(module, one, package(module, one), lambda out: (out, None)).reason


@pytest.mark.parametrize("name", ["fmha", "hopper_ws"])
def test_a_missing_option_is_unsupported_and_a_missing_function_an_attribute_error(name: str) -> None:
    module, one = small(name)

    def refuse(*_: Any) -> torch.Tensor:
        raise NotImplementedError("no such thing")

    with pytest.raises(Unsupported, match="no such thing"):
        judged(module, one, package(module, one, refuse))
    with pytest.raises(AttributeError, match={"fmha": "fmha", "hopper_ws": "ws_attention"}[name]):
        module.prepare(ModuleType("empty"), None, one, module.inputs(one, "cpu", 1))


# ---------------------------------------------------------------- the training step


@pytest.fixture
def step() -> ModuleType:
    return load("model_step")


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("seqlen", [256, 100])
def test_a_right_step_passes_with_room(step: ModuleType, dtype: str, seqlen: int) -> None:
    found = judged(step, case(step, dtype=dtype, seqlen=seqlen), standin)
    assert found.ok, found.reason
    assert found.max_rel is not None
    assert 0 < found.max_rel < step.TOLERANCE[dtype] / 2


def test_the_peer_takes_the_same_step(step: ModuleType) -> None:
    one = cases(step, "smoke")[0]
    inputs = step.inputs(one, "cpu", 7)
    found = step.check(one, step.PEERS["sdpa"](one, inputs).call(), step.reference(one, inputs))
    assert found.ok, found.reason


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("slip", [{"scale": 1.3}, {"shift": 1}, {"shift": -1}, {"drop_keys": 16}], ids=str)
def test_slips_of_a_steps_attention_are_found(step: ModuleType, dtype: str, slip: dict[str, Any]) -> None:
    with standin.slip(**slip):
        found = judged(step, {**cases(step, "smoke")[0], "dtype": dtype}, standin)
    assert not found.ok
    assert "off by" in found.reason


def test_peers_of_gpus_say_so_elsewhere(either: ModuleType) -> None:
    one = case(either, direction="bwd")
    for peer in either.PEERS.keys() - {"sdpa"}:
        with pytest.raises(Unsupported, match="GPUs, and this is cpu"):
            either.PEERS[peer](one, either.inputs(one, "cpu", 3)).call()


def test_block_lists_are_no_default_mask(block_sparse: ModuleType) -> None:
    """FlashAttention-4 in flex_attention reads no lists under the default rule for partial blocks."""
    from torch.nn.attention.flex_attention import noop_mask

    lists = torch.tensor([[[0], [2]]], dtype=torch.int32)
    mask = block_sparse._peers.block_mask(torch.ones(1, 2, dtype=torch.int32), lists, 64, 32, 128, 2)
    assert mask.mask_mod is not noop_mask
    assert mask.to_dense().tolist() == [[[[1, 0, 0, 0], [0, 0, 1, 0]]] * 2]
