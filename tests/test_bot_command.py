"""`/abprof COMMIT key=value`: its syntax, its users, and the workflow that starts it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from abprof.cli import run_command_line
from abprof.extras.bot import encode
from abprof.extras.bot.github import parse
from abprof.records.errors import AbprofError
from abprof.system.paths import bundled
from tests.simulated.lab import Lab
from tests.simulated.scenario import Scenario, Workload

from . import notices, runs
from .github_server import REPO
from .programs import ABPROF, program
from .sandboxes import needs_sandbox
from .test_attacks import attacked
from .test_sandbox import LETS
from .tinyrepo import environment as working_environment

HEAD = runs.TARGET.commit
TEXT = (bundled("templates") / "github" / "abprof.yml").read_text()


def test_a_command_is_a_commit_and_known_keys():
    commit, options = parse(
        f"/abprof {HEAD} preset=smoke only=direction=bwd kernels=ffa,wsattn workloads=dense budget=20m\r\n"
    )
    assert commit == HEAD
    assert options == {
        "preset": "smoke", "only": "direction=bwd", "kernels": "ffa,wsattn", "workloads": "dense", "budget": "20m",
    }  # fmt: skip
    assert parse(f"/abprof {HEAD}")[1] == {}
    assert parse(f"/abprof {HEAD} only=dense/*seqlen=4096*")[1] == {"only": "dense/*seqlen=4096*"}


WORDS = ("preset", "preset=a preset=b", "python=/tmp/x", "--device=cuda", "preset=--quick", "preset=../x", "preset=$(id)",
         "preset=a;id", "preset=`id`", "preset=${{x}}", "workloads=bench.py", "workloads=dense,bench.py", "only=-x", "budget=0m",
         "budget=-5m", "budget=99999m",
         "preset=sm\u043eke", "kernels=" + "x" * 500)  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        *("", "/abprof", "/abprof main", f"/abprof {HEAD[:12]}", f"/abprof {HEAD.upper()}", f"/abprof preset=a {HEAD}"),
        *(f"/abprof {HEAD} {words}" for words in WORDS),
        *(f"/abprof  {HEAD}", f"/abprof {HEAD}\n\n/abprof {HEAD}", f"/abprof\t{HEAD}", f"/abprofiler {HEAD}"),
        f"> /abprof {HEAD}",
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(AbprofError, match="not a valid command") as found:
        parse(text)
    assert "\n" not in found.value.line


def event(body: str = f"/abprof {HEAD}", **comment: Any) -> dict[str, Any]:
    user = {"login": "Ada", "type": "User"}
    written = {"id": 1, "body": body, "created_at": "2026-11-20T12:30:00Z", "user": user} | comment
    issue = {"number": 7, "pull_request": {"url": "x"}}
    return {"action": "created", "issue": issue, "repository": {"full_name": REPO}, "comment": written}


def admit(folder: Path, content: Any, config: str = 'users = ["ada"]') -> int:
    (folder / "event.json").write_text(json.dumps(content))
    (folder / "bot.toml").write_text(config + "\n")
    files = {"--event": "event.json", "--allow": "bot.toml", "--output": "out"}
    return run_command_line(["admit", *(word for name, file in files.items() for word in (name, str(folder / file)))])


def test_the_gate_gives_commits_and_options_and_nothing_else(hub, tmp_path, capsys):
    assert admit(tmp_path, event(f"/abprof {HEAD} preset=smoke budget=30m")) == 0
    expected = f"base={'1a' * 20}\ntarget={HEAD}\npr=7\npreset=smoke\nbudget=30m\n"
    assert (tmp_path / "out").read_text() == capsys.readouterr().out == expected


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda hub: hub.heads.update({7: "5" * 40}), "the head of pull request 7 is 5555555555, not 9f2c4e7a9f"),
        (lambda hub: hub.pulls.update({7: {"state": "closed"}}), "the pull request is closed"),
    ],
)
def test_the_gate_refuses_in_one_line(hub, tmp_path, capsys, change, says):
    change(hub)
    assert admit(tmp_path, event()) == 2
    err = capsys.readouterr().err
    assert says in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


BROKEN = ("schema = 2", "users = 'ada'", "cooldown_minutes = 10", "root = true", "users = [")


@pytest.mark.parametrize(
    ("content", "config", "says"),
    [
        (event(), 'users = ["grace"]', "this user may not start a run"),
        (event(f"/abprof {HEAD} budget=1h"), 'users = ["ada"]', "the budget is longer than 30m"),
        (event() | {"action": "edited"}, "", "not a new comment"),
        (event() | {"issue": {"number": 7}}, "", "not a new comment"),
        (event(user={"login": "ada", "type": "Bot"}), "", "a bot may not start a run"),
        (event() | {"comment": None}, "", "not a workflow_run or pull_request event"),
        (event() | {"issue": []}, "", "not a new comment"),
        *((event(), text, "bot.toml") for text in BROKEN),
    ],
)
def test_a_stranger_costs_no_request(hub, tmp_path, capsys, content, config, says):
    assert admit(tmp_path, content, config) == 2
    assert says in capsys.readouterr().err
    assert hub.requests == []


def test_the_answer_goes_to_the_pull_request_of_the_command_and_only_for_its_commit(hub, tmp_path, capsys):
    (tmp_path / "notice.json").write_bytes(encode(notices.made("slower")))
    args = ["comment", "--artifact", str(tmp_path / "notice.json"), "--event", str(tmp_path / "event.json")]
    for body, code in ((f"/abprof {HEAD}", 0), (f"/abprof {'5' * 40}", 2)):
        (tmp_path / "event.json").write_text(json.dumps(event(body)))
        assert run_command_line(args) == code
    assert [c["pr"] for c in hub.live()] == [7]
    assert "the artifact is of commit 9f2c4e7a9f" in capsys.readouterr().err


def jobs() -> dict[str, str]:
    parts = re.split(r"^  (\w+):\n", TEXT[TEXT.index("\njobs:\n") :], flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_posting_job_needs_no_more_than_its_workflow_installs(tmp_path):
    (tmp_path / "notice.json").write_bytes(encode(notices.made("act")))
    code = (
        "import sys\nfrom abprof.cli import run_command_line\n"
        f"assert run_command_line(['comment', '--artifact', {str(tmp_path / 'notice.json')!r}, '--dry-run']) == 0\n"
        "import github\nfrom abprof.extras.bot import admit, post_notice\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert {"github", "jinja2", "msgspec", "typer"} <= loaded
    assert not loaded & {"torch", "triton", "pandas", "scipy", "git", "PIL", "psutil", "pynvml", "filelock", "ninja"}
    needs = re.search(r"ABPROF_NEEDS: (.*)", TEXT)
    assert set(needs[1].split()) == {"jinja2", "msgspec", "numpy", "typer", "PyGithub"}


def test_the_workflow_keeps_tokens_and_code_apart():
    found = jobs()
    assert list(found) == ["admit", "measure", "post"]
    assert "\npermissions: {}\n" in TEXT
    assert "token" not in found["measure"].lower()
    assert "write" not in found["admit"] + found["measure"]
    assert "checkout" not in found["post"]
    assert "ref:" not in found["admit"]
    assert "--untrusted" in found["measure"], "without a wall there is no answer"
    assert re.findall(r"      ([\w-]+): write", found["post"]) == ["pull-requests"]
    for job in found.values():  # no expression in a script: values travel as variables
        scripts = re.findall(r"run: (?!\|)(.*)|run: \|\n((?: {10}.*\n)+)", job)
        assert scripts
        assert "${{" not in "".join(map("".join, scripts))
    assert all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", one) for one in re.findall(r"uses: (\S+)", TEXT))
    assert TEXT.count("persist-credentials: false") == TEXT.count("actions/checkout")
    assert "concurrency" not in TEXT[: TEXT.index("\n  measure:")], "only admitted commands wait for each other"


@pytest.mark.parametrize("words", [["zizmor", "--offline", "--no-progress"], ["actionlint", "-no-color"]])
def test_linters_of_workflows_find_nothing(tmp_path, words):
    """No package on PyPI carries actionlint."""
    tool = shutil.which(words[0], path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if tool is None:
        pytest.skip(f"no {words[0]} on this machine")
    (tmp_path / ".git").mkdir()
    assert run_command_line(["init", "--github", "--repo", str(tmp_path)]) == 0
    workflow = tmp_path / ".github" / "workflows" / "abprof.yml"
    done = subprocess.run([tool, *words[1:], str(workflow)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_init_writes_both_files_and_replaces_nothing(tmp_path, capsys):
    (tmp_path / ".git").mkdir()
    args = ["init", "--github", "--repo", str(tmp_path)]
    workflow, config = tmp_path / ".github" / "workflows" / "abprof.yml", tmp_path / ".github" / "abprof-bot.toml"
    assert run_command_line(args) == 0
    assert workflow.read_text() == TEXT
    assert run_command_line(args) == 0
    config.write_text('users = ["ada"]\n')
    workflow.unlink()
    assert run_command_line(args) == 2
    assert "exists with other content (nothing was written; --overwrite replaces the file)" in capsys.readouterr().err
    assert not workflow.exists()
    assert run_command_line([*args, "--overwrite"]) == 0
    assert "users = []" in config.read_text()
    assert run_command_line(["init", "--github", "--repo", str(tmp_path / "nowhere")]) == 2


def measuring_job(folder: Path, checkout: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the lines of the workflow as they stand; options without a value arrive empty."""
    found = re.search(r"run: \|\n((?: {10}[^\n]*\n)+)", jobs()["measure"])
    command = program(folder / "bin" / "abprof", ABPROF)
    unset = dict.fromkeys([f"ABPROF_{name}" for name in ("PRESET", "ONLY", "KERNELS", "WORKLOADS", "BUDGET")], "")
    path = f"{command.parent}:{environment.get('PATH', os.environ['PATH'])}"
    env = unset | environment | {"PATH": path, "RUNNER_TEMP": str(folder), "CI": "true"}
    line = ["bash", "-e", "-c", found[1]]
    return subprocess.run(line, cwd=checkout, env=env, capture_output=True, text=True, check=False)


