"""An issue on GitHub for a series of nights: against a real HTTP server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from abprof.extras.bot import patience
from abprof.extras.bot.github import Api, Hub
from abprof.extras.bot.issue import repository, tell
from abprof.records.errors import AbprofError

from .github_server import OTHER, REPO, GitHub


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[GitHub]:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(patience, "sleep", lambda _: None)
    with GitHub() as made:
        yield made


def told(
    server: GitHub, night: int, *, alert: bool, text: str = "said", series: str = "main", token: str = "bot-token"
) -> str:
    hub = Hub(Api(server.url, token, pause=0), REPO)
    return tell(hub, series, night, alert=alert, text=f"{text} {night}", say=lambda _: None)


def test_opened_by_the_first_alert_and_kept_up_to_date(server: GitHub) -> None:
    assert "nobody needs to act" in told(server, 1, alert=False)
    assert server.issues == []
    address = told(server, 2, alert=True)
    (issue,) = server.issues
    assert address.endswith(f"/issues/{issue['number']}")
    assert issue["body"].startswith("said 2\n<!-- abprof-nightly:v1 key=")
    assert told(server, 3, alert=True) == address
    assert told(server, 4, alert=False) == address
    assert len(server.issues) == 1
    assert issue["body"].startswith("said 4\n")
    assert server.comments == []  # an alert stood there already: those who watch know
    told(server, 5, alert=True)
    assert [comment["body"] for comment in server.comments] == ["said 5"]


def test_never_older_over_newer_and_nothing_twice(server: GitHub) -> None:
    told(server, 5, alert=True)
    assert "a newer night" in told(server, 4, alert=True)
    assert "it stands there" in told(server, 5, alert=True)
    assert server.issues[0]["edits"] == 0


def test_anothers_issue_with_the_marker_is_not_ours_nor_one_that_was_closed(server: GitHub) -> None:
    told(server, 1, alert=True)
    planted = server.issues[0]
    planted["author"] = OTHER
    told(server, 2, alert=True)
    assert len(server.issues) == 2
    assert planted["edits"] == 0
    server.issues[1]["state"] = "closed"
    told(server, 3, alert=True)
    assert len(server.issues) == 3
    told(server, 4, alert=True, series="release")
    assert len(server.issues) == 4


def test_found_on_the_last_of_many_pages(server: GitHub) -> None:
    for _ in range(250):
        server.issue("somebody's", OTHER)
    told(server, 1, alert=True)
    told(server, 2, alert=True)
    assert len(server.issues) == 251


def test_bad_days(server: GitHub) -> None:
    server.fault("GET", "/issues", status=502, times=2)
    told(server, 1, alert=True)
    server.fault("PATCH", "/issues", cut=True, after=True)
    told(server, 2, alert=True)
    assert [issue["body"][:6] for issue in server.issues] == ["said 2"]
    with pytest.raises(AbprofError, match="may not do this"):
        told(server, 3, alert=True, token="reader-token")
    told(server, 4, alert=True, text="é" * 70000)
    assert len(server.issues[0]["body"].encode()) < 60_000


def test_names_that_are_none_and_titles_that_would_ping(server: GitHub) -> None:
    for text in ("team", "../x/y", "a/b/c", "a/b c", ""):
        with pytest.raises(AbprofError, match="OWNER/NAME"):
            repository(text)
    told(server, 1, alert=True, series="@torvalds<script>`#1")
    assert server.issues[0]["title"] == "abprof nightly: _torvalds_script___1"
