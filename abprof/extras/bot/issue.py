"""One open issue for a series of nights: opened by the first night that asks for a person, kept up to date, never by an
older night. Its last line is hidden and says of which night it is; who wrote it, GitHub says."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from abprof.extras.bot.github import Hub
from abprof.extras.bot.patience import Gone, Passing, patiently
from abprof.records.errors import AbprofError

_LINE = re.compile(
    r"<!-- abprof-nightly:v1 key=(?P<key>[0-9a-f]{12}) night=(?P<night>\d{1,9}) alert=(?P<alert>[01]) -->"
)
LONGEST = 59_500  # bytes


@dataclass(frozen=True)
class Standing:
    """An open issue of our own."""

    number: int
    night: int
    alert: bool
    body: str
    url: str


def tell(hub: Hub, series: str, night: int, *, alert: bool, text: str, say: Callable[[str], None]) -> str:
    """Bring the series' issue to this night: what was done. Without an open issue only an alert makes one; where an alert
    follows a quiet night, a comment tells those who watch. It is a person who closes it.

    Raises AbprofError when GitHub refuses, or passes no more in time.
    """
    key = hashlib.sha256(series.encode(errors="replace")).hexdigest()[:12]
    line = f"<!-- abprof-nightly:v1 key={key} night={night} alert={int(alert)} -->"
    shown = text.encode(errors="replace")[:LONGEST].decode(errors="ignore")
    body = f"{shown}\n{line}\n"

    def once() -> str:
        standing = sorted(found(hub, key), key=lambda one: (one.night, -one.number))
        if not standing:
            return (
                hub.open_issue(f"abprof nightly: {_title(series)}", body) if alert else "nothing: nobody needs to act"
            )
        best = standing[-1]
        if best.night > night:
            return "nothing: a newer night stands there"
        if best.body.rstrip() == body.rstrip():
            return f"nothing: it stands there, {best.url}"
        try:
            hub.edit_issue(best.number, body)
        except Gone as error:  # deleted between the list and the edit: look again
            raise Passing(error.line, 0.0) from None
        if alert and not best.alert:
            hub.post(best.number, shown)
        return best.url

    return patiently(once, say)


def found(hub: Hub, key: str) -> list[Standing]:
    """Our own open issues of this key."""
    marked = []
    for number, node, body, url in hub.open_issues():
        last = _LINE.fullmatch(body.rstrip().rsplit("\n", 1)[-1].strip())
        if last and last["key"] == key:
            marked.append((node, Standing(number, int(last["night"]), last["alert"] == "1", body, url)))
    mine = hub.written_by_us([node for node, _ in marked])
    return [one for node, one in marked if node in mine]


def repository(text: str) -> str:
    """OWNER/NAME. Raises AbprofError."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}", text):
        raise AbprofError(f"{text!r} is not OWNER/NAME", where="--issue")
    return text


def _title(series: str) -> str:
    """A branch's name as a title shows it: no pings, no markup."""
    return "".join(letter if letter.isalnum() or letter in "-_./ " else "_" for letter in series)[:80]
