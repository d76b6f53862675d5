"""`abprof BASE TARGET -- COMMAND` and `abprof bisect GOOD BAD -- COMMAND`, with real processes that print planned times."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abprof.measure.commands import MOST_TIMES, read
from abprof.store import runfolder
from tests import tinyrepo
from tests.gitrepo import GitRepo, make_repo
from tests.sandboxes import needs_sandbox, sandbox
from tests.simulated.processes import alive
from tests.tinyrepo import Done

# Each process tells its side in a file of the test's, and prints the side's own times.
BENCH = """
import json, os, sys, pathlib
import times
with open(os.environ["CALLS"], "a") as calls:
    calls.write(os.path.basename(os.path.dirname(os.path.abspath(times.__file__))) + " " + " ".join(sys.argv[1:]) + "\\n")
times.say()
"""
SAY = "def say():\n    print({!r})\n"


def lines(**times: float) -> str:
    return SAY.format("\n".join(f"{name},{ms:.4f}" for name, ms in times.items()))


@pytest.fixture
def repo(tmp_path: Path) -> GitRepo:
    made = make_repo(tmp_path / "r é")
    made.commit("one", {"bench.py": BENCH, "times.py": lines(sort=1.0, copy=2.0), ".gitignore": "runs/\n"})
    return made


def abprof(repo: GitRepo, *args: str) -> Done:
    home = repo.path.parent
    return tinyrepo.abprof(*args, cwd=repo.path, home=home, HOME=str(home), CALLS=str(home / "calls"))


def run(repo: GitRepo, *args: str, command: tuple[str, ...] = (sys.executable, "bench.py")) -> Done:
    """main with the working tree."""
    return abprof(repo, "main", ".", "--device", "cpu", *args, "--", *command)


def folder(repo: GitRepo) -> Path:
    (found,) = (repo.path / "runs").glob("2*")
    return found


def test_a_command_is_judged_by_what_it_prints(repo: GitRepo) -> None:
    repo.write({"times.py": lines(sort=1.3, copy=2.0, new=1.0)})
    done = run(repo, "--json")
    assert done.code == 1, done.err
    assert done.verdicts() == {
        "command/name=sort": "slower",
        "command/name=copy": "same",
        "command/name=new": "unclear",
    }
    rows = {row["cell"]: row for row in done.run["comparisons"]}
    assert rows["command/name=sort"]["pct"] == pytest.approx(30.0)
    assert rows["command/name=sort"]["metric"] == "reported"
    assert rows["command/name=new"]["reasons"] == ["base_missing"]
    assert done.run["command"] == {"argv": [sys.executable, "bench.py"], "build": [], "env": {}, "network": False}
    controls = {row["cell"]: row["verdict"] for row in done.run["controls"]}
    assert controls["command/name=copy"] == "same", "base is run once more as the control"
    assert done.run["header"]["trusted"]


@pytest.mark.slow
def test_every_epoch_has_fresh_processes_in_balanced_order(repo: GitRepo) -> None:
    repo.write({"new": ""})  # another tree: no run of the same code twice
    assert run(repo, "--epochs", "4").code == 0
    _, blocks, _ = runfolder.read(folder(repo))
    orders = [block.start_order for block in blocks if block.cell == "command/name=sort"]
    assert len(orders) == 4
    assert all(sorted(order) == ["base", "control", "target"] for order in orders)
    assert [order[::-1] for order in orders[::2]] == orders[1::2], "every second order mirrors the one before"
    calls = (repo.path.parent / "calls").read_text().splitlines()
    assert len(calls) == 2 + 4 * 3, "once on each side at first, then three processes an epoch"


def test_a_side_that_fails_is_broken_with_its_last_line(repo: GitRepo) -> None:
    repo.write({"times.py": "def say():\n    print('sort,1')\n    raise RuntimeError('no such kernel')\n"})
    done = run(repo, "--json", "--epochs", "4")
    assert done.code == 1
    assert done.verdicts() == {"command/name=sort": "broken", "command/name=copy": "broken"}
    seen = {(row["cell"], row["arm"]): row for row in done.run["observations"]}
    failed = seen["command/name=sort", "target"]
    assert (failed["status"], failed["reason"]) == ("crash", "exit code 1: RuntimeError: no such kernel")
    assert "Traceback" in (folder(repo) / "logs" / failed["log"]).read_text()


def test_a_name_and_a_last_line_steer_no_terminal(repo: GitRepo) -> None:
    fails = "import sys, times; times.say(); sys.exit(times.FAILS and '\\x1b]0;mine\\x07 \\x1b[2J')"
    repo.commit("named", {"bench.py": fails, "times.py": lines(**{"so\x1b[31mrt\x07": 1.0}) + "FAILS = False\n"})
    repo.write({"times.py": lines(sort=1.0) + "FAILS = True\n"})
    done = run(repo, "--quick")
    said = done.err + (folder(repo) / "output.txt").read_text()
    assert "so\ufffd[31mrt\ufffd" in said
    assert "\ufffd]0;mine\ufffd \ufffd[2J" in said
    assert not {"\x1b", "\x07"} & set(said)


@pytest.mark.slow
def test_places_are_filled_in_and_abprof_toml_adds_variables_and_a_build(repo: GitRepo) -> None:
    toml = """schema = 1
