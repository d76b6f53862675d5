"""The command line: verbs, short forms, standard output and error, and its start time."""

import contextlib
import json
import os
import pty
import re
import shlex
import subprocess
import sys
import termios
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from abprof import __version__
from abprof.cli.app import guarded
from abprof.records.errors import Exit
from abprof.system.console import View
from tests.gitrepo import make_repo
from tests.programs import program
from tests.simulated.lab import Lab, loose
from tests.simulated.scenario import Fault, Scenario, Time, Workload
from tests.tinyrepo import Done, abprof

LOAD = Workload(
    kernel="k", suite="dense", seed_columns=["seqlen", "mask_type", "direction"], flops=1e12,
    presets={"default": {"seqlen": [8192], "mask_type": ["full", "causal"], "direction": ["fwd"]},
             "small": {"seqlen": [8192], "mask_type": ["full"], "direction": ["fwd"]}},
    phases=[("run", "k.run", "the kernel itself", 0.5)],
)  # fmt: skip
FULL, CAUSAL = (f"dense/seqlen=8192,mask_type={mask},direction=fwd" for mask in ("full", "causal"))
PLAIN = Scenario(
    workloads={"dense": LOAD}, times=[Time(ns=20e6), Time(factor=1.3, cell="*mask_type=causal*", side="target")]
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A repository in which one run was made: `main fast`, where the causal mask is slower."""
    made = Lab(tmp_path_factory.mktemp("cli"), PLAIN)
    made.first = made.abprof("main", "fast", "--json")
    assert made.first.table() == {FULL: "same", CAUSAL: "slower"}
    yield made
    assert made.left_behind() == []


def at(lab: Lab, *args: str) -> list[str]:
    return [*args, "--repo", str(lab.repo.path), "--device", "simulated"]


# ---------------------------------------------------------------- help


def test_without_arguments_the_help_is_shown(lab: Lab) -> None:
    result = lab.command()
    assert result.code == Exit.CANNOT_RUN
    assert "Usage: abprof" in result.out
    assert result.err == ""
    shown = lab.command("run", "--help").out
    assert "<" not in shown, "no type of Python, such as <bool>"
    assert "isolated processes take turns on the device" in shown, "on one line: the docstring's line breaks are gone"


def test_version(lab: Lab) -> None:
    result = lab.command("--version")
    assert (result.code, result.out) == (0, f"abprof {__version__}\n")


# ---------------------------------------------------------------- sugar


def test_a_branch_may_bear_a_verbs_name(lab: Lab) -> None:
    lab.repo.git("branch", "--force", "report", "fast")
    result = lab.abprof("run", "main", "report", "--quick")
    assert [side.label for side in result.run.sides] == ["main", "report"]
    assert "slower" in result.out


def test_a_misspelt_verb_is_named(lab: Lab) -> None:
    assert "'repot' (did you mean abprof report? " in lab.command(*at(lab, "repot")).err


# ---------------------------------------------------------------- which stream, which code


def test_results_go_to_standard_output_and_progress_to_the_other(lab: Lab) -> None:
    shown = lab.abprof("main", "fast", "--quick")
    assert "base k" in shown.err
    assert "base k" not in shown.out
    assert "report.html" in shown.out
    quiet = lab.abprof("main", "fast", "--quick", "--quiet")
    assert quiet.err == ""
    assert "report.html" in quiet.out
    assert "base k" in (quiet.folder / "output.txt").read_text(), "the log is kept whole all the same"


def test_on_a_terminal_progress_is_a_block_that_disappears(tmp_path: Path) -> None:
    lab = Lab(tmp_path, replace(PLAIN, faults=[Fault("slow:0.1", "open")]))  # it is redrawn four times a second
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 80))
    words = [
        sys.executable,
        "-P",
        "-m",
        "abprof",
        *at(lab, "main", "fast"),
        "--epochs",
        "4",
        "--runs-dir",
        str(lab.runs),
    ]
    environment = {**lab.environment(), "TERM": "xterm"}
    with subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        raw = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while data := os.read(ours, 4096):
                raw += data
    os.close(ours)
    assert process.returncode == 1
    text = re.sub(r"\x1b\[[\d;]*m", "", raw.decode())
    assert re.search(r"━ +epoch 4: 0 of 2 cells decided, at most \d+:\d\d left\r", text)
    assert re.search(r"dense mask_type=causal +30.0 % slower +3 of 4 epochs", text)
    lines, row = [""], 0
    for part in re.findall(r"\x1b\[\??\d+[A-Za-z]|[^\x1b\r\n]+|\n", text):
        row += {"\n": 1, "\x1b[1A": -1}.get(part, 0)
        lines += [""] * (row == len(lines))
        lines[row] = "" if part == "\x1b[2K" else lines[row] + part * (part[0] not in "\x1b\n")
    assert not [line for line in lines if "epoch" in line or "━" in line], "erased at the end"
    assert "base k: " in "".join(lines), "what is permanent stays above"


def test_a_log_has_the_change_so_far_at_the_first_epoch_and_at_looks(lab: Lab) -> None:
    found = [line for line in lab.first.err.splitlines() if " so far " in line]
    assert sorted(found)[:2] == [
        f"  dense mask_type=causal  base -> target: 30.0 % slower so far ({n} of 4 epochs)" for n in (1, 4)
    ]
    assert len(found) == 2 + len((1, 4, 6, 8, 12, 16, 24)), "the other cell is the same, which takes 24 epochs"
    logged = (lab.first.folder / "output.txt").read_text().splitlines()
    assert [line for line in logged if " so far " in line] == found


def test_json_is_one_object_and_nothing_else(lab: Lab) -> None:
    result = lab.first
    run = loose(result)
    assert result.code == 1 == run["header"]["exit_code"]
    assert Path(run.pop("run_dir")) == result.folder
    assert run == json.loads((result.folder / "run.json").read_bytes())


def test_a_dry_run_shows_the_plan_and_leaves_nothing(lab: Lab) -> None:
    before, folders = lab.fingerprint(), list(lab.runs.iterdir())
    result = lab.command(*at(lab, "main", "fast", "--dry-run"))
    assert result.code == 0
    assert [line.split()[0] for line in result.out.splitlines()] == ["base", "target", FULL, CAUSAL, "2"]
    assert "of measuring" in result.out.splitlines()[-1]
    planned = loose(lab.command(*at(lab, "main", "fast", "--dry-run", "--json", "--only", "mask_type=causal")))
    assert [cell["id"] for cell in planned["cells"]] == [CAUSAL]
    assert (lab.fingerprint(), list(lab.runs.iterdir())) == (before, folders)


def test_peers_that_are_asked_for_take_turns_and_no_others(tmp_path: Path) -> None:
    load = replace(LOAD, peers=["quick", "slow"], default_peers=["quick"])
    lab = Lab(tmp_path, Scenario(workloads={"dense": load}, times=[Time(ns=20e6)]))

    def arms(*more: str) -> set[str]:
        run = loose(lab.command(*at(lab, "main", "fast", "--json", "--quick", "--preset", "small", *more)))
        return {seen["arm"] for seen in run["observations"] if seen["arm"].startswith("peer:")}

    assert arms("--peer", "slow") == {"peer:slow"}
    assert arms("--no-peers") == set()


ODD = Scenario(
    workloads={
        "good": Workload(kernel="k", presets={"default": {"n": [1, 2]}}),
        "none": Workload(kernel="k", presets={"default": {"n": []}, "some": {"n": [1]}}),
        "odd": Workload(kernel="k", presets={"default": {"n": [1]}}),
    },
    times=[Time(ns=20e6)],
    faults=[Fault("crash_status", "describe", cell="odd", text="NameError: name 'touch' is not defined")],
)


def test_list_and_dry_run_show_broken_workloads(tmp_path: Path) -> None:
    """A broken workload with its reason, a workload without a cell, and a package that is a single file."""
    odd = Lab(tmp_path, ODD)
    odd.repo.write({"kernels/add.py": "", "kernels/_shared.py": "", "kernels/include/add.h": ""})
    listed = odd.command(*at(odd, "list"))
    assert (listed.code, listed.out.splitlines()[0]) == (0, "kernel packages: add, k")
    assert "odd: broken: NameError: name 'touch' is not defined" in listed.out.splitlines()
    assert "  no cell in preset default" in listed.out.splitlines()
    assert listed.out.splitlines()[-1] == "2 cells in preset default"
    document = loose(odd.command(*at(odd, "list", "--json")))
    assert document["broken"] == {"odd": "NameError: name 'touch' is not defined"}
    assert document["kernels"] == ["add", "k"]
    assert [load["name"] for load in document["workloads"]] == ["good", "none", "odd"]
    assert [cell["id"] for cell in document["cells"]] == ["good/n=1", "good/n=2", "odd/"]
    assert "1 cell in preset some" in odd.command(*at(odd, "list", "--preset", "some", "--workloads", "none")).out
    planned = odd.command(*at(odd, "main", "fast", "--dry-run"))
    assert "  odd/  (broken: NameError: name 'touch' is not defined)" in planned.out.splitlines()
    assert planned.out.splitlines()[-1].startswith("2 cells on ")
    assert "warning: workload none has no cell in preset default" in planned.err.splitlines()
    reasons = {
        seen["cell"]: seen["reason"]
        for seen in loose(odd.command(*at(odd, "main", "fast", "--dry-run", "--json")))["observations"]
    }
    assert reasons == {"odd/": "NameError: name 'touch' is not defined"}
    said = odd.command(*at(odd, "main", "fast", "--dry-run", "--set", "n=4"))
    assert said.err.splitlines()[-1] == "abprof: --set: axis n has no values in this preset (choose another --preset)"


def test_a_bug_is_exit_3_with_where_to_read_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ABPROF_STATE_DIR", str(tmp_path))

    def broken() -> int:
        raise ZeroDivisionError("two\nlines")

    assert guarded(broken, ["main", "fast"]) == Exit.BUG
    said = capsys.readouterr().err
    assert said == f"abprof: a bug in abprof, please report it: ZeroDivisionError: two lines ({tmp_path / 'bug.log'})\n"
    log = (tmp_path / "bug.log").read_text()
    assert "abprof main fast" in log
    assert "Traceback" in log


@pytest.mark.parametrize(
    ("arguments", "code"),
    [("report RUN --all", 0), ("main fast --quick --json --quiet", 4), ("main fast --epochs 4 --json 2>&1", 1)],
)
def test_a_reader_that_stops_reading_does_not_change_the_exit_code(lab: Lab, arguments: str, code: int) -> None:
    """As in `abprof main fast | head -1`."""
    words = arguments.replace("RUN", shlex.quote(str(lab.first.folder)))
    if words.startswith("main"):
        places = ["--repo", str(lab.repo.path), "--device", "simulated", "--runs-dir", str(lab.runs)]
        words = f"{shlex.join(places)} {words}"
    line = f"{sys.executable} -P -m abprof {words} | exec 0<&-; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], env=lab.environment(), capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == (str(code), "")


def test_leaks_of_tritons_bindings_are_only_in_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    view = View()
    view.attach(tmp_path / "log")
    for line in ("nanobind: leaked 1 types!", ' - leaked type "ir.context"', "nvcc: done"):
        view.build_line("base k", line)
    assert capsys.readouterr().err == "[base k] nvcc: done\n"
    assert len((tmp_path / "log").read_text().splitlines()) == 3
    view.detach()


# ---------------------------------------------------------------- the verbs


def test_report_makes_everything_again_from_the_rounds(lab: Lab) -> None:
    folder = lab.first.folder
    before = json.loads((folder / "run.json").read_bytes())
    names = {path.name for path in folder.iterdir()}
    assert {"report.html", "report.md", "cells.csv", "output.txt", "compare_main_fast_dense.csv"} <= names
    for name in names - {"run.json", "rounds.jsonl", "evidence.jsonl", "logs", ".gitignore"}:
        (folder / name).unlink()
    result = lab.command("report", str(folder), "--json")
    assert result.code == 0, "a report that is made is exit 0, whatever its verdicts"
    assert {path.name for path in folder.iterdir()} == names
    after = loose(result)
    assert after.pop("run_dir") == str(folder)
    assert after == before


def test_a_rerun_under_another_judge_is_refused(lab: Lab) -> None:
    folder, judge = lab.first.folder, lab.repo.path / "workloads" / "dense.py"
    rounds, text = (folder / "rounds.jsonl").read_bytes(), judge.read_text()
    judge.write_text(text + "# more lenient\n")
    result = lab.command("rerun", str(folder), "--repo", str(lab.repo.path), "--json")
    judge.write_text(text)
    assert result.code == 2
    assert loose(result)["error"]["what"] == "workload dense has changed since the run"
    helper = judge.with_name("_tolerance.py")
    helper.write_text("RTOL = 1.0\n")
    result = lab.command("rerun", str(folder), "--repo", str(lab.repo.path), "--json")
    helper.unlink()
    assert result.code == 2
    assert loose(result)["error"]["what"] == "a file beside the workloads has changed since the run"
    assert (folder / "rounds.jsonl").read_bytes() == rounds


def test_doctor_says_what_can_be_measured(lab: Lab) -> None:
    result = lab.command("doctor", "--json")
    found = {item["name"]: item for item in loose(result)["findings"]}
    assert result.code == 0
    assert found["git"]["state"] == "ok"
    assert found["worker on cpu"]["state"] == "ok"
    assert str(lab.cache) in found["cache"]["text"]
    shown = lab.command("doctor")
    assert len(shown.out.splitlines()) == len(found)


def test_doctor_finds_the_cuda_compiler_that_builds_find(tmp_path: Path) -> None:
    """Not on PATH but in $CUDA_HOME."""
    program(tmp_path / "cuda" / "bin" / "nvcc", "echo 'Cuda compilation tools, release 77.7'")
    done = abprof("doctor", "--json", cwd=tmp_path, home=tmp_path, CUDA_HOME=str(tmp_path / "cuda"), PATH=str(tmp_path))
    found = {item["name"]: item for item in done.run["findings"]}
    assert found["nvcc"]["text"] == "Cuda compilation tools, release 77.7"


def test_doctor_exits_2_when_nothing_can_be_measured(tmp_path: Path) -> None:
    """The worker's interpreter has no torch."""
    done = abprof("doctor", "--python", str(bare_python(tmp_path)), "--json", cwd=tmp_path, home=tmp_path)
    worker = next(item for item in done.run["findings"] if item["name"] == "worker on cpu")
    assert done.code == 2
    assert worker["state"] == "problem"
    assert "torch" in worker["text"]


def bare_python(folder: Path) -> Path:
    """An interpreter without torch."""
    return program(folder / "python", f'exec {sys.executable} -S -I "$@"')


def configured(folder: Path, text: str, *args: str) -> Done:
    """`abprof ARGS` with real workers, in a repository whose abprof.toml says `text`."""
    repo = make_repo(folder / "configured")
    repo.write({"abprof.toml": f"schema = 1\n{text}", "workloads/w.py": "", "kernels/k/__init__.py": ""})
    return abprof(*args, "--json", cwd=repo.path, home=folder)


def test_doctor_examines_the_interpreters_of_abprof_toml(tmp_path: Path) -> None:
    bare = bare_python(tmp_path)
    done = configured(tmp_path, f'[python]\nall = "{bare}"\ntarget = "no-such-python"\n', "doctor")
    found = {item["name"]: item for item in done.run["findings"]}
    assert "torch" in found["worker on cpu"]["text"]
    assert found["worker on cpu (target)"]["text"].endswith(
        "/abprof.toml, python.target: no Python interpreter 'no-such-python'"
    )
    assert done.code == 2
    found = {item["name"]: item for item in configured(tmp_path, "[python\n", "doctor").run["findings"]}
    assert (found["abprof.toml"]["state"], ":2: " in found["abprof.toml"]["text"]) == ("problem", True)


def test_list_starts_its_worker_by_abprof_toml(lab: Lab, tmp_path: Path) -> None:
    done = configured(tmp_path, '[python]\nall = "no-such-python"\n', "list")
    assert done.code == 2
    assert done.run["error"]["where"].endswith("/abprof.toml, python.all")
    other = replace(lab.now, workloads={"dense": replace(lab.now.workloads["dense"], text="text of the other side")})
    path = other.write(tmp_path / "other.json")
    file = lab.repo.path / "abprof.toml"
    file.write_text(f'schema = 1\n[environment]\nset = {{ABPROF_SIMULATED = "{path}"}}\n')
    listed = loose(lab.command(*at(lab, "list", "--json")))
    file.unlink()
    assert [load["text"] for load in listed["workloads"]] == ["text of the other side"]


def test_clean_removes_builds_when_asked_and_never_runs(lab: Lab) -> None:
    assert lab.command("clean").out == "nothing to clean\n"
    builds = lab.cache / "builds"
    assert list(builds.iterdir())
    runs = sorted(lab.runs.rglob("*"))
    result = lab.command("clean", "--builds")
    assert result.code == 0
    assert result.out.count("removed the build") >= 2
    assert list(builds.iterdir()) == []
    assert lab.command("clean", "--all").code == 0
    assert sorted(lab.runs.rglob("*")) == runs


def test_compare_csv_of_two_profiles(lab: Lab, tmp_path: Path) -> None:
    folder, out = lab.first.folder, tmp_path / "out.csv"
    paths = [str(folder / f"profile_dense_{name}.csv") for name in ("main", "fast")]
    result = lab.command("compare", *paths, str(out))
    assert result.code == 0
    assert "Detected TFLOPs performance fluctuation over 1.5%" in result.out
    assert out.read_text().startswith("mask_type,direction,seqlen,tflops_per_sec_baseline,")
    assert "within 40%" in lab.command("compare", *paths, str(out), "--threshold", "40").out
