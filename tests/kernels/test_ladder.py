"""The ladder without a GPU: arguments, the platform table, every rung in Triton's interpreter, its machine code."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels import ladder

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
ROOT = Path(__file__).resolve().parents[2]


def run(module: str, *args: str, **env: str) -> list[str]:
    """Lines that `python -m tests.kernels.MODULE` prints; it must exit with 0."""
    variables = os.environ | {"OMP_NUM_THREADS": "1"} | env
    command = [sys.executable, "-m", f"tests.kernels.{module}", *args]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


QUICK = "33"  # a length: two of the seven shapes


def test_every_rung_in_the_interpreter() -> None:
    lines = run("ladder_interpret", QUICK, TRITON_INTERPRET="1")
    assert len(lines) == 2 * len(ladder.RUNGS)
    assert all(line.endswith(": right") for line in lines)


@pytest.mark.slow
def test_every_rung_in_the_interpreter_on_every_other_shape() -> None:
    from tests.kernels.ladder_interpret import every_case

    others = {str(case.length) for case in every_case()} - {QUICK}
    lines = run("ladder_interpret", *others, TRITON_INTERPRET="1")
    assert len(lines) == 5 * len(ladder.RUNGS)
    assert all(line.endswith(": right") for line in lines)


PRODUCTS = {"sm80": "HMMA", "sm90": "HGMMA", "sm100": "UTCHMMA", "sm120": "HMMA"}
SHARED = {"sm80": 164 * 1024, "sm90": 228 * 1024, "sm100": 228 * 1024, "sm120": 100 * 1024}  # of a multiprocessor


def gates(family: str, facts: dict[str, Any]) -> list[str]:
    """What is wrong with a rung's machine code."""
    rung, found = facts["label"].split()[0], []
    if facts["LDL"]:
        found.append(f"{facts['LDL']} reads of spilled registers")
    if not facts[PRODUCTS[family]]:
        found.append(f"no {PRODUCTS[family]}")
    if facts["WARPGROUP.DEPBAR"] * 2 > facts["HGMMA"]:
        found.append(f"{facts['HGMMA']} wgmma, {facts['WARPGROUP.DEPBAR']} waits: serialised")
    config = ladder.TABLE[family][rung]
    by_tma = config.tma and rung in ("memory", "full")
    if bool(facts["UTMALDG"]) != by_tma or bool(facts["LDGSTS"]) == by_tma:
        found.append(f"loads: {facts['UTMALDG']} by TMA, {facts['LDGSTS']} by cp.async")
    if config.per_sm * facts["registers"] * 32 * config.num_warps > 65536:
        found.append(f"{facts['registers']} registers do not leave room for {config.per_sm} blocks")
    if config.per_sm * (facts["shared"] + 1024) > SHARED[family]:
        found.append(f"{facts['shared']} bytes shared do not leave room for {config.per_sm} blocks")
    return found


EVERY = ("basic causal", "exp2 causal", "memory causal", "full causal", "full full")


@pytest.mark.parametrize(
    ("family", "labels"),
    [
        ("sm90", ("full causal",)),
        *(pytest.param(family, EVERY, marks=pytest.mark.slow) for family in ladder.TABLE),
    ],
)
def test_machine_code(family: str, labels: tuple[str, ...]) -> None:
    kernels = [json.loads(line) for line in run("ladder_offline", family, *labels)]
    assert tuple(facts["label"] for facts in kernels) == labels
    assert {facts["label"]: gates(family, facts) for facts in kernels if gates(family, facts)} == {}


def test_the_table_has_every_rung_for_every_family() -> None:
    from kernels.ladder.platforms import FAMILIES

    assert set(FAMILIES.values()) == set(ladder.TABLE)
    assert all(tuple(row) == ladder.RUNGS for row in ladder.TABLE.values())
    assert not any(config.tma for config in ladder.TABLE["sm80"].values()), "no such loads before 9.0"
    for row in ladder.TABLE.values():
        assert row["basic"] == row["exp2"], "one change a rung"


@pytest.mark.parametrize(
    ("config", "registers"),
    [
        (ladder.Config(64, 64, 4, 2), None),
        (ladder.Config(64, 64, 4, 2, per_sm=2), None),
        (ladder.Config(64, 64, 4, 2, per_sm=3), 168),
        (ladder.Config(128, 64, 8, 2, per_sm=2), 128),
    ],
)
def test_register_bound(config: ladder.Config, registers: int | None) -> None:
    assert config.registers == registers


