"""wsattn without a GPU: arguments, the choice of a configuration, its kernels in the emulator, their machine code."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from kernels import wsattn
from tests.kernels.ffa_cuda_cases import judge, poisoned

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
ROOT = Path(__file__).resolve().parents[2]
SCALE = 0.11
Attend = Callable[..., torch.Tensor]
CONFIGS = pytest.mark.parametrize("config", wsattn.CONFIGS, ids=lambda c: f"{c.BLOCK_M}x{c.BLOCK_N}")
VARIANTS = pytest.mark.parametrize("variant", wsattn.VARIANTS)


def draw(nq: int, nk: int, dtype: torch.dtype = torch.float16, heads: int = 2) -> list[torch.Tensor]:
    """q, k, v of [1, heads, N, 128]; all of the last head is NaN, which the others must not notice."""
    generator = torch.Generator().manual_seed(nq * 1000 + nk)
    made = [torch.randn(1, heads, n, 128, generator=generator).to(dtype) for n in (nq, nk, nk)]
    for tensor in made:
        tensor[:, -1] = torch.nan
    return made


def wrong(got: torch.Tensor, data: list[torch.Tensor]) -> str:
    """What is wrong with the output's heads but the last."""

    def naive(dtype: torch.dtype) -> torch.Tensor:
        q, k, v = (x[:, :-1].to(dtype) for x in data)
        return (q @ k.transpose(-1, -2) * SCALE).softmax(-1) @ v

    return judge("out", got[:, :-1], naive(torch.float64), naive(got.dtype))


# ---------------------------------------------------------------- the kernels' logic


@contextmanager
def emulated(monkeypatch: pytest.MonkeyPatch, seed: int = 0) -> Iterator[list[str]]:
    """ws_attention runs its kernels in the emulator; gives the names of the NVTX ranges they ran in."""
    from kernels.wsattn import api, launch
    from tests.kernels.gluon_emulator import emulate

    ranges: list[str] = []

    @contextmanager
    def nvtx(name: str) -> Iterator[None]:
        ranges.append(name)
        yield

    with monkeypatch.context() as patch:
        patch.setattr(api, "check_device", lambda device: None)
        patch.setattr(launch, "run", lambda made, device: emulate(made, seed))
        patch.setattr(torch.cuda.nvtx, "range", nvtx)
        yield ranges


