"""Fill in the layouts of templates/."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from abprof.records.quantities import plural, signed
from abprof.records.visible import visible
from abprof.report import charts, sentences, text
from abprof.report.model import folded_title
from abprof.system.paths import bundled


@cache
def environment(escaped: Callable[[str], Markup]) -> Environment:
    """Return the Jinja environment for pages, which keeps compiled templates. `escaped` escapes each text that a template
    prints."""

    def safe(value: Any) -> Any:
        if isinstance(value, Markup) or value is None:
            return value
        sentence = str(value)
        shown = escaped(text.clean(sentence, text.LONGEST))
        before, after = sentence.startswith(" "), sentence.endswith(" ")  # joins in the templates keep their blanks
        return Markup(" ") * before + shown + Markup(" ") * after

    made = templates(safe)
    made.filters |= {"plural": plural, "signed": signed, "clean": text.clean, "code": text.code, "log": text.log_link}
    made.filters |= {"sparkline": charts.sparkline, "history": sentences.history}
    made.filters |= {"warning": sentences.warning, "folded_title": folded_title, "ticks": partial(text.ticks, escaped)}
    return made


def templates(finalize: Callable[[Any], Any]) -> Environment:
    """Return a Jinja environment for templates/. `finalize` is called for each value that a template prints."""
    return Environment(
        loader=FileSystemLoader(bundled("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def asset(name: str) -> str:
    """Return the text of a style sheet or script in templates/, with its indentation removed."""
    content = (bundled("templates") / name).read_text(encoding="utf-8")
    return re.sub(r"^[ \t]+", "", content, flags=re.MULTILINE)


def plain(name: str, **values: Any) -> str:
    """Return the plain text that templates/NAME makes of `values`, with control characters made visible."""
    made = templates(lambda value: value if isinstance(value, Markup) else Markup(visible(str(value))))  # noqa: S704 - no HTML
    made.filters |= {"clean": text.clean, "warning": sentences.warning}
    return made.get_template(name).render(**values)
