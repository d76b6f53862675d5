"""The doorway to GitHub: the only place of PyGithub, and of a token. github_refusals.py says what went wrong."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from abprof.extras.bot.access import access
from abprof.extras.bot.check import Mark, marked, named
from abprof.extras.bot.command import Written
from abprof.extras.bot.event import Origin
from abprof.extras.bot.patience import listed
from abprof.extras.bot.state import Found, parse
from abprof.records.errors import AbprofError

try:
    import github
    from github.Issue import Issue
    from github.IssueComment import IssueComment
    from github.PullRequest import PullRequest
    from github.Repository import Repository

    from abprof.extras.bot.github_refusals import asked, types
except ImportError as error:
    raise AbprofError(f"{error.name} is not installed", advice="pip install 'abprof[bot]'") from error

TIMEOUT = 20  # seconds for an answer
_MINE = "query($ids: [ID!]!) { nodes(ids: $ids) { ... on IssueComment { id isMinimized viewerDidAuthor } } }"
_OUR_ISSUES = "query($ids: [ID!]!) { nodes(ids: $ids) { ... on Issue { id viewerDidAuthor } } }"
_MINIMISE = """mutation($id: ID!) {
  minimizeComment(input: {subjectId: $id, classifier: OUTDATED}) { minimizedComment { isMinimized } }
}"""


@dataclass(frozen=True)
class Api:
    """Where, and with which token; from the environment only."""

    url: str
    token: str
    timeout: int = TIMEOUT
    pause: float = 1.0  # seconds between writes, as GitHub asks

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Api:
        """$GITHUB_TOKEN (or $GH_TOKEN) and $GITHUB_API_URL. Raises AbprofError where there is no token, or it would be sent
        in the clear."""
        url, token = access(environ, "GITHUB_API_URL", "https://api.github.com", ("GITHUB_TOKEN", "GH_TOKEN"))
        return cls(url, token)


class Hub:
    """One repository on GitHub. Every method raises AbprofError, or `Passing` where another try may do."""

    def __init__(self, api: Api, repo: str) -> None:
        self.repo = repo
        self._gate = github.Github(
            base_url=api.url,
            auth=github.Auth.Token(api.token),
            timeout=api.timeout,
            retry=0,  # abprof/extras/bot/patience.py tries again, with an end to its patience
            per_page=100,
            user_agent="abprof",
            seconds_between_requests=0,
            seconds_between_writes=api.pause,
            lazy=True,
        )

    def _repository(self) -> Repository:
        return self._gate.get_repo(self.repo)

    def head(self, pr: int) -> str:
        """The pull request's head commit now."""
        return asked(lambda: str(self._repository().get_pull(pr).head.sha), f"pull request {pr} of {self.repo}")

    def ends(self, pr: int) -> tuple[str, str]:
        """The base branch's and the head's commit of an open pull request. Raises AbprofError for a closed one."""

        def found() -> tuple[str, str, str]:
            pull = self._repository().get_pull(pr)
            return str(pull.base.sha), str(pull.head.sha), str(pull.state)

        base, head, state = asked(found, f"pull request {pr} of {self.repo}")
        if state != "open":
            raise AbprofError("it is closed", where=f"pull request {pr} of {self.repo}")
        return base, head

    def comments_since(self, since: datetime) -> list[tuple[int, Written]]:
        """The repository's comments on issues and pull requests since then: id, and what was written."""

        where = f"comments of {self.repo}"

        def recent() -> list[tuple[int, Written]]:
            every = listed(self._repository().get_issues_comments(since=since), where)
            # Who has no account any more has no user, and asks nothing.
            return [(one.id, _said_by(one)) for one in every if one.user is not None]

        return asked(recent, where)

    def pull_of(self, origin: Origin) -> int:
        """The one open pull request whose head is the event's commit, or was until it moved on. Raises AbprofError."""
        where = f"commit {origin.head[:10]} of {self.repo}"

        def associated() -> list[PullRequest]:
            found = listed(self._repository().get_commit(origin.head).get_pulls(), where)
            return [
                one for one in found if one.state == "open" and one.base.repo.full_name.lower() == self.repo.lower()
            ]

        def numbers() -> tuple[list[int], list[int]]:
            every = associated()
            now = [one.number for one in every if one.head.sha == origin.head]
            before = [
                one.number for one in every if one.head.ref == origin.branch and _home(one) == origin.head_repo.lower()
            ]
            return now, before if origin.branch and origin.head_repo else []

        now, before = asked(numbers, where)
        found = now or before
        if len(found) != 1:
            what = f"{len(found)} open pull requests have" if found else "no open pull request has"
            raise AbprofError(f"{what} this head", where=where, advice="name one with --pr")
        return found[0]

    def own(self, pr: int, key: str, written: Iterable[int] = ()) -> list[Found]:
        """Our own comments that are not minimised, of this key, on all pages; GitHub itself says who their author is.

        `written`: ids of comments made a moment ago, which a list may not hold yet.
        """
        where = f"comments of pull request {pr} of {self.repo}"

        def ours() -> dict[str, Found]:
            issue = self._repository().get_issue(pr)
            comments = {one.id: one for one in listed(issue.get_comments(), where)}
            more = [_there(issue, id) for id in written if id not in comments]
            comments |= {one.id: one for one in more if one}
            found = [_found(one, key) for one in comments.values()]
            return {one.node: one for one in found if one}

        marked = asked(ours, where)
        ids = list(marked)
        mine: list[Found] = []
        for start in range(0, len(ids), 100):
            answer = self._graphql(_MINE, {"ids": ids[start : start + 100]}, where)
            mine += [marked[node] for node in _ours(answer, isMinimized=False) if node in marked]
        return mine

    def post(self, pr: int, body: str) -> tuple[int, str]:
        """Make a comment: its id and address."""
        return asked(
            lambda: _written(self._repository().get_issue(pr).create_comment(body)), f"pull request {pr} of {self.repo}"
        )

    def state(self, pr: int, id: int, key: str) -> Found | None:
        """A comment as it is now; None where it is gone."""

        def seen() -> Found | None:
            one = _there(self._repository().get_issue(pr), id)
            return _found(one, key) if one else None

        return asked(seen, f"comment {id}")

    def edit(self, pr: int, id: int, body: str) -> tuple[int, str]:
        """Replace a comment's text. Raises Gone."""

        def edited() -> tuple[int, str]:
            one = self._repository().get_issue(pr).get_comment(id)
            one.edit(body)
            return _written(one)

        return asked(edited, f"comment {id} of {self.repo}")

    def open_issues(self) -> list[tuple[int, str, str, str]]:
        """Number, node, text and address of every open issue, pull requests left out."""

        where = f"issues of {self.repo}"

        def there() -> list[tuple[int, str, str, str]]:
            every = listed(self._repository().get_issues(state="open"), where)
            # To ask one for its pull_request would cost a request each: a plain issue's is not in the list.
            plain = (one for one in every if "/pull/" not in one.html_url)
            return [(int(one.number), str(one.node_id), one.body or "", one.html_url) for one in plain]

        return asked(there, where)

    def written_by_us(self, nodes: list[str]) -> set[str]:
        """Of these issues those whose author is who the token is of; GitHub itself says so."""
        mine: set[str] = set()
        for start in range(0, len(nodes), 100):
            answer = self._graphql(_OUR_ISSUES, {"ids": nodes[start : start + 100]}, f"issues of {self.repo}")
            mine |= set(_ours(answer))
        return mine

    def open_issue(self, title: str, body: str) -> str:
        """Make an issue: its address."""
        return asked(lambda: str(self._repository().create_issue(title, body).html_url), f"issues of {self.repo}")

    def edit_issue(self, number: int, body: str) -> None:
        """Replace an issue's text."""
        asked(lambda: self._repository().get_issue(number).edit(body=body), f"issue {number} of {self.repo}")

    def minimise(self, node: str) -> None:
        """Fold a comment away as outdated."""
        self._graphql(_MINIMISE, {"id": node}, f"a comment of {self.repo}")

    def check(self, head: str, key: str, ours: Mark, fields: dict[str, Any]) -> tuple[bool, str]:
        """Make or renew this key's check run on a commit, but never over one of a later run: whether, and its address.
        Raises TooLong."""
        name = named(key)
        where = f"check {name!r} of {self.repo}"

        def checked() -> tuple[bool, str]:
            repository = self._repository()
            every = listed(repository.get_commit(head).get_check_runs(check_name=name), where)
            mine = [(there, one.id, one) for one in every if (there := marked(one.external_id, key))]
            text = ours.text(key)
            if not mine:
                made = repository.create_check_run(name=name, head_sha=head, external_id=text, **fields)
                return True, str(made.html_url)
            there, _, last = max(mine, key=lambda one: one[:2])
            if there <= ours:
                last.edit(external_id=text, **fields)
            return there <= ours, str(last.html_url)

        return asked(checked, where)

    def _graphql(self, query: str, variables: dict[str, Any], where: str) -> dict[str, Any]:
        def answered() -> dict[str, Any]:
            try:
                answer = self._gate.requester.graphql_query(query, variables)[1]
            except github.GithubException as error:
                if types(error) != {"NOT_FOUND"}:
                    raise
                answer = error.data  # what was deleted a moment ago is null in it, and the rest is there
            data = answer.get("data") if isinstance(answer, dict) else None
            return data if isinstance(data, dict) else {}

        return asked(answered, where)


