"""A real HTTP server that behaves like GitHub's REST and GraphQL API, as far as the bot sees it.

It pages, checks tokens and authors, refuses what is too long, knows minimised comments, and does on request what GitHub
does on bad days: `fault` for one answer.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

REPO = "team/kernels"
BOT, OTHER, READER = "abprof-bot", "mallory", "reader"
TOKENS = {"bot-token": BOT, "other-token": OTHER, "reader-token": READER}
LONGEST = 65536
Answer = tuple[int, dict[str, str], Any]
MISSING: Answer = (404, {}, {"message": "Not Found"})


def unused_address() -> str:
    """An address that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return f"http://127.0.0.1:{closed.getsockname()[1]}"


@dataclass
class Fault:
    """A fault in place of the next matching answers (with `after`: in addition to them)."""

    method: str
    path: str  # regular expression
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None
    cut: bool = False  # close the connection in the middle of the answer
    after: bool = False  # the request has taken effect
    times: int = 1


class GitHub:
    """The server and its content; a context manager."""

    def __init__(self) -> None:
        self.heads = {7: "9f2c4e7a" * 5, 8: "8" * 40}
        self.pulls: dict[int, dict[str, Any]] = {}  # what differs from a plain open pull request
        self.comments: list[dict[str, Any]] = []
        self.requests: list[tuple[str, str]] = []  # method, path
        self.faults: list[Fault] = []
        self.lock = threading.RLock()
        self.next_id = 1000

    def __enter__(self) -> GitHub:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1

            def log_message(self, *args: Any) -> None:
                pass

            def answer(self) -> None:
                hub.answer(self)

            do_GET = do_POST = do_PATCH = answer

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.repo = f"{self.url}/repos/{REPO}"
        return self

    def __exit__(self, *args: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    # ------------------------------------------------------------ what a test plants and looks at

    def comment(self, body: str, author: str = BOT, pr: int = 7, **more: Any) -> dict[str, Any]:
        with self.lock:
            self.next_id += 1
            made = {"id": self.next_id, "pr": pr, "author": author, "body": body, "minimised": False, "edits": 0}
            self.comments.append(made | {"at": "2020-01-01T00:00:00Z"} | more)
            return self.comments[-1]

    def fault(self, method: str, path: str, **what: Any) -> None:
        self.faults.append(Fault(method, path, **what))

    def live(self) -> list[dict[str, Any]]:
        return [c for c in self.comments if c["author"] == BOT and not c["minimised"]]

    def count(self, method: str, path: str) -> int:
        return sum(m == method and re.search(path, p) is not None for m, p in self.requests)

    # ------------------------------------------------------------ answering

    def answer(self, http: Any) -> None:
        data = json.loads(http.rfile.read(int(http.headers.get("Content-Length") or 0)) or b"null")
        token = (http.headers.get("Authorization") or "").partition(" ")[2]
        with self.lock:
            self.requests.append((http.command, http.path))
            fault = next((f for f in self.faults if f.method == http.command and re.search(f.path, http.path)), None)
            if fault:
                fault.times -= 1
                if not fault.times:
                    self.faults.remove(fault)
        if not fault or fault.after:
            with self.lock:
                answer = self.answered(http.command, http.path, token, data)
        if fault and fault.cut:
            http.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n{")
            http.wfile.flush()
            http.connection.shutdown(socket.SHUT_RDWR)
            http.close_connection = True
            return
        status, headers, body = (fault.status, fault.headers, fault.body) if fault else answer
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        http.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(raw)), **headers}.items():
            http.send_header(name, value)
        http.end_headers()
        http.wfile.write(raw)

    def answered(self, method: str, path: str, token: str, data: Any) -> Answer:
        who = TOKENS.get(token)
        if who is None:
            return 401, {}, {"message": "Bad credentials"}
        if method != "GET" and who == READER and path != "/graphql":
            return 403, {}, {"message": "Resource not accessible by integration"}
        if len((data or {}).get("body") or "") > LONGEST:
            return 422, {}, {"message": "Validation Failed", "errors": [{"message": "Body is too long"}]}
        parts = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path == "/graphql":
            return self._graphql(who, data)
        for pattern, answer in ROUTES.items():
            found = re.fullmatch(pattern, f"{method} {parts.path.removeprefix(f'/repos/{REPO}')}")
            if found:
                made: Answer = answer(self, who, data, query, *found.groups())
                return self._page(path, query, made) if isinstance(made[2], list) else made
        return MISSING

    def _page(self, path: str, query: dict[str, str], answer: Answer) -> Answer:
        size, page = int(query.get("per_page", 30)), int(query.get("page", 1))
        every = answer[2]
        following = f"{self.url}{urlsplit(path).path}?{urlencode(query | {'page': page + 1})}"
        headers = {"Link": f'<{following}>; rel="next"'} if page * size < len(every) else {}
        return 200, headers, every[(page - 1) * size : page * size]

    def _graphql(self, who: str, data: Any) -> Answer:
        nodes = {f"IC_{c['id']}": c for c in self.comments}
        given = data["variables"]
        if "minimizeComment" in data["query"]:
            found = nodes.get(given["input"]["subjectId"])
            if found is None or found["author"] != who:
                error = {"type": "FORBIDDEN", "message": f"{who} does not have permission to minimize this comment"}
                return 200, {}, {"data": {"minimizeComment": None}, "errors": [error]}
            found["minimised"] = True
            return 200, {}, {"data": {"minimizeComment": {"minimizedComment": {"isMinimized": True}}}}
        assert len(given["ids"]) <= 100
        seen = [
            id in nodes
            and {"id": id, "viewerDidAuthor": nodes[id]["author"] == who, "isMinimized": nodes[id].get("minimised")}
            for id in given["ids"]
        ]
        gone = [{"type": "NOT_FOUND", "message": f"no {id}"} for id in given["ids"] if id not in nodes]
        return 200, {}, {"data": {"nodes": [one or None for one in seen]}} | ({"errors": gone} if gone else {})

    # ------------------------------------------------------------ what it shows

    def shown_comment(self, comment: dict[str, Any]) -> dict[str, Any]:
        user = {"login": comment["author"], "id": len(comment["author"]), "url": f"{self.url}/users/x"}
        return {
            "id": comment["id"],
            "node_id": f"IC_{comment['id']}",
            "url": f"{self.repo}/issues/comments/{comment['id']}",
            "html_url": f"https://github.example/{REPO}/pull/{comment['pr']}#issuecomment-{comment['id']}",
            "issue_url": f"{self.repo}/issues/{comment['pr']}",
            "user": user if comment["author"] else None,  # a deleted account
            "body": comment["body"].rstrip(),
            "created_at": comment["at"],
        }

    def pull(self, number: int) -> dict[str, Any]:
        more = self.pulls.get(number, {})
        home = more.get("home", REPO)
        return {
            "number": number,
            "url": f"{self.repo}/pulls/{number}",
            "state": more.get("state", "open"),
            "head": {
                "sha": self.heads[number],
                "ref": more.get("ref", f"branch-{number}"),
                "repo": {"full_name": home, "url": f"{self.url}/repos/{home}"},
            },
            "base": {"sha": "1a" * 20, "ref": "main", "repo": {"full_name": more.get("base", REPO), "url": self.repo}},
        }


