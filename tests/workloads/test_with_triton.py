"""dynamic_mask and memory_traffic on their kernels through a real worker, in Triton's interpreter: right, with phases,
facts and a proof of where everything came from."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from abprof.records import messages as wire
from tests.workloads.conftest import FOLDER
from tests.workloads.worker import side

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton"),
]
KERNELS = FOLDER.parent / "kernels"
MASKED = {"seqlen": 70, "batch": 1, "nhq": 1, "nhk": 1, "mask_heads": 1, "hd": 64, "dtype": "fp16"}
BIGBIRD = {"subject": "bigbird", "seqlen": 128, "batch": 1, "nhq": 1, "hd": 64, "dtype": "fp32"}


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def recorded(phased: Any) -> set[str]:
    return {name for name, ns in phased.phases.items() if ns}


def test_dynamic_mask(tmp_path: Path) -> None:
    phases = {
        "fwd": {"fwd_prepare", "fwd_prepass", "fwd_run"},
        "bwd": {"bwd_prepare", "bwd_prepass", "bwd_preprocess", "bwd_run"},
    }
    with side(KERNELS, "dmask", [FOLDER / "dynamic_mask.py"], tmp_path) as worker:
        for direction, expected in phases.items():
            case = {**MASKED, "pattern": "diagonal", "sparsity": 0.5, "direction": direction}
            assert worker.open("dynamic_mask", case).status == "ok"
            checked = worker.check(expected=direction)
            assert checked.ok, checked.reason
            assert checked.facts["tiles"] == 4
            assert checked.facts["tier"] == "Medium"
            assert recorded(worker.ask(wire.Phases("base", 1))) == expected
        proved = worker.ask(wire.Prove())
        assert proved.ok, proved.reason


def test_memory_traffic(tmp_path: Path) -> None:
    phases = {"fused": {"prepare", "run"}, "unfused": {"prepare", "qk", "softmax", "pv"}}
    with side(KERNELS, "memtraffic", [FOLDER / "memory_traffic.py"], tmp_path) as worker:
        for variant, expected in phases.items():
            arm = f"base:{variant}"
            opened = worker.ask(wire.Open("memory_traffic", BIGBIRD, arm, variant=variant, seed=3))
            assert opened.status == "ok"
            checked = worker.check(arm)
            assert checked.ok, checked.reason
            assert (
                checked.facts["minimum_dram_bytes"]
                == {"fused": 4 * 32768.0, "unfused": 4 * 32768.0 + 4 * 65536.0}[variant]
            )
            assert recorded(worker.ask(wire.Phases(arm, 1))) == expected
        proved = worker.ask(wire.Prove())
        assert proved.ok, proved.reason
