"""The connection to GitHub: the only place of PyGithub and of a token."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar
from urllib.parse import urlsplit

from abprof.records.errors import AbprofError
from abprof.records.visible import printable

try:
    import github
    import requests
    from github.Issue import Issue
    from github.IssueComment import IssueComment
    from github.Repository import Repository
except ImportError as error:
    raise AbprofError(f"{error.name} is not installed", advice="pip install 'abprof[bot]'") from error

__all__ = ["Issue", "IssueComment", "Repository", "connect", "mark", "marked", "ours", "refusals", "short"]
_TIMEOUT = 20  # seconds per answer
_RETRIES, _LONGEST_WAIT = 4, 60  # attempts, and seconds to wait for a rate limit: a waiting job costs a runner
_LOCAL = ("127.0.0.1", "localhost", "::1")
_OURS = """query($ids: [ID!]!) { nodes(ids: $ids) {
  ... on IssueComment { id viewerDidAuthor isMinimized } ... on Issue { id viewerDidAuthor } } }"""
_ADVICE = {
    401: ("the token is refused", "set GITHUB_TOKEN to one that is valid"),
    403: (
        "the token may not do this",
        "it needs pull-requests: write (checks: write for --check); on a fork's pull request post from a workflow_run job",
    ),
    404: ("not found, or the token may not see it", "check --repo, --pr and the token's repositories"),
}
_MARK = re.compile(r"<!-- (?P<kind>abprof[a-z-]*):v1(?P<fields>(?: [a-z]+=[A-Za-z0-9:+-]+)+) -->")
Found = TypeVar("Found", Issue, IssueComment)


def connect(name: str, environ: Mapping[str, str] = os.environ) -> Repository:
    """The repository OWNER/NAME on the server of $GITHUB_API_URL, with the token of $GITHUB_TOKEN or $GH_TOKEN.

    Raises AbprofError if there is no token, if it would be sent unencrypted, or if the name is malformed.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}", name):
        raise AbprofError(f"{name!r} is not OWNER/NAME", where="the repository")
    token = environ.get("GITHUB_TOKEN") or environ.get("GH_TOKEN") or ""
    if not token:
        advice = "set it (or GH_TOKEN) in the environment; --dry-run needs none"
        raise AbprofError("no token", where="GITHUB_TOKEN", advice=advice)
    url = environ.get("GITHUB_API_URL") or "https://api.github.com"
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
        allowed_methods=None,  # any: what is written twice is folded by the next look
        max_rate_limit_wait=_LONGEST_WAIT,
        secondary_rate_wait=_LONGEST_WAIT,
    )
    pause = 0.0 if parts.hostname in _LOCAL else 1.0  # between writes, as GitHub asks
    return github.Github(
        base_url=url,
        auth=github.Auth.Token(token),
        timeout=_TIMEOUT,
        retry=retry,
        per_page=100,
        user_agent="abprof",
        seconds_between_requests=0,
        seconds_between_writes=pause,
        lazy=True,
    ).get_repo(name)


@contextmanager
def refusals(where: str) -> Iterator[None]:
    """Turn what GitHub or the network refuses into an AbprofError of one line."""
    try:
        yield
    except github.GithubException as error:
        data = error.data if isinstance(error.data, dict) else {}
        errors = data.get("errors") if isinstance(data.get("errors"), list) else []
        texts = [data.get("message"), *(one.get("message") if isinstance(one, dict) else one for one in errors or ())]
        reason = printable("; ".join(str(text) for text in texts if text), 200)
        what, advice = _ADVICE.get(error.status, (f"GitHub answers {error.status}", ""))
        raise AbprofError(f"{what}: {reason}" if reason else what, where=where, advice=advice) from None
    except requests.exceptions.RequestException as error:
        cause = error.args[0] if error.args else error
        reason = printable(str(getattr(cause, "reason", None) or cause), 200)
        raise AbprofError(f"GitHub cannot be reached: {reason}", where=where, advice="try again later") from None
    except (github.BadAttributeException, AttributeError, LookupError, TypeError, ValueError):
        raise AbprofError("the answer is not GitHub's", where=where, advice="check GITHUB_API_URL") from None


def ours(repo: Repository, found: Sequence[Found]) -> list[Found]:
    """The comments or issues that GitHub says the token's owner wrote and that are not minimised."""
    mine: set[str] = set()
    for start in range(0, len(found), 100):
        ids = [one.node_id for one in found[start : start + 100]]
        try:
            answer = repo.requester.graphql_query(_OURS, {"ids": ids})[1]
        except github.GithubException as error:
            errors = error.data.get("errors", []) if isinstance(error.data, dict) else []
            if not errors or any(one.get("type") != "NOT_FOUND" for one in errors):
                raise
            answer = error.data  # comments deleted since they were listed are null in it
        nodes = (answer.get("data") or {}).get("nodes") or []
        mine |= {node["id"] for node in nodes if node and node.get("viewerDidAuthor") and not node.get("isMinimized")}
    return [one for one in found if one.node_id in mine]


def mark(kind: str, **fields: object) -> str:
    """The hidden last line of a comment or issue, which says what it is about."""
    return f"<!-- {kind}:v1 {' '.join(f'{name}={value}' for name, value in fields.items())} -->"


def marked(found: Iterable[Found], kind: str, key: str) -> list[tuple[dict[str, str], Found]]:
    """The comments or issues whose hidden last line has this kind and key, each with the fields of that line."""
    lines = [(_MARK.fullmatch((one.body or "").rstrip().rsplit("\n", 1)[-1].strip()), one) for one in found]
    known = [
        (dict(field.split("=", 1) for field in line["fields"].split()), one)
        for line, one in lines
        if line and line["kind"] == kind
    ]
    return [(fields, one) for fields, one in known if fields.get("key") == key]


def short(text: str) -> str:
    """A hash in place of foreign text in a hidden line."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]
