"""`abprof compare`: recordings of other tools, read as those write them, and never judged.

tests/data/recordings: pytest-benchmark 5.3.1 and Google Benchmark 1.9.5 wrote pytest.json and google.json (cut down);
nvbench.json and action.js have the keys of nvbench's json_printer.cu and github-action-benchmark's write.ts.
"""

import csv
from pathlib import Path

import pytest

from abprof.cli import run_command_line
from abprof.report.recordings import NO_VERDICT

DATA = Path(__file__).parent / "data" / "recordings"
FORMATS = {  # file -> name: (ms, scatter in per cent); an edit that makes one time 10 % longer; one of another device
    "nvbench.json": ({"copy N=2^20": (1.0, 0.5), "copy N=2^24": (16.2, 0.2)}, ('"0.001"', '"0.0011"'), ("H100", "H200")),
    "pytest.json": ({"test_x.py::test_sum[1000]": (0.008393, 2.5), "test_x.py::test_sum[100000]": (1.041473, 45.9)},
                    ("8.392999006900936e-06", "9.2322989e-06"), ("AMD EPYC", "Xeon")),
    "google.json": ({"sorting/64": (0.001742, 38.6)}, ("1741.", "1916."), ('"num_cpus": 2', '"num_cpus": 4')),
    "action.js": ({"fib": (2.0, 0.0), "sort": (0.0415, 1.2)}, ("500.0", "454.5454"), ("", "")),
}  # fmt: skip


def compare(*words: object) -> int:
    return run_command_line(["compare", *map(str, words)])


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_is_read_as_its_tool_writes_it_and_only_on_one_device(name, tmp_path, capsys):
    times, edit, device = FORMATS[name]
    text, target, out = (DATA / name).read_text(), tmp_path / name, tmp_path / "out.csv"
    if any(device):
        target.write_text(text.replace(*device))
        assert compare(DATA / name, target, out) == 2
        assert "recordings of different devices: " in capsys.readouterr().err
        assert not out.exists()
    target.write_text(text.replace(*edit))
    assert compare(DATA / name, target, "/dev/null") == 2, "a device is not replaced by a file"
    assert compare(DATA / name, target, out) == 0
    shown = capsys.readouterr().out
    assert f"1 of {len(times)} times differ by more than 1.5 %. {NO_VERDICT}" in shown.splitlines(), "on one line"
    assert "10.0 % slower" in " ".join(shown.split())
    assert "of the base left out" in shown or name == "pytest.json"
    assert ("The files do not say on which device" in shown) == (name == "action.js")
    rows = {row["name"]: row for row in csv.DictReader(out.read_text().splitlines())}
    assert list(rows) == list(times)
    for case, known in times.items():
        found = tuple(float(rows[case][column] or 0) for column in ("base_ms", "base_scatter_pct"))
        assert found == pytest.approx(known, rel=0.02)


def test_run_folders_have_another_command(tmp_path, capsys):
    assert compare(tmp_path, tmp_path) == 2
    assert f"two runs are compared by: abprof report {tmp_path} {tmp_path}" in capsys.readouterr().err


def test_pytest_benchmarks_files_may_lack_statistics(tmp_path, capsys):
    """Without median or quartiles the mean and its deviation are read; without both, an entry is left out."""
    text, less, out = (DATA / "pytest.json").read_text(), tmp_path / "less.json", tmp_path / "out.csv"
    less.write_text(text.replace('"iqr"', '"x"', 1).replace('"median"', '"y"', 1))
    assert compare(DATA / "pytest.json", less, out) == 0
    rows = {row["name"]: row for row in csv.DictReader(out.read_text().splitlines())}
    first = rows["test_x.py::test_sum[1000]"]
    assert (float(first["target_ms"]), float(first["target_scatter_pct"])) == pytest.approx(
        (0.0130655, 499.3), rel=1e-3
    )
    less.write_text(text.replace('"stats": {', '"stats": null, "x": {', 1))
    assert compare(DATA / "pytest.json", less) == 0
    assert "1 entry of the target left out" in capsys.readouterr().out
    less.write_text(text.replace('"fullname"', '"x"'))
    assert compare(DATA / "pytest.json", less) == 2
    assert "this pytest-benchmark JSON lacks 'fullname'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seqlen\n1\n", "not JSON, but"),
        ('{"entries": {}}', "no time in this github-action-benchmark JSON"),
        ('{"a": {"latency": {"value": 1}}}', "JSON of an unknown tool (known are nvbench JSON, "),
        ('{"context": {}, "benchmarks": [{"name": 1}', "not a recording of a known tool"),
        (
            '[{"name": "a", "unit": "s", "value": 1}, {"name": "a", "unit": "s", "value": 1}]',
            "two entries are named 'a'",
        ),
        ('[{"name": "a", "unit": "ms", "value": 1}]', "no entry of "),
        ((DATA / "google.json").read_text(), "Google Benchmark JSON, but"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(text, says, tmp_path, capsys):
    (tmp_path / "x").write_text(text)
    assert compare(DATA / "action.js", tmp_path / "x") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
