"""Post a notice as one comment on a pull request.

Posting starts from what GitHub has, and folds what is too many: after a lost answer or a second poster, the next post leaves
one comment that has the newest result. The last line of a comment is hidden and says which run it is of:
`<!-- abprof:v1 key=... answer=act head=... began=... run=... text=... -->`. Anyone can write such a line, but GitHub says who
the author of a comment is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from abprof.extras.bot.command import Event, read_event
from abprof.extras.bot.comment import Context, render
from abprof.extras.bot.github import IssueComment, Repository, UnknownObjectException, connect, refusals
from abprof.extras.bot.notice import Notice
from abprof.records.errors import AbprofError

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
