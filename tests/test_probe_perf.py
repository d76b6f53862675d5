"""--probe perf: what is read of perf's lines, what is said where it is not permitted, and both sides beside each other."""

from __future__ import annotations

import csv
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from abprof import devices
from abprof.devices.protocols import Subject
from abprof.evidence.probes import perf
from abprof.measure.run_context import look_around
from abprof.records import Run, Sampled, SampledFunction
from abprof.records.errors import AbprofError
from abprof.records.options import Options
from abprof.report import sampled
from abprof.report.html import html
from abprof.report.markdown import markdown
from abprof.store import runfolder
from abprof.system.console import View
from abprof.system.processes import WorkerDied
from tests.blocks import head
from tests.gitrepo import make_repo
from tests.simulated.planted import SPEEDS, NewLab, new_lab

__all__ = ["new_lab"]

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
BEFORE = 3 * f"{LINE}twice (/b/tiny.so)\n" + f"{LINE}__sin_fma (/usr/lib/libm.so.6)\n"
AFTER = 5 * f"{LINE}twice (/b/tiny.so)\n" + f"{LINE}new<float>(int) (/b/tiny.so)\n"
LIMITED = """Error:
Access to performance monitoring and observability operations is limited.
Consider adjusting /proc/sys/kernel/perf_event_paranoid setting to open
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a perf that comes first on PATH; `1` is what it saw when it first looked, `others` later."""
    folder = tmp_path / "fake"
    folder.mkdir()
    (folder / "perf").write_text(FAKE)
    (folder / "perf").chmod(0o755)
    (folder / "others").write_text(AFTER)
    (folder / "1").write_text(BEFORE)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder


def test_the_rows_that_changed_are_sampled_on_both_sides(new_lab: NewLab, fake: Path) -> None:
    result = new_lab(SPEEDS).abprof("main", "fast", "--probe", "perf")
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
    assert result.folder
    table = {line["function"]: line for line in csv.DictReader((result.folder / "samples.csv").open())
             if line["cell"] == "w/case=slower"}  # fmt: skip
    counts = {name: (line["from_samples"], line["to_samples"]) for name, line in table.items()}
    assert counts == {"twice": ("3", "5"), "__sin_fma": ("1", "0"), "new<float>(int)": ("0", "1")}
    assert float(table["__sin_fma"]["difference_ns"]) < 0 < float(table["new<float>(int)"]["difference_ns"])
    assert float(table["twice"]["from_ns"]) == pytest.approx(3e9 / first.hz / first.calls)
    text = (result.folder / "report.md").read_text()
    assert "## Sampled by perf" in text
    assert "base: 4 samples of cpu-clock in 75 calls" in text
    assert "| twice | tiny.so | 3 | 5 |" in text
    assert "Sampled by perf" in (result.folder / "report.html").read_text()
    assert not list(result.folder.rglob("perf.data*"))
    told = [line.split() for line in (fake / "calls").read_text().splitlines()]
    assert told[0][:5] == ["record", "-F", str(first.hz), "-B", "-N"]
    assert told[1][-2:] == ["-F", "event,ip,sym,dso"]


def test_what_perf_refuses_is_said_and_the_run_is_whole(new_lab: NewLab, fake: Path) -> None:
    (fake / "refuses").write_text(LIMITED)
    result = new_lab(SPEEDS).abprof("main", "fast", "--probe", "perf")
    assert result.code == 1
    assert result.run.status == "complete"
    why = (
        "perf could not record: Access to performance monitoring and observability operations is limited. (kernel.perf"
    )
    assert {one.missing.startswith(why) for one in result.run.sampled} == {True}
    assert f"--probe perf: w/case=slower base: {why}" in result.err
    assert result.folder
    assert f"base was not sampled: {why}" in (result.folder / "report.md").read_text().replace("\\_", "_")
    assert (result.folder / "samples.csv").read_text().count("\n") == 1, "what is not known is no row"


@pytest.mark.parametrize(
    ("said", "paranoid", "why"),
    [
        (LIMITED, 4, "(kernel.perf_event_paranoid is 4: `sysctl kernel.perf_event_paranoid=2` or CAP_PERFMON permits it)"),
        (LIMITED, 2, "(kernel.perf_event_paranoid is 2, which permits one's own processes)"),
        ("Error:\nNo such file\n", -1, "record: No such file (kernel.perf_event_paranoid is -1"),
        ("", None, "record: it said nothing (/proc/sys/kernel/perf_event_paranoid cannot be read)"),
    ],
)  # fmt: skip
def test_a_refusal_has_what_perf_said_and_what_the_system_permits(said: str, paranoid: int | None, why: str) -> None:
    assert why in perf.refusal(said, paranoid)


def test_without_perf_the_row_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf.shutil, "which", lambda _: None)
    run = head(1)
    subject = Subject(run.cells[0], "", run.arms[:1])
    one = perf._sampled(None, None, subject, run.arms[0], ())  # type: ignore[arg-type]
    assert one == Sampled(cell=run.cells[0].id, arm=run.arms[0].id, missing=perf._ABSENT)


