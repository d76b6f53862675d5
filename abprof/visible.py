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
        hidden = unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Co")
        self[code] = " " if letter.isspace() else "\ufffd" if hidden else letter
        return self[code]


_VISIBLE = _Visible()


def printable(text: str, most: int) -> str:
    """At most so many letters of what somebody else wrote, on one line: a blank for each that a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:most])
