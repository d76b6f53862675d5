"""One comment on a pull request, kept up to date through everything GitHub does on bad days: against a real HTTP server."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Iterator

import pytest

from abprof.cli import run_command_line
from abprof.extras.bot import patience
from abprof.extras.bot.comment import Around, comment
from abprof.extras.bot.github import Api, Hub
from abprof.extras.bot.notice import Notice
from abprof.extras.bot.state import parse, state_of
from abprof.extras.bot.upsert import Posted, upsert
from abprof.records.errors import AbprofError

from . import notices, runs
from .github_server import BOT, OTHER, REPO, GitHub, nobody

HEAD = runs.TARGET.commit
COMMENTS = r"/issues/7/comments"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[GitHub]:
    monkeypatch.setenv("NO_PROXY", "*")
    with GitHub() as made:
        yield made


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits that were asked for, and are not waited."""
    asked: list[float] = []
    monkeypatch.setattr(patience, "sleep", asked.append)
    return asked


def api(hub: GitHub, token: str = "bot-token", timeout: int = 20) -> Api:
    return Api(hub.url, token, timeout=timeout, pause=0)


def at(kind: str, began: str = "2026-11-20T02:17:00Z", head: str = HEAD, run: str = "") -> Notice:
    plain = notices.made(kind)
    target = runs.changed(plain.targets[0], commit=head)
    return runs.changed(plain, began=began, run=run or f"run {began}", targets=(target,))


def post(hub: GitHub, notice: Notice, policy: str = "always", token: str = "bot-token", **more) -> Posted:
    def render(head: str, replaces: str, most: int) -> str:
        return comment(notice, Around(head=head, replaces=replaces), most)

    said: list[str] = []
    return upsert(Hub(api(hub, token, **more), REPO), 7, notice, "", policy, render, said.append)


def body(notice: Notice, key: str = "") -> str:
    text = comment(notice, Around(head=HEAD))
    return f"{text}\n{state_of(notice, key, text).line}\n"


# ---------------------------------------------------------------- the rules


def test_the_first_result_is_posted_and_its_hidden_line_is_the_last(hub):
    done = post(hub, at("slower"))
    (made,) = hub.comments
    assert done.what == "posted"
    assert done.url.endswith(str(made["id"]))
    assert made["body"].startswith("## abprof: Act: 1 slower")
    assert made["body"].rstrip().endswith("-->")
    assert parse(made["body"], "") == state_of(at("slower"), "", comment(at("slower"), Around(head=HEAD), 59_500))


def test_the_same_again_changes_nothing(hub):
    post(hub, at("slower"))
    assert post(hub, at("slower")).what == "nothing: it stands there"
    assert [c["edits"] for c in hub.comments] == [0]


def test_the_same_answer_is_edited_in_place(hub):
    post(hub, at("slower"))
    assert post(hub, at("act", "2026-11-20T03:00:00Z")).what == "edited"
    (made,) = hub.comments
    assert made["edits"] == 1
    assert "7 broken" in made["body"]


def test_a_flip_is_posted_anew_and_the_old_one_minimised(hub):
    post(hub, at("slower"))
    assert post(hub, at("faster", "2026-11-20T03:00:00Z")).what == "posted"
    old, new = hub.comments
    assert (old["minimised"], new["minimised"]) == (True, False)
    assert new["body"].startswith("## abprof: Nothing to act on")


def test_a_running_comment_gives_way_to_its_result_and_never_the_other_way(hub):
    post(hub, at("running"))
    assert "Measuring" in hub.live()[0]["body"]
    post(hub, at("faster"))
    assert len(hub.live()) == 1
    assert post(hub, at("running")).what == "nothing: a newer result stands there"
    assert "Nothing to act on" in hub.live()[0]["body"]


def test_an_older_result_never_replaces_a_newer_one(hub):
    post(hub, at("faster", "2026-11-20T03:00:00Z"))
    assert post(hub, at("slower", "2026-11-20T02:00:00Z")).what == "nothing: a newer result stands there"
    assert len(hub.comments) == 1
    assert "Nothing to act on" in hub.comments[0]["body"]


def test_what_speaks_of_the_head_wins_over_a_later_run_of_an_older_commit(hub):
    post(hub, at("slower", "2026-11-20T02:00:00Z"))
    assert post(hub, at("act", "2026-11-20T09:00:00Z", head="7" * 40)).what == "nothing: a newer result stands there"
    assert "Outdated" not in hub.comments[0]["body"]


