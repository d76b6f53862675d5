"""Talk to GitHub: read events, check the command `/abprof COMMIT key=value ...`, and post a notice as one comment.

Each post leaves one comment with the newest result, and minimises older ones. Later posts recognise the comment by its
hidden last line, `<!-- abprof:v1 key=... -->`. Anyone can write such a line, so abprof also checks the comment's
author. Only this module imports PyGithub.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from abprof.extras.bot.comment import render
from abprof.extras.bot.notice import Notice
from abprof.records import UNREADABLE, Record
from abprof.records.errors import AbprofError
from abprof.records.quantities import seconds
from abprof.report.text import clean
from abprof.system import toml
from abprof.system.files import read_named

if TYPE_CHECKING:
    from github.IssueComment import IssueComment
    from github.Repository import Repository

_TIMEOUT = 20  # seconds per request
_RETRIES, _LONGEST_WAIT = 4, 60  # attempts, and seconds to wait for a rate limit: a waiting job costs a runner
_SECURE = re.compile(r"(https://[\w.-]+|http://(127\.0\.0\.1|localhost|\[::1\]))(:\d+)?(/[!-~]*)?", re.ASCII)
_RIGHTS = "check --repo, --pr and the token: it needs pull-requests: write; for a fork post from a workflow_run job"


def connect(name: str) -> Repository:
    """Return the repository `name` (OWNER/NAME) on $GITHUB_API_URL, with the token $GITHUB_TOKEN or $GH_TOKEN. Raises
    AbprofError if PyGithub or the token is missing, the address is not https, or `name` is malformed."""
    try:
        import github
    except ImportError as error:
        raise AbprofError(f"{error.name} is not installed", advice="pip install 'abprof[bot]'") from error
    logging.getLogger("github").setLevel(logging.ERROR)  # PyGithub would print every retry; abprof prints one line
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}", name):
        raise AbprofError(f"{name!r} is not OWNER/NAME", where="the repository")
    token = os.environ.get("GITHUB_TOKEN") or os.environ.get("GH_TOKEN") or ""
    if not token:
        raise AbprofError("no token", where="GITHUB_TOKEN", advice="set GITHUB_TOKEN or GH_TOKEN, or use --dry-run")
    url = os.environ.get("GITHUB_API_URL") or "https://api.github.com"
    if not _SECURE.fullmatch(url):
        raise AbprofError(f"{url[:200]!r} is not an https address", where="GITHUB_API_URL")
    retry = github.GithubRetry(
        total=_RETRIES,
        backoff_factor=1,
        allowed_methods=None,  # retry all methods: the next post removes a comment written twice
        max_rate_limit_wait=_LONGEST_WAIT,
        secondary_rate_wait=_LONGEST_WAIT,
    )
    return github.Github(
        base_url=url,
        auth=github.Auth.Token(token),
        timeout=_TIMEOUT,
        retry=retry,
        per_page=100,
        user_agent="abprof",
        seconds_between_requests=0,
        seconds_between_writes=1.0 if url.startswith("https:") else 0.0,  # GitHub's recommendation
        lazy=True,
    ).get_repo(name)


@contextmanager
def refusals(where: str) -> Iterator[None]:
    """Turn errors of GitHub or the network in the `with` block into an AbprofError that names `where`."""
    import github
    import requests

    try:
        yield
    except github.GithubException as error:
        reason = clean(error.data.get("message") or "" if isinstance(error.data, dict) else "", 200)
        what, advice = f"GitHub answers {error.status}", _RIGHTS if error.status in (401, 403, 404) else ""
        raise AbprofError(f"{what}: {reason}" if reason else what, where=where, advice=advice) from None
    except requests.exceptions.RequestException as error:
        cause = error.args[0] if error.args else error
        reason = clean(getattr(cause, "reason", None) or cause, 200)
        raise AbprofError(f"GitHub cannot be reached: {reason}", where=where, advice="try again later") from None
    except (github.BadAttributeException, AttributeError, LookupError, TypeError, ValueError):
        raise AbprofError("the answer did not come from GitHub", where=where, advice="check GITHUB_API_URL") from None


# ---------------------------------------------------------------- GitHub's events


@dataclass(frozen=True)
class Event:
    """GitHub's event on a workflow run, a pull request, or a new comment on a pull request. Its fields are trusted."""

    repo: str  # OWNER/NAME
    head: str  # commit that the event is about
    number: int = 0  # number of the pull request; 0 if the event names none
    branch: str = ""  # branch of the head, and the repository of that branch
    home: str = ""
    author: str = ""  # login of a comment's author
    options: dict[str, str] | None = None  # options of `abprof run` in the command; None: not a comment