def _ours(answer: dict[str, Any], **being: bool) -> list[str]:
    """Ids of the nodes of an answer that GitHub says are of who the token is of, and are so."""
    nodes = answer.get("nodes")
    known = [node for node in nodes if isinstance(node, dict)] if isinstance(nodes, list) else []
    return [
        str(node.get("id"))
        for node in known
        if node.get("viewerDidAuthor") is True and all(node.get(name) is value for name, value in being.items())
    ]


def _home(pull: PullRequest) -> str:
    """The repository that a pull request's head lies in; "" where it is gone."""
    return str(pull.head.repo.full_name).lower() if pull.head.repo else ""


def _there(issue: Issue, id: int) -> IssueComment | None:
    """A comment, or None for one that somebody has deleted."""
    try:
        found = issue.get_comment(id)
        found.complete()  # it is asked for when something of it is read
        return found
    except github.UnknownObjectException:
        return None


def _found(comment: IssueComment, key: str) -> Found | None:
    state = parse(comment.body or "", key)
    return Found(int(comment.id), str(comment.node_id), state, str(comment.html_url)) if state else None


def _said_by(comment: IssueComment) -> Written:
    pr = int(comment.issue_url.rpartition("/")[2])
    return Written(comment.user.login, comment.created_at, comment.body or "", pr)


def _written(comment: IssueComment) -> tuple[int, str]:
    return int(comment.id), str(comment.html_url)