def test_a_head_that_moved_is_told_and_the_next_result_says_what_it_replaces(hub):
    hub.heads[7] = "5" * 40
    post(hub, at("slower"))
    assert "**Outdated:** the branch has moved on to `5555555555`" in hub.comments[0]["body"]
    post(hub, at("act", "2026-11-20T03:00:00Z", head="5" * 40))
    (made,) = hub.comments
    assert "Outdated" not in made["body"]
    assert f"replaces the result for `{HEAD[:10]}`" in made["body"]


def test_a_head_that_moves_between_look_and_write_is_told(hub):
    hub.moment("POST", COMMENTS, lambda: hub.heads.update({7: "5" * 40}))
    post(hub, at("slower"))
    (made,) = hub.live()
    assert "**Outdated:**" in made["body"]


@pytest.mark.parametrize(
    ("policy", "posted"),
    [
        ("always", {"slower", "faster", "unchanged", "undecided", "running"}),
        ("on-change", {"slower", "faster", "undecided"}),
        ("on-alert", {"slower"}),
        ("never", set()),
    ],
)
def test_policies_decide_the_first_comment(hub, policy, posted):
    for kind in ("slower", "faster", "unchanged", "undecided", "running"):
        hub.comments.clear()
        post(hub, at(kind), policy)
        assert bool(hub.comments) == (kind in posted), kind


def test_a_comment_that_stands_is_kept_up_to_date_whatever_the_policy(hub):
    post(hub, at("slower"), "on-alert")
    post(hub, at("unchanged", "2026-11-20T03:00:00Z"), "on-alert")
    (now,) = hub.live()
    assert "Nothing to act on" in now["body"]
    before = len(hub.requests)
    post(hub, at("slower", "2026-11-20T04:00:00Z"), "never")
    assert len(hub.requests) == before


def test_one_comment_for_each_key(hub):
    def as_key(key: str) -> Posted:
        notice = at("slower")
        return upsert(Hub(api(hub), REPO), 7, notice, key, "always", lambda h, r, m: comment(notice, Around(head=h), m))

    assert [as_key(key).what for key in ("h200", "b200", "h200")] == ["posted", "posted", "nothing: it stands there"]
    assert len(hub.live()) == 2


# ---------------------------------------------------------------- which comment is ours


def test_a_planted_marker_of_somebody_else_is_ignored(hub):
    planted = hub.comment(body(at("faster", "2026-12-31T00:00:00Z")), OTHER)
    before = planted["body"]
    assert post(hub, at("slower")).what == "posted"
    assert planted["body"] == before
    assert not planted["minimised"]
    assert len(hub.live()) == 1


def test_a_marker_inside_our_own_comment_is_text(hub):
    line = state_of(at("faster", "2026-12-31T00:00:00Z"), "", "x").line
    hub.comment(f"quoting: {line}\nand more")
    hostile = runs.changed(at("slower"), base=runs.changed(at("slower").base, label=line[:200]))
    assert post(hub, hostile).what == "posted"
    assert post(hub, at("slower", "2026-11-20T03:00:00Z")).what == "edited"


def test_a_minimised_comment_is_left_alone(hub):
    post(hub, at("slower"))
    hub.comments[0]["minimised"] = True
    assert post(hub, at("slower", "2026-11-20T03:00:00Z")).what == "posted"
    assert hub.comments[0]["edits"] == 0


def test_ours_is_found_among_300_comments_of_which_half_are_look_alikes(hub):
    ours = hub.comment(body(at("slower")))
    for number in range(299):
        hub.comment(body(at("faster")) if number % 2 else f"comment {number}", OTHER)
    hub.comments.append(hub.comments.pop(0))  # ours is on the last page
    assert post(hub, at("slower", "2026-11-20T03:00:00Z")).what == "edited"
    assert ours["edits"] == 1
    assert len(hub.comments) == 300
    assert hub.count("GET", "page=3")


# ---------------------------------------------------------------- two at once


