"""GitHub, through PyGithub with the token of the environment: who may start a run, and a notice as one comment.

After a lost answer or a second poster, the next post leaves one comment with the newest result. The last line of a comment is
hidden and names its run: `<!-- abprof:v1 key=... answer=act head=... began=... run=... text=... -->`. Anyone can write such a
line, but GitHub says who the author of a comment is.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from abprof.extras.bot.command import WORD, Event, read_event
from abprof.extras.bot.comment import Context, render
from abprof.extras.bot.notice import Notice
from abprof.records import Record
from abprof.records.errors import AbprofError
from abprof.records.quantities import seconds
from abprof.records.visible import printable
from abprof.system import toml

if TYPE_CHECKING:
    from github.IssueComment import IssueComment
    from github.Repository import Repository

_TIMEOUT = 20  # seconds per answer
_RETRIES, _LONGEST_WAIT = 4, 60  # attempts, and seconds to wait for a rate limit: a waiting job costs a runner
_LOCAL = ("127.0.0.1", "localhost", "::1")
_RIGHTS = "check --repo, --pr and the token: it needs pull-requests: write; for a fork post from a workflow_run job"


def connect(name: str) -> Repository:
    """The repository OWNER/NAME on the server of $GITHUB_API_URL, with the token of $GITHUB_TOKEN or $GH_TOKEN.

    Raises AbprofError without PyGithub or a token, for a server without https (the token would travel unencrypted), and for a
    malformed name.
    """
    try:
        import github
    except ImportError as error:
        raise AbprofError(f"{error.name} is not installed", advice="pip install 'abprof[bot]'") from error
    logging.getLogger("github").setLevel(logging.ERROR)  # a refusal is one line: PyGithub prints every retry
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}", name):
        raise AbprofError(f"{name!r} is not OWNER/NAME", where="the repository")
    token = os.environ.get("GITHUB_TOKEN") or os.environ.get("GH_TOKEN") or ""
    if not token:
        advice = "set it (or GH_TOKEN) in the environment; --dry-run needs none"
        raise AbprofError("no token", where="GITHUB_TOKEN", advice=advice)
    url = os.environ.get("GITHUB_API_URL") or "https://api.github.com"
    try:
        parts = urlsplit(url if url.isascii() and url.isprintable() else "")
        secure = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOCAL)
    except ValueError:
        secure = False
    if not secure:
        raise AbprofError(f"{url[:200]!r} is not an https address", where="GITHUB_API_URL")
    retry = github.GithubRetry(
        total=_RETRIES,
        backoff_factor=1,
        allowed_methods=None,  # any: what is written twice is folded by the next post
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
        seconds_between_writes=0.0 if parts.hostname in _LOCAL else 1.0,  # as GitHub asks
        lazy=True,
    ).get_repo(name)


@contextmanager
def refusals(where: str) -> Iterator[None]:
    """Turn what GitHub or the network refuses into an AbprofError of one line."""
    import github
    import requests

    try:
        yield
    except github.GithubException as error:
        reason = printable(str(error.data.get("message") or "") if isinstance(error.data, dict) else "", 200)
        what, advice = f"GitHub answers {error.status}", _RIGHTS if error.status in (401, 403, 404) else ""
        raise AbprofError(f"{what}: {reason}" if reason else what, where=where, advice=advice) from None
    except requests.exceptions.RequestException as error:
        cause = error.args[0] if error.args else error
        reason = printable(str(getattr(cause, "reason", None) or cause), 200)
        raise AbprofError(f"GitHub cannot be reached: {reason}", where=where, advice="try again later") from None
    except (github.BadAttributeException, AttributeError, LookupError, TypeError, ValueError):
        raise AbprofError("the answer is not GitHub's", where=where, advice="check GITHUB_API_URL") from None


# ---------------------------------------------------------------- who may start a run


class BotConfig(Record, frozen=True):
    """.github/abprof-bot.toml of the default branch."""

    schema: Literal[1] = 1
    users: tuple[str, ...] = ()
    longest_budget: str = "30m"


def admit(event: Path, allow: Path) -> dict[str, str]:
    """What the measuring job may run, in plain characters: base and target as commits, the pull request, options.

    Raises AbprofError if the comment is not a command, its author may not run it, or the pull request's head is no longer
    the commit that it names.
    """
    found = read_event(event)
    if found.command is None:
        raise AbprofError("not an event of a comment", where=f"--event {event}")
    names = ", ".join(BotConfig.__struct_fields__)
    text = toml.read(allow)
    loose = toml.loads(text, str(allow))
    config = toml.converted(loose, BotConfig, where=str(allow), lines=toml.lines(text), advice=f"there are {names}")
    command = found.command
    if command.author.lower() not in {user.lower() for user in config.users}:
        advice = "add the name to `users` in .github/abprof-bot.toml"
        raise AbprofError("this user may not run it", where=WORD, advice=advice)
    longest = seconds(config.longest_budget, "longest_budget")
    if "budget" in command.options and seconds(command.options["budget"], "budget") > longest:
        raise AbprofError(f"a budget longer than {config.longest_budget}", where=WORD)
    repo, where = connect(found.repo), f"pull request {found.number} of {found.repo}"
    with refusals(where):
        pull = repo.get_pull(found.number)
        base, head, state = str(pull.base.sha), str(pull.head.sha), pull.state
    if state != "open":
        raise AbprofError("it is closed", where=where)
    if head != command.commit:
        what = f"the head of pull request {found.number} is {head[:10]}, not {command.commit[:10]}"
        raise AbprofError(what, where=WORD, advice="read it again, and name its commit")
    return {"base": base, "target": command.commit, "pr": str(found.number), **command.options}


# ---------------------------------------------------------------- posting

_MOST_BYTES = 59_500  # of a text, without its hidden line; GitHub takes 65,536 characters
_CLOCKS = timedelta(hours=1)  # how far the measuring machine's clock may be ahead
_OURS = "query($ids: [ID!]!) { nodes(ids: $ids) { ... on IssueComment { id viewerDidAuthor isMinimized } } }"
_MARK = re.compile(r"<!-- abprof:v1(?P<fields>(?: [a-z]+=[A-Za-z0-9:+-]+)+) -->")


def post_notice(
    notice: Notice,
    *,
    repo: str = "",
    pr: int = 0,
    event: Path | None = None,
    untrusted: bool = False,
    key: str = "",
    link: str = "",
) -> str:
    """Post the notice as the pull request's comment; returns what was done. Raises AbprofError.

    `repo`, `pr`: where; by default those of the event file. `untrusted`: anybody may have written the notice, so it needs an
    event. `key`: one comment for each, e.g. per device.
    """
    if untrusted and not event:
        raise AbprofError("its commit is unknown", where="--artifact", advice="name GitHub's event with --event FILE")
    now = datetime.now(UTC)
    if notice.began[:19] > f"{now + _CLOCKS:%Y-%m-%dT%H:%M:%S}":  # it would never be replaced: the newest result stays
        what = f"{notice.began} is later than now, {now:%Y-%m-%dT%H:%M:%SZ}"
        raise AbprofError(what, where="began of the run", advice="set the clock of the machine that measured")
    origin = read_event(event) if event else Event(repo, notice.head, pr)
    name, number = repo or origin.repo, pr or origin.number
    if not name or not (event or pr):
        advice = "--repo OWNER/NAME and --pr N, or --event FILE"
        raise AbprofError("no pull request to post on", where="abprof comment", advice=advice)
    if origin.repo.lower() != name.lower():
        raise AbprofError(f"{repo}, but the event is of {origin.repo}", where="--repo", advice="leave it out")
    if origin.head != notice.head:
        what = f"the artifact is of commit {notice.head[:10]}, the event of {origin.head[:10]}"
        raise AbprofError(what, where="--artifact", advice="only the answer for the event's own commit is posted")
    there = connect(name)
    if not number:
        with refusals(f"commit {origin.head[:10]} of {name}"):
            number = _pull_of(there, origin)
    with refusals(f"pull request {number} of {name}"):
        return _post(there, number, notice, key, link)


def _pull_of(repo: Repository, event: Event) -> int:
    """The one open pull request whose head is the event's commit, or was before a push to its branch."""
    pulls = [
        one
        for one in repo.get_commit(event.head).get_pulls()
        if one.state == "open" and one.base.repo.full_name.lower() == event.repo.lower()
    ]
    found = [one.number for one in pulls if one.head.sha == event.head]
    if not found and event.branch and event.home:
        branch = [one for one in pulls if one.head.ref == event.branch and one.head.repo]
        found = [one.number for one in branch if one.head.repo.full_name.lower() == event.home]
    if len(found) != 1:
        what = f"{len(found)} open pull requests have" if found else "no open pull request has"
        where = f"commit {event.head[:10]} of {event.repo}"
        raise AbprofError(f"{what} this head", where=where, advice="name one with --pr")
    return found[0]


