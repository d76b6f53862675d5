"""Two stages: what ran a branch's code writes a file, and what holds the token reads it as a stranger's."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from abprof.cli import run_command_line
from abprof.extras.bot.check import conclusion
from abprof.extras.bot.comment import MOST_BYTES as LONGEST
from abprof.extras.bot.comment import comment
from abprof.extras.bot.event import read_event
from abprof.extras.bot.notice import _STRING, DEEPEST, MOST_BYTES, encoded, read
from abprof.extras.bot.post import _timely
from abprof.records.errors import AbprofError
from tests import schemas

from . import notices, runs
from .github_server import REPO, GitHub
from .test_comment import ATTACKS, harmless

HEAD = runs.TARGET.commit


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[GitHub]:
    for name in [name for name in os.environ if name.startswith(("GITHUB_", "GH_"))]:
        monkeypatch.delenv(name)
    with GitHub() as made:
        monkeypatch.setenv("NO_PROXY", "*")
        monkeypatch.setenv("GITHUB_API_URL", made.url)
        monkeypatch.setenv("GITHUB_TOKEN", "bot-token")
        yield made


def plain(kind: str = "act") -> dict[str, Any]:
    return json.loads(encoded(notices.made(kind)))


def put(folder: Path, content: Any) -> Path:
    path = folder / "notice.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def event(folder: Path, content: Any = None, **more: Any) -> Path:
    path = folder / "event.json"
    run = {"head_sha": HEAD, "head_branch": "feature", "head_repository": {"full_name": "fork/kernels"}, **more}
    path.write_text(json.dumps(content or {"workflow_run": run, "repository": {"full_name": REPO}}))
    return path


# ---------------------------------------------------------------- end to end


def test_a_run_an_artifact_a_comment_and_again_after_a_push(hub, tmp_path, capfdbinary):
    folder = runs.write(tmp_path, notices.slower())
    assert run_command_line(["report", str(folder), "--format", "artifact"]) == 0
    artifact = put(tmp_path, capfdbinary.readouterr().out)
    assert run_command_line(["comment", "--artifact", str(artifact), "--event", str(event(tmp_path)), "--check"]) == 0
    (made,) = hub.live()
    assert made["body"].startswith(comment(read(artifact)).split("<sub>")[0][:300])
    (check,) = hub.checks
    assert (check["head_sha"], check["status"], check["conclusion"]) == (HEAD, "completed", "action_required")
    assert check["output"]["summary"].startswith("## abprof: ")

    hub.heads[7] = "5" * 40  # a push, whose run ends
    pushed = plain("slower")
    pushed["began"], pushed["targets"][0]["commit"] = "2026-11-20T09:00:00Z", "5" * 40
    args = ["--artifact", str(put(tmp_path, pushed)), "--event", str(event(tmp_path, head_sha="5" * 40))]
    assert run_command_line(["comment", *args, "--check"]) == 0
    (made,) = hub.live()
    assert f"replaces the result for `{HEAD[:10]}`" in made["body"]
    assert [check["head_sha"] for check in hub.checks] == [HEAD, "5" * 40]
    assert run_command_line(["comment", *args, "--check"]) == 0
    assert len(hub.checks) == 2, "a check is renewed, not made again"
    assert made["edits"] == 1


def test_the_artifact_of_a_run_fits_its_schema_and_its_reader(tmp_path):
    schema = schemas.schemas()["notice.schema.json"]
    validator = jsonschema.Draft202012Validator(schema)
    for kind in notices.KINDS:
        validator.validate(plain(kind))
        assert read(put(tmp_path, plain(kind))) == notices.made(kind)
    assert not validator.is_valid({**plain(), "pr": 7})


# ---------------------------------------------------------------- hostile artifacts


def refused(path: Path) -> str:
    with pytest.raises(AbprofError) as told:
        read(path)
    assert "\n" not in told.value.line
    assert len(told.value.line) < 600
    return told.value.line


def test_a_gigabyte_is_not_read(tmp_path):
    path = tmp_path / "notice.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    tracemalloc.start()
    assert f"larger than {MOST_BYTES} bytes" in refused(path)
    assert tracemalloc.get_traced_memory()[1] < 8 * MOST_BYTES
    tracemalloc.stop()


@pytest.mark.parametrize("brackets", [("[", "]"), ('{"a":', "}")])
def test_deep_nesting_is_refused_before_it_is_parsed(tmp_path, brackets):
    for depth in (DEEPEST + 1, 100_000):
        deep = brackets[0] * depth + "1" + brackets[1] * depth
        assert "brackets within brackets" in refused(put(tmp_path, deep.encode()))
    assert "brackets" in refused(put(tmp_path, b'{"schema":' + b"[" * 500_000))


@pytest.mark.parametrize("piece", [b'"', b'\\"', b"\\", b'"\\"', b'"\\', b'[\\"'])
def test_a_quote_that_nothing_closes_is_looked_at_once(tmp_path, piece):
    for text in (b'"' + piece * 5, b'"' + piece * 5 + b"\\", b'"' + piece * 5 + b'\\"'):
        assert b'"' not in _STRING.sub(b"", text), "a match at every quote: none is tried in vain, and the next"
    refused(put(tmp_path, b'"' + piece * (MOST_BYTES // len(piece) - 2)))


@pytest.mark.parametrize("text", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"1e300", b"-101"])
def test_numbers_are_finite_and_of_a_size(tmp_path, text):
    raw = json.dumps(plain("slower")).replace('"pct": 2.1', '"pct": @').encode()
    assert b"@" in raw
    assert "not a notice of this abprof" in refused(put(tmp_path, raw.replace(b"@", text, 1)))


WRONG = [
    {"schema": 2}, {"schema": "1"}, {"rows": {}}, {"rows": [1]}, {"counts": {"slower": -1}},
    {"counts": {"slower": 1.5}}, {"counts": {"slower": 10**9}}, {"counts": {"pr": 7}}, {"pr": 7},
    {"repo": "a/b"}, {"run": None}, {"run": ["x"]}, {"run": "x" * 201}, {"targets": []}, {"status": "fine"},
    {"measured": "yes"}, {"margin": None}, {"began": "now"}, {"began": "2026-11-20T02:17:00Z --> @x"},
    {"fail_on": ["everything"]}, {"environment": [["a", "b", "c"]]}, {"environment": [["a", "b"]] * 61},
    {"command": ["x" * 601]}, {"notes": ["x"] * 21},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: f"{next(iter(wrong))}-{str(wrong)[:40]}")
def test_wrong_types_sizes_and_unknown_keys_are_refused(tmp_path, wrong):
    assert "not a notice of this abprof" in refused(put(tmp_path, {**plain(), **wrong}))


@pytest.mark.parametrize("commit", ["9f2c", "../../etc", "9" * 41, "G" * 40, "-->" + "9" * 37])
def test_a_commit_is_forty_hex_digits(tmp_path, commit):
    made = plain()
    made["targets"][0]["commit"] = commit
    assert "not a notice of this abprof" in refused(put(tmp_path, made))


@pytest.mark.parametrize(
    "raw", [b"", b"null", b"[]", b"{", b"\xff\xfe", b'{"schema": 1}', b"PK\x03\x04", b"\x80\x04K\x01."]
)
def test_what_is_no_notice_at_all_is_refused(tmp_path, raw):
    refused(put(tmp_path, raw))


def test_a_path_that_is_no_file_is_refused_without_waiting(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(secret)
    for path in (tmp_path / "pipe", tmp_path / "link", tmp_path, tmp_path / "nothing", Path("/dev/zero")):
        assert "hunter2" not in refused(path)
        assert "not a regular file" in refused(path)


PATHS = (
    "../../../etc/passwd",
    "/etc/passwd",
    "file:///etc/passwd",
    "logs/../../x",
    "\\\\host\\share",
    "CON",
    "$(id)",
    "${{ github.token }}",
)


@pytest.mark.parametrize("text", [*ATTACKS, *PATHS, "é" * 200, "`" * 200, " ".join(ATTACKS)[:200]])
def test_any_text_in_every_place_becomes_data(hub, tmp_path, text):
    made = everywhere(plain("act") | {"lacking": "sides", "lacking_in": ["dense", "other"]}, text[:200])
    artifact = put(tmp_path, made)
    shown = comment(read(artifact))
    harmless(shown)
    assert len(shown.encode()) <= LONGEST
    assert "root:" not in shown


def everywhere(value: Any, text: str, key: str = "") -> Any:
    """The same with every free text replaced."""
    kept = {"schema", "status", "lacking", "verdict", "commit", "began", "fail_on", "reasons"}
    if isinstance(value, dict):
        return {name: one if name in kept else everywhere(one, text, name) for name, one in value.items()}
    if isinstance(value, list):
        return [everywhere(one, text, key) for one in value]
    return text if isinstance(value, str) else value


def test_an_artifact_cannot_choose_its_commit_or_its_pull_request(hub, tmp_path, capsys):
    made = plain()
    made["targets"][0]["commit"] = hub.heads[8]  # somebody else's pull request
    args = ["comment", "--artifact", str(put(tmp_path, made)), "--event", str(event(tmp_path))]
    assert run_command_line(args) == 2
    assert "the artifact speaks of commit 8888888888, the event of 9f2c4e7a9f" in capsys.readouterr().err
    assert hub.comments == []
    assert hub.requests == []


def test_without_an_event_an_artifact_is_only_believed_about_the_head(hub, tmp_path, capsys):
    artifact = str(put(tmp_path, plain("faster")))
    args = ["comment", "--artifact", artifact, "--repo", REPO, "--pr", "7", "--check"]
    hub.heads[7] = "5" * 40
    assert run_command_line(args) == 2
    assert "the artifact speaks of commit 9f2c4e7a9f, the head of 7 is 5555555555" in capsys.readouterr().err
    assert (hub.comments, hub.checks) == ([], [])
    hub.heads[7] = HEAD
    assert run_command_line(args) == 0
    assert hub.checks[0]["conclusion"] == "success"


@pytest.mark.parametrize("began", ["9999-12-31T00:00:00Z", "9999-99-99T00:00:00Z"])
def test_a_run_of_the_future_would_stand_for_ever_and_is_refused(hub, tmp_path, capsys, began):
    args = ["--artifact", str(put(tmp_path, {**plain(), "began": began})), "--event", str(event(tmp_path)), "--check"]
    assert run_command_line(["comment", *args]) == 2
    err = capsys.readouterr().err
    assert "began of the run: 9999-" in err
    assert len(err.splitlines()) == 1
    assert hub.requests == []


def test_an_hour_of_the_other_machines_clock_is_borne_with():
    made = runs.changed(notices.made("slower"), began="2026-11-20T03:00:00Z")
    _timely(made, datetime(2026, 11, 20, 2, 0, tzinfo=UTC))
    with pytest.raises(AbprofError, match="is later than now, 2026-11-20T01:59:59Z"):
        _timely(made, datetime(2026, 11, 20, 1, 59, 59, tzinfo=UTC))


# ---------------------------------------------------------------- the pull request, from the event


def posted(hub: GitHub, tmp_path: Path, **more: Any) -> int:
    return run_command_line(
        ["comment", "--artifact", str(put(tmp_path, plain())), "--event", str(event(tmp_path, **more))]
    )


def test_the_pull_request_is_the_one_whose_head_is_the_events(hub, tmp_path):
    hub.heads[9] = "7" * 40
    hub.pulls[9] = {"commits": [HEAD]}  # it holds the commit too, below its head
    assert posted(hub, tmp_path) == 0
    assert [c["pr"] for c in hub.comments] == [7]


@pytest.mark.parametrize("pull", [{"state": "closed"}, {"base": "else/where"}])
def test_closed_pull_requests_and_those_of_other_repositories_are_not_meant(hub, tmp_path, pull, capsys):
    hub.pulls[7] = pull
    assert posted(hub, tmp_path) == 2
    assert "no open pull request has this head" in capsys.readouterr().err
    assert hub.comments == []


def test_two_pull_requests_with_this_head_are_too_many(hub, tmp_path, capsys):
    hub.heads[9] = HEAD
    assert posted(hub, tmp_path) == 2
    assert "2 open pull requests have this head" in capsys.readouterr().err


def test_a_pull_request_that_moved_on_is_known_by_its_branch_and_told(hub, tmp_path):
    hub.heads[7] = "5" * 40
    hub.pulls[7] = {"commits": [HEAD], "ref": "feature", "home": "fork/kernels"}
    assert posted(hub, tmp_path) == 0
    assert "Outdated" in hub.live()[0]["body"]


def test_one_that_moved_on_elsewhere_is_not_meant(hub, tmp_path):
    hub.heads[7] = "5" * 40
    hub.pulls[7] = {"commits": [HEAD], "ref": "feature", "home": "mallory/kernels"}
    assert posted(hub, tmp_path) == 2
    assert hub.comments == []


def test_a_pull_request_event_names_its_own(hub, tmp_path):
    content = {"pull_request": {"number": 7, "head": {"sha": HEAD}}, "repository": {"full_name": REPO}}
    args = ["comment", "--artifact", str(put(tmp_path, plain())), "--event", str(event(tmp_path, content))]
    assert run_command_line(args) == 0
    assert [c["pr"] for c in hub.comments] == [7]


@pytest.mark.parametrize(
    "content",
    [
        {"workflow_run": {"head_sha": "main"}, "repository": {"full_name": REPO}},
        {"workflow_run": {"head_sha": HEAD}, "repository": {"full_name": "../../etc"}},
        {"workflow_run": [], "repository": {"full_name": REPO}},
        {"issue": {"number": 7}, "repository": {"full_name": REPO}},
        [1],
    ],
)
def test_an_event_of_another_kind_is_refused(tmp_path, content):
    with pytest.raises(AbprofError, match="neither a workflow_run nor a pull_request event"):
        read_event(event(tmp_path, content))


def test_the_repository_is_the_events(hub, tmp_path, capsys):
    args = ["--artifact", str(put(tmp_path, plain())), "--event", str(event(tmp_path)), "--repo", "else/where"]
    assert run_command_line(["comment", *args]) == 2
    assert "but the event is of team/kernels" in capsys.readouterr().err


# ---------------------------------------------------------------- the check


def counted(kind: str, **counts: int) -> str:
    made = notices.made(kind)
    return conclusion(runs.changed(made, counts=runs.changed(made.counts, **counts)))


def test_a_check_is_green_only_where_something_was_judged_and_nothing_speaks_against_it():
    assert conclusion(notices.made("faster")) == "success"
    assert conclusion(notices.made("unchanged")) == "success"
    assert conclusion(notices.made("slower")) == "failure"
    assert conclusion(notices.made("act")) == "action_required"
    for kind in ("untrusted", "undecided", "nothing_measured"):
        assert conclusion(notices.made(kind)) == "neutral"


@pytest.mark.parametrize(
    "counts",
    [
        {"undecided": 1},  # of 6 rows: more than a tenth
        {"controls_outside": 1},
        {"quick": 6},
        {"suspect_slower": 1, "slower": 1},
        {"worth_confirming": 1},
        {"unsupported": 6},
        {"comparisons": 0},
    ],
)
def test_doubt_is_neutral(counts):
    assert counted("faster") == "success"
    assert counted("faster", **counts) == "neutral"


def test_an_interrupted_run_is_not_green():
    assert conclusion(runs.changed(notices.made("faster"), status="interrupted")) == "neutral"


def test_what_fail_on_lets_pass_is_neutral_and_not_green():
    assert conclusion(runs.changed(notices.made("slower"), fail_on=("broken",))) == "neutral"
    assert conclusion(runs.changed(notices.made("act"), fail_on=("never",))) == "neutral"


def checked(tmp_path: Path, kind: str, began: str, *more: str) -> int:
    made = {**plain(kind), "began": began, "run": began}
    args = ["--artifact", str(put(tmp_path, made)), "--event", str(event(tmp_path)), "--policy", "never", "--check"]
    return run_command_line(["comment", *args, *more])


def test_an_older_result_never_replaces_a_newer_check(hub, tmp_path, capsys):
    assert checked(tmp_path, "slower", "2026-11-20T03:00:00Z") == 0
    assert checked(tmp_path, "faster", "2026-11-20T02:00:00Z") == 0
    assert "check nothing: a newer result stands there https://" in capsys.readouterr().out
    assert [check["conclusion"] for check in hub.checks] == ["failure"]
    assert checked(tmp_path, "running", "2026-11-20T03:00:00Z") == 0
    assert [check["status"] for check in hub.checks] == ["completed"]
    assert checked(tmp_path, "faster", "2026-11-20T04:00:00Z") == 0
    assert [check["conclusion"] for check in hub.checks] == ["success"]


def test_one_check_for_each_key(hub, tmp_path):
    for kind, key in (("slower", "h200"), ("faster", "b200"), ("faster", "h200"), ("faster", "")):
        assert checked(tmp_path, kind, "2026-11-20T03:00:00Z", "--key", key) == 0
    assert [check["name"] for check in hub.checks] == ["abprof (h200)", "abprof (b200)", "abprof"]


def test_another_apps_check_of_our_name_is_left_alone(hub, tmp_path):
    others = [
        {"id": id, "name": "abprof", "head_sha": HEAD, "external_id": text} for id, text in ((1, "abprof"), (2, None))
    ]
    hub.checks += [dict(one) for one in others]
    for _ in range(2):
        assert checked(tmp_path, "slower", "2026-11-20T03:00:00Z") == 0
    assert hub.checks[:2] == others
    assert len(hub.checks) == 3


def test_a_check_that_github_finds_too_long_is_made_shorter_or_told(hub, tmp_path, capsys):
    fault = {"status": 422, "body": {"message": "Invalid request.", "errors": ["summary is too long"]}}
    hub.fault("POST", "check-runs", **fault)
    assert checked(tmp_path, "act", "2026-11-20T03:00:00Z") == 0
    assert len(hub.checks) == 1
    hub.checks.clear()
    hub.fault("POST", "check-runs", times=9, **fault)
    assert checked(tmp_path, "act", "2026-11-20T03:00:00Z") == 2
    assert "even the shortest check run is refused" in capsys.readouterr().err


def test_a_run_that_goes_on_is_a_check_in_progress(hub, tmp_path):
    folder = runs.write(tmp_path, notices.running())
    assert run_command_line(["comment", str(folder), "--repo", REPO, "--pr", "7", "--check", "--policy", "never"]) == 0
    (check,) = hub.checks
    assert check["status"] == "in_progress"
    assert "conclusion" not in check
    assert hub.comments == []
