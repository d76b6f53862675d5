"""Notes on GitLab's merge requests: the same rules, against a real HTTP server that answers like GitLab's API."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from abprof.cli import run_command_line
from abprof.extras.bot import patience
from abprof.extras.bot.comment import Around, comment
from abprof.extras.bot.gitlab import Hub, project
from abprof.extras.bot.upsert import Posted, upsert
from abprof.records.errors import AbprofError

from . import notices, runs
from .github_server import BOT, OTHER, TOKENS, GitHub
from .test_comment_posting import at, body

NAME = "team/sub/kernels"
MERGE = "/api/v4/projects/team%2Fsub%2Fkernels/merge_requests"
NOTES = r"merge_requests/7/notes"


class GitLab(GitHub):
    """The same server, answering as GitLab does: notes, numbered pages, nothing that minimises."""

    def answered(self, method: str, path: str, token: str, data: Any) -> tuple[int, dict[str, str], Any]:
        who = TOKENS.get(token)
        if who is None:
            return 401, {}, {"message": "401 Unauthorized"}
        parts = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if (method, parts.path) == ("GET", "/api/v4/user"):
            return 200, {}, {"id": list(TOKENS.values()).index(who), "username": who}
        found = re.fullmatch(re.escape(MERGE) + r"/(\d+)(/notes)?(?:/(\d+))?", parts.path)
        if not found or int(found[1]) not in self.heads:
            return 404, {}, {"message": "404 Not found"}
        return self._merge_request(method, who, data, query, int(found[1]), notes=bool(found[2]), id=found[3])

    def _merge_request(
        self, method: str, who: str, data: Any, query: dict, number: int, *, notes: bool, id: str | None
    ) -> tuple[int, dict[str, str], Any]:
        if not notes:
            return 200, {}, {"iid": number, "sha": self.heads[number]}
        every = [c for c in self.comments if c["pr"] == number]
        if method == "POST":
            return 201, {}, self._note(self.comment(data["body"], who, number))
        if id is None:
            size, page = int(query.get("per_page", 20)), int(query.get("page", 1))
            return 200, {}, [self._note(c) for c in every[(page - 1) * size : page * size]]
        one = next((c for c in every if c["id"] == int(id)), None)
        if one is None:
            return 404, {}, {"message": "404 Note Not Found"}
        if method == "PUT":
            if one["author"] != who:
                return 403, {}, {"message": "403 Forbidden"}
            one["body"], one["edits"] = data["body"], one["edits"] + 1
        return 200, {}, self._note(one)

    def _note(self, made: dict[str, Any]) -> dict[str, Any]:
        author = {"id": list(TOKENS.values()).index(made["author"]), "username": made["author"]}
        return {"id": made["id"], "body": made["body"].rstrip(), "author": author, "system": made.get("system", False)}


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[GitLab]:
    for name in [name for name in os.environ if name.startswith(("GITLAB_", "CI_", "GITHUB_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "*")
    with GitLab() as made:
        yield made


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    asked: list[float] = []
    monkeypatch.setattr(patience, "sleep", asked.append)
    return asked


def post(lab: GitLab, notice, token: str = "bot-token", timeout: float = 20) -> Posted:
    hub = Hub(lab.url, token, NAME, timeout=timeout)
    return upsert(
        hub, 7, notice, "", "always", lambda h, r, m: comment(notice, Around(head=h, replaces=r), m), lambda text: None
    )


def test_posted_edited_and_posted_anew_on_a_flip_with_the_old_one_folded(lab):
    first = post(lab, at("slower"))
    assert first.what == "posted"
    assert first.url == f"{lab.url}/{NAME}/-/merge_requests/7#note_{lab.comments[0]['id']}"
    assert post(lab, at("act", "2026-11-20T03:00:00Z")).what == "edited"
    assert post(lab, at("faster", "2026-11-20T04:00:00Z")).what == "posted"
    old, new = lab.comments
    assert old["body"].startswith("<details><summary>abprof: outdated</summary>\n\n## abprof: Act")
    assert "abprof:v1" not in old["body"]
    assert "Nothing to act on" in new["body"]
    assert post(lab, at("faster", "2026-11-20T04:00:00Z")).what == "nothing: it stands there"
    assert post(lab, at("slower", "2026-11-20T01:00:00Z")).what == "nothing: a newer result stands there"


def test_a_planted_line_of_somebody_else_and_a_systems_note_are_ignored_on_all_pages(lab):
    for _ in range(250):
        lab.comment(body(at("faster", "2026-12-31T00:00:00Z")), OTHER)
    lab.comment(body(at("faster", "2026-12-31T00:00:00Z")))["system"] = True
    assert post(lab, at("slower")).what == "posted"
    assert sum(c["author"] == BOT for c in lab.comments) == 2
    assert lab.count("GET", "page=3")
    assert all(c["edits"] == 0 for c in lab.comments)


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_note_deleted_between_the_list_and_its_edit_is_posted_anew(lab, method):
    post(lab, at("slower"))
    lab.moment(method, rf"{NOTES}/\d+", lab.comments.clear)
    assert post(lab, at("act", "2026-11-20T03:00:00Z")).what == "posted"
    assert len(lab.comments) == 1


def test_a_note_deleted_before_it_is_folded_away_does_not_matter(lab):
    post(lab, at("slower"))
    lab.moment("GET", rf"{NOTES}/{lab.comments[0]['id']}", lambda: lab.comments.pop(0))
    assert post(lab, at("faster", "2026-11-20T04:00:00Z")).what == "posted"
    assert len(lab.comments) == 1


def test_a_head_that_moved_is_told(lab):
    lab.heads[7] = "5" * 40
    post(lab, at("slower"))
    assert "**Outdated:**" in lab.comments[0]["body"]


@pytest.mark.parametrize(
    ("status", "headers", "wait"), [(429, {"Retry-After": "7"}, 7.0), (500, {}, 1.0), (502, {}, 1.0), (503, {}, 1.0)]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_limits_and_outages_are_waited_for(lab, waits, status, headers, wait, method):
    lab.fault(method, NOTES, status=status, headers=headers, body={"message": "no"})
    assert post(lab, at("slower")).what == "posted"
    assert waits == [wait]
    assert len(lab.comments) == 1


def test_patience_has_an_end(lab, waits):
    lab.fault("GET", NOTES, status=429, headers={"Retry-After": "3600"}, body={})
    with pytest.raises(AbprofError, match="asks to wait 3600 s"):
        post(lab, at("slower"))
    assert waits == []


@pytest.mark.parametrize("fault", [{"cut": True}, {"status": 502, "body": b""}, {"hang": 3, "status": 201, "body": {}}])
def test_a_note_that_was_made_though_its_answer_was_lost_is_not_made_twice(lab, waits, fault):
    lab.fault("POST", NOTES, after=True, **fault)
    post(lab, at("slower"), timeout=2 if "hang" in fault else 20)
    assert len(lab.comments) == 1
    assert waits[: 1 if "hang" in fault else None] == [1.0]  # a busy machine's other answers may be late too


@pytest.mark.parametrize(
    ("token", "status", "says"),
    [
        ("wrong", 0, "the token is refused"),
        ("bot-token", 403, "the token may not do this"),
        ("bot-token", 404, "not there, or the token may not see it"),
        ("bot-token", 418, "GitLab answers 418"),
    ],
)
def test_a_refusal_is_one_clear_line(lab, waits, token, status, says):
    if status:
        lab.fault("GET", "merge_requests/7", status=status, body={"message": "No\n\x1b[31mway"})
    with pytest.raises(AbprofError) as told:
        post(lab, at("slower"), token=token)
    assert says in told.value.line
    assert "\n" not in told.value.line
    assert "\x1b" not in told.value.line
    assert waits == []


@pytest.mark.parametrize("answer", [[], {"sha": None}, b"<html>", {"message": 5}, 7])
def test_an_answer_that_is_not_gitlabs_is_told(lab, waits, answer):
    lab.fault("GET", "merge_requests/7$", status=200, body=answer)
    lab.fault("GET", NOTES, status=200, body=answer, times=9)
    with pytest.raises(AbprofError, match="the answer is not GitLab's"):
        post(lab, at("slower"))
    assert lab.comments == []


def test_too_long_is_posted_shorter(lab):
    lab.fault("POST", NOTES, status=400, body={"message": {"note": ["is too long (maximum is 1000000 characters)"]}})
    row = runs.changed(at("slower").rows[0], causes=("é" * 600,) * 8)
    post(lab, runs.changed(at("slower"), rows=(row,) * 100))
    assert len(lab.comments[0]["body"].encode()) < 31_000


def test_no_line_of_a_note_is_a_quick_action(lab):
    """GitLab carries out lines that begin with a slash, outside code."""
    for attack in ("/close", "\n/merge\n", "x\n/approve"):
        notice = at("act")
        notice = runs.changed(notice, notes=(attack,), command=(attack,), device=attack, rows=notice.rows)
        outside = re.sub(r"^(`{3,}).*?^\1$", "", comment(notice), flags=re.M | re.S)
        assert not re.search(r"^\s*/", outside, re.M)


def test_the_command_posts_a_note_and_refuses_what_is_githubs(lab, monkeypatch, capsys, tmp_path):
    folder = str(runs.write(tmp_path, notices.slower()))
    args = ["comment", folder, "--gitlab", "--repo", NAME, "--pr", "7"]
    assert run_command_line(args) == 2
    assert "GITLAB_TOKEN: no token" in capsys.readouterr().err
    monkeypatch.setenv("GITLAB_TOKEN", "bot-token")
    monkeypatch.setenv("CI_SERVER_URL", "http://gitlab.example")
    assert run_command_line(args) == 2
    assert "is not an https address" in capsys.readouterr().err
    monkeypatch.setenv("CI_SERVER_URL", lab.url)
    assert run_command_line(args) == 0
    assert capsys.readouterr().out.startswith(f"comment: posted {lab.url}/{NAME}/-/merge_requests/7#note_")
    for more, says in (
        (["--check"], "--check and --event are GitHub's"),
        (["--repo", "kernels"], "is not GROUP/PROJECT"),
    ):
        assert run_command_line([*args, *more]) == 2
        assert says in capsys.readouterr().err


@pytest.mark.parametrize("name", ["kernels", "../x", "a/b?c", "a/../b", "a b/c", "/a/b", "a//b", "a/b\n"])
def test_a_project_is_groups_and_a_name(name):
    with pytest.raises(AbprofError, match="is not GROUP/PROJECT"):
        project(name)
    assert project(NAME) == NAME