def _post(repo: Repository, number: int, notice: Notice, key: str, link: str) -> str:
    """Edit the comment if the answer is the same; post a new one and minimise the old one if it changed, so that people are
    notified. An older result never replaces a newer one."""
    head, issue = str(repo.get_pull(number).head.sha), repo.get_issue(number)
    context = Context(head=head, link=link)
    mine = {"key": _short(key), "answer": notice.answer, "head": notice.head, "began": notice.began}
    mine |= {"run": _short(notice.run), "text": _short(render(notice, context, _MOST_BYTES))}
    live = [
        (fields, one) for fields, one in _ours(repo, list(issue.get_comments())) if fields.get("key") == mine["key"]
    ]
    live.sort(key=lambda one: (_rank(one[0], head), one[1].id))
    there, best = live.pop() if live else (dict[str, str](), None)
    outdated = [one for _, one in live]
    made = None
    if best and there == mine:
        done = f"nothing: it is up to date {best.html_url}"
    elif best and _rank(there, head) > _rank(mine, head):
        done = f"nothing: a newer result is there {best.html_url}"
    else:
        replaces = there["head"] if there and there["head"] != notice.head else ""
        text = render(notice, replace(context, replaces=replaces), _MOST_BYTES)
        body = f"{text}\n<!-- abprof:v1 {' '.join(f'{name}={value}' for name, value in mine.items())} -->\n"
        if best and there["answer"] == mine["answer"]:
            best.edit(body)
            done = f"edited {best.html_url}"
        else:
            made = issue.create_comment(body)
            done = f"posted {made.html_url}"
    from github import UnknownObjectException

    for old in [*outdated, *([best] if best and made else [])]:
        with suppress(UnknownObjectException):  # deleted meanwhile
            old.minimize("OUTDATED")
    return done


