"""The worker's messages: what is sent arrives equal, and nothing else arrives."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abprof.records import messages as wire

CASE: dict[str, wire.Value] = {"n": 8, "ratio": 0.5, "mask": "full", "packed": True}
MOUNT = wire.Mount("k", "/r", "abprof_side.k", "/b", ["/r"], ["/home"])
COMPILED = wire.Compiled("k[0]", "k", "/k.cubin", "00", None, 4, 3, 1, 1024, {"BLOCK": 64, "EVEN": True})
EXAMPLES: list[Any] = [
    wire.Start("cuda:GPU-1", "target", MOUNT, {"w": "/w.py"}, "/s", 3),
    wire.Start("cpu", "base"),
    wire.Ready(wire.PROTOCOL, 7, "cpu", "a processor", "", 1 << 40, {"torch": "2.13"}, {"host": "h"}),
    wire.Describe("w"),
    wire.Screen("w", [CASE, {}]),
    wire.Screened(["", "too large"], [1e9, None], [None, 4.0], ["", "fwd"]),
    wire.Build(False, ["make", "all"], "/r"),
    wire.Built(True, 1.5, ["v1"]),
    wire.Open("w", CASE, "base:v1", "v1", "", 1, 2),
    wire.Opened("oom", "out of memory"),
    wire.Opened("ok", "", 1e6, 2e6, 1 << 30),
    wire.Opened("ok", "", 1e6, 2e6, 1 << 30, 3e4),
    wire.Capture("a"),
    wire.Captured("host_sync", "the call waits for the device", spoiled=True),
    wire.Captured("", "", 1e4, 2e6),
    wire.Records(),
    wire.Done("CUPTI does not start"),
    wire.Check("a", "expected", "sample", "base"),
    wire.Hand("a", 7, "outputs", 8, True),
    wire.Done(),
    wire.Examine("w", {"n": 1}, 7, "outputs"),
    wire.Checked(True),
    wire.Checked(False, "NaN", 1.0, None, "ab", 0.5, {"density": 0.5, "autotuned": "128x64", "tiles": 3, "packed": True}),
    wire.Turn("a", 3, "cuda_event", False, 9),
    wire.Turn("a", 1, "cpu_clock"),
    wire.Turn("a", 8, "cupti", added=True),
    wire.Turned(1.5, 2.5, 10**18, 10**18 + 1),
    wire.Phases("a", 5),
    wire.Phased({"run": 1.0, "cast": None}, 2.0),
    wire.Phased({}, 2.0, wire.Census([wire.Launch("k", 2, 5.0, "k[0]", "B: 64", "ab", [8, 1, 1], [128, 1, 1], 32, 0)], 0.0)),
    wire.Trace("a", "w-1.base.json", 5, 2, 1000),
    wire.Traced(wire.Census([wire.Launch("k", 2, 5.0)], 0.0), 3, ""),
    wire.Close(),
    wire.Closed(),
    wire.Closed(1),
    wire.Prove(),
    wire.Proved(False, "elsewhere", [{"kind": "module", "name": "k", "path": "/k.py", "sha256": "0"}], 1, [COMPILED]),
    wire.Reach(0.5),
    wire.Reached(750.5, None, "products", ""),
    wire.Inventory(),
    wire.Listed({"torch": "2.13.0"}),
    wire.Stop(),
    wire.Fault("crash", "ValueError: x"),
]  # fmt: skip


def sent(record: Any) -> Any:
    """The record as the other end reads it."""
    line = wire.dump({"id": 1, "reply": wire.pack(record)})
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    return wire.unpack(type(record), wire.load(line)["reply"])


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: type(record).__name__)
def test_round_trip(record: Any) -> None:
    assert sent(record) == record


def test_described_round_trip() -> None:
    """Its tuples arrive as lists, and no other way."""
    phases = [("run", "k.run", "the kernel")]
    presets: dict[str, Any] = {"full": [(["n"], [[1], [2]]), (["a", "b"], [[64, 64]])]}
    sweep = wire.Sweep(["a"], "density", "", [(0.0, 0.5, 1.5, 2.0)])
    record = wire.Described(
        1, "k", "dense", "Text.", "gpu", presets, ["v"], ["p"], phases, ["n"], "n", ["v", "w"], sweep
    )
    back = sent(record)
    assert (back.scaled, back.ladder, back.sweep.bands) == ("n", ["v", "w"], [[0.0, 0.5, 1.5, 2.0]])
    assert back.presets == {"full": [[["n"], [[1], [2]]], [["a", "b"], [[64, 64]]]]}
    assert back.phases == [["run", "k.run", "the kernel"]]


def test_every_verb_has_an_example_here() -> None:
    kinds = {type(record) for record in EXAMPLES} | {wire.Described}
    assert kinds == {kind for pair in wire.VERBS.values() for kind in pair} | {wire.Fault}
    assert all(wire.NAMES[args] == verb for verb, (args, _) in wire.VERBS.items())


@given(st.text())
def test_any_text_is_one_line(text: str) -> None:
    """Newlines, line separators, quotes and control characters of a reason never break the framing."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    assert sent(wire.Fault("crash", text)).reason == text


