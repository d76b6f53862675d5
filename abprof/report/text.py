"""Format numbers and texts on one line, and escape text for Markdown and HTML."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from markupsafe import Markup, escape

from abprof.records.visible import visible

NOT_RECORDED = "not recorded"
LONGEST = 4000  # characters of a failure's reason that a page shows; tables and terminals cut it shorter


def clean(text: object, limit: int = 300) -> str:
    """Return text on one line of at most `limit` characters. Invisible and control characters become U+FFFD."""
    line = " ".join(visible(str(text)).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def duration(ns: float | None) -> str:
    """Format a time with four significant digits: `3.586 ms`, `41.20 µs`. None becomes `not recorded`."""
    if ns is None:
        return NOT_RECORDED
    ns = float(f"{ns:.4g}")  # before the unit is chosen: 1.000 ms, not 1000 µs
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if abs(ns) >= size:
            return f"{rate(ns / size)} {unit}"
    return f"{rate(ns)} ns"


def span(low: float, high: float) -> str:
    """Format an interval of times: `3.583 to 3.590 ms`. `low` and `high` are in ns."""
    first, last = duration(low), duration(high)
    return f"{first.removesuffix(last[last.index(' ') :])} to {last}"


def rate(value: float | None) -> str:
    """Format a number with four significant digits, or as an integer above 9999. None becomes `not recorded`."""
    if value is None:
        return NOT_RECORDED
    text = f"{value:#.4g}"
    return f"{value:.0f}" if "e+" in text else text.rstrip(".")


def size(count: float | None) -> str:
    """Format a number of bytes in binary units. None becomes `not recorded`."""
    if count is None:
        return NOT_RECORDED
    for width, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(count) >= width:
            return f"{count / width:.1f} {unit}"
    return f"{count:.0f} B"


def spark(values: Sequence[float]) -> str:
    """Return a line of eight block characters that shows the values, all positive, as `levels` places them."""
    return "".join("▁▂▃▄▅▆▇█"[round(7 * level)] for level in levels(values))


def levels(values: Sequence[float]) -> list[float]:
    """Return each value's place between the lowest (0) and the highest (1). Noise alone does not fill the range: it is
    at least 3 % of the values."""
    low, high = min(values), max(values)
    reach = max(high - low, 0.03 * high)
    return [0.5 + (value - (low + high) / 2) / reach for value in values]


# ---------------------------------------------------------------- Markdown and HTML

_SPECIAL = re.compile(r"([\\`*_\[\]|~$])")
_MENTION = re.compile(r"([@#]|:(?=//)|(?i:www(?=\.)|GH(?=-\d)|mailto(?=:)|xmpp(?=:)))")
_OPENS = re.compile(r"^(?:\d{1,9}(?=[.)](?:\s|$))|(?=[-+]\s|-(?: *-){2,} *$))")  # a list or a rule at a line's start
_JOINER = "\u2060"  # an invisible character that keeps "@name", "#1" and "https://" from becoming mentions and links
_MOST_TICKS = 20  # backticks of a fence
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


def markdown(text: str) -> Markup:
    """Escape text so that Markdown shows each character and makes no mentions or links."""
    plain = _OPENS.sub(r"\g<0>\\", _SPECIAL.sub(r"\\\1", text))
    plain = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return Markup(_MENTION.sub(rf"\1{_JOINER}", plain))  # noqa: S704


def code(text: object, limit: int = 120) -> Markup:
    """Return the text as a Markdown code span for a table's cell."""
    return Markup(span_of_code(text, limit).replace("|", "\\|"))  # noqa: S704


def span_of_code(text: object, limit: int = 120) -> Markup:
    """Return the text as a Markdown code span outside of tables."""
    line, fence = _fenced(clean(text, limit))
    if not line:
        return Markup("")
    pad = " " if line[0] == "`" or line[-1] == "`" else ""
    return Markup(f"{fence}{pad}{line}{pad}{fence}")  # noqa: S704


def block_of_code(text: object, limit: int = 2000) -> Markup:
    """Return the text as a Markdown code block. Its line begins with a blank, because other bots read `/close` at the
    start of a line as a command."""
    line, fence = _fenced(clean(text, limit))
    fence = max(fence, "```")
    return Markup(f"{fence}\n {line}\n{fence}")  # noqa: S704


def _fenced(line: str) -> tuple[str, str]:
    """Return the line, with long runs of backticks cut, and a fence that is longer than any run in the line. GitHub
    opens no code span with more than 80 backticks, and ends a code block of more than 255 with fewer."""
    line = re.sub(f"`{{{_MOST_TICKS},}}", "`" * (_MOST_TICKS - 1) + "…", line)
    return line, "`" * (1 + max(map(len, re.findall("`+", line)), default=0))


def ticks(escaped: Callable[[str], Markup], text: str) -> Markup:
    """Return a sentence as HTML or, escaped by `markdown`, as Markdown; text between backticks becomes code."""
    span = code if escaped is markdown else Markup("<code>{}</code>").format
    parts = re.split("`([^`]+)`", clean(text, LONGEST))
    return Markup("").join(span(part) if place % 2 else escaped(part) for place, part in enumerate(parts))


def log_link(path: str) -> Markup:
    """Return an HTML link to a file in the run folder, or plain text if the path has unusual characters."""
    shown = escape(clean(path))
    if str(shown) == path and _PLAIN_PATH.fullmatch(path):
        return Markup(f'<a href="{shown}">{shown}</a>')  # noqa: S704
    return shown
