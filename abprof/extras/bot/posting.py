"""Post a notice as a comment and a check run on a pull request, and a night as an issue.

Posting always starts from what GitHub has: look, take one step, look again. So a lost answer, a second poster and a killed job
all end with one comment that has the newest result. The last line of each is hidden and says which run it is of:
`<!-- abprof:v1 key=... answer=act head=... began=... run=... text=... -->`. Anyone can write such a
line, but GitHub says who the author of a comment is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import github

from abprof.extras.bot.command import Event, read_event
from abprof.extras.bot.comment import Context, render, title
from abprof.extras.bot.github import IssueComment, Repository, connect, mark, marked, ours, refusals, short
from abprof.extras.bot.notice import Notice
from abprof.records.errors import AbprofError
from abprof.records.visible import printable

_MOST_BYTES = 59_500  # of a text, without its hidden line; GitHub takes 65,536 characters
_STEPS = 8  # after which another poster seems to write as often as this one
_CLOCKS = timedelta(hours=1)  # how far the measuring machine's clock may be ahead
_CHECK_ID = re.compile(r"abprof:v1 key=([0-9a-f]{12}) (began=[0-9TZ:-]{20} done=[01] run=[0-9a-f]{12})")
Conclusion = Literal["success", "failure", "neutral", "action_required"]


def post_notice(
    notice: Notice,
    *,
    repo: str = "",
    pr: int = 0,
    event: Path | None = None,
    untrusted: bool = False,
    policy: str = "always",
    key: str = "",
    link: str = "",
    check: bool = False,
) -> Iterator[str]:
    """Post the notice; yields a line for each thing done. Raises AbprofError.

    `repo`, `pr`: where; by default those of the event file. `untrusted`: anybody may have written the notice. `policy`: when
    a first comment is made. `key`: one comment and check run for each, e.g. per device.
    """
    _check_clock(notice.began)
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
    if untrusted and not event:
        with refusals(f"pull request {pr} of {name}"):
            head = str(there.get_pull(pr).head.sha)
        if head != notice.head:
            what = f"the artifact is of commit {notice.head[:10]}, the head of {pr} is {head[:10]}"
            raise AbprofError(what, where="--artifact", advice="without an event it must be of the head")
    if check:
        yield _post_check(there, notice, key, link)
    if policy == "never":
        yield "comment: nothing, the policy is never"
        return
    if not number:
        with refusals(f"commit {origin.head[:10]} of {name}"):
            number = _pull_of(there, origin)
    yield f"comment: {_post_comment(there, number, notice, policy, key, Context(link=link))}"


def _check_clock(began: str) -> None:
    """Raises AbprofError for a run from the future: it would never be replaced, because the newest result stays."""
    now = datetime.now(UTC)
    if began[:19] > f"{now + _CLOCKS:%Y-%m-%dT%H:%M:%S}":
        what = f"{began} is later than now, {now:%Y-%m-%dT%H:%M:%SZ}"
        raise AbprofError(what, where="began of the run", advice="set the clock of the machine that measured")


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


# ---------------------------------------------------------------- the comment


def _post_comment(repo: Repository, number: int, notice: Notice, policy: str, key: str, context: Context) -> str:
    """Bring the pull request's comment up to date: edited in place if the answer is the same, posted anew and the old one
    minimised if it changed, so that people are notified. An older result never replaces a newer one."""
    where = f"pull request {number} of {repo.full_name}"
    written: dict[int, IssueComment] = {}  # by this call: GitHub's list may not have them yet
    done = ""
    for _ in range(_STEPS):
        with refusals(where):
            head = str(repo.get_pull(number).head.sha)
            issue = repo.get_issue(number)
            comments = written | {one.id: one for one in issue.get_comments()}
            live = marked(ours(repo, list(comments.values())), "abprof", short(key))
        live.sort(key=lambda one: (_rank(one[0], head), one[1].id))
        mine = _fields(notice, key, render(notice, replace(context, head=head), _MOST_BYTES))
        with refusals(where):
            for _, old in live[:-1]:
                with suppress(github.UnknownObjectException):  # deleted meanwhile
                    old.minimize("OUTDATED")
            if not live and not _wanted(policy, notice):
                return "nothing: the policy wants no comment on this"
            there, best = live[-1] if live else (dict[str, str](), None)
            if best and there == mine:
                return f"{done or 'nothing: it is up to date'} {best.html_url}"
            if best and _rank(there, head) > _rank(mine, head):
                return f"{done or 'nothing'}: a newer result is there"
        replaces = there["head"] if there and there["head"] != notice.head else ""
        text = render(notice, replace(context, head=head, replaces=replaces), _MOST_BYTES)
        body = f"{text}\n{mark('abprof', **mine)}\n"
        with refusals(where):
            try:
                if best is None or there["answer"] != mine["answer"]:
                    one, done = issue.create_comment(body), "posted"
                    written[one.id] = one
                else:
                    best.update()  # another poster may have written meanwhile
                    if marked([best], "abprof", short(key)) == [(there, best)]:
                        best.edit(body)
                        done = "edited"
            except github.UnknownObjectException:
                if best is None:  # the pull request itself
                    raise
    raise AbprofError("another poster keeps changing the comment", where=where, advice="one poster at a time")


def _fields(notice: Notice, key: str, text: str) -> dict[str, str]:
    """The fields of a comment's hidden line."""
    values = {"key": short(key), "answer": notice.answer, "head": notice.head, "began": notice.began}
    return values | {"run": short(notice.run), "text": short(text)}


