"""Foreign text made visible: what would steer a terminal or hide is shown as U+FFFD. Pure."""

from __future__ import annotations

import unicodedata


def visible(text: str) -> str:
    """Control, bidirectional and other invisible characters as U+FFFD, every space and line end as a plain space."""
    return text if text.isascii() and text.isprintable() else text.translate(_VISIBLE)


class _Visible(dict[int, str]):
    """Code point -> what is shown of it, each looked up once."""

    def __missing__(self, code: int) -> str:
        letter = chr(code)
        hidden = unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Co") or _is_none(code)
        self[code] = " " if letter.isspace() else "\ufffd" if hidden else letter
        return self[code]


def _is_none(code: int) -> bool:
    """Code points that no letter will ever have: XML refuses some of them."""
    return code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF


_VISIBLE = _Visible()


def visible_lines(text: str) -> str:
    """The same with its own line ends."""
    return "\n".join(map(visible, text.split("\n")))


def cell(text: str) -> str:
    """A text as a cell of a CSV file: on one line, visible, and never taken for a formula by a spreadsheet."""
    line = visible(text)
    return f"'{line}" if line.lstrip()[:1] in _FORMULA and not is_number(line) else line


_FORMULA = frozenset("=+-@")


def is_number(text: str) -> bool:
    """Whether a cell is a number as CSV files have them."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def printable(text: str, most: int) -> str:
    """At most so many letters of what somebody else wrote, on one line: a blank for each that a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:most])