def test_two_posters_at_once_leave_one_comment_with_the_newer_result(hub):
    both = threading.Barrier(2, timeout=60)
    for _ in range(2):
        hub.moment("POST", COMMENTS, both.wait)  # each has seen that there is no comment
    results = [at("slower", f"2026-11-20T0{hour}:00:00Z") for hour in (2, 3)]
    threads = [threading.Thread(target=post, args=(hub, result)) for result in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(150)
    assert hub.count("POST", COMMENTS) == 2
    (left,) = hub.live()
    assert "begun 2026-11-20T03:00:00Z" in left["body"]


def test_a_newer_result_that_comes_between_look_and_edit_stays(hub):
    post(hub, at("slower", "2026-11-20T02:00:00Z"))
    newer = body(at("slower", "2026-11-20T05:00:00Z"))
    hub.moment("GET", r"issues/comments/\d+", lambda: hub.comments[0].update(body=newer))
    assert post(hub, at("act", "2026-11-20T03:00:00Z")).what == "nothing: a newer result stands there"
    assert hub.comments[0]["body"] == newer


# ---------------------------------------------------------------- bad days


@pytest.mark.parametrize(
    ("token", "path", "status", "says"),
    [
        ("wrong", "", 0, "the token is refused: Bad credentials"),
        ("reader-token", "", 0, "the token may not do this: Resource not accessible by integration"),
        ("bot-token", "pulls/7", 404, "pull request 7 of team/kernels: not there, or the token may not see it"),
        ("bot-token", "pulls/7", 410, "it is gone"),
        ("bot-token", "pulls/7", 418, "GitHub answers 418"),
    ],
)
def test_a_refusal_is_one_clear_line(hub, waits, token, path, status, says):
    if status:
        hub.fault("GET", path, status=status, body={"message": "No\n\x1b[31m way @torvalds"})
    with pytest.raises(AbprofError) as told:
        post(hub, at("slower"), token=token)
    assert says in told.value.line
    assert "\n" not in told.value.line
    assert "\x1b" not in told.value.line
    assert token not in told.value.line
    assert waits == []
    assert hub.comments == []


def test_too_long_is_told_by_github_and_posted_shorter(hub, monkeypatch):
    row = runs.changed(at("slower").rows[0], causes=("é" * 600,) * 8)
    notice = runs.changed(at("slower"), rows=(row,) * 150)
    hub.fault(
        "POST", COMMENTS, status=422, body={"message": "Validation Failed", "errors": [{"message": "Body is too long"}]}
    )
    assert post(hub, notice).what == "posted"
    assert len(hub.comments[0]["body"].encode()) < 31_000
    assert "Left out for length" in hub.comments[0]["body"]


def test_the_longest_comment_is_one_that_github_takes(hub):
    row = runs.changed(at("slower").rows[0], case="🔥" * 200, causes=("é" * 600,) * 8)
    for count in (24, 25, 120):
        hub.comments.clear()
        assert post(hub, runs.changed(at("slower"), rows=(row,) * count)).what == "posted"
        assert len(hub.comments[0]["body"].encode()) < 60_000
    assert hub.count("POST", COMMENTS) == 3


LIMITS = [
    (429, {"Retry-After": "7"}, "slow down", 7.0),
    (403, {"Retry-After": "9"}, "You have exceeded a secondary rate limit", 9.0),
    (403, {}, "You have exceeded a secondary rate limit. Please wait a few minutes", 1.0),
    (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "0"}, "API rate limit exceeded for user", 1.0),
    (500, {}, "oops", 1.0),
    (502, {}, "bad gateway", 1.0),
    (503, {"Retry-After": "3"}, "unavailable", 3.0),
]


@pytest.mark.parametrize(("status", "headers", "message", "wait"), LIMITS)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        pytest.param("GET", "pulls/7", marks=pytest.mark.slow),
        pytest.param("GET", COMMENTS, marks=pytest.mark.slow),
        ("POST", COMMENTS),
    ],
)
def test_limits_and_outages_are_waited_for(hub, waits, status, headers, message, wait, method, path):
    hub.fault(method, path, status=status, headers=headers, body={"message": message})
    assert post(hub, at("slower")).what == "posted"
    assert waits == [wait]
    assert len(hub.live()) == 1


def test_a_short_retry_after_is_really_waited(hub):
    hub.fault("GET", "pulls/7", status=429, headers={"Retry-After": "1"}, body={"message": "slow down"})
    began = time.monotonic()
    assert post(hub, at("slower")).what == "posted"
    assert time.monotonic() - began >= 1


@pytest.mark.parametrize(
    "headers", [{"Retry-After": "3600"}, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "99999999999"}]
)
def test_patience_has_an_end(hub, waits, headers):
    hub.fault("GET", "pulls/7", status=403, headers=headers, body={"message": "API rate limit exceeded"})
    with pytest.raises(AbprofError, match="asks to wait"):
        post(hub, at("slower"))
    assert waits == []


def test_an_outage_that_does_not_end_is_told(hub, waits):
    hub.fault("GET", "pulls/7", status=502, body=b"<html>", times=99)
    with pytest.raises(AbprofError, match="GitHub answers 502, 4 times"):
        post(hub, at("slower"))
    assert waits == [1.0, 2.0, 4.0]


def test_a_server_that_does_not_answer_is_tried_again_and_told(hub, waits):
    hub.fault("GET", "pulls/7", hang=3, status=200, body={})
    assert post(hub, at("slower"), timeout=2).what == "posted"
    assert waits[0] == 1.0  # a busy machine may need more than one


