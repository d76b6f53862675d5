"""Foreign text made visible: what would steer a terminal or hide is shown as U+FFFD. Pure."""

from __future__ import annotations

import unicodedata
from functools import cache


def visible(text: str) -> str:
    """Control, bidirectional and other invisible characters as U+FFFD, every space and line end as a plain space."""
    return text if text.isascii() and text.isprintable() else "".join(map(_shown, text))


@cache
def _shown(letter: str) -> str:
    if letter.isspace():
        return " "
    code = ord(letter)
    never = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF  # no letters, ever: XML refuses some of them
    return "\ufffd" if never or unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Co") else letter


def visible_lines(text: str) -> str:
    """The same with its own line ends."""
    return "\n".join(map(visible, text.split("\n")))


def cell(text: str) -> str:
    """A text as a cell of a CSV file: on one line, visible, and never taken for a formula by a spreadsheet."""
    line = visible(text)
    return f"'{line}" if line.lstrip()[:1] in {*"=+-@"} and not is_number(line) else line


def is_number(text: str) -> bool:
    """Whether a cell is a number as CSV files have them."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def printable(text: str, most: int) -> str:
    """At most so many letters of foreign text on one line, with a blank for each that a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:most])
