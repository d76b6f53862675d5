"""Posting a notice file as the second job does: one comment, through everything GitHub does on bad days."""

import json
from pathlib import Path
from typing import Any

import pytest

from abprof.cli import run_command_line
from abprof.extras.bot import encode

from . import notices, runs
from .github_server import OTHER, REPO

HEAD, PUSHED = runs.TARGET.commit, "5" * 40
COMMENTS = r"/issues/7/comments"
EVENT = {"pull_request": {"number": 7, "head": {"sha": HEAD}}, "repository": {"full_name": REPO}}
EARLY, LATE = "2026-11-20T02:17:00Z", "2026-11-20T03:00:00Z"


def plain(kind: str = "slower", began: str = EARLY, head: str = HEAD) -> dict[str, Any]:
    made = json.loads(encode(notices.made(kind)))
    made["targets"][0]["commit"] = head
    return {**made, "began": began, "run": f"run {began}"}


class Post:
    """Run `abprof comment --artifact` as the posting job does; return its exit code and output."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys
        self.out = self.err = ""

    def __call__(self, content: Any, *words: str, event: Any = None) -> int:
        artifact, file = self.folder / "notice.json", self.folder / "event.json"
        artifact.write_bytes(
            content if isinstance(content, bytes) else json.dumps(content, ensure_ascii=False).encode()
        )
        run = {"head_sha": content["targets"][0]["commit"], "head_branch": "feature"}
        run["head_repository"] = {"full_name": "fork/kernels"}
        file.write_text(json.dumps(event or {"workflow_run": run, "repository": {"full_name": REPO}}))
        code = run_command_line(["comment", "--artifact", str(artifact), "--event", str(file), *words])
        self.out, self.err = self.capsys.readouterr()
        return code


@pytest.fixture
def post(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Post:
    return Post(tmp_path, capsys)


def test_posted_then_edited_then_posted_anew_when_the_answer_changes(hub, post):
    assert post(plain("slower")) == 0
    assert post.out.startswith("comment: posted https://github.example/team/kernels/pull/7#issuecomment-")
    (made,) = hub.comments
    assert made["body"].startswith("## abprof: Act: 1 slower")
    assert made["body"].rstrip().splitlines()[-1].startswith("<!-- abprof:v1 key=")
    assert post(plain("slower")) == 0
    assert (post.out.split(" http")[0], made["edits"]) == ("comment: nothing: the comment is up to date", 0)
    assert post(plain("act", LATE)) == 0
    assert (post.out.split(" http")[0], made["edits"]) == ("comment: edited", 1)
    assert "7 broken" in made["body"]
    post(plain("faster", "2026-11-20T04:00:00Z"))
    assert [c["minimised"] for c in hub.comments] == [True, False], "the old one is folded, people are notified"
    assert hub.live()[0]["body"].startswith("## abprof: Nothing to act on")
    for older in (plain("slower", LATE), plain("running", "2026-11-20T04:00:00Z"), plain("act", LATE)):
        assert post(older) == 0
        assert "the comment has a newer result" in post.out
    assert len(hub.comments) == 2


def test_a_push_makes_an_answer_outdated_and_the_head_wins(hub, post):
    hub.heads[7] = PUSHED
    hub.pulls[7] = {"commits": [HEAD], "ref": "feature", "home": "fork/kernels"}
    post(plain("slower"))
    assert "**Outdated:** the branch has moved on to `5555555555`" in hub.comments[0]["body"]
    post(plain("act", LATE, PUSHED))
    (made,) = hub.comments
    assert "Outdated" not in made["body"]
    assert f"replaces the result for `{HEAD[:10]}`" in made["body"]
    post(plain("slower", "2026-11-20T09:00:00Z"))
    assert "the comment has a newer result" in post.out


def test_which_comment_is_ours(hub, post):
    """Not one that somebody planted, not one with the line in its middle, not a minimised one; and ours on the last page."""
    post(plain("slower"))
    ours = hub.comments.pop()
    line = ours["body"].rstrip().splitlines()[-1].replace("02:17", "23:00")
    for number in range(250):
        hub.comment(line if number % 2 else f"comment {number}", OTHER)
    hub.comment(f"quoting {line}\nand more")
    hub.comment(line, minimised=True)
    hub.comment(line.replace("2026", "2999"))  # quoted by another job with the same token: it would win for good
    hub.comment("<!-- abprof:v1 began=2026-11-20T23:00:00Z -->")
    hub.comments.append(ours)
    before = [dict(c) for c in hub.comments[:-1]]
    assert post(plain("slower", LATE)) == 0
    assert ours["edits"] == 1
    assert hub.comments[:-1] == before
    assert hub.count("GET", "page=3")


def test_what_a_second_poster_or_a_lost_answer_left_is_folded(hub, post):
    hub.fault("POST", COMMENTS, after=True, status=502, body=b"")  # taken, and tried again
    assert post(plain("slower")) == 0
    assert len(hub.live()) == 2
    hub.fault("POST", "graphql", after=True, status=502, body=b"")
    assert post(plain("slower", LATE)) == 0
    (left,) = hub.live()
    assert f"begun {LATE}" in left["body"]
    hub.comments.clear()
    hub.fault("POST", COMMENTS, after=True, cut=True)
    assert post(plain("slower")) == 2
    assert "GitHub cannot be reached: " in post.err
    assert post(plain("slower")) == 0
    assert len(hub.comments) == 1


LIMITED = {"headers": {"Retry-After": "1"}, "body": {"message": "You have exceeded a secondary rate limit"}}


@pytest.mark.parametrize(
    ("method", "path", "fault"),
    [
        ("GET", "pulls/7", {"status": 502, "body": b"<html>"}),
        ("POST", "graphql", {"status": 429, **LIMITED}),
        ("PATCH", "issues/comments", {"status": 403, **LIMITED}),
    ],
)
def test_limits_and_outages_are_tried_again(hub, post, method, path, fault):
    post(plain("slower"))
    hub.fault(method, path, **fault)
    assert post(plain("act", LATE)) == 0
    assert len(hub.live()) == 1
    assert "7 broken" in hub.comments[0]["body"]


@pytest.mark.parametrize(
    ("token", "fault", "says"),
    [
        ("wrong", {}, "GitHub answers 401: Bad credentials (check --repo"),
        ("reader-token", {}, "GitHub answers 403: Resource not accessible by integration"),
        ("", {}, "GITHUB_TOKEN: no token"),
        ("bot-token", {"status": 404}, "pull request 7 of team/kernels: GitHub answers 404"),
        ("bot-token", {"status": 418}, "GitHub answers 418"),
        ("bot-token", {"status": 502, "times": 99}, "GitHub cannot be reached: too many 502 error responses"),
        ("bot-token", {"status": 200, "body": b"<html>not GitHub's</html>"}, "did not come from GitHub"),
        (
            "bot-token",
            {"status": 403, "headers": {"x-ratelimit-reset": "99999999999"}, "body": "API rate limit exceeded"},
            "GitHub answers 403",
        ),
    ],
)
def test_a_refusal_is_one_clear_line(hub, post, monkeypatch, token, fault, says):
    monkeypatch.setenv("GITHUB_TOKEN", token)
    monkeypatch.setattr("abprof.extras.bot.github._RETRIES", 1)
    if fault:
        body = fault.pop("body", "No\n\x1b[31m way @torvalds")
        hub.fault("GET", "pulls/7", **fault, body=body if isinstance(body, bytes) else {"message": body})
    assert post(plain("slower"), event=EVENT) == 2
    assert says in post.err
    assert len(post.err.splitlines()) == 1
    assert "\x1b" not in post.err
    assert hub.comments == []


@pytest.mark.parametrize("url", ["http://github.example", "ftp://x", "https://[", "x", "https://a\u202eb"])
def test_a_token_is_never_sent_in_the_clear(hub, post, monkeypatch, url):
    monkeypatch.setenv("GITHUB_API_URL", url)
    assert post(plain("slower")) == 2
    assert "is not an https address" in post.err


def test_an_artifact_cannot_choose_its_commit_or_its_pull_request(hub, post):
    event = {"workflow_run": {"head_sha": HEAD}, "repository": {"full_name": REPO}}
    assert post(plain(head=hub.heads[8]), event=event) == 2
    assert "the artifact is of commit 8888888888, the event of 9f2c4e7a9f" in post.err
    assert (hub.comments, hub.requests) == ([], [])


def test_the_pull_request_is_the_one_with_the_events_head(hub, post):
    hub.heads[9] = "7" * 40
    hub.pulls[9] = {"commits": [HEAD]}  # it holds the commit too, below its head
    assert post(plain()) == 0
    assert [c["pr"] for c in hub.comments] == [7]
    event = {"pull_request": {"number": 8, "head": {"sha": HEAD}}, "repository": {"full_name": REPO}}
    assert post(plain(), event=event) == 0
    assert hub.comments[-1]["pr"] == 8, "an event of a pull request names its own"


def test_a_given_number_is_the_events_or_has_its_commit(hub, post):
    numbered = {"pull_request": {"number": 7, "head": {"sha": HEAD}}, "repository": {"full_name": REPO}}
    assert post(plain(), "--pr", "8", event=numbered) == 2
    assert post.err == "abprof: --pr: 8 is not the event's 7 (leave --pr out)\n"
    assert post(plain(), "--pr", "8") == 2
    assert "no open pull request has this head" in post.err
    assert hub.comments == []
    hub.heads[9] = HEAD
    assert post(plain(), "--pr", "9") == 0, "two have the event's head"
    assert post(plain(), "--pr", "7", event=numbered) == 0
    assert [c["pr"] for c in hub.comments] == [9, 7]


@pytest.mark.parametrize(
    ("heads", "pull", "says"),
    [
        ({}, {"state": "closed"}, "no open pull request has this head"),
        ({}, {"base": "else/where"}, "no open pull request has this head"),
        ({9: HEAD}, {}, "2 open pull requests have this head"),
        ({7: PUSHED}, {"commits": [HEAD], "ref": "feature", "home": "mallory/kernels"}, "no open pull request has"),
    ],
)
def test_no_pull_request_or_several(hub, post, heads, pull, says):
    hub.heads |= heads
    hub.pulls[7] = pull
    assert post(plain()) == 2
    assert says in post.err
    assert hub.comments == []


def test_what_does_not_fit_together_is_refused(hub, post):
    assert post(plain(), "--repo", "else/where") == 2
    assert "is not the event's team/kernels" in post.err
    for words, says in (
        (["comment"], "needs either a run or --artifact"),
        (
            ["comment", "--artifact", str(post.folder / "notice.json"), "--repo", REPO, "--pr", "7"],
            "an artifact needs GitHub's event",
        ),
    ):
        assert run_command_line(words) == 2
        assert says in post.capsys.readouterr().err


def test_a_run_is_posted_or_printed_and_the_summary_of_the_job_is_left_to_the_run(hub, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "job"))  # the run has written its summary there
    folder = runs.write(tmp_path, notices.slower())
    where = ["--repo", REPO, "--pr", "7", "--url", "https://ci.example/7"]
    assert run_command_line(["comment", str(folder), *where]) == 0
    assert not (tmp_path / "job").exists()
    assert "[full report](https://ci.example/7)" in hub.live()[0]["body"]
    hub.requests.clear()
    assert run_command_line(["comment", str(folder), "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("<sub>Run ")
    assert hub.requests == []