[command]
build = ["sh", "-c", "echo 'def say(): print(\\"sort,1.0000\\")' > {worktree}/lib/times.py"]
env = { PYTHONPATH = "{worktree}/lib", WHO = "{side}" }
"""
    repo.git("rm", "--quiet", "times.py")
    repo.commit("built", {"abprof.toml": toml, "lib/note": "", "bench.py": BENCH})
    code = "import os, times; print(os.environ['WHO'], '{side}', {}); times.say()"
    done = run(repo, "--json", "--epochs", "4", command=(sys.executable, "-c", code))
    assert done.code == 0, done.err
    assert done.verdicts() == {"command/name=sort": "same"}
    assert "target target {}" in (folder(repo) / "logs" / "command-target.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ((), "--: no command given (abprof BASE TARGET -- python bench.py)"),
        (("no-such-program", "x"), "no-such-program on base: no-such-program could not be started"),
        (("echo", "hello"), "echo on base: the first line is 'hello'; print a line `name,ms` for each timing"),
        (("sh", "-c", "echo oh no >&2; exit 3"), "sh on base: exit code 3: oh no"),
        (("sh", "-c", "kill -9 $$"), "sh on base: killed by SIGKILL"),
    ],
)
def test_what_cannot_run_is_one_line(repo: GitRepo, command: tuple[str, ...], said: str) -> None:
    done = run(repo, "--quiet", command=command)
    assert done.code == 2
    (line,) = [line for line in done.err.splitlines() if line.startswith("abprof:")]
    assert line.startswith(f"abprof: {said}")
    assert not list((repo.path / "runs").glob("2*"))


@pytest.mark.slow
def test_an_option_of_workloads_is_refused_and_the_commands_own_are_not_read(repo: GitRepo) -> None:
    assert "--preset: has no effect on a command" in run(repo, "--preset", "smoke").err
    done = run(repo, "--quick", command=("sh", "-c", "exit 1", "--json", "--preset", "smoke"))
    assert done.code == 2
    assert not done.out, "its --json is not abprof's"


@pytest.mark.slow
def test_a_command_that_does_not_end_is_ended(repo: GitRepo) -> None:
    done = run(repo, "--timeout", "1s", command=("sleep", "600"))
    assert done.code == 2
    assert "sleep on base: no end in 1 s" in done.err


@pytest.mark.slow
def test_a_run_is_gone_on_with(repo: GitRepo) -> None:
    repo.write({"times.py": lines(sort=1.3, copy=2.0)})
    repo.commit("slower")
    assert abprof(repo, "main~1", "main", "--device", "cpu", "--quick", "--", sys.executable, "bench.py").code == 4
    where = str(folder(repo))
    done = abprof(repo, "rerun", where, "--only", "name=sort", "--json")
    assert done.code == 1, done.err
    assert done.verdicts() == {"command/name=sort": "slower", "command/name=copy": "unclear"}
    assert "control" in {arm["id"] for arm in done.run["arms"]}
    assert [row["cell"] for row in done.run["controls"]] == ["command/name=sort"], "what was measured is judged"
    refused = abprof(repo, "scripts", where)
    assert (refused.code, "no cell can be called" in refused.err) == (2, True)
    assert abprof(repo, "run", "--resume", where, "--json").run["status"] == "complete"


# Looks for the other side's tree beside its own, and tries to write to it and to the repository.
SPOILS = """
import pathlib, sys
others = [path for path in pathlib.Path.cwd().parent.iterdir() if path != pathlib.Path.cwd()]
print("beside", *sorted(path.name for path in others if any(path.glob("*.py"))), file=sys.stderr)
for place in (*others, pathlib.Path(sys.argv[1])):
    try:
        (place / "planted").write_text("mine")
    except OSError:
        pass
