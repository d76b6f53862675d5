"""Templates rendered with everything escaped: what a template prints is foreign text unless it was made safe here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from abprof.report import words
from abprof.system.bundled import bundled

LONGEST = 4000


def environment(escape: Callable[[str], Markup]) -> Environment:
    """An environment over templates/ in which every printed string goes through `escape`, and a typo is an error."""

    def safe(value: Any) -> Any:
        if isinstance(value, Markup) or value is None:
            return value
        text = str(value)
        shown = escape(words.clean(text, LONGEST))
        before, after = text.startswith(" "), text.endswith(" ")  # joins in the templates keep their blanks
        return Markup(" ") * before + shown + Markup(" ") * after

    made = Environment(
        loader=FileSystemLoader(bundled("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=safe,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["plural"] = words.plural
    return made
