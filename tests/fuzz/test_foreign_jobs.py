"""What reaches abprof from other jobs and other people's hands: events of GitHub, artifacts, variables."""

from __future__ import annotations

import gzip
import io
import json
import os
import zipfile

import pytest
from hypothesis import strategies as st

from abprof.extras.bot import encode
from abprof.extras.bot.notice import MOST_BYTES
from abprof.records.errors import Exit
from tests import notices, runs
from tests.fuzz.asked import Asker, asker
from tests.fuzz.mutations import DEEP, RAW, fewest, hunt, texts_of
from tests.github_server import REPO, unused_address

__all__ = ["asker"]
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
def nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read rightly goes on to GitHub, which is not there."""
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


def zipped(name: str, data: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
    return made.getvalue()


# By a word, not by its bytes: an archive holds the second it was made in, and every process must name a test alike.
OTHER_THINGS = {
    "zip-that-climbs": zipped("../../etc/cron.d/x", b"x"),
    "zip-of-50-MB": zipped("notice.json", b"0" * 50_000_000),
    "gzip": gzip.compress(b"{}"),
    "too-large": b" " * (MOST_BYTES + 1),
    "picture": b"\x89PNG\r\n\x1a\n",
}


@pytest.mark.parametrize(
    "data",
    [*(pytest.param(data, id=repr(data[:12])) for data in RAW),
     *(pytest.param(data, id=name) for name, data in OTHER_THINGS.items())],
)  # fmt: skip
def test_an_artifact_that_is_another_thing(asker: Asker, data: bytes) -> None:
    """Archives are unpacked by GitHub's own action; one that is taken for the file itself is none."""
    (asker.folder / "notice.json").write_bytes(data)
    assert asker("comment", "--artifact", asker.folder / "notice.json", "--dry-run") == Exit.CANNOT_RUN


@pytest.mark.parametrize("kind", ["folder", "loop", "pipe", "nothing", "device"])
def test_an_artifact_that_is_no_file(asker: Asker, kind: str) -> None:
    path = asker.folder / "notice.json"
    {"folder": path.mkdir, "loop": lambda: path.symlink_to(path.name), "pipe": lambda: os.mkfifo(path), "nothing": lambda: None,
     "device": lambda: path.symlink_to("/dev/zero")}[kind]()  # fmt: skip
    assert asker("comment", "--artifact", path, "--dry-run") == Exit.CANNOT_RUN


# ---------------------------------------------------------------- variables

WORDS = ("", " ", "x", "-1", "0", "nan", "inf", "9" * 400, "\x1b[2J", "../..", "[", "[]", "[1]", "{}", '["a"', "\udcff", "--help",
         "a" * 5000, "\u202e", "1e999", "%s", "[" * 3000, "\n", "~", "http://[", "https://", "0x10",
         "\u0663", "\xb2", "/dev/full",
         "1,2", "a=b", "=")  # fmt: skip
OPTIONS = ("THRESHOLD", "BUDGET", "SEED", "EPOCHS", "DEVICE", "PRESET", "ONLY", "SET", "TIMER", "RUNS_DIR", "REPO", "FAIL_ON",
           "PYTHON",
           "TIMEOUT", "PRECISION", "DEVICES", "EXECUTOR", "WORKLOADS_FROM", "CONTAIN", "CHECK", "ENV", "CELL", "KERNELS",
           "MARGIN")  # fmt: skip


@fewest
@pytest.mark.parametrize("verb", ["run", "nightly"])
def test_any_variable_is_read_or_refused(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, verb: str, examples: int
) -> None:
    """In a folder that is no repository: what can be read is refused for that alone."""
    monkeypatch.chdir(asker.folder)

    def ask(variables: dict[str, str]) -> None:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(f"ABPROF_{name}", value)
            assert asker(verb, *(("main", "feature") if verb == "run" else ())) == Exit.CANNOT_RUN

    hunt(st.dictionaries(st.sampled_from((*OPTIONS, "WORKER")), st.sampled_from(WORDS), min_size=1,
                         max_size=2), ask, 2 * examples)  # fmt: skip
