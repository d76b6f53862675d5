"""The bundled kernels and the workloads' peers on a GPU: right by the workload's own check, with facts and inputs that repeat."""

import importlib.util
from typing import Any

import pytest
import torch

from abprof.worker import workload as declared
from abprof.worker.api import Unsupported
from tests.gpus import NEEDS_GPU
from tests.workloads.conftest import cases, load

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), NEEDS_GPU]
LIBRARIES_WARN = pytest.mark.filterwarnings("ignore")  # that parts of torch or of themselves are deprecated
DEVICE = torch.device("cuda")
# Every first, second or third cell of `full`. dynamic_mask's are those of `largest`.
FULL = {"dense": 1, "block_sparse": 1, "hopper_ws": 3, "fmha_scaling": 3, "model_step": 2, "memory_traffic": 1}


def largest() -> list[dict[str, Any]]:
    """Every pattern of dynamic_mask at 32768 tokens."""
    full = cases(load("dynamic_mask"), "full", "cuda")
    return [one for one in full if one["seqlen"] == 32768 and one["sparsity"] in (0.0, 0.9)]


def cells() -> list[Any]:
    found = {"dynamic_mask": [*presets("dynamic_mask", "smoke", "default"), *largest()]}
    for name, step in FULL.items():
        full = presets(name, "full")
        found[name] = [*presets(name, "default"), *full[::step], full[-1]]
    unique = {(name, *one.items()): (name, one) for name, chosen in found.items() for one in chosen}.values()
    return [pytest.param(name, one, id="-".join(map(str, (name, *one.values())))) for name, one in unique]


def peers() -> list[Any]:
    """A few cells of each workload: peers compile for each shape."""
    found = {name: presets(name, "default") for name in FULL if name != "model_step"}
    found["dynamic_mask"] = [one for one in presets("dynamic_mask", "original") if one["sparsity"] in (0.0, 0.5)]
    return [
        pytest.param(name, one, peer, id="-".join(map(str, (name, *one.values(), peer))))
        for name, chosen in found.items()
        for one in chosen
        if one.get("N_CTX") != 128
        for peer in load(name).PEERS
    ]


def presets(name: str, *wanted: str) -> list[dict[str, Any]]:
    return [one for preset in wanted for one in cases(load(name), preset, "cuda")]


@pytest.mark.parametrize(("name", "one"), cells())
def test_cell_is_right(name: str, one: dict[str, Any]) -> None:
    module = load(name)
    if reason := module.skip(one, DEVICE) if hasattr(module, "skip") else None:
        pytest.skip(reason)
    inputs, again = (module.inputs(one, DEVICE, 3) for _ in range(2))
    assert all(torch.equal(inputs[key], again[key]) for key in inputs if key != "weights")
    del again
    expected = module.reference(one, inputs)
    kernel = importlib.import_module(f"kernels.{module.KERNEL}")
    if hasattr(kernel, "build"):
        kernel.build(verbose=False)
    variants = getattr(module, "VARIANTS", [None])
    ops = {variant: lambda variant=variant: module.prepare(kernel, variant, one, inputs) for variant in variants}
    usual = getattr(module, "DEFAULT_PEERS", ())
    ops |= {peer: lambda peer=peer: module.PEERS[peer](one, inputs) for peer in usual}
    for arm, make in ops.items():
        try:
            op = make()
            if op.reset:
                op.reset()
            found = module.check(one, op.call(), expected)
        except Unsupported:
            if arm in variants and not str(arm).startswith("cutile"):  # its package is not everywhere
                raise
            continue
        assert found.ok, f"{arm}: {found.reason}"
        if arm in variants and name in ("dynamic_mask", "memory_traffic"):
            assert declared.facts(module, one, inputs, op)


def may_be_unsupported(name: str, one: dict[str, Any], peer: str) -> bool:
    documents = str(one.get("mask_type")).startswith("varlen")
    needed = {"fa3": "fa3_fwd_interface", "fa4": "flash_attn", "flex_flash": "flash_attn"}.get(peer, "torch")
    absent = importlib.util.find_spec(needed) is None
    lacks = peer == "fa3" and (one.get("direction") == "bwd" or one.get("dtype") != "bf16")
    lacks |= peer == "flex_flash"  # it cannot compile each case
    small = min(one.get("q_block_size", 128), one.get("k_block_size", 128)) < 128 and one["direction"] == "bwd"
    return (
        name in ("dynamic_mask", "memory_traffic")
        or absent
        or lacks
        or small
        or (documents and peer.startswith("sdpa"))
    )


@LIBRARIES_WARN
@pytest.mark.parametrize(("name", "one", "peer"), peers())
def test_peer_is_right(name: str, one: dict[str, Any], peer: str) -> None:
    """A library may return NaN in rows that see nothing: those cells are rightly `wrong` in a run."""
    module = load(name)
    inputs = module.inputs(one, DEVICE, 3)
    if "mask" in inputs and not bool(inputs["mask"].any(-1).all()):
        pytest.skip("rows that see nothing")
    expected = module.reference(one, inputs)
    try:
        op = module.PEERS[peer](one, inputs)
        first = op.call()
    except Unsupported as reason:
        if not may_be_unsupported(name, one, peer):
            raise
        pytest.skip(str(reason))
    for outputs in (first, op.call()):
        found = module.check(one, outputs, expected)
        assert found.ok, found.reason


@LIBRARIES_WARN
def test_inputs_that_move_compile_nothing_new() -> None:
    """A run makes inputs and masks again at other addresses; a compilation then would void its epoch."""
    module = load("dense")
    one = next(c for c in cases(module, "default", "cuda") if c["mask_type"] == "varlen_causal")
    made = [module.PEERS["flex"](one, module.inputs(one, DEVICE, 3)) for _ in range(2)]
    made[0].call()
    torch.compiler.set_stance("fail_on_recompile")
    try:
        made[1].call()
    finally:
        torch.compiler.set_stance("default")