def test_what_is_no_letter_is_told_as_such() -> None:
    """File names that are no UTF-8 come as surrogates, in exceptions' texts for one: no page or hash can hold them."""
    assert sent(wire.Fault("crash", "no file '\udcff'")).reason == "no file '\ufffd'"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_dump_refuses_what_json_has_not(number: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        wire.dump({"id": 1, "reply": wire.pack(wire.Turned(number, 1.0, 0, 1))})


@pytest.mark.parametrize(
    "line", [b'{"a":NaN}', b'{"a":Infinity}', b'{"a":-Infinity}', b"[1]", b"3", b"", b"{", b"\xff"]
)
def test_load_refuses(line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the reader's words differ
        wire.load(line)


GOOD = {"value": 1.0, "wall": 1.0, "start": 0, "end": 1}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"surprise": 1}, "no surprise"),
        ({"value": None}, "Turned.value is NoneType"),
        ({"value": "fast"}, "Turned.value is str"),
        ({"value": True}, "Turned.value is bool"),
        ({"value": [1.0]}, "Turned.value is list"),
        ({"start": 0.5}, "Turned.start is float"),
        ({"value": json.loads("1e999")}, "Turned.value is not finite"),
    ],
)
def test_unpack_refuses(change: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        wire.unpack(wire.Turned, GOOD | change)


@pytest.mark.parametrize(
    ("kind", "loose"),
    [
        (wire.Turned, {"value": 1.0}),
        (wire.Turned, None),
        (wire.Turned, [1.0, 1.0, 0, 1]),
        (wire.Proved, {"ok": True, "reason": "", "artefacts": [{"sha256": 5}]}),
        (wire.Phased, {"phases": {"run": "long"}, "total": 1.0}),
        (wire.Phased, {"phases": {"run": json.loads("1e999")}, "total": 1.0}),
        (wire.Screened, {"skips": [None], "flops": [], "bytes": [], "conventions": []}),
        (wire.Start, {"device": "cpu", "side": "base", "mount": {"name": "k"}}),
        (wire.Start, {"device": "cpu", "side": "base", "mount": "k"}),
        (wire.Open, {"workload": "w", "case": {"n": [1]}, "arm": "a"}),
    ],
)
def test_unpack_refuses_what_lies_deeper(kind: type, loose: Any) -> None:
    with pytest.raises(TypeError):
        wire.unpack(kind, loose)


def test_whole_numbers_stand_for_floats() -> None:
    assert wire.unpack(wire.Turned, GOOD | {"value": 3}) == wire.Turned(3, 1.0, 0, 1)