def test_the_measuring_jobs_own_script_makes_the_artifact_and_takes_unset_options(tmp_path):
    load = Workload(kernel="ffa", presets={"default": {"direction": ["fwd", "bwd"]}})
    lab = Lab(tmp_path / "lab", Scenario(workloads={"dense": load}))
    base, target = (lab.repo.git("rev-parse", name).strip() for name in ("main", "fast"))
    environment = lab.environment() | {
        "ABPROF_DEVICE": "simulated",
        "ABPROF_EPOCHS": "4",
        "BASE": base,
        "TARGET": target,
    }

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        return measuring_job(tmp_path, lab.repo.path, environment | more)

    program(tmp_path / "bin" / "bwrap", "exit 1")  # one that does not start: no run, no artifact
    assert run().returncode == 2
    program(
        tmp_path / "bin" / "bwrap", LETS
    )  # a simulated worker writes beside its scenario, which a true wall forbids
    assert run(ABPROF_WORKLOADS="bench.py").returncode == 2
    assert not (tmp_path / "notice.json").exists()
    done = run()
    assert done.returncode == 0, done.stderr
    made = json.loads((tmp_path / "notice.json").read_text())
    assert (made["base"]["commit"], made["targets"][0]["commit"]) == (base, target)
    assert lab.left_behind() == []


