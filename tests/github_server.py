"""A real HTTP server that behaves like GitHub's REST and GraphQL API, as far as a poster of comments sees it.

It pages, checks tokens and authors, refuses what is too long, knows minimised comments, and does on request what GitHub
does on bad days: `fault` for one answer, `moment` for something that happens between two of them.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

REPO = "team/kernels"
BOT, OTHER, READER = "abprof-bot", "mallory", "reader"
TOKENS = {"bot-token": BOT, "other-token": OTHER, "reader-token": READER}
LONGEST = 65536
LONG_AGO = "2020-01-01T00:00:00Z"


def nobody() -> str:
    """An address that nothing listens on: a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return f"http://127.0.0.1:{closed.getsockname()[1]}"


@dataclass
class Fault:
    """What is done in place of (or, with `after`, beside) the next answers that match."""

    method: str
    path: str  # regular expression
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None
    hang: float = 0.0
    cut: bool = False  # close the connection in the middle of the answer
    after: bool = False  # ... after the request has taken effect
    times: int = 1


class GitHub:
    """The server and what it holds. Use as a context manager."""

    def __init__(self) -> None:
        self.heads = {7: "9f2c4e7a" * 5, 8: "8" * 40}
        self.pulls: dict[int, dict[str, Any]] = {}
        self.comments: list[dict[str, Any]] = []
        self.checks: list[dict[str, Any]] = []
        self.issues: list[dict[str, Any]] = []
        self.requests: list[tuple[str, str, str]] = []  # method, path, token
        self.faults: list[Fault] = []
        self.moments: list[tuple[str, str, Callable[[], None]]] = []
        self.lock = threading.RLock()
        self.next_id = 1000

    def __enter__(self) -> GitHub:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1  # an answer in one piece: two make the other end wait before it acknowledges

            def log_message(self, *args: Any) -> None:
                pass

            def answer(self) -> None:
                hub.answer(self)

            do_GET = do_POST = do_PATCH = do_PUT = answer

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *args: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    # ------------------------------------------------------------ what a test plants and looks at

    def comment(self, body: str, author: str = BOT, pr: int = 7, *, minimised: bool = False) -> dict[str, Any]:
        with self.lock:
            self.next_id += 1
            made = {
                "id": self.next_id,
                "pr": pr,
                "author": author,
                "body": body,
                "minimised": minimised,
                "edits": 0,
                "at": LONG_AGO,
            }
            self.comments.append(made)
            return made

    def issue(self, body: str, author: str = BOT, state: str = "open", title: str = "") -> dict[str, Any]:
        with self.lock:
            self.next_id += 1
            made = {"number": self.next_id, "author": author, "body": body, "state": state, "title": title, "edits": 0}
            self.issues.append(made)
            self.heads[self.next_id] = ""  # comments can be made on it
            return made

    def shown_issue(self, issue: dict[str, Any]) -> dict[str, Any]:
        number = issue["number"]
        shown = {name: issue[name] for name in ("number", "state", "title")}
        return {
            **shown,
            "id": number,
            "node_id": f"I_{number}",
            "body": issue["body"].rstrip(),
            "url": f"{self.url}/repos/{REPO}/issues/{number}",
            "html_url": f"https://github.example/{REPO}/issues/{number}",
            "user": {"login": issue["author"], "id": 1, "url": f"{self.url}/users/{issue['author']}"},
        }

    def fault(self, method: str, path: str, **what: Any) -> None:
        self.faults.append(Fault(method, path, **what))

    def moment(self, method: str, path: str, then: Callable[[], None]) -> None:
        """Something that happens once, just before the first request that matches is answered."""
        self.moments.append((method, path, then))

    def live(self, author: str = BOT, pr: int = 7) -> list[dict[str, Any]]:
        return [c for c in self.comments if c["author"] == author and c["pr"] == pr and not c["minimised"]]

    def count(self, method: str, path: str) -> int:
        return sum(m == method and re.search(path, p) is not None for m, p, _ in self.requests)

    # ------------------------------------------------------------ answering

    def answer(self, http: Any) -> None:
        length = int(http.headers.get("Content-Length") or 0)
        data = json.loads(http.rfile.read(length) or b"null")
        token = (http.headers.get("Authorization") or "").partition(" ")[2]
        with self.lock:
            self.requests.append((http.command, http.path, token))
            happened = next((m for m in self.moments if m[0] == http.command and re.search(m[1], http.path)), None)
            if happened:
                self.moments.remove(happened)
            fault = next((f for f in self.faults if f.method == http.command and re.search(f.path, http.path)), None)
            if fault:
                fault.times -= 1
                if not fault.times:
                    self.faults.remove(fault)
        if happened:
            happened[2]()
        if fault and not fault.after:
            self._fail(http, fault)
            return
        with self.lock:
            status, headers, body = self.answered(http.command, http.path, token, data)
        if fault:
            self._fail(http, fault)
        else:
            self._send(http, status, headers, body)

    def _fail(self, http: Any, fault: Fault) -> None:
        time.sleep(fault.hang)
        if fault.cut:
            http.wfile.write(
                b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n{"id": 1'
            )
            http.wfile.flush()
            http.connection.shutdown(socket.SHUT_RDWR)
            http.close_connection = True
        else:
            self._send(http, fault.status, fault.headers, fault.body)

    def _send(self, http: Any, status: int, headers: dict[str, str], body: Any) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            http.send_response(status)
            for name, value in {"Content-Type": "application/json", "Content-Length": str(len(raw)), **headers}.items():
                http.send_header(name, value)
            http.end_headers()
            http.wfile.write(raw)
        except OSError:
            http.close_connection = True  # who asked did not wait

    def answered(self, method: str, path: str, token: str, data: Any) -> tuple[int, dict[str, str], Any]:
        who = TOKENS.get(token)
        if who is None:
            return 401, {}, {"message": "Bad credentials", "status": "401"}
        if method != "GET" and who == READER and path != "/graphql":
            return 403, {}, {"message": "Resource not accessible by integration"}
        parts = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        for pattern, answer in ROUTES.items():
            found = re.fullmatch(pattern, f"{method} {parts.path}")
            if found:
                return answer(self, who, data, query, *found.groups())
        return 404, {}, {"message": "Not Found"}

    def shown(self, comment: dict[str, Any]) -> dict[str, Any]:
        base = f"{self.url}/repos/{REPO}/issues"
        return {
            "id": comment["id"],
            "node_id": f"IC_{comment['id']}",
            "url": f"{base}/comments/{comment['id']}",
            "html_url": f"https://github.example/{REPO}/pull/{comment['pr']}#issuecomment-{comment['id']}",
            "issue_url": f"{base}/{comment['pr']}",
            "user": {
                "login": comment["author"],
                "id": len(comment["author"]),
                "url": f"{self.url}/users/{comment['author']}",
            }
            if comment["author"]
            else None,  # a deleted account
            "body": comment["body"].rstrip(),
            "created_at": comment["at"],
            "updated_at": comment["at"],
        }

    def pull(self, number: int) -> dict[str, Any]:
        more = self.pulls.get(number, {})
        repo = {"full_name": more.get("base", REPO), "url": f"{self.url}/repos/{REPO}"}
        head = {"full_name": more.get("home", REPO), "url": f"{self.url}/repos/{more.get('home', REPO)}"}
        return {
            "number": number,
            "url": f"{self.url}/repos/{REPO}/pulls/{number}",
            "state": more.get("state", "open"),
            "head": {"sha": self.heads[number], "ref": more.get("ref", f"branch-{number}"), "repo": head},
            "base": {"sha": "1a" * 20, "ref": "main", "repo": repo},
        }


def _get_pull(hub: GitHub, who: str, data: Any, query: dict, number: str) -> tuple:
    return (200, {}, hub.pull(int(number))) if int(number) in hub.heads else (404, {}, {"message": "Not Found"})


def _list_comments(hub: GitHub, who: str, data: Any, query: dict, number: str) -> tuple:
    every = [hub.shown(c) for c in hub.comments if c["pr"] == int(number)]
    size, page = int(query.get("per_page", 30)), int(query.get("page", 1))
    headers = {}
    if page * size < len(every):
        following = f"{hub.url}/repos/{REPO}/issues/{number}/comments?per_page={size}&page={page + 1}"
        headers = {"Link": f'<{following}>; rel="next"'}
    return 200, headers, every[(page - 1) * size : page * size]


def _too_long(body: str) -> tuple | None:
    if len(body) <= LONGEST:
        return None
    error = {"resource": "IssueComment", "code": "unprocessable", "field": "data", "message": "Body is too long"}
    return 422, {}, {"message": "Validation Failed", "errors": [error]}


def _post_comment(hub: GitHub, who: str, data: Any, query: dict, number: str) -> tuple:
    if int(number) not in hub.heads:
        return 404, {}, {"message": "Not Found"}
    return _too_long(data["body"]) or (201, {}, hub.shown(hub.comment(data["body"], who, int(number))))


def _recent_comments(hub: GitHub, who: str, data: Any, query: dict) -> tuple:
    return 200, {}, [hub.shown(c) for c in hub.comments if c["at"] >= query["since"]]


def _one_comment(hub: GitHub, who: str, data: Any, query: dict, id: str) -> tuple:
    found = [c for c in hub.comments if c["id"] == int(id)]
    return (200, {}, hub.shown(found[0])) if found else (404, {}, {"message": "Not Found"})


def _edit_comment(hub: GitHub, who: str, data: Any, query: dict, id: str) -> tuple:
    found = next((c for c in hub.comments if c["id"] == int(id)), None)
    if found is None:
        return 404, {}, {"message": "Not Found"}
    if found["author"] != who:
        return 403, {}, {"message": "Must have admin rights to Repository."}
    refused = _too_long(data["body"])
    if refused:
        return refused
    found["body"], found["edits"] = data["body"], found["edits"] + 1
    return 200, {}, hub.shown(found)


def _graphql(hub: GitHub, who: str, data: Any, query: dict) -> tuple:
    by_node = {f"IC_{c['id']}": c for c in hub.comments}
    asked = data["variables"]
    if "on Issue " in data["query"]:
        authors = {f"I_{issue['number']}": issue["author"] for issue in hub.issues}
        seen = [{"id": id, "viewerDidAuthor": authors[id] == who} if id in authors else None for id in asked["ids"]]
        return 200, {}, {"data": {"nodes": seen}}
    if "minimizeComment" in data["query"]:
        found = by_node.get(asked["id"])
        if found is None or found["author"] != who:
            error = {"type": "FORBIDDEN", "message": f"{who} does not have permission to minimize this comment"}
            return 200, {}, {"data": {"minimizeComment": None}, "errors": [error]}
        found["minimised"] = True
        return 200, {}, {"data": {"minimizeComment": {"minimizedComment": {"isMinimized": True}}}}
    assert len(asked["ids"]) <= 100
    nodes = [
        {"id": id, "isMinimized": by_node[id]["minimised"], "viewerDidAuthor": by_node[id]["author"] == who}
        if id in by_node
        else None
        for id in asked["ids"]
    ]
    gone = [id for id in asked["ids"] if id not in by_node]
    errors = [
        {"type": "NOT_FOUND", "message": f"Could not resolve to a node with the global id of '{id}'"} for id in gone
    ]
    return 200, {}, {"data": {"nodes": nodes}} | ({"errors": errors} if errors else {})


def _list_issues(hub: GitHub, who: str, data: Any, query: dict) -> tuple:
    every = [hub.shown_issue(issue) for issue in hub.issues if query.get("state", "open") in ("all", issue["state"])]
    every.append(
        {
            **hub.pull(7),
            "node_id": "PR_7",
            "body": "a pull request is listed too",
            "pull_request": {"url": "x"},
            "html_url": f"https://github.example/{REPO}/pull/7",
        }
    )
    size, page = int(query.get("per_page", 30)), int(query.get("page", 1))
    following = f"{hub.url}/repos/{REPO}/issues?state=open&per_page={size}&page={page + 1}"
    more = {"Link": f'<{following}>; rel="next"'} if page * size < len(every) else {}
    return 200, more, every[(page - 1) * size : page * size]


def _make_issue(hub: GitHub, who: str, data: Any, query: dict) -> tuple:
    return _too_long(data["body"]) or (201, {}, hub.shown_issue(hub.issue(data["body"], who, title=data["title"])))


def _edit_issue(hub: GitHub, who: str, data: Any, query: dict, number: str) -> tuple:
    found = next(issue for issue in hub.issues if issue["number"] == int(number))
    if found["author"] != who:
        return 403, {}, {"message": "Must have admin rights to Repository."}
    found.update(body=data["body"], edits=found["edits"] + 1)
    return 200, {}, hub.shown_issue(found)


def _commit_pulls(hub: GitHub, who: str, data: Any, query: dict, sha: str) -> tuple:
    found = [n for n in hub.heads if hub.heads[n] == sha or sha in hub.pulls.get(n, {}).get("commits", ())]
    return 200, {}, [hub.pull(number) for number in found]


def _shown_check(hub: GitHub, check: dict) -> dict:
    where = f"{hub.url}/repos/{REPO}/check-runs/{check['id']}"
    return {**check, "url": where, "html_url": f"https://github.example/{REPO}/runs/{check['id']}"}


def _list_checks(hub: GitHub, who: str, data: Any, query: dict, sha: str) -> tuple:
    found = [c for c in hub.checks if c["head_sha"] == sha and c["name"] == query.get("check_name", c["name"])]
    return 200, {}, {"total_count": len(found), "check_runs": [_shown_check(hub, c) for c in found]}


def _make_check(hub: GitHub, who: str, data: Any, query: dict) -> tuple:
    hub.next_id += 1
    hub.checks.append({"id": hub.next_id, **data})
    return 201, {}, _shown_check(hub, hub.checks[-1])


def _edit_check(hub: GitHub, who: str, data: Any, query: dict, id: str) -> tuple:
    found = next(c for c in hub.checks if c["id"] == int(id))
    found.update(data)
    return 200, {}, _shown_check(hub, found)


_AT = f"/repos/{REPO}"
ROUTES: dict[str, Callable[..., tuple]] = {
    rf"GET {_AT}/pulls/(\d+)": _get_pull,
    rf"GET {_AT}/issues/(\d+)/comments": _list_comments,
    rf"POST {_AT}/issues/(\d+)/comments": _post_comment,
    rf"GET {_AT}/issues": _list_issues,
    rf"POST {_AT}/issues": _make_issue,
    rf"PATCH {_AT}/issues/(\d+)": _edit_issue,
    rf"GET {_AT}/issues/comments": _recent_comments,
    rf"GET {_AT}/issues/comments/(\d+)": _one_comment,
    rf"PATCH {_AT}/issues/comments/(\d+)": _edit_comment,
    r"POST /graphql": _graphql,
    rf"GET {_AT}/commits/([0-9a-f]+)/pulls": _commit_pulls,
    rf"GET {_AT}/commits/([0-9a-f]+)/check-runs": _list_checks,
    rf"POST {_AT}/check-runs": _make_check,
    rf"PATCH {_AT}/check-runs/(\d+)": _edit_check,
}
