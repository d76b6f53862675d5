"""What a command may print, and what is said of what it may not."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abprof.measure.commands import LONGEST, MOST, MOST_TIMES, read

GOOGLE = """{"context": {"num_cpus": 2}, "benchmarks": [
  {"name": "BM_copy/64", "run_type": "iteration", "real_time": 2.5, "time_unit": "us"},
  {"name": "BM_copy/64", "run_type": "iteration", "real_time": 2.7, "time_unit": "us"},
  {"name": "BM_copy/64_mean", "run_type": "aggregate", "real_time": 2.6, "time_unit": "us"},
  {"name": "BM_bad", "error_occurred": true, "error_message": "no"}]}"""
PYTEST = """{"machine_info": {}, "benchmarks": [
  {"fullname": "test_b.py::test_sort", "name": "test_sort", "stats": {"median": 0.002, "mean": 0.003}}]}"""


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("softmax,1.5\nlayernorm,2\n", {"softmax": [1.5e6], "layernorm": [2e6]}),
        ("warming up\nsoftmax , 1.5e0 \n\nsoftmax,1.6\n", {"softmax": [1.5e6, 1.6e6]}),
        ("softmax(128, 256),1\n", {"softmax(128, 256)": [1e6]}),
        ('"a,b",1\n', {"a,b": [1e6]}),
        ("name,ms\na,1\nb,2\n", {"a": [1e6], "b": [2e6]}),
        ("name,1\n", {"name": [1e6]}),
        ("# device 0\nName, us\na,1\n\ndone,7\n", {"a": [1e3]}),
        ('name,tflops,ns\n"a,b",1.51,5\n"a,b",1.52,6\n', {"a,b": [5.0, 6.0]}),
        ('{"a": 1, "b": 2.5}', {"a": [1e6], "b": [2.5e6]}),
        ('[{"name": "a", "ms": 1}, {"name": "a", "ms": 2}, {"name": "b", "s": 1}]', {"a": [1e6, 2e6], "b": [1e9]}),
        (PYTEST, {"test_b.py::test_sort": [2e6]}),
    ],
)
def test_formats(text: str, times: dict[str, list[float]]) -> None:
    assert {name: pytest.approx(values) for name, values in times.items()} == read(text).times
    assert list(read(text).times) == list(times)


def test_google_benchmarks_repetitions_are_times_and_its_means_are_not() -> None:
    times = read(GOOGLE).times
    assert times["BM_copy/64"] == [2500.0, 2700.0]
    assert math.isnan(times["BM_bad"][0])
    assert "BM_copy/64_mean" not in times


def test_lines_that_are_none_are_told() -> None:
    assert read("hello\na,1\na,fast\n").passed_over == ("hello", "a,fast")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it printed nothing"),
        ("softmax 1.5 ms\n", "no line of what it printed is `name,ms`; the first is 'softmax 1.5 ms'"),
        ("name,ms\na,fast\n", "'a' has 'fast', which is no time"),
        ("name,ms\na\n", "row 'a' has 1 columns, the header 2"),
        ("name,ms\n", "a table without a row"),
        ("name,n,ms\na,1,1\na,2,1\n", "'a' stands in rows that differ in n: put what tells them apart into the name"),
        ('{"a": {"mean": 1}}', "which is no time"),
        ('{"a": true}', "which is no time"),
        ("[1, 2]", "neither {name: ms} nor a list"),
        ('[{"ms": 1}]', "has no name"),
        ('[{"name": "a"}]', "'a' has no time"),
        ('{"benchmarks": [{"name": "a", "real_time": 1, "time_unit": "h"}]}', "time unit 'h'"),
        ("x" * (LONGEST + 1) + ",1\n", "a name of 301 letters"),
        ("".join(f"n{i},1\n" for i in range(MOST + 1)), "5001 names"),
        ("a,1\n" * (MOST_TIMES + 1), "more than 200000 times"),
        ("name,tflops\na,300\n", "the columns of 'name,tflops' beside name are 'tflops', and none is a time's unit"),
        ("on device 0\nName, mean_us, n\na,3,1\n", "beside name are 'mean_us, n'"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_line(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        read(text)
    assert "\n" not in str(error.value)


@given(st.text(max_size=200))
def test_any_text_is_times_or_one_line(text: str) -> None:
    try:
        times = read(text).times
    except ValueError:
        return
    assert times
    assert all(name == " ".join(name.split()) and values for name, values in times.items())


def test_a_name_that_is_no_unicode_can_be_written() -> None:
    (name,) = read('{"a\\ud800": 1}').times
    assert name.encode() == b"a?"