def _ours(repo: Repository, comments: Sequence[IssueComment]) -> list[tuple[dict[str, str], IssueComment]]:
    """The comments with a hidden line, and its fields, that GitHub says the token's owner wrote and that are not minimised."""
    lines = [(_MARK.fullmatch((one.body or "").rstrip().rsplit("\n", 1)[-1].strip()), one) for one in comments]
    marked = [(dict(field.split("=", 1) for field in line["fields"].split()), one) for line, one in lines if line]
    mine: set[str] = set()
    for start in range(0, len(marked), 100):
        ids = [one.node_id for _, one in marked[start : start + 100]]
        answer = repo.requester.graphql_query(_OURS, {"ids": ids})[1]
        nodes = (answer.get("data") or {}).get("nodes") or []
        mine |= {node["id"] for node in nodes if node and node.get("viewerDidAuthor") and not node.get("isMinimized")}
    return [(fields, one) for fields, one in marked if one.node_id in mine]


def _rank(fields: dict[str, str], head: str) -> tuple[bool, str, bool, str]:
    """Newer is greater: a result for the pull request's head, then the later run, then its result over its start."""
    began = fields.get("began", "").replace("+00:00", "Z")
    return fields.get("head") == head, began, fields.get("answer") != "running", fields.get("run", "")


def _short(text: str) -> str:
    """A hash in place of foreign text in a hidden line."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]
