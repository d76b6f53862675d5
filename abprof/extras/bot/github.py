"""The one doorway to GitHub: PyGithub, with the token of the environment."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

from abprof.records.errors import AbprofError
from abprof.records.visible import printable

try:
    import github
    import requests
    from github import GithubException, UnknownObjectException
    from github.IssueComment import IssueComment
    from github.Repository import Repository
except ImportError as error:
    raise AbprofError(f"{error.name} is not installed", advice="pip install 'abprof[bot]'") from error

__all__ = ["IssueComment", "Repository", "UnknownObjectException", "connect", "refusals"]
logging.getLogger("github").setLevel(logging.ERROR)  # a refusal is one line: PyGithub prints every retry
_TIMEOUT = 20  # seconds per answer
_RETRIES, _LONGEST_WAIT = 4, 60  # attempts, and seconds to wait for a rate limit: a waiting job costs a runner
_LOCAL = ("127.0.0.1", "localhost", "::1")
_RIGHTS = "check --repo, --pr and the token: it needs pull-requests: write; for a fork post from a workflow_run job"


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
    try:
        yield
    except GithubException as error:
        reason = printable(str(error.data.get("message") or "") if isinstance(error.data, dict) else "", 200)
        what, advice = f"GitHub answers {error.status}", _RIGHTS if error.status in (401, 403, 404) else ""
        raise AbprofError(f"{what}: {reason}" if reason else what, where=where, advice=advice) from None
    except requests.exceptions.RequestException as error:
        cause = error.args[0] if error.args else error
        reason = printable(str(getattr(cause, "reason", None) or cause), 200)
        raise AbprofError(f"GitHub cannot be reached: {reason}", where=where, advice="try again later") from None
    except (github.BadAttributeException, AttributeError, LookupError, TypeError, ValueError):
        raise AbprofError("the answer is not GitHub's", where=where, advice="check GITHUB_API_URL") from None