pathlib.Path("here").write_text("my own")
print("sort,1.0")
"""


@needs_sandbox
def test_a_command_of_a_stranger_writes_to_its_own_worktree_alone(repo: GitRepo) -> None:
    repo.commit("spoils", {"bench.py": SPOILS})
    mine = (sys.executable, "bench.py", str(repo.path))
    done = run(repo, "--env", "clean", "--json", "--quick", command=mine)
    assert done.run["options"]["sandbox"] == sandbox().version
    said = "".join(file.read_text() for file in (Path(done.run["run_dir"]) / "logs").glob("command-*.log"))
    assert said.count("beside\n") >= 4, "each side looked, found nothing, and ran to its end"
    assert not (repo.path / "planted").exists()


SLEEPER = """
import os, time
print("sort,1", flush=True)
with open(os.environ["CALLS"], "a+") as calls:
    calls.write(f"{os.getpid()}\\n")
    calls.flush()
    calls.seek(0)
    count = len(calls.readlines())
if count > 2:
    time.sleep(600)
"""


@pytest.mark.slow
def test_an_interrupted_command_is_ended_and_the_report_is_written(repo: GitRepo) -> None:
    repo.write({"bench.py": SLEEPER})
    repo.commit("sleeps in its first epoch")
    calls = repo.path.parent / "calls"
    process = subprocess.Popen(
        [sys.executable, "-m", "abprof", "HEAD", "HEAD", "--device", "cpu", "--", sys.executable, "bench.py"],
        cwd=repo.path, env=tinyrepo.environment(repo.path.parent, {"CALLS": str(calls)}), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    while not calls.exists() or len(calls.read_text().splitlines()) < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "This run is interrupted" in out
    assert (folder(repo) / "report.html").exists()
    assert not alive(int(calls.read_text().splitlines()[-1]), wait=60)


WEAKER = "Weaker guarantee: the command timed itself."
TOML = 'schema = 1\n[command]\nbuild = ["sh", "-c", "test ! -e broken"]\n'


def history(repo: GitRepo, steps: list[dict[str, str]]) -> list[str]:
    """The commits of a history of these steps."""
    return [repo.git("rev-parse", "HEAD"), *(repo.commit(f"step {n}", files) for n, files in enumerate(steps, 1))]


def bisect(repo: GitRepo, *args: str) -> Done:
    return abprof(repo, "bisect", *args, "--device", "cpu", "--", sys.executable, "bench.py")


def test_the_commit_that_made_a_command_slower(repo: GitRepo) -> None:
    commits = history(repo, [{"times.py": lines(sort=1.3, copy=2.0)}])
    done = bisect(repo, commits[0], commits[-1], "--only", "name=sort", "--json")
    assert done.code == 0, done.err
    out = json.loads(done.out)
    assert out["culprits"] == [commits[1]]
    assert out["weaker"][0].startswith(WEAKER)
    assert WEAKER in done.err, "before the first step"
    assert WEAKER in (Path(out["bisect_dir"]) / "report.html").read_text()


@pytest.mark.slow
def test_what_does_not_build_prints_nothing_or_crashes_is_passed_over(repo: GitRepo) -> None:
    commits = history(
        repo,
        [
            {"abprof.toml": TOML, "note": "1"},
            {"broken": ""},
            {"times.py": lines(sort=1.3, copy=2.0)},
            {"times.py": "raise SystemExit(3)"},
            {"times.py": lines(copy=2.0)},
            {"times.py": lines(sort=1.3, copy=2.0), "bench.py": BENCH + "# built again\n"},
        ],
    )
    repo.git("rm", "--quiet", "broken")
    repo.git("commit", "--quiet", "--amend", "--no-edit")
    bad = repo.git("rev-parse", "HEAD")
    repo.write({"abprof.toml": TOML})
    done = bisect(repo, commits[0], bad, "--json")
    assert done.code == 4, done.err
    out = json.loads(done.out)
    (finding,) = [one for found in out["found"] for one in found["findings"]]
    assert finding["kind"] == "range"
    assert finding["commits"] == [*commits[2:6], bad]
    said = {
        row["answer"]["reason"] for step in out["steps"] for row in step["rows"] if row["answer"]["result"] == "cannot"
    }
    assert said <= {"build_failed", "crash", "missing"}
    assert "build_failed" in said


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
        ('"  ",1\n', "a time has no name"),
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
