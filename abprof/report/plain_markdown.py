"""Foreign text in Markdown, letter for letter."""

from __future__ import annotations

import re

from markupsafe import Markup

from abprof.report import words

_SPECIAL = re.compile(r"([\\`*_\[\]|~$])")
_MENTION = re.compile(r"([@#]|:(?=//)|www(?=\.))")
_OPENS = re.compile(r"^(?:\d{1,9}(?=[.)](?:\s|$))|(?=[-+]\s|-(?: *-){2,} *$))")  # a list or a rule at a line's begin
_JOINER = "\u2060"  # invisible: it keeps "@name", "#1" and "https://" from becoming mentions and links


def escape(text: str) -> Markup:
    """Text that is shown letter for letter: no markup, no HTML, no mention, no link."""
    plain = (
        _OPENS.sub(r"\g<0>\\", _SPECIAL.sub(r"\\\1", text))
        .replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
    )
    return Markup(_MENTION.sub(rf"\1{_JOINER}", plain))  # noqa: S704


def code(text: object, limit: int = 120) -> Markup:
    """Text as a code span, fenced longer than any run of backticks in it; fit for a table's cell."""
    line = words.clean(text, limit).replace("|", "\\|")
    if not line:
        return Markup("")
    fence = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    pad = " " if line[0] == "`" or line[-1] == "`" else ""
    return Markup(f"{fence}{pad}{line}{pad}{fence}")  # noqa: S704
