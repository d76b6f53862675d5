"""What GitHub answers, or whoever answers in their place: each is read, tried again, or refused in one line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import strategies as st

from abprof.extras.bot import issue, patience
from abprof.extras.bot.check import mark
from abprof.extras.bot.event import Origin
from abprof.extras.bot.github import Api, Hub
from abprof.extras.bot.patience import TooLong, patiently
from abprof.extras.bot.upsert import upsert
from abprof.records.errors import AbprofError
from tests.fuzz.asked import one_clear_line
from tests.fuzz.mutations import DEEP, bytes_of, encoded, few, hunt, values_of
from tests.github_server import REPO, GitHub
from tests.test_comment_posting import HEAD, at, body

Answer = tuple[int, dict[str, str], Any]
PAGE = b"<!DOCTYPE html><html><body><h1>502 Bad Gateway</h1></body></html>"
STATUS = (200, 200, 201, 204, 206, 304, 400, 401, 403, 404, 409, 410, 413, 418, 422, 429, 451, 500, 502, 503)
COUNTS = ("", "0", "7", "-1", "1.5", "nan", "\xb2", "9" * 400, "Wed, 21 Oct 2026 07:28:00 GMT", "1e9")
NAMES = ("Retry-After", "X-RateLimit-Reset", "X-RateLimit-Remaining", "Link", "Location", "Content-Type", "ETag")
LINKS = ('<{url}>; rel="next"', '<http://127.0.0.1:9/x>; rel="next"', "<", "rel=next", '<>; rel="next"', ";;,,", "{url}",
         "http://[", "/", "https://elsewhere.example/")  # fmt: skip
TYPES = ("text/html", "application/json", "", "text/plain; charset=utf-16", "application/json; charset=x")


class Odd:
    """A server one of whose answers is another than it should be."""

    def __init__(self) -> None:
        super().__init__()
        self.right: list[Answer] = []  # what it should have answered to each request of a question
        self.wrong: tuple[int, Answer] | None = None  # in the place of which of them, and what

    def answered(self, method: str, path: str, token: str, data: Any) -> Answer:
        self.right.append(super().answered(method, path, token, data))  # type: ignore[misc]
        return self.wrong[1] if self.wrong and self.wrong[0] == len(self.right) - 1 else self.right[-1]


class OddHub(Odd, GitHub):
    pass


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("GITLAB_", "CI_", "GITHUB_", "GH_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(patience, "sleep", lambda _: None)


@pytest.fixture
def hub() -> Iterator[OddHub]:
    with OddHub() as made:
        yield made


@st.composite
def wrong(draw: st.DrawFn, right: list[Answer], url: str) -> tuple[int, Answer]:
    """One of the answers: other values, other bytes, a page of HTML; another status; headers that no server sends."""
    place = draw(st.integers(0, len(right) - 1))
    was, headers, content = right[place]
    how = draw(st.sampled_from(("values", "values", "values", "bytes", "page", "as it is")))
    if how == "values" and content:
        content = encoded(draw(values_of(content)))
    elif how == "bytes":
        content = draw(bytes_of(encoded(content)))
    elif how == "page":
        content = PAGE
    headers = dict(headers)
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=2)):
        kind = LINKS if name in ("Link", "Location") else TYPES if name == "Content-Type" else COUNTS
        headers[name] = draw(st.sampled_from(kind)).replace("{url}", url)
    return place, (draw(st.sampled_from((was, was, *STATUS))), headers, content)


def asked(question: Callable[[], object]) -> None:
    """A question is answered, or refused in a line; what may pass is tried again, and then refused."""
    try:
        patiently(question, lambda line: one_clear_line(AbprofError(line)))
    except AbprofError as error:
        one_clear_line(error)
    except TooLong:
        pass


def questions(hub: Hub) -> dict[str, Callable[[], object]]:
    notice = at("slower")
    fields = {"status": "completed", "conclusion": "failure", "output": {"title": "t", "summary": "s"}}
    return {
        "head": lambda: hub.head(7),
        "ends": lambda: hub.ends(7),
        "since": lambda: hub.comments_since(datetime(2019, 1, 1, tzinfo=UTC)),
        "pull": lambda: hub.pull_of(Origin(REPO, HEAD, "branch-7", REPO)),
        "own": lambda: hub.own(7, ""),
        "state": lambda: hub.state(7, 1001, ""),
        "edit": lambda: hub.edit(7, 1001, "x"),
        "post": lambda: hub.post(7, "x"),
        "minimise": lambda: hub.minimise("IC_1001"),
        "check": lambda: hub.check(HEAD, "", mark(notice), fields),
        "issue": lambda: issue.tell(hub, "main", 7, alert=True, text="said", say=lambda _: None),
        "upsert": lambda: upsert(hub, 7, notice, "", "always", lambda *_: "text", lambda _: None),
    }


QUESTIONS = tuple(questions(None))  # type: ignore[arg-type]


def planted(hub: OddHub) -> None:
    hub.comments.clear(), hub.checks.clear(), hub.issues.clear(), hub.right.clear()
    hub.next_id = 1000
    hub.comment(body(at("faster", "2026-11-19T00:00:00Z")))
    hub.comment("somebody else's", "mallory")
    hub.issue("a bug")
    hub.issue("said 5\n<!-- abprof-nightly:v1 key=000000000000 night=5 alert=1 -->")


@few
@pytest.mark.parametrize("name", QUESTIONS)
def test_any_answer_of_github_is_read_or_refused(hub: OddHub, name: str, examples: int) -> None:
    def ask(example: tuple[int, Answer] | None) -> None:
        planted(hub)
        hub.wrong = example
        asked(questions(Hub(Api(hub.url, "bot-token", pause=0), REPO))[name])

    ask(None)
    hunt(wrong(list(hub.right), hub.url), ask, examples)


ODD_ANSWERS: dict[str, Answer] = {
    "brackets": (200, {}, b"[" * DEEP),
    "digits": (200, {}, b'{"id": ' + b"9" * 5000 + b"}"),
    "twenty megabytes": (200, {}, b'{"message": "' + b"x" * 20_000_000 + b'"}'),
    "refused at length": (403, {}, b'{"message": "' + b"x\\n" * 1_000_000 + b'"}'),
    "refused in brackets": (403, {}, b"[" * DEEP),
    "a superscript to wait": (429, {"Retry-After": "\xb2"}, {"message": "slow down"}),
    "a superscript until": (403, {"X-RateLimit-Reset": "\xb2"}, {"message": "rate limit"}),
    "for ever": (429, {"Retry-After": "9" * 400}, {"message": "slow down"}),
    "redirected to itself": (302, {"Location": "{path}"}, b""),
    "redirected nowhere": (301, {"Location": "http://["}, b""),
    "redirected without an end": (307, {}, b""),
    "a page": (200, {"Content-Type": "text/html"}, PAGE),
    "a page of an outage": (503, {"Content-Type": "text/html"}, PAGE),
    "null": (200, {}, b"null"),
    "a text": (200, {}, b'"text"'),
    "a list of lists": (200, {}, b"[[[]]]"),
    "no text": (200, {}, b"\xff\xfe{"),
}


@pytest.mark.parametrize("name", ODD_ANSWERS)
@pytest.mark.parametrize("question", ["head", "own", "check", "issue"])
def test_an_odd_answer_of_github(hub: OddHub, name: str, question: str) -> None:
    planted(hub)
    status, headers, content = ODD_ANSWERS[name]
    place = f"{hub.url}/repos/{REPO}/pulls/7"
    hub.wrong = 0, (status, {k: v.replace("{path}", place) for k, v in headers.items()}, content)
    asked(questions(Hub(Api(hub.url, "bot-token", pause=0), REPO))[question])


class Endless(GitHub):
    """Every page says that there is another."""

    def answered(self, method: str, path: str, token: str, data: Any) -> Answer:
        status, headers, content = super().answered(method, path, token, data)
        if isinstance(content, list):
            headers = {"Link": f'<{self.url}{path}>; rel="next"'}
        return status, headers, content


@pytest.mark.parametrize("question", ["own", "since", "pull", "issue"])
def test_pages_without_an_end_are_refused(question: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("abprof.extras.bot.patience.MOST_LISTED", 500)
    with Endless() as hub:
        for _ in range(60):
            hub.comment("a comment", "mallory")
        hub.heads |= dict.fromkeys(range(20, 60), HEAD)
        with pytest.raises(AbprofError, match=r"more than 500 .*, which is no list") as found:
            questions(Hub(Api(hub.url, "bot-token", pause=0), REPO))[question]()
        one_clear_line(found.value)