def read_event(path: Path) -> Event:
    """Return the event in the file `path` ($GITHUB_EVENT_PATH). Raises AbprofError if it is of another type, or a
    comment that is by a bot or not a command."""
    where = f"--event {path}"
    try:
        event = msgspec.json.decode(read_named(path, _LARGEST))
    except UNREADABLE as error:
        raise AbprofError(f"not a GitHub event: {error}", where=where) from None

    def at(*names: str) -> Any:
        found = event
        for name in names:
            found = found.get(name) if isinstance(found, dict) else None
        return found

    def text(*names: str) -> str:
        found = at(*names)
        return found if isinstance(found, str) else ""

    number = next((it for kind in ("pull_request", "issue") if type(it := at(kind, "number")) is int), 0)
    repo, run = text("repository", "full_name"), "workflow_run"
    if at("comment"):
        if at("action") != "created" or not at("issue", "pull_request"):
            raise AbprofError("not a new comment on a pull request", where=where)
        if text("comment", "user", "type") != "User":
            raise AbprofError("a bot may not start a run", where=where)
        commit, options = parse(text("comment", "body"))
        return Event(repo, commit, number, author=text("comment", "user", "login"), options=options)
    head = text(run, "head_sha") or text("pull_request", "head", "sha")
    if not re.fullmatch("[0-9a-f]{40}", head):
        raise AbprofError("not a workflow_run or pull_request event", where=where, advice="see docs/BOT.md")
    return Event(repo, head, number, text(run, "head_branch"), text(run, "head_repository", "full_name").lower())


# ---------------------------------------------------------------- the command `/abprof COMMIT key=value ...` in a comment

WORD = "/abprof"
_COMMAND = re.compile(rf"{WORD} (?P<commit>[0-9a-f]{{40}})(?P<options>( [a-z]+=[!-~]+)*)")
_LARGEST = 25 << 20  # bytes; GitHub's limit for an event
_NAMES = r"(?!.*\.py(,|$))[A-Za-z0-9][A-Za-z0-9_.,-]{0,200}"
_VALUES = {
    **dict.fromkeys(("preset", "kernels", "workloads"), _NAMES),
    "only": r"[A-Za-z0-9_*][A-Za-z0-9_.*/=,-]{0,120}",
    "budget": r"[1-9][0-9]{0,3}(s|m|h)?",
}


def parse(text: str) -> tuple[str, dict[str, str]]:
    """Return the commit and the options of the command in a comment. Raises AbprofError if `text` is not a command. The
    command names the commit that its author has read, so that no commit pushed since then is run."""
    found = _COMMAND.fullmatch(text.strip(" \r\n"))
    pairs = [word.split("=", 1) for word in found["options"].split()] if found else []
    options = {name: value for name, value in pairs if re.fullmatch(_VALUES.get(name, "(?!)"), value)}
    if not found or len(options) != len(pairs):
        advice = f"write {WORD} COMMIT (40 hex digits), then options name=value, each once: {', '.join(_VALUES)}"
        raise AbprofError("the comment is not a valid command", where=WORD, advice=advice)
    return found["commit"], options


class BotConfig(Record, frozen=True):
    """The content of .github/abprof-bot.toml on the default branch: who may start runs, and how long."""

    schema: Literal[1] = 1
    users: tuple[str, ...] = ()
    longest_budget: str = "30m"