@needs_sandbox
@pytest.mark.slow
def test_a_cheating_pull_request_gets_no_speed(hub, tmp_path):
    """The workflow from its measuring job to the comment, with real processes."""
    repo = attacked(tmp_path / "repo", ["call_count", "clock_at_a_quarter"])
    base, target = (repo.git("rev-parse", name).strip() for name in ("main", "attack"))
    environment = working_environment(tmp_path, {"OMP_NUM_THREADS": "1", "ABPROF_DEVICE": "cpu", "ABPROF_EPOCHS": "4"})
    done = measuring_job(tmp_path, repo.path, environment | {"BASE": base, "TARGET": target})
    assert done.returncode == 0, done.stderr
    (tmp_path / "event.json").write_text(json.dumps(event(f"/abprof {target}")))
    args = ["comment", "--artifact", str(tmp_path / "notice.json"), "--event", str(tmp_path / "event.json")]
    assert run_command_line(args) == 0
    (posted,) = hub.live()
    verdicts = {name: verdict for verdict, name in re.findall(r"^\| . (\w+) \| `(\w+)`", posted["body"], re.M)}
    assert verdicts.keys() >= {"call_count", "clock_at_a_quarter"}, posted["body"]
    assert {verdicts["call_count"], verdicts["clock_at_a_quarter"]} <= {"broken", "unclear"}
    assert not re.search(r"\d % faster", posted["body"]), "what its clock says is no speed"
