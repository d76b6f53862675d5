"""--probe perf: parsing of perf's lines, the message without permission, and both sides in one table."""

from pathlib import Path

import pytest

from abprof.evidence import probes
from abprof.records import SampledFunction
from tests.programs import program
from tests.simulated.planted import SPEEDS, NewLab

# Behaves as perf does where abprof can see it: a file at once, an end at SIGINT, a line for each sample.
FAKE = """#!/usr/bin/env bash
here=$(dirname -- "$0")
verb=$1
printf '%s\\n' "$*" >>"$here/calls"
while [[ $# -gt 0 ]]; do
  case $1 in
    -o | -i) file=$2 ;;
  esac
  shift
done
if [[ $verb == script ]]; then
  [[ -e $here/hangs ]] && exec sleep 1000
  cat -- "$file"
  exit
fi
if [[ -e $here/refuses ]]; then
  cat -- "$here/refuses" >&2
  exit 255
fi
number=$(grep -c ^record "$here/calls")
trap 'exit 0' INT
if [[ -e $here/$number ]]; then cat -- "$here/$number" >"$file"; else cat -- "$here/others" >"$file"; fi
while :; do sleep 0.02; done
"""
LINE = "cpu-clock:pppH:      7f4c464f270d "
BEFORE = 3 * f"{LINE}twice+0x1f (/b/tiny.so)\n" + f"{LINE}__sin_fma (/usr/lib/libm.so.6)\n"
AFTER = 5 * f"{LINE}twice (/b/tiny.so)\n" + f"{LINE}new<float>(int) (/b/tiny.so)\n"
LIMITED = """Error:
Access to performance monitoring and observability operations is limited.
Consider adjusting /proc/sys/kernel/perf_event_paranoid setting to open
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a simulated perf first on PATH; `1` is its first recording, `others` the later ones."""
    folder = tmp_path / "fake"
    program(folder / "perf", FAKE)
    (folder / "others").write_text(AFTER)
    (folder / "1").write_text(BEFORE)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder


def test_the_rows_that_changed_are_sampled_on_both_sides(new_lab: NewLab, fake: Path) -> None:
    result = new_lab(SPEEDS).abprof("main", "fast", "--probe", "perf", "--epochs", "4")
    assert result.code == 1, result.err
    first, second, *others = result.run.sampled
    assert [(one.cell, one.arm) for one in (first, second)] == [("w/case=slower", "base"), ("w/case=slower", "target")]
    assert len(others) == 6, "three more rows changed"
    assert (first.samples, first.event, first.missing) == (4, "cpu-clock", "")
    assert first.calls == 75, "a second and a half of calls of 20 ms"
    assert first.hz <= 997
    assert first.functions == (
        SampledFunction(name="twice", object="tiny.so", samples=3),
        SampledFunction(name="__sin_fma", object="libm.so.6", samples=1),
    )
    text = (result.folder / "report.md").read_text()
    assert "## Sampled by perf" in text
    assert "base: 4 samples of cpu-clock in 75 calls" in text
    assert "| twice | tiny.so | false | 3 | 5 |" in text
    assert "Sampled by perf" in (result.folder / "report.html").read_text()
    assert not list(result.folder.rglob("perf.data*"))
    commands = [line.split() for line in (fake / "calls").read_text().splitlines()]
    assert commands[0][:5] == ["record", "-F", str(first.hz), "-B", "-N"]
    assert commands[1][-2:] == ["-F", "event,ip,sym,symoff,dso"]


def test_what_perf_refuses_is_said_and_the_run_is_whole(new_lab: NewLab, fake: Path) -> None:
    (fake / "refuses").write_text(LIMITED)
    result = new_lab(SPEEDS).abprof("main", "fast", "--probe", "perf", "--only", "case=slower")
    assert result.code == 1
    assert result.run.status == "complete"
    why = "perf could not record: Access to performance monitoring and observability operations is limited. (perf_event"
    assert {one.missing.startswith(why) for one in result.run.sampled} == {True}
    assert f"--probe perf: w/case=slower base: {why}" in result.err
    assert f"base has no sample: {why}" in (result.folder / "report.md").read_text().replace("\\_", "_")


def test_a_perf_that_hangs_is_ended_and_the_report_says_so(new_lab: NewLab, fake: Path) -> None:
    (fake / "hangs").touch()
    result = new_lab(SPEEDS).abprof("main", "fast", "--probe", "perf", "--only", "case=slower", "--timeout", "2s")
    assert {one.missing for one in result.run.sampled} == {"perf took more than 2 s"}
    assert result.folder
    assert "base has no sample: perf took more than 2 s" in (result.folder / "report.md").read_text()


def test_lines_of_every_kind_are_read() -> None:
    text = """
cycles:Pu:      7f4c464f270d void at::native::(anonymous namespace)::f<float (*)(int)>(int, char const*) (/a/b/libtorch_cpu.so)
cycles:Pu:      7f4c464f270d operator() (/work/x/side.so (deleted))
cycles:Pu:      7f4c464f270e operator()+0x1f (/work/x/side.so)
cycles:Pu:  ffffffff817dfb33 __read_end_io ([kernel.kallsyms])
cycles:Pu:      7f4c464f270d [unknown] ([unknown])
cycles:Pu:      7f4c464f270d py::run (/tmp/perf-4711.map)
cycles:Pu:      7f4c464f270d lambda (/a b/with (brackets)/x.so)
cycles:Pu:
[ perf record: Captured 3 samples ]
"""
    event, seen = probes.count_samples(text.splitlines(), ["/work/x", ""])
    assert seen[0].offsets == {"0x1f": 1}, "where in an own function; other functions have none"
    assert event == "cycles"
    assert [(one.name, one.object, one.samples, one.own) for one in seen] == [
        ("operator()", "side.so", 2, True),
        ("[unknown]", "[unknown]", 1, False),
        ("__read_end_io", "[kernel.kallsyms]", 1, False),
        ("lambda", "x.so", 1, False),
        ("py::run", "perf-4711.map", 1, False),
        ("void at::native::(anonymous namespace)::f<float (*)(int)>(int, char const*)", "libtorch_cpu.so", 1, False),
    ]
    assert probes.count_samples([], []) == ("", [])