def admit(event: Path, allow: Path) -> dict[str, str]:
    """Check the command in a comment, and return the inputs of the measuring job: base, target, number of the pull
    request, and options.

    `event`: file with GitHub's event. `allow`: file with the BotConfig. Raises AbprofError if the comment is not a
    command, its author may not start runs, or its commit is not the pull request's head.
    """
    found = read_event(event)
    if found.options is None:
        raise AbprofError("not an event of a comment on a pull request", where=f"--event {event}")
    names = ", ".join(BotConfig.__struct_fields__)
    loose = toml.loads(toml.read(allow), str(allow))
    config = toml.converted(loose, BotConfig, where=str(allow), advice=f"there are {names}")
    if found.author.lower() not in {user.lower() for user in config.users}:
        raise AbprofError("this user may not start a run", where=WORD, advice=f"add the name to `users` in {allow}")
    longest = seconds(config.longest_budget, "longest_budget")
    if "budget" in found.options and seconds(found.options["budget"], "budget") > longest:
        raise AbprofError(f"the budget is longer than {config.longest_budget}, the limit in {allow}", where=WORD)
    repo, where = connect(found.repo), f"pull request {found.number} of {found.repo}"
    with refusals(where):
        pull = repo.get_pull(found.number)
        base, head, state = str(pull.base.sha), str(pull.head.sha), pull.state
    if state != "open":
        raise AbprofError("the pull request is closed", where=where)
    if head != found.head:
        what = f"the head of pull request {found.number} is {head[:10]}, not {found.head[:10]}"
        raise AbprofError(what, where=WORD, advice="review the new head, and name its commit")
    return {"base": base, "target": found.head, "pr": str(found.number), **found.options}


# ---------------------------------------------------------------- posting

_CLOCKS = timedelta(hours=1)  # how far the measuring machine's clock may be ahead
_OURS = "query($ids: [ID!]!) { nodes(ids: $ids) { ... on IssueComment { id viewerDidAuthor isMinimized } } }"
_MARK = re.compile(
    r"<!-- abprof:v1 key=(?P<key>\w+) answer=(?P<answer>[a-z]+) head=(?P<head>[0-9a-f]+)"
    r" began=(?P<began>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:Z|[+]00:00)) run=(?P<run>\w+) text=(?P<text>\w+) -->"
)


def post_notice(notice: Notice, repo: str, pr: int, event: Path | None, *, untrusted: bool, key: str, link: str) -> str:
    """Post the notice on pull request `pr`, and return what was done. Raises AbprofError if it cannot be posted.

    If `repo` is "" or `pr` is 0, the file `event` names them. `untrusted`: the notice may be forged, so `event` is
    needed to check it. `key`: each key has its own comment, e.g. one per device. `link`: address of the full report.
    """
    if untrusted and not event:
        raise AbprofError("an artifact needs GitHub's event", where="--artifact", advice="add --event FILE")
    if _from_the_future(notice.began):  # could never be replaced
        what = f"{notice.began} is later than now, {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        raise AbprofError(what, where="start of the run", advice="set the clock of the measuring machine")
    origin = read_event(event) if event else Event(repo, notice.head, pr)
    name, number = repo or origin.repo, pr or origin.number
    if not name or not (event or pr):
        raise AbprofError("no pull request", where="abprof comment", advice="add --repo and --pr, or --event FILE")
    if origin.repo.lower() != name.lower():
        raise AbprofError(f"{repo} is not the event's {origin.repo}", where="--repo", advice="leave --repo out")
    if pr and origin.number not in (0, pr):
        raise AbprofError(f"{pr} is not the event's {origin.number}", where="--pr", advice="leave --pr out")
    if origin.head != notice.head:
        what = f"the artifact is of commit {notice.head[:10]}, the event of {origin.head[:10]}"
        raise AbprofError(what, where="--artifact", advice="post the artifact of the event's own commit")
    there = connect(name)
    if event and not origin.number:
        with refusals(f"commit {origin.head[:10]} of {name}"):
            number = _pull_of(there, origin, pr)
    with refusals(f"pull request {number} of {name}"):
        return _post(there, number, notice, key, link)