@pytest.mark.parametrize(("method", "path"), [("GET", "pulls/7"), ("GET", COMMENTS), ("POST", "graphql")])
def test_a_connection_cut_in_the_middle_is_tried_again(hub, waits, method, path):
    hub.comment(body(at("slower")))
    hub.fault(method, path, cut=True)
    assert post(hub, at("act", "2026-11-20T03:00:00Z")).what == "edited"
    assert waits == [1.0]


@pytest.mark.parametrize("fault", [{"cut": True}, {"status": 502, "body": b""}, {"hang": 3, "status": 200, "body": {}}])
def test_a_comment_that_was_made_though_its_answer_was_lost_is_not_made_twice(hub, waits, fault):
    hub.fault("POST", COMMENTS, after=True, **fault)
    post(hub, at("slower"), timeout=2 if "hang" in fault else 20)
    assert len(hub.comments) == 1
    assert waits[: 1 if "hang" in fault else None] == [1.0]  # a busy machine's other answers may be late too


def test_a_limit_that_graphql_tells_with_status_200_is_waited_for(hub, waits):
    hub.comment(body(at("slower")))
    error = {"type": "RATE_LIMITED", "message": "API rate limit already exceeded for user ID 1."}
    hub.fault("POST", "graphql", status=200, body={"data": None, "errors": [error]})
    assert post(hub, at("act", "2026-11-20T03:00:00Z")).what == "edited"
    assert waits == [1.0]


@pytest.mark.parametrize("gone", [1, 2])
def test_comments_deleted_between_the_list_and_the_question_whose_they_are_do_not_matter(hub, gone):
    ours = hub.comment(body(at("slower")))
    for _ in range(gone):
        hub.comment(body(at("faster")), OTHER)
    hub.moment("POST", "graphql", lambda: hub.comments.__delitem__(slice(1, None)))
    assert post(hub, at("act", "2026-11-20T03:00:00Z")).what == "edited"
    assert hub.comments == [ours]


@pytest.mark.parametrize(("method", "path"), [("GET", r"issues/comments/\d+"), ("PATCH", r"issues/comments/\d+")])
def test_a_comment_deleted_between_the_list_and_its_edit_is_posted_anew(hub, waits, method, path):
    post(hub, at("slower"))
    hub.moment(method, path, hub.comments.clear)
    said = post(hub, at("act", "2026-11-20T03:00:00Z"))
    assert said.what == "posted"
    (left,) = hub.live()
    assert "begun 2026-11-20T03:00:00Z" in left["body"]
    assert waits == []


def test_a_comment_that_stands_and_may_not_be_edited_is_told(hub, waits):
    """GitHub says 404 for what a token may not write to, too."""
    post(hub, at("slower"))
    for _ in range(2):
        hub.fault("PATCH", "issues/comments", status=404, body={"message": "Not Found"})
    with pytest.raises(AbprofError, match="not there, or the token may not see it"):
        post(hub, at("act", "2026-11-20T03:00:00Z"))
    assert hub.count("PATCH", "issues/comments") == 1
    assert len(hub.comments) == 1


def test_a_comment_deleted_as_soon_as_it_was_made_is_made_again(hub):
    hub.moment("POST", COMMENTS, lambda: hub.moment("GET", "pulls/7", hub.comments.clear))
    assert post(hub, at("slower")).what == "posted"
    assert len(hub.live()) == 1


def test_an_edit_and_a_minimise_whose_answers_were_lost_end_the_same(hub, waits):
    post(hub, at("slower"))
    hub.fault("PATCH", "issues/comments", cut=True, after=True)
    post(hub, at("act", "2026-11-20T03:00:00Z"))
    assert len(hub.comments) == 1
    hub.fault("POST", "graphql", cut=True, after=True)
    post(hub, at("faster", "2026-11-20T04:00:00Z"))
    assert [c["minimised"] for c in hub.comments] == [True, False]


def test_a_server_that_is_not_there_is_told(waits):
    nowhere = Hub(Api(nobody(), "t", timeout=1, pause=0), REPO)
    with pytest.raises(AbprofError, match=r"the connection failed \(ConnectionError\), 4 times"):
        patience.patiently(lambda: nowhere.head(7), print)


@pytest.mark.parametrize("answer", [[], {"head": 5}, {"head": None}, b"not JSON", {"number": 7}])
def test_an_answer_that_is_not_githubs_is_told(hub, waits, answer):
    hub.fault("GET", "pulls/7", status=200, body=answer, times=20)
    with pytest.raises(AbprofError):
        post(hub, at("slower"))
    assert hub.comments == []


