"""The worker's messages: a sent message arrives equal, and no other message arrives."""

from dataclasses import fields
from typing import Any, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abprof.records import messages as wire
from abprof.records.base import UNREADABLE, untrusted
from tests.fuzz.test_messages import example

KINDS = list(dict.fromkeys([*(kind for pair in wire.VERBS.values() for kind in pair), wire.Fault, wire.Foreground]))


def read(kind: type, data: bytes) -> Any:
    """A reply as the parent reads it."""
    return msgspec.convert(untrusted(data), kind)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_is_sent_arrives_equal(kind: type) -> None:
    """With all of its fields, and with those alone that have no default."""
    hints, bare = get_type_hints(kind), {field.name for field in fields(kind) if field.default is field.default_factory}
    for names in (hints.keys(), bare):
        record = msgspec.convert({name: example(hints[name]) for name in names}, kind)
        line = wire.dump(wire.pack(record))
        assert line.index(b"\n") == len(line) - 1
        assert read(kind, line) == record
        if kind in wire.NAMES:
            assert wire.unpack(kind, wire.load(line)) == record, "in the worker, without msgspec"


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