def _get_pull(hub: GitHub, who: str, data: Any, query: dict, number: str) -> Answer:
    return (200, {}, hub.pull(int(number))) if int(number) in hub.heads else MISSING


def _list_comments(hub: GitHub, who: str, data: Any, query: dict, number: str) -> Answer:
    return 200, {}, [hub.shown_comment(c) for c in hub.comments if c["pr"] == int(number)]


def _post_comment(hub: GitHub, who: str, data: Any, query: dict, number: str) -> Answer:
    if int(number) not in hub.heads:
        return MISSING
    return 201, {}, hub.shown_comment(hub.comment(data["body"], who, int(number)))


def _one_comment(hub: GitHub, who: str, data: Any, query: dict, id: str) -> Answer:
    found = next((c for c in hub.comments if c["id"] == int(id)), None)
    if found is None:
        return MISSING
    if data and found["author"] != who:
        return 403, {}, {"message": "Must have admin rights to Repository."}
    if data:
        found["body"], found["edits"] = data["body"], found["edits"] + 1
    return 200, {}, hub.shown_comment(found)


def _commit_pulls(hub: GitHub, who: str, data: Any, query: dict, sha: str) -> Answer:
    found = [n for n in hub.heads if hub.heads[n] == sha or sha in hub.pulls.get(n, {}).get("commits", ())]
    return 200, {}, [hub.pull(number) for number in found]


ROUTES: dict[str, Callable[..., Answer]] = {
    r"GET /pulls/(\d+)": _get_pull,
    r"GET /issues/(\d+)/comments": _list_comments,
    r"POST /issues/(\d+)/comments": _post_comment,
    r"(?:GET|PATCH) /issues/comments/(\d+)": _one_comment,
    r"GET /commits/([0-9a-f]+)/pulls": _commit_pulls,
}
