"""Make untrusted text safe to show: terminal controls and invisible characters become U+FFFD."""

from __future__ import annotations

import unicodedata
from functools import cache


def visible(text: str) -> str:
    """Replace control, bidirectional and invisible characters by U+FFFD, and white space and line ends by spaces."""
    return text if text.isascii() and text.isprintable() else "".join(map(_shown, text))


@cache
def _shown(letter: str) -> str:
    if letter.isspace():
        return " "
    code = ord(letter)
    never = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF  # noncharacters, some of which XML refuses
    return "\ufffd" if never or unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Co") else letter


def visible_lines(text: str) -> str:
    """Apply `visible` to each line."""
    return "\n".join(map(visible, text.split("\n")))


def cell(text: str) -> str:
    """Return `text` as one line for a CSV cell, quoted if a spreadsheet would take the text for a formula."""
    line = visible(text)
    return f"'{line}" if line.lstrip()[:1] in {*"=+-@"} and not is_number(line) else line


def is_number(text: str) -> bool:
    """Whether a CSV cell holds a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
