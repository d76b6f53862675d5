"""What GitHub refuses, or does not answer: every failure is one clear line, or worth another try."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import github
import requests

from abprof.extras.bot.patience import UNREADABLE, Gone, Passing, TooLong, seconds
from abprof.records.errors import AbprofError
from abprof.records.visible import printable

T = TypeVar("T")
_ADVICE = {
    401: ("the token is refused", "set GITHUB_TOKEN to one that is valid"),
    403: (
        "the token may not do this",
        "it needs pull-requests: write (checks: write for --check); on a fork's pull request post from a workflow_run job",
    ),
    404: ("not there, or the token may not see it", "check --repo, --pr and the token's repositories"),
    410: ("it is gone", ""),
}  # fmt: skip


def asked(do: Callable[[], T], where: str) -> T:
    """What GitHub answers to `do`. Raises AbprofError, Passing or TooLong."""
    try:
        return do()
    except github.GithubException as error:
        raise _refused(error, where) from None
    except requests.exceptions.Timeout:
        raise Passing("GitHub did not answer in time") from None
    except requests.exceptions.RequestException as error:
        raise Passing(f"the connection failed ({type(error).__name__})") from None
    except AbprofError:
        raise
    except (github.BadAttributeException, *UNREADABLE):
        raise AbprofError("the answer is not GitHub's", where=where, advice="check GITHUB_API_URL") from None


def _refused(error: github.GithubException, where: str) -> Exception:
    status, headers = error.status, {name.lower(): value for name, value in (error.headers or {}).items()}
    said = _said(error)
    if status == 422 and "too long" in said.lower():
        return TooLong(said)
    limited = "rate limit" in said.lower() or "abuse" in said.lower() or "retry-after" in headers
    if status == 429 or (status == 403 and limited) or "RATE_LIMITED" in types(error):
        return Passing("GitHub limits the rate", _after(headers))
    if status >= 500:
        return Passing(f"GitHub answers {status}", _after(headers))
    what, advice = _ADVICE.get(status, (f"GitHub answers {status}", ""))
    kind = Gone if status in (404, 410) else AbprofError
    return kind(f"{what}: {said}" if said else what, where=where, advice=advice)


def types(error: github.GithubException) -> set[str]:
    """The types of the errors of a GraphQL answer, which has the status 200."""
    errors = error.data.get("errors") if isinstance(error.data, dict) else None
    found = [one.get("type") for one in errors if isinstance(one, dict)] if isinstance(errors, list) else []
    return {str(one) for one in found if one}


def _said(error: github.GithubException) -> str:
    """GitHub's message and its errors' messages, on one line."""
    data = error.data if isinstance(error.data, dict) else {}
    errors = data.get("errors")
    more = (
        [str(one.get("message", "")) if isinstance(one, dict) else str(one) for one in errors]
        if isinstance(errors, list)
        else []
    )
    text = "; ".join(filter(None, [str(data.get("message") or ""), *more]))
    return printable(text, 200)


def _after(headers: Mapping[str, Any]) -> float | None:
    """Seconds that GitHub asks to wait, by Retry-After or until the limit is reset."""
    after = seconds(headers.get("retry-after"))
    reset = seconds(headers.get("x-ratelimit-reset"))
    if after is None and reset is not None and str(headers.get("x-ratelimit-remaining", "0")) == "0":
        return max(0.0, reset - time.time()) + 1
    return after
