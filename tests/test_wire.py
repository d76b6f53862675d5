"""The worker's messages: a sent message arrives equal, and no other message arrives."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abprof.records import messages as wire
from abprof.records.base import UNREADABLE, untrusted

CASE: dict[str, wire.Value] = {"n": 8, "ratio": 0.5, "mask": "full", "packed": True}
MOUNT = wire.Mount("k", "/r", "abprof_side.k", "/b", ["/r"], ["/home"])
COMPILED = wire.Compiled("k[0]", "k", "/k.cubin", "00", None, 4, 3, 1, 1024, {"BLOCK": 64, "EVEN": True})
EXAMPLES: list[Any] = [
    wire.Start("cuda:GPU-1", "target", MOUNT, {"w": "/w.py"}, "/s", 3),
    wire.Start("cpu", "base"),
    wire.Ready({"torch": "2.13"}, {"capability": "9.0"}),
    wire.Describe("w"),
    wire.Screen("w", [CASE, {}]),
    wire.Screened(["", "too large"], [1e9, None], [None, 4.0], ["", "fwd"]),
    wire.Build(["make", "all"]),
    wire.Built(True, ["v1"]),
    wire.Open("w", CASE, "base:v1", "v1", "", 1, 2),
    wire.Opened(1e6, 2e6, 1 << 30),
    wire.Opened(1e6, 2e6, 1 << 30, 3e4),
    wire.Capture("a"),
    wire.Captured("host_sync", "the call waits for the device", spoiled=True),
    wire.Captured("", "", 1e4, 2e6),
    wire.Check("a", "expected", "sample", "base"),
    wire.Hand("a", 7, "outputs", 8, True),
    wire.Examine("w", {"n": 1}, 7, "outputs"),
    wire.Examine("w", {"n": 1}, 7, "outputs", seen=[[4, ""], [1, "ff00"]]),
    wire.Checked(True),
    wire.CheckResult(False, "NaN", 1.0),
    wire.Checked(False, "NaN", 1.0, None, "ab", 0.5, True, {"density": 0.5, "autotuned": "128x64", "tiles": 3, "packed": True}),
    wire.Turn("a", 3, "cuda_event", False, 9),
    wire.Turn("a", 1, "cpu_clock"),
    wire.Turn("a", 8, "cupti"),
    wire.Turned(1.5, 2.5, 10**18, 10**18 + 1),
    wire.Watch(10**6),
    wire.Watched(5),
    wire.Phases("a", 5),
    wire.Phased({"run": 1.0, "cast": None}, 2.0),
    wire.Phased({}, 2.0, wire.Census((wire.Launch("k", 2, 5.0, "k[0]", "B: 64", "ab", (8, 1, 1), (128, 1, 1), 32, 0),), 0.0)),
    wire.Phases("a", 5, 2, "w-1.base.json", 1000),
    wire.Phased({}, 2.0, wire.Census((wire.Launch("k", 2, 5.0),), 0.0), 3),
    wire.Close(),
    wire.Done(),
    wire.Prove(),
    wire.Proved(False, "elsewhere", [wire.Artefact("module", "k", "/k.py", "0")], 1, [COMPILED]),
    wire.Reach(),
    wire.Ceilings(750.5, "products"),
    wire.Inventory(),
    wire.Listed({"torch": "2.13.0"}),
    wire.Stop(),
    wire.Fault("crash", "ValueError: x"),
    wire.Described(
        "w", "k", "dense", ("n",), "gpu", ("v",), ("p",), (wire.Phase("run", "k.run", "the kernel"),), ("n",), "n", ("v", "w"),
        wire.Sweep(("a",), (wire.Band((0.0, 0.5), (1.5, 2.0)),)), "sides", "00", "Text.",
        {"full": [(["n"], [[1], [2]]), (["a", "b"], [[64, 64]])]}, "gpu", ["p"],
    ),
]  # fmt: skip


def read(kind: type, data: bytes) -> Any:
    """A reply as the parent reads it."""
    return msgspec.convert(untrusted(data), kind)


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: type(record).__name__)
def test_what_is_sent_arrives_equal(record: Any) -> None:
    line = wire.dump(wire.pack(record))
    assert line.index(b"\n") == len(line) - 1
    assert read(type(record), line) == record
    if type(record) in wire.NAMES:
        assert wire.unpack(type(record), wire.load(line)) == record, "in the worker, without msgspec"
    job = wire.Foreground(EXAMPLES[0], wire.Open("w", CASE, "base"), 1, 2, "/out")
    assert wire.unpack(wire.Foreground, wire.load(wire.dump(wire.pack(job)))) == job


def test_every_verb_has_an_example_here() -> None:
    kinds = {type(record) for record in EXAMPLES}
    assert kinds == {kind for pair in wire.VERBS.values() for kind in pair} | {wire.Fault}


@given(st.text())
def test_any_text_is_one_line(text: str) -> None:
    """Newlines, line separators, quotes and control characters of a reason never break the framing; a lone surrogate (of a
    file name that is no UTF-8) becomes `?`."""
    read_back = read(wire.Fault, wire.dump(wire.pack(wire.Fault("crash", text + "\udcff"))))
    assert read_back.reason == text.encode(errors="replace").decode() + "?"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_dump_refuses_what_json_has_not(number: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        wire.dump(wire.pack(wire.Turned(number, 1.0, 0, 1)))


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (wire.Turned, '{"value":NaN,"wall":1,"start":0,"end":1}'),
        (wire.Turned, '{"value":1e999,"wall":1,"start":0,"end":1}'),
        (wire.Turned, '{"value":null,"wall":1,"start":0,"end":1}'),
        (wire.Turned, '{"value":true,"wall":1,"start":0,"end":1}'),
        (wire.Turned, '{"value":1,"wall":1,"start":0.5,"end":1}'),
        (wire.Turned, '{"value":1,"wall":1,"start":0,"end":123456789012345678901}'),
        (wire.Turned, '{"value":1}'),
        (wire.Turned, "[1,1,0,1]"),
        (wire.Checked, '{"ok":true,"facts":{"tiles":123456789012345678901}}'),
        (wire.Proved, '{"ok":true,"reason":"","artefacts":[{"sha256":5}]}'),
        (wire.Phased, '{"phases":{"run":"long"},"total":1.0}'),
        (wire.Screened, '{"skips":[null],"flops":[],"bytes":[],"conventions":[]}'),
        (wire.Fault, '{"status":"crash","reason":"\\udcff"}'),
    ],
)
def test_the_parent_refuses(kind: type, line: str) -> None:
    with pytest.raises((*UNREADABLE, OverflowError)):
        read(kind, line.encode())