def test_lines_of_every_kind_are_read() -> None:
    text = """
cycles:Pu:      7f4c464f270d void at::native::(anonymous namespace)::f<float (*)(int)>(int, char const*) (/a/b/libtorch_cpu.so)
cycles:Pu:      7f4c464f270d operator() (/work/x/side.so (deleted))
cycles:Pu:      7f4c464f270e operator() (/work/x/side.so)
cycles:Pu:  ffffffff817dfb33 __read_end_io ([kernel.kallsyms])
cycles:Pu:      7f4c464f270d [unknown] ([unknown])
cycles:Pu:      7f4c464f270d py::run (/tmp/perf-4711.map)
cycles:Pu:      7f4c464f270d lambda (/a b/with (brackets)/x.so)
cycles:Pu:
[ perf record: Captured 3 samples ]
"""
    event, seen = perf.counted(text, ["/work/x", ""])
    assert event == "cycles"
    assert [(one.name, one.object, one.samples, one.own) for one in seen] == [
        ("operator()", "side.so", 2, True),
        ("[unknown]", "[unknown]", 1, False),
        ("__read_end_io", "[kernel.kallsyms]", 1, False),
        ("lambda", "x.so", 1, False),
        ("py::run", "[jit]", 1, False),
        ("void at::native::(anonymous namespace)::f<float (*)(int)>(int, char const*)", "libtorch_cpu.so", 1, False),
    ]
    assert perf.counted("", []) == ("", [])


def test_names_are_shown_and_never_run_and_an_unsampled_side_is_not_absent() -> None:
    name = "k<script>alert(1)</script>|`x` =cmd"
    run = head(1)
    one = Sampled(cell=run.cells[0].id, arm="base", calls=10, hz=100, event="cycles", samples=9,
                  functions=(SampledFunction(name=name, object="o|.so", samples=9, own=True),))  # fmt: skip
    both = msgspec.structs.replace(run, sampled=(one, msgspec.structs.replace(one, arm="target", functions=())))
    assert "<script>alert" not in html(both, [])
    assert "<script>" not in markdown(both, [])
    [part] = sampled.parts(both)
    assert part.table.rows[0][1:] == ("o|.so (own)", "9", "0", "9 ms", "0 ns", "-9 ms")
    lost = msgspec.structs.replace(run, sampled=(one, Sampled(cell=one.cell, arm="target", missing="not permitted")))
    [part] = sampled.parts(lost)
    assert part.table.rows == ()
    assert part.lines == (
        "base: 9 samples of cycles in 10 calls, 100 in a second",
        "target was not sampled: not permitted",
    )


def test_a_run_of_before_has_no_samples() -> None:
    run, _, _ = runfolder.read(Path(__file__).parent / "data" / "run_schema1")
    assert run.sampled == ()
    assert sampled.files(run) == {}
    assert "sampled" not in msgspec.json.decode(
        (Path(__file__).parent / "data" / "run_schema1" / "run.json").read_bytes()
    )
    assert msgspec.json.decode(msgspec.json.encode(run), type=Run) == run


def test_on_a_gpu_it_is_refused_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = make_repo(tmp_path / "repo")
    repo.commit("one", {"a": "b"})
    gpu = SimpleNamespace(kind="cuda", lease="GPU-1")
    monkeypatch.setattr(devices, "several", lambda *_: ((gpu,), ()))
    config = Options(specs=("main",), repo=str(repo.path), probe=("perf",))
    with pytest.raises(AbprofError, match="--probe perf: perf samples what processors do, and this run is of a GPU"):
        look_around(config, View(quiet=True))


@pytest.mark.skipif(not shutil.which("perf") or not shutil.which("cc"), reason="needs perf and a C compiler")
def test_real_perf_finds_the_hot_function_of_a_process_that_runs(tmp_path: Path) -> None:
    (tmp_path / "hot.c").write_text(
        "__attribute__((noinline)) double hot(double x) { for (long i = 0; i < 3e9; ++i) x = x * 0.5 + 1; return x; }\n"
        "int main(int n, char **v) { return hot(n) == 7.0; }\n"
    )
    subprocess.run(["cc", "-O1", "-o", tmp_path / "hot", tmp_path / "hot.c"], check=True)
    program = subprocess.Popen([tmp_path / "hot"])
    looks = perf.Perf(shutil.which("perf") or "", tmp_path)
    try:
        with looks.record(program.pid):
            subprocess.run([sys.executable, "-c", "import time; time.sleep(1)"], check=True)
    except WorkerDied as refused:
        pytest.skip(refused.reason)  # the system does not permit it: said in words that the tests above pin down
    finally:
        program.kill()
        assert program.wait() in (0, -signal.SIGKILL)
    event, seen = perf.counted(looks.script(), [str(tmp_path)])
    assert event.partition("/")[0] in ("cycles", "cpu-clock", "cpu_core")
    assert (seen[0].name, seen[0].object, seen[0].own) == ("hot", "hot", True)


@pytest.mark.parametrize(
    ("tool", "why"),
    [
        ("#!/nowhere/at/all\n", "perf could not be started: No such file or directory"),
        (
            "#!/bin/sh\necho 'Error:' >&2\necho 'No such device' >&2\nexit 19\n",
            "perf could not record: No such device (kernel",
        ),
    ],
)
def test_a_perf_that_does_not_begin_is_told_with_its_reason(tool: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "perf").write_text(tool)
    (tmp_path / "perf").chmod(0o755)
    with pytest.raises(WorkerDied) as died, perf.Perf(str(tmp_path / "perf"), tmp_path).record(1):
        pytest.fail("nothing may be called that nobody looks at")
    assert why in died.value.reason


def test_a_recording_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "perf").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "perf").chmod(0o755)
    with pytest.raises(WorkerDied, match="perf could not read what it had recorded"):
        perf.Perf(str(tmp_path / "perf"), tmp_path).script()
