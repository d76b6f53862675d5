"""Input from other jobs and users: GitHub events, artifacts, environment variables."""

import json
import os

import pytest

from abprof.extras.bot import encode
from abprof.extras.bot.notice import MOST_BYTES
from abprof.records.errors import Exit
from tests import notices, runs
from tests.fuzz.commands import Asker
from tests.fuzz.mutations import DEEP, RAW, fewest, hunt, texts_of
from tests.github_server import REPO, unused_address

HEAD = runs.TARGET.commit
RUN = {"head_sha": HEAD, "head_branch": "feature", "head_repository": {"full_name": "fork/kernels"}}
COMMENT = {"id": 1, "body": f"/abprof {HEAD} preset=full", "created_at": "2026-11-20T02:17:00Z",
           "user": {"login": "ada", "type": "User"}}  # fmt: skip
EVENTS = {
    "workflow_run": {"workflow_run": RUN, "repository": {"full_name": REPO}},
    "pull_request": {"pull_request": {"number": 7, "head": {"sha": HEAD}}, "repository": {"full_name": REPO}},
    "comment": {"action": "created", "comment": COMMENT, "issue": {"number": 7, "pull_request": {"url": "x"}},
                "repository": {"full_name": REPO}},
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_server_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Valid input leads to a request to GitHub, which does not answer here."""
    for name in [name for name in os.environ if name.startswith(("GITLAB_", "CI_", "GITHUB_", "GH_", "ABPROF_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("GITHUB_API_URL", unused_address())
    monkeypatch.setenv("GITHUB_TOKEN", "bot-token")
    monkeypatch.setattr("abprof.extras.bot.github._RETRIES", 0)


@fewest
@pytest.mark.parametrize("kind", EVENTS)
def test_any_event_is_read_or_refused(asker: Asker, kind: str, examples: int) -> None:
    artifact, event, allow = (asker.folder / name for name in ("notice.json", "event.json", "bot.toml"))
    artifact.write_bytes(encode(notices.made("act")))
    allow.write_text('schema = 1\nusers = ["ada"]\n')

    def ask(data: bytes) -> None:
        event.write_bytes(data)
        assert asker("comment", "--artifact", artifact, "--event", event) == Exit.CANNOT_RUN
        assert asker("admit", "--event", event, "--allow", allow) == Exit.CANNOT_RUN

    hunt(texts_of(EVENTS[kind]), ask, examples)
    for data in (b"[" * DEEP, b"", b"null", b"7", b"\xff"):
        ask(data)


@fewest
@pytest.mark.parametrize("kind", ["act", "unchanged", "running"])
def test_any_artifact_is_read_or_refused(asker: Asker, kind: str, examples: int) -> None:
    artifact = asker.folder / "notice.json"

    def ask(data: bytes) -> None:
        artifact.write_bytes(data)
        code = asker("comment", "--artifact", artifact, "--dry-run")
        assert code in (Exit.OK, Exit.CANNOT_RUN)
        assert b"\x1b" not in asker.said
        assert asker("comment", "--artifact", artifact, "--repo", REPO, "--pr", "7") == Exit.CANNOT_RUN

    hunt(texts_of(json.loads(encode(notices.made(kind)))), ask, examples)


@pytest.mark.parametrize("data", [*RAW, b"\x1f\x8b", b" " * (MOST_BYTES + 1)], ids=lambda data: repr(data[:12]))
def test_an_artifact_that_is_another_thing(asker: Asker, data: bytes) -> None:
    (asker.folder / "notice.json").write_bytes(data)
    assert asker("comment", "--artifact", asker.folder / "notice.json", "--dry-run") == Exit.CANNOT_RUN
