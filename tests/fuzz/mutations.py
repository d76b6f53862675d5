"""What foreign data can be: files that were right once, with bytes or values that are not, and what no program writes.

The examples are the same everywhere (`derandomize` in tests/conftest.py): a few in `make test`, many in
`make test-nightly`. What a hunt found is a test of its own with the words that found it.
"""

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

DEEP = 100_000  # brackets: more than any stack holds
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 2**63, -(2**63) - 1, 10**400, 1.5, -0.0, 1e308, -1e308, 5e-324, "", "\0", "\ud800", "\x1b[2J",
    "../../../etc/passwd", "<script>alert(1)</script>", "x" * 5000, "nan", "1e999", [], {}, [None], [[[[[[]]]]]], {"": {}},
    {"surprise": 1}, [1, "a", None], "2026-02-30", "0" * 40,
)  # fmt: skip
RAW = (
    b"", b"\0", b"\xff\xfe", b"NaN", b"-Infinity", b"1e999", b"9" * 5000, b'"', b"{", b"]", b"\n", b"\r", b",,,,", b"=", b"-",
    b"'''", b"\xed\xa0\x80", b"[" * DEEP, b'{"a":' * DEEP, b"\x1b[2J", b"a" * 10_000, b"0x", b"\xe2\x80\xae",
)  # fmt: skip
many = pytest.mark.parametrize("examples", [40, pytest.param(500, marks=pytest.mark.nightly)])
fewest = pytest.mark.parametrize(
    "examples", [5, pytest.param(100, marks=pytest.mark.nightly)]
)  # of what takes half a second
few = pytest.mark.parametrize("examples", [12, pytest.param(130, marks=pytest.mark.nightly)])


def hunt(strategy: st.SearchStrategy[Any], ask: Callable[[Any], object], examples: int) -> None:
    """Ask with so many examples; what `ask` raises fails the test with the first example that raises it. A smaller one is not
    looked for: where a question takes half a second that takes minutes."""

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(strategy)
    def once(example: Any) -> None:
        ask(example)

    once()


@st.composite
def bytes_of(draw: st.DrawFn, data: bytes) -> bytes:
    """Return the file with one to three places cut, doubled or replaced by foreign bytes."""
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(data)))
        end = min(len(data), begin + draw(st.sampled_from((0, 1, 1, 8, 200))))
        how = draw(st.sampled_from(("cut", "raw", "flip", "tail", "twice")))
        if how == "tail":
            data = data[:begin]
        elif how == "twice":
            data = data[:end] + data[begin:]
        elif how == "flip" and begin < len(data):
            data = data[:begin] + bytes([data[begin] ^ (1 << draw(st.integers(0, 7)))]) + data[begin + 1 :]
        else:
            data = data[:begin] + (draw(st.sampled_from(RAW)) if how == "raw" else b"") + data[end:]
    return data


@st.composite
def values_of(draw: st.DrawFn, document: Any) -> Any:
    """The document with one to three values replaced by odd ones, or keys that are gone, doubled or new."""
    document = copy.deepcopy(document)
    odd = st.sampled_from(ODD).map(copy.deepcopy)  # it may be changed itself
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(document))
        holder, key = places[draw(st.integers(0, len(places) - 1))]
        how = draw(st.sampled_from(("odd", "odd", "gone", "twice", "new")))
        if how == "odd":
            holder[key] = draw(odd)
        elif how == "gone":
            del holder[key]
        elif isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]) if how == "twice" else draw(odd))
        else:
            other = draw(st.sampled_from(sorted(holder)))
            holder[other if how == "twice" else "surprise"] = copy.deepcopy(holder[key])
        if not document:
            break
    return document


def texts_of(document: Any) -> st.SearchStrategy[bytes]:
    """JSON of the document with odd values in it, or with odd bytes."""
    return values_of(document).map(encoded) | bytes_of(encoded(document))


def encoded(document: Any) -> bytes:
    """JSON as a careless program writes it: NaN and lone surrogates too."""
    return json.dumps(document, separators=(",", ":")).encode()


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    pairs: Sequence[tuple[Any, Any]] = ()
    if isinstance(document, dict):
        pairs = list(document.items())
    elif isinstance(document, list):
        pairs = list(enumerate(document))
    for key, value in pairs:
        yield document, key
        yield from _places(value)
