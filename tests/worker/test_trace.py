"""Trace files: Chrome traces of limited size without folders of this machine, and proton's tree."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from abprof.worker import profile
from abprof.worker.api import Op
from abprof.worker.bench import clock


def test_a_trace_has_no_folders_of_the_machine_and_a_limited_size(tmp_path: Path) -> None:
    names = ["a/b/c", "void at::f<float>(x)", "https://x.y/z/a", "x / y"]
    events: list[dict[str, Any]] = [{"name": name, "ts": 5, "ph": "X"} for name in names]
    events += [{"name": f"at /home/me/some/kernel_{i}.py(3)", "ph": "X", "ts": -i} for i in range(100)]
    events.append({"ph": "M", "name": "process_name", "args": {"name": "python", "file": "/opt/x/y.py"}})
    raw, target = tmp_path / "raw", tmp_path / "target"
    raw.write_text(json.dumps({"traceName": "/tmp/x/t.json", "traceEvents": events, "schemaVersion": 1}))
    assert profile.write_chrome(raw, target, 10**6) == 0
    text = target.read_text()
    assert not any(folder in text for folder in ("/home", "/opt", "/tmp"))
    assert [event["name"] for event in json.loads(text)["traceEvents"]][-5:] == ["at kernel_0.py(3)", *names]
    left_out = profile.write_chrome(raw, target, 2000)
    kept = json.loads(target.read_text())["traceEvents"]
    assert target.stat().st_size <= 2000
    assert left_out == 105 - len(kept) > 0
    assert (kept[0]["ph"], kept[1]["ts"]) == ("M", -99), "names of threads, then the first in time"
    raw.write_text('{"traceEvents": []}')
    with pytest.raises(ValueError, match="no events"):
        profile.write_chrome(raw, target, 100)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_real_profile_is_written_with_its_operations(tmp_path: Path, device: str) -> None:
    x, timer = torch.randn(64, device=device), clock(device)
    made = profile.profiled(Op(lambda: torch.exp(x + 1)), 3, timer, 1, None)
    with profile.exported(made[0]) as raw:
        counted = profile.counted(made, {}, timer, 1, raw).census
        assert profile.write_chrome(raw, tmp_path / "t.json", 10**7) == 0
        assert str(raw.parent) not in (tmp_path / "t.json").read_text()
    assert not counted.missing
    assert [launch.count for launch in counted.launches] == [1, 1]


def frame(name: str, *children: object, **metrics: object) -> dict[str, object]:
    """A frame as Triton 3.6's proton writes it (`finalize`, hatchet)."""
    return {"frame": {"name": name, "type": "function"}, "metrics": metrics, "children": list(children)}


def kernel(name: str, count: int, ns: float, *children: object) -> dict[str, object]:
    return frame(name, *children, **{"count": count, "time (ns)": ns, "device_id": "0", "device_type": "CUDA"})


DEVICES = {"CUDA": {"0": {"arch": "90", "bus_width": 6144, "clock_rate": 1980000, "num_sms": 132}}}
CALLS = frame(
    "abprof_call",
    kernel("tiny_kernel", 6, 9000),
    frame("mine", kernel("other", 3, 300), frame("__proton_launch_metadata", kernel("asks", 3, 7))),
)


def test_protons_tree_is_read_as_what_one_call_launched() -> None:
    tree = [frame("ROOT", kernel("reset", 3, 50), CALLS, count=0), DEVICES]
    found = {launch.name: (launch.count, launch.ns) for launch in profile.read_proton(tree, 3)}
    assert found == {"tiny_kernel": (2, 3000.0), "other": (1, 100.0)}, "no reset, no metadata"


@pytest.mark.parametrize(
    ("tree", "reason"),
    [
        ({}, "not a proton tree"),
        ([{"frame": 3}], "not a proton tree"),
        ([frame("ROOT"), DEVICES], "proton recorded no kernel"),
        ([frame("ROOT", frame("abprof_call", kernel("k", 4, 9))), DEVICES], "k ran 4 times in 3 calls: calls differ"),
    ],
)
def test_a_malformed_tree_is_refused(tree: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        profile.read_proton(tree, 3)


def test_where_proton_fails_the_reason_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[int]()
    found = profile.proton(Op(lambda: calls.append(1)), 3, clock("cpu"), 2, tmp_path / "tree", 1000)
    assert found.missing.startswith("proton does not work here: ")
    assert len(calls) == 2, "the calls before it"
    torn = lambda op, calls, timer, made: made.with_suffix(".hatchet").write_text('[{"frame": {"name": "RO')  # noqa: E731
    monkeypatch.setattr(profile, "_under_proton", torn)
    found = profile.proton(Op(lambda: torch.zeros(1)), 2, clock("cpu"), 1, tmp_path / "tree", 1 << 20)
    assert found.missing.startswith("cannot read proton's file: ")
    assert found.census.missing == found.missing
    assert not (tmp_path / "tree").exists()


REAL_PROTON = """
import json, sys, torch
from pathlib import Path
from abprof.kit import Op
from abprof.worker import profile
from abprof.worker.bench import clock
x = torch.randn(1 << 16, device="cuda")
found = profile.proton(Op(lambda: torch.exp(x + 1)), 3, clock("cuda"), 1, Path(sys.argv[1]), 10**7)
print(json.dumps([found.missing, [[launch.count, launch.ns] for launch in found.census.launches]]))
"""


@pytest.mark.gpu
def test_real_proton_sees_tritons_and_torchs_kernels(tmp_path: Path) -> None:
    """In a process of its own: CUPTI has one subscriber, and torch's profiler stays one for good."""
    program = [sys.executable, "-c", REAL_PROTON, str(tmp_path / "tree")]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=100)
    missing, launches = json.loads(done.stdout.splitlines()[-1])
    assert missing == ""
    assert sum(count for count, _ns in launches) == 2
    assert all(ns > 0 for _count, ns in launches)
    assert json.loads((tmp_path / "tree").read_text())