def test_cutile_rungs_have_a_configuration_on_every_family(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.ladder import api
    from kernels.ladder.platforms import CUTILE_TILES

    assert set(CUTILE_TILES) == set(ladder.TABLE)
    for family, tile in CUTILE_TILES.items():
        monkeypatch.setattr(api, "family", lambda device, family=family: family)
        found = [ladder.configuration(rung, "cuda") for rung in ladder.CUTILE_RUNGS]
        assert found == [ladder.CutileConfig(*tile, occupancy) for occupancy in (1, 1, 1, 2)]
    assert (*ladder.RUNGS, *ladder.CUTILE_RUNGS) == ladder.VARIANTS


def test_without_cutile_its_rungs_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.ladder import api

    class OnGpu:
        is_cuda = True

    q: Any = OnGpu()
    monkeypatch.delitem(sys.modules, "kernels.ladder.cutile", raising=False)
    monkeypatch.setitem(sys.modules, "cuda.tile", None)
    with pytest.raises(ladder.UnsupportedOption, match=r"cuTile \(package cuda-tile\) is not installed"):
        api._run_cutile(q, q, q, q, rung="cutile_full")


@pytest.mark.slow
@pytest.mark.parametrize("rung", ladder.CUTILE_RUNGS)
@pytest.mark.parametrize("causal", [True, False])
def test_machine_code_of_cutile(rung: str, causal: bool, tmp_path: Path) -> None:
    """For sm_90, where the package and its compiler are installed: extra `cutile`."""
    ct = pytest.importorskip("cuda.tile", reason="needs the package cuda-tile")
    from cuda.tile import compilation

    from kernels.ladder import cutile
    from kernels.ladder.platforms import CUTILE_TILES
    from tests.kernels.offline_driver import machine_code

    tensor = compilation.ArrayConstraint(
        ct.float16, 3, index_dtype=ct.int32, stride_lower_bound_incl=0, alias_groups=[], may_alias_internally=False,
        stride_constant=(None, None, 1), stride_divisible_by=(8, 8, 1), base_addr_divisible_by=16,
    )  # fmt: skip
    height = ladder.CUTILE_RUNGS.index(rung)
    numbers = [compilation.ScalarConstraint(dtype) for dtype in (ct.float32, ct.int32)]
    constants = (*CUTILE_TILES["sm90"], 128, causal, height)
    signature = compilation.KernelSignature(
        [*[tensor] * 4, *numbers, *constants], compilation.CallingConvention.cutile_python_v2()
    )
    file = tmp_path / "kernel.cubin"
    kernel = cutile.KERNELS[2 if rung == "cutile_full" else 1]
    compilation.export_kernel(kernel, [signature], str(file), gpu_code="sm_90", output_format="cubin")
    code = machine_code(SimpleNamespace(asm={"cubin": file.read_bytes()}, metadata=SimpleNamespace(shared=0)))
    assert code.count("HGMMA")
    assert code.count("UTMALDG")
    spilled = 12 if (rung, causal) == ("cutile_full", False) else 0  # what there is today; the causal one is measured
    assert code.count("LDL") <= spilled
    assert code.count("WARPGROUP.DEPBAR") * 2 <= code.count("HGMMA"), "not serialised"
    assert rung != "cutile_full" or code.registers <= 128, "two blocks share a multiprocessor"


def tensors(dtype: torch.dtype = torch.float16, dim: int = 64) -> list[torch.Tensor]:
    return [torch.zeros(1, 1, 16, dim, dtype=dtype) for _ in range(3)]


def test_on_a_cpu_it_says_what_it_needs() -> None:
    with pytest.raises(ladder.UnsupportedOption, match=r"needs an NVIDIA GPU, and this is cpu"):
        ladder.fmha(*tensors())
    with pytest.raises(ladder.UnsupportedOption, match="NVIDIA GPU"):
        ladder.configuration("full", "cpu")


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"rung": "top"}, ValueError, "basic, exp2, memory, full, cutile_basic, .*, not 'top'"),
        ({"scale": 0.0}, ValueError, "positive"),
        ({"scale": float("nan")}, ValueError, "finite"),
    ],
)
def test_bad_options(changes: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        ladder.fmha(*tensors(), **changes)


def test_bad_tensors() -> None:
    q, k, v = tensors()
    for bad, error, said in [
        ((q[0], k, v), ValueError, r"q must be \[B, H, N, D\]"),
        ((q, k[:, :, :8], v), ValueError, "q and k must have equal shapes"),
        ((q, k, v.bfloat16()), ValueError, "v is torch.bfloat16"),
        (tensors(torch.float32), ladder.UnsupportedOption, "dtype float32"),
        (tensors(dim=96), ladder.UnsupportedOption, "head dimension 96"),
    ]:
        with pytest.raises(error, match=said):
            ladder.fmha(*bad)