def test_the_token_never_follows_a_link_to_another_host(hub, waits):
    with GitHub() as other:
        link = {"Link": f'<{other.url}/repos/{REPO}{COMMENTS}?page=2>; rel="next"'}
        hub.fault("GET", COMMENTS, status=200, headers=link, body=[hub.shown(hub.comment("x", OTHER))])
        with pytest.raises(AbprofError):
            post(hub, at("slower"))
        hub.fault("GET", "pulls/7", status=307, headers={"Location": f"{other.url}/repos/{REPO}/pulls/7"}, body={})
        with pytest.raises(AbprofError):
            post(hub, at("slower"))
        assert other.requests == []


# ---------------------------------------------------------------- the token, the server


def test_the_token_comes_from_the_environment_and_never_goes_out_in_the_clear():
    assert Api.from_environment({"GITHUB_TOKEN": "a", "GH_TOKEN": "b"}) == Api("https://api.github.com", "a")
    assert Api.from_environment({"GH_TOKEN": "b", "GITHUB_API_URL": "https://ghe.example/api/v3"}).token == "b"
    for bad in ("http://ghe.example/api/v3", "ftp://x", "file:///etc/passwd"):
        with pytest.raises(AbprofError, match="not an https address"):
            Api.from_environment({"GITHUB_TOKEN": "a", "GITHUB_API_URL": bad})
    with pytest.raises(AbprofError, match="no token"):
        Api.from_environment({})
    assert dataclasses.replace(Api("u", "t"), token="x").timeout == 20


# ---------------------------------------------------------------- the command


@pytest.fixture
def folder(tmp_path):
    return runs.write(tmp_path, notices.slower())


@pytest.fixture
def command(monkeypatch, capsys):
    """`abprof comment ARGS`, in this process and with nothing but the given variables of GitHub's."""
    for name in [name for name in os.environ if name.startswith(("GITHUB_", "GH_"))]:
        monkeypatch.delenv(name)

    def run(*args: str, **environment: str) -> tuple[int, str, str]:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        code = run_command_line(["comment", *args])
        return (code, *capsys.readouterr())

    return run


def test_the_command_posts_writes_the_summary_and_says_where(hub, command, folder, tmp_path):
    environment = {
        "GITHUB_API_URL": hub.url,
        "GITHUB_TOKEN": "bot-token",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "s.md"),
    }
    code, out, err = command(str(folder), "--repo", REPO, "--pr", "7", **environment)
    assert (code, err) == (0, "")
    (made,) = hub.live(BOT)
    assert out == f"comment: posted https://github.example/{REPO}/pull/7#issuecomment-{made['id']}\n"
    shown = (tmp_path / "s.md").read_text()
    assert shown.splitlines()[0] == made["body"].splitlines()[0]
    assert "abprof:v1" not in shown


def test_a_dry_run_prints_and_asks_nothing(hub, command, folder):
    code, out, _ = command(str(folder), "--dry-run", GITHUB_API_URL=hub.url, GITHUB_TOKEN="bot-token")
    assert code == 0
    assert out.startswith("## abprof: ")
    assert hub.requests == []


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "a run or an artifact: one of the two"),
        (["RUN"], "no pull request"),
        (["RUN", "--pr", "7"], "no repository"),
        (["RUN", "--repo", "../x", "--pr", "7"], "--repo: '../x' is not OWNER/NAME"),
        (["RUN", "--policy", "maybe"], "--policy: 'maybe' is not one of always, on-change, on-alert, never"),
        (["RUN", "--url", "javascript:1", "--dry-run"], "--url: not a plain http address"),
        (["nowhere", "--dry-run"], "no run here"),
    ],
)
def test_a_wrong_command_is_one_line_and_exit_2(command, folder, args, says):
    code, _, err = command(*(str(folder) if word == "RUN" else word for word in args), GITHUB_TOKEN="t")
    assert code == 2
    assert says in err
    assert len(err.splitlines()) == 1


def test_a_refusal_by_github_is_exit_2_and_the_summary_is_there_all_the_same(hub, command, folder, tmp_path):
    summary = tmp_path / "s.md"
    code, _, err = command(
        str(folder),
        "--repo",
        REPO,
        "--pr",
        "99",
        "--summary",
        str(summary),
        GITHUB_API_URL=hub.url,
        GH_TOKEN="bot-token",
    )
    assert code == 2
    assert err.startswith("abprof: pull request 99 of team/kernels: not there")
    assert summary.read_text().startswith("## abprof: ")