@VARIANTS
@CONFIGS
@pytest.mark.parametrize(("nq", "nk"), [(128, 128), (70, 330), (1, 1)])
def test_right_in_the_emulator(
    variant: str, config: wsattn.Config, nq: int, nk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = draw(nq, nk)
    with emulated(monkeypatch), poisoned():
        got = wsattn.ws_attention(*data, SCALE, variant=variant, config=config)
    assert wrong(got, data) == ""


@pytest.mark.slow
@VARIANTS
@CONFIGS
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_right_in_other_orders_of_events(
    variant: str, config: wsattn.Config, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = draw(200, 700, torch.bfloat16, heads=3)
    with emulated(monkeypatch, seed), poisoned():
        got = wsattn.ws_attention(*data, SCALE, variant=variant, config=config)
    assert wrong(got, data) == ""


PLANTED = {
    "the turn is not passed on": (
        "            mbarrier.arrive(turn.index(1 - CID), count=1)\n        qk = warp",
        "            pass\n        qk = warp",
    ),
    "V is given back before it is read": (
        "        acc = warpgroup_mma_wait(0, deps=(acc_t,))\n        mbarrier.arrive(v_empty.index(vb), count=1)\n",
        "        mbarrier.arrive(v_empty.index(vb), count=1)\n        acc = warpgroup_mma_wait(0, deps=(acc_t,))\n",
    ),
    "plain: K is given back before it is read": (
        "        qk = warpgroup_mma_wait(0, deps=(qk,))\n        mbarrier.arrive(k_empty.index(b), count=1)\n",
        "        mbarrier.arrive(k_empty.index(b), count=1)\n        qk = warpgroup_mma_wait(0, deps=(qk,))\n",
    ),
    "plain: V is not waited for": ("        mbarrier.wait(v_full.index(b), ph)\n", ""),
    "the tail's last key is lost": ("gl.SliceLayout(0, L)) < Nk", "gl.SliceLayout(0, L)) < Nk - 1"),
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_the_emulator_notices_planted_mistakes(mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.wsattn import launch

    source = (ROOT / "kernels" / "wsattn" / "gluon_fwd.py").read_text(encoding="utf-8")
    before, after = PLANTED[mistake]
    assert source.count(before) == 1
    file = tmp_path / "planted.py"
    file.write_text(source.replace(before, after), encoding="utf-8")
    monkeypatch.setattr(launch, "ws_fwd", _module(file).ws_fwd)
    data = draw(70, 700)
    variant = "ws" if mistake.startswith("plain") else "ws_pipelined"
    assert any(_fails(data, variant, seed, monkeypatch) for seed in range(6))


def _fails(data: list[torch.Tensor], variant: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    from tests.kernels.gluon_scheduler import Deadlock

    try:
        with emulated(monkeypatch, seed), poisoned():
            return wrong(wsattn.ws_attention(*data, SCALE, variant=variant, config=wsattn.CONFIGS[0]), data) != ""
    except (Deadlock, RuntimeError):
        return True


def _module(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("planted_wsattn", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["planted_wsattn"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("variant", "name"), [("ws", "attention_ws"), ("ws_pipelined", "attention_ws_pp")])
def test_nvtx_and_profiler_ranges(variant: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = draw(64, 64)
    with emulated(monkeypatch) as ranges, torch.autograd.profiler.profile(use_kineto=False) as profile:
        wsattn.ws_attention(*data, SCALE, variant=variant, config=wsattn.CONFIGS[3])
    assert ranges == [f"{name}_B1_H2_N64_D128"]
    assert {"wsattn_prepare", "wsattn_run"} <= {event.key for event in profile.key_averages()}


def test_gradients_are_those_of_the_same_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    leaves = [torch.randn(1, 1, 64, 128, dtype=torch.float16, requires_grad=True) for _ in range(3)]
    dout = torch.randn(1, 1, 64, 128, dtype=torch.float16)
    with emulated(monkeypatch):
        got = torch.autograd.grad(wsattn.ws_attention(*leaves, SCALE, config=wsattn.CONFIGS[3]), leaves, dout)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    out = (wide[0] @ wide[1].transpose(-1, -2) * SCALE).softmax(-1) @ wide[2]
    for a, b in zip(got, torch.autograd.grad(out, wide, dout.double()), strict=True):
        assert float((a.double() - b).norm() / b.norm()) < 5e-3


# ---------------------------------------------------------------- machine code


def gates(facts: dict[str, Any]) -> list[str]:
    """What is wrong with a kernel's machine code."""
    found = []
    variant, tile = facts["label"].split()[:2]
    config = next(c for c in wsattn.CONFIGS if tile == f"{c.BLOCK_M}x{c.BLOCK_N}")
    if facts["STL"] or facts["LDL"] or facts["stack"]:
        found.append(f"{facts['STL'] + facts['LDL']} spill instructions, {facts['stack']} bytes of stack")
    if not facts["HGMMA"] or facts["WARPGROUP.DEPBAR"] * 2 > facts["HGMMA"]:
        found.append(f"{facts['HGMMA']} wgmma, {facts['WARPGROUP.DEPBAR']} waits: serialised")
    if not facts["UTMALDG"] or not facts["UTMASTG"]:
        found.append("no TMA")
    if facts["shared"] > 232448:
        found.append(f"{facts['shared']} bytes shared, more than a block may have")
    # A thread has half of its row of a tile: so many exponentials stand between the two waits when the overlap is kept.
    overlapping = [config.BLOCK_N // 2] * config.NUM_MMA_GROUPS if variant == "ws_pipelined" else []
    if len(facts["overlaps"]) != len(overlapping) or any(
        a < b for a, b in zip(facts["overlaps"], overlapping, strict=True)
    ):
        found.append(f"P·V is waited for before the softmax: {facts['overlaps']}, not {overlapping}")
    return found


def compiled(*labels: str) -> list[dict[str, Any]]:
    variables = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.kernels.wsattn_offline", *labels]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("labels", "count"),
    [(("ws_pipelined 128x128 tail",), 1), pytest.param((), 16, marks=pytest.mark.slow)],
)
def test_machine_code(labels: tuple[str, ...], count: int) -> None:
    kernels = compiled(*labels)
    assert len(kernels) == count
    assert {facts["label"]: gates(facts) for facts in kernels if gates(facts)} == {}


# ---------------------------------------------------------------- the configuration


def test_the_configurations_have_the_seven_parameters() -> None:
    names = [field.name for field in dataclasses.fields(wsattn.Config)]
    assert names == [
        "BLOCK_M", "BLOCK_N", "NUM_BUFFERS", "NUM_MMA_WARPS", "NUM_MMA_GROUPS", "num_warps", "num_stages",
    ]  # fmt: skip
    assert wsattn.Config(128, 128, 2, 8, 2, 4, 0) in wsattn.CONFIGS, "the original's"
    assert len(set(wsattn.CONFIGS)) == len(wsattn.CONFIGS)
    for config in wsattn.CONFIGS:
        assert config.NUM_MMA_WARPS == 4 * config.NUM_MMA_GROUPS == config.num_warps * config.NUM_MMA_GROUPS
        assert config.rows == 64, "a consumer is a warpgroup of 64 rows"


@contextmanager
def timed(monkeypatch: pytest.MonkeyPatch, milliseconds: list[float]) -> Iterator[list[int]]:
    """`choose` on a CPU: the configurations take these times. Gives how often they were timed."""
    from kernels.wsattn import tune

    often: list[int] = []

    def time_all(*args: Any) -> dict[wsattn.Config, float]:
        often.append(1)
        return dict(zip(wsattn.CONFIGS, milliseconds, strict=True))

    with monkeypatch.context() as patch:
        patch.setattr(tune, "_chosen", {})
        patch.setattr(tune, "time_all", time_all)
        patch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
        yield often


def test_the_quickest_is_chosen_once_for_each_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.wsattn import tune

    monkeypatch.setenv("TRITON_CACHE_AUTOTUNING", "0")
    with timed(monkeypatch, [3.0, 1.0, 2.0, 4.0]) as often:
        for nk in (64, 64, 128, 64):
            assert tune.choose(*draw(64, nk), SCALE, "ws") == wsattn.CONFIGS[1]
        assert len(often) == 2


def test_the_choice_is_kept_where_triton_keeps_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.wsattn import tune

    monkeypatch.setenv("TRITON_CACHE_AUTOTUNING", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    data = draw(64, 64)
    with timed(monkeypatch, [3.0, 1.0, 2.0, 4.0]):
        assert tune.choose(*data, SCALE, "ws") == wsattn.CONFIGS[1]
    with timed(monkeypatch, [0.5, 1.0, 2.0, 4.0]) as often:  # another process, to which others would be quicker
        assert tune.choose(*data, SCALE, "ws") == wsattn.CONFIGS[1]
        assert often == []
        assert tune.choose(*data, SCALE, "ws_pipelined") == wsattn.CONFIGS[0]
    kept = [json.loads(path.read_text()) for path in tmp_path.rglob("wsattn.autotune.json")]
    assert len(kept) == 2
    assert all([row["ms"] for row in one["timed"]] in ([3.0, 1.0, 2.0, 4.0], [0.5, 1.0, 2.0, 4.0]) for one in kept)


def test_configurations_that_do_not_fit_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.errors import OutOfResources

    from kernels.wsattn import launch, tune

    def run(made: Any, device: torch.device) -> None:
        if made.options["BN"] == 128:
            raise OutOfResources(300000, 232448, "shared memory")

    monkeypatch.setattr(launch, "run", run)
    monkeypatch.setattr(tune, "elapsed", lambda call: 1.0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a small GPU")
    found = tune.time_all(*draw(64, 64), SCALE, "ws")
    assert set(found) == {c for c in wsattn.CONFIGS if c.BLOCK_N == 64}
    with pytest.raises(RuntimeError, match="no configuration of wsattn fits a small GPU"):
        tune.time_all(*draw(64, 64), SCALE, "ws", wsattn.CONFIGS[:1])


# ---------------------------------------------------------------- arguments


def test_on_a_cpu_it_says_what_it_needs() -> None:
    with pytest.raises(wsattn.UnsupportedOption, match=r"needs a Hopper GPU.* this is cpu"):
        wsattn.ws_attention(*draw(64, 64))
    with pytest.raises(wsattn.UnsupportedOption, match="Hopper"):
        wsattn.configuration(*draw(64, 64))


def test_bad_arguments() -> None:
    q, k, v = draw(64, 64)
    for args, options, error, said in [
        ((q, k, v), {"variant": "fast"}, ValueError, "ws, ws_pipelined, not 'fast'"),
        ((q, k, v, 0.0), {}, ValueError, "positive"),
        ((q[0], k, v), {}, ValueError, r"q must be \[B, H, N, D\]"),
        ((q, k[:, :1], v[:, :1]), {}, ValueError, "B, H and D of q"),
        ((q, k, v[:, :, :9]), {}, ValueError, "B, H and D of q"),
        ((q, k[:, :, :0], v[:, :, :0]), {}, ValueError, "no keys"),
        ((q, k.bfloat16(), v), {}, ValueError, "k is torch.bfloat16"),
        ([x.float() for x in (q, k, v)], {}, wsattn.UnsupportedOption, "dtype float32"),
        ([x[..., :64] for x in (q, k, v)], {}, wsattn.UnsupportedOption, "head dimension 64"),
    ]:
        with pytest.raises(error, match=said):
            wsattn.ws_attention(*args, **options)
