"""Valid output of a command that times itself, and the errors for invalid output."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abprof.measure.commands import LONGEST, MOST, MOST_TIMES, read


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("softmax,1.5\nlayernorm,2\n", {"softmax": [1.5e6], "layernorm": [2e6]}),
        ("warming up\nsoftmax , 1.5e0 \n\nsoftmax,1.6\n", {"softmax": [1.5e6, 1.6e6]}),
        ("softmax(128, 256),1\n", {"softmax(128, 256)": [1e6]}),
        ('"a,b",1\n', {"a,b": [1e6]}),
        ("name,ms\na,1\nb,2\n", {"a": [1e6], "b": [2e6]}),
        ("name,1\n", {"name": [1e6]}),
    ],
)
def test_formats(text: str, times: dict[str, list[float]]) -> None:
    found, _ = read(text)
    assert {name: pytest.approx(values) for name, values in times.items()} == found
    assert list(found) == list(times)


@pytest.mark.parametrize(
    ("text", "ns"),
    [("a,12\n", 1e6), ("a,12\nb,1.50\n", 1e4), ("a,1.5e1\n", 1e6), ("a,1.5e-3\n", 100.0), ("a,nan\n", 0.0)],
)
def test_the_last_digit_is_the_most_precise_lines(text: str, ns: float) -> None:
    assert read(text)[1] == pytest.approx(ns)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the command printed nothing"),
        ("softmax 1.5 ms\n", "the first line is 'softmax 1.5 ms'; print a line `name,ms` for each timing"),
        ("x" * (LONGEST + 1) + ",1\n", "a name has 301 letters"),
        ("".join(f"n{i},1\n" for i in range(MOST + 1)), "5001 names"),
        ("a,1\n" * (MOST_TIMES + 1), "more than 200000 timings"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_line(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        read(text)
    assert "\n" not in str(error.value)


@given(st.text(max_size=200))
def test_any_text_is_times_or_one_line(text: str) -> None:
    try:
        times, _ = read(text)
    except ValueError:
        return
    assert times
    assert all(name == " ".join(name.split()) and values for name, values in times.items())