def _rank(fields: dict[str, str], head: str) -> tuple[bool, str, bool, str]:
    """Newer is greater: a result for the pull request's head, then the later run, then its result over its start."""
    began = fields.get("began", "").replace("+00:00", "Z")
    return fields.get("head") == head, began, fields.get("answer") != "running", fields.get("run", "")


def _wanted(policy: str, notice: Notice) -> bool:
    """Whether a pull request without a comment gets one."""
    if policy == "on-change":
        return notice.answer != "running" and not notice.unchanged
    return policy == "always" or notice.answer in ("act", "confirm")


# ---------------------------------------------------------------- the check run


def conclusion(notice: Notice) -> Conclusion:
    """`action_required` if something is broken, `failure` if certainly slower, `success` if something was judged and nothing
    speaks against it; `neutral` for all else: nothing judged, untrusted, more than a tenth undecided, one epoch, interrupted,
    in doubt, or a finding that the run's --fail-on allows."""
    counts = notice.counts
    if notice.answer == "act":
        if counts.get("broken"):
            return "action_required" if "broken" in notice.fail_on else "neutral"
        return "failure" if "slower" in notice.fail_on else "neutral"
    left_out = sum(counts.get(name, 0) for name in ("unsupported", "missing", "base_not_ok"))
    judged = counts.get("comparisons", 0) - left_out
    undecided = counts.get("undecided", 0) > 0.1 * max(judged, 0) or counts.get("quick")
    if notice.status != "complete" or judged <= 0 or undecided or notice.answer != "fine":
        return "neutral"
    return "neutral" if "unclear" in notice.fail_on and counts.get("unclear") else "success"


def _post_check(repo: Repository, notice: Notice, key: str, link: str) -> str:
    """Make or update this key's check run on the judged commit, but never over a later run's."""
    name = f"abprof ({printable(key, 80)})" if key else "abprof"
    running = notice.status == "running"
    began = notice.began.replace("+00:00", "Z")
    run = f"began={began} done={int(not running)} run={short(notice.run)}"  # compares as text: later is greater
    state = {"status": "in_progress"} if running else {"status": "completed", "conclusion": conclusion(notice)}
    summary = render(notice, Context(link=link), _MOST_BYTES)
    fields: dict[str, Any] = state | {"output": {"title": title(notice)[:250], "summary": summary}}
    fields |= {"external_id": f"abprof:v1 key={short(key)} {run}"} | ({"details_url": link} if link else {})
    with refusals(f"check {name!r} of {repo.full_name}"):
        commit = repo.get_commit(notice.head)
        marks = [(_CHECK_ID.fullmatch(one.external_id or ""), one) for one in commit.get_check_runs(check_name=name)]
        mine = [(found[2], one.id, one) for found, one in marks if found and found[1] == short(key)]
        if not mine:
            made = repo.create_check_run(name=name, head_sha=notice.head, **fields)
            return f"check {state.get('conclusion', state['status'])} {made.html_url}"
        there, _, last = max(mine, key=lambda one: one[:2])
        if there > run:
            return f"check nothing: a newer result is there {last.html_url}"
        last.edit(**fields)
        return f"check {state.get('conclusion', state['status'])} {last.html_url}"


# ---------------------------------------------------------------- the issue of a nightly job


class NightIssue:
    """One open issue per series of nights: opened by the first night that needs a person, updated by later ones, never by an
    older one, and closed by a person. Raises AbprofError if there is no token."""

    def __init__(self, repo: str) -> None:
        self._repo = connect(repo)

    def update(self, series: str, night: int, text: str, *, alert: bool) -> str:
        """Bring the issue to this night; returns what was done. An alert after a quiet night adds a comment, so that
        people are notified. Raises AbprofError."""
        key = short(series)
        text = text.encode(errors="replace")[:_MOST_BYTES].decode(errors="ignore")
        body = f"{text}\n{mark('abprof-nightly', key=key, night=night, alert=int(alert))}\n"
        with refusals(f"issues of {self._repo.full_name}"):
            # The list has pull requests, too; reading their pull_request would cost a request for each plain issue.
            plain = [one for one in self._repo.get_issues(state="open") if "/pull/" not in one.html_url]
            known = [one for _, one in marked(plain, "abprof-nightly", key)]
            mine = marked(ours(self._repo, known), "abprof-nightly", key)
            if not mine:
                if not alert:
                    return "nothing: no action is needed"
                name = re.sub(r"[^\w\-./ ]", "_", series)[:80]  # no mentions, no markup
                return str(self._repo.create_issue(f"abprof nightly: {name}", body).html_url)
            fields, issue = max(mine, key=lambda one: (int(one[0]["night"]), -one[1].number))
            if int(fields["night"]) > night:
                return "nothing: a newer night is there"
            if (issue.body or "").rstrip() == body.rstrip():
                return f"nothing: it is up to date, {issue.html_url}"
            issue.edit(body=body)
            if alert and fields["alert"] != "1":
                issue.create_comment(text)
            return str(issue.html_url)