def _from_the_future(began: str) -> bool:
    return began[:19] > f"{datetime.now(UTC) + _CLOCKS:%Y-%m-%dT%H:%M:%S}"


def _pull_of(repo: Repository, event: Event, pr: int) -> int:
    """Return the number of the only open pull request, which `pr` names unless it is 0, for the event's commit or branch."""
    pulls = [repo.get_pull(pr)] if pr else repo.get_commit(event.head).get_pulls()
    pulls = [one for one in pulls if one.state == "open" and one.base.repo.full_name.lower() == event.repo.lower()]
    found = [one.number for one in pulls if one.head.sha == event.head]
    if not found and event.branch and event.home:
        branch = [one for one in pulls if one.head.ref == event.branch and one.head.repo]
        found = [one.number for one in branch if one.head.repo.full_name.lower() == event.home]
    if len(found) != 1:
        what = f"{len(found)} open pull requests have" if found else "no open pull request has"
        where = f"commit {event.head[:10]} of {event.repo}"
        raise AbprofError(f"{what} this head", where=where, advice="name it: --pr N" if found else "")
    return found[0]


def _post(repo: Repository, number: int, notice: Notice, key: str, link: str) -> str:
    head, issue = str(repo.get_pull(number).head.sha), repo.get_issue(number)
    mine = {"key": _short(key), "answer": notice.answer, "head": notice.head, "began": notice.began}
    mine |= {"run": _short(notice.run), "text": _short(render(notice, link=link, head=head))}
    live = [(fields, one) for fields, one in _ours(repo, issue.get_comments()) if fields.get("key") == mine["key"]]
    live.sort(key=lambda one: (_rank(one[0], head), one[1].id))
    there, best = live.pop() if live else (dict[str, str](), None)
    outdated = [one for _, one in live]
    made = None
    if best and there == mine:
        done = f"nothing: the comment is up to date {best.html_url}"
    elif best and _rank(there, head) > _rank(mine, head):
        done = f"nothing: the comment has a newer result {best.html_url}"
    else:
        replaces = there["head"] if there and there["head"] != notice.head else ""
        text = render(notice, link=link, head=head, replaces=replaces)
        body = f"{text}\n<!-- abprof:v1 {' '.join(f'{name}={value}' for name, value in mine.items())} -->\n"
        if best and there["answer"] == mine["answer"]:
            best.edit(body)
            done = f"edited {best.html_url}"
        else:
            made = issue.create_comment(body)
            done = f"posted {made.html_url}"
    from github import UnknownObjectException

    for old in [*outdated, *([best] if best and made else [])]:
        with suppress(UnknownObjectException):  # somebody deleted the comment meanwhile
            old.minimize("OUTDATED")
    return done


def _ours(repo: Repository, comments: Iterable[IssueComment]) -> list[tuple[dict[str, str], IssueComment]]:
    """Return abprof's own comments that are not minimised, each as (fields of its hidden line, comment)."""
    lines = [(_MARK.fullmatch((one.body or "").rstrip().rsplit("\n", 1)[-1].strip()), one) for one in comments]
    marked = [(line.groupdict(), one) for line, one in lines if line and not _from_the_future(line["began"])]
    mine: set[str] = set()
    for start in range(0, len(marked), 100):
        ids = [one.node_id for _, one in marked[start : start + 100]]
        answer = repo.requester.graphql_query(_OURS, {"ids": ids})[1]
        nodes = (answer.get("data") or {}).get("nodes") or []
        mine |= {node["id"] for node in nodes if node and node.get("viewerDidAuthor") and not node.get("isMinimized")}
    return [(fields, one) for fields, one in marked if one.node_id in mine]


def _rank(fields: dict[str, str], head: str) -> tuple[bool, str, bool, str]:
    """Return a sort key of a comment: comments on `head` come last, and among these later and finished runs."""
    began = fields.get("began", "").replace("+00:00", "Z")
    return fields.get("head") == head, began, fields.get("answer") != "running", fields.get("run", "")


def _short(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]
