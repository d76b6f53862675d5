"""The doorway to GitLab: the only place of python-gitlab. Notes of merge requests, by the rules of pull requests' comments.

GitLab minimises nothing, so what is outdated is folded by an edit that takes its hidden line away.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from abprof.extras.bot.access import access
from abprof.extras.bot.patience import UNREADABLE, Gone, Passing, TooLong, listed, seconds
from abprof.extras.bot.state import Found, parse
from abprof.records.errors import AbprofError
from abprof.records.visible import printable

try:
    import gitlab
    import requests
except ImportError as error:
    raise AbprofError(f"{error.name} is not installed", advice="pip install 'abprof[bot]'") from error

TIMEOUT = 20  # seconds for an answer
_PAGE = 100
T = TypeVar("T")


def project(text: str) -> str:
    """GROUP/PROJECT, with subgroups or without. Raises AbprofError for anything else."""
    if not re.fullmatch(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)+", text, re.ASCII):
        raise AbprofError(f"{text!r} is not GROUP/PROJECT", where="--repo")
    return text


class Hub:
    """One project on GitLab. Every method raises AbprofError, or `Passing` where another try may do."""

    def __init__(self, url: str, token: str, name: str, timeout: float = TIMEOUT) -> None:
        self.name = name
        self._path = f"/projects/{quote(project(name), safe='')}/merge_requests"
        self._headers: dict[str, str] = {}
        session = requests.Session()
        session.hooks["response"].append(self._heard)
        # As a bearer token, for a redirection to another host takes that header away; any GitLab token may go so.
        self._gate = gitlab.Gitlab(url, oauth_token=token, timeout=timeout, user_agent="abprof", session=session)
        self._mine: int | None = None

    @classmethod
    def from_environment(cls, name: str, environ: Mapping[str, str] = os.environ) -> Hub:
        """$GITLAB_TOKEN, $CI_SERVER_URL. Raises AbprofError where there is no token, or it would be sent in the clear."""
        url, token = access(environ, "CI_SERVER_URL", "https://gitlab.com", ("GITLAB_TOKEN",))
        return cls(url, token, name)

    def head(self, pr: int) -> str:
        """The merge request's head commit now."""
        return self._asked(lambda: str(self._get(f"{self._path}/{pr}")["sha"]), f"merge request {pr} of {self.name}")

    def own(self, pr: int, key: str, written: Iterable[int] = ()) -> list[Found]:
        """Our own notes of this key, on all pages; whose token it is GitLab says."""
        notes, where = f"{self._path}/{pr}/notes", f"notes of merge request {pr} of {self.name}"

        def found() -> list[Found]:
            if self._mine is None:
                self._mine = int(self._get("/user")["id"])
            every: dict[int, dict[str, Any]] = {one["id"]: one for one in listed(self._pages(notes), where)}
            more = {id: self._there(f"{notes}/{id}") for id in written if id not in every}
            every |= {id: one for id, one in more.items() if one}
            ours = [one for one in every.values() if one["author"]["id"] == self._mine and not one.get("system")]
            return [known for one in ours if (known := self._found(pr, one, key))]

        return self._asked(found, where)

    def post(self, pr: int, body: str) -> tuple[int, str]:
        """Make a note: its id and address."""
        path = f"{self._path}/{pr}/notes"

        def made() -> tuple[int, str]:
            return self._written(pr, self._gate.http_post(path, post_data={"body": body}, obey_rate_limit=False))

        return self._asked(made, f"merge request {pr} of {self.name}")

    def state(self, pr: int, id: int, key: str) -> Found | None:
        """A note as it is now; None where it is gone."""

        def seen() -> Found | None:
            one = self._there(f"{self._path}/{pr}/notes/{id}")
            return self._found(pr, one, key) if one else None

        return self._asked(seen, f"note {id}")

    def edit(self, pr: int, id: int, body: str) -> tuple[int, str]:
        """Replace a note's text. Raises Gone."""
        path = f"{self._path}/{pr}/notes/{id}"

        def made() -> tuple[int, str]:
            return self._written(pr, self._gate.http_put(path, post_data={"body": body}, obey_rate_limit=False))

        return self._asked(made, f"note {id} of {self.name}")

    def minimise(self, node: str) -> None:
        """Fold a note away as outdated: its text without the hidden line, behind a summary."""
        pr, _, id = node.partition("/")

        def text() -> str | None:
            note = self._there(f"{self._path}/{pr}/notes/{id}")
            return str(note["body"]) if note else None

        before = self._asked(text, f"note {id}")
        if before is None:
            return
        kept = before.rstrip().rpartition("\n<!-- abprof:v1 ")[0] or before
        self.edit(int(pr), int(id), f"<details><summary>abprof: outdated</summary>\n\n{kept.rstrip()}\n\n</details>\n")

    def _pages(self, path: str) -> Iterator[Any]:
        for page in itertools.count(1):
            some = self._get(path, per_page=_PAGE, page=page, sort="asc")
            yield from some
            if len(some) < _PAGE:
                return

    def _get(self, path: str, **query: Any) -> Any:
        return self._gate.http_get(path, query_data=query, obey_rate_limit=False)

    def _there(self, path: str) -> dict[str, Any] | None:
        """A note, or None for one that somebody has deleted."""
        try:
            found: dict[str, Any] = self._get(path)
        except gitlab.GitlabHttpError as error:
            if error.response_code == 404:
                return None
            raise
        if not isinstance(found, dict):
            raise TypeError("no note")
        return found

    def _found(self, pr: int, note: dict[str, Any], key: str) -> Found | None:
        state = parse(note["body"], key)
        return Found(int(note["id"]), f"{pr}/{note['id']}", state, self._written(pr, note)[1]) if state else None

    def _written(self, pr: int, note: Any) -> tuple[int, str]:
        id = int(note["id"])
        return id, f"{self._gate.url}/{self.name}/-/merge_requests/{pr}#note_{id}"

    def _heard(self, response: requests.Response, *_: Any, **__: Any) -> None:
        self._headers = {name.lower(): value for name, value in response.headers.items()}

    def _asked(self, do: Callable[[], T], where: str) -> T:
        """What GitLab answers to `do`. Raises AbprofError, Passing or TooLong."""
        try:
            return do()
        except gitlab.GitlabParsingError:
            raise AbprofError("the answer is not GitLab's", where=where, advice="check CI_SERVER_URL") from None
        except gitlab.GitlabError as error:
            raise self._refused(error, where) from None
        except requests.exceptions.Timeout:
            raise Passing("GitLab did not answer in time") from None
        except requests.exceptions.RequestException as error:
            raise Passing(f"the connection failed ({type(error).__name__})") from None
        except AbprofError:
            raise
        except UNREADABLE:
            raise AbprofError("the answer is not GitLab's", where=where, advice="check CI_SERVER_URL") from None

    def _refused(self, error: gitlab.GitlabError, where: str) -> Exception:
        status = error.response_code or 0
        said = printable(str(error.error_message), 200)
        if status == 413 or "too long" in said.lower():
            return TooLong(said)
        if status == 429 or status >= 500:
            after = self._headers.get("retry-after", "")
            what = "GitLab limits the rate" if status == 429 else f"GitLab answers {status}"
            return Passing(what, seconds(after))
        what, advice = _ADVICE.get(status, (f"GitLab answers {status}", ""))
        kind = Gone if status == 404 else AbprofError
        return kind(f"{what}: {said}" if said else what, where=where, advice=advice)


_ADVICE = {
    401: ("the token is refused", "set GITLAB_TOKEN to one that is valid"),
    403: ("the token may not do this", "it needs the scope api, and the role Reporter or more"),
    404: ("not there, or the token may not see it", "check --repo, --pr and the token's projects"),
}
