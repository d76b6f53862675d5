"""Report a judged run: from the run and its blocks make tables, pages, the end of output.txt, and lines of a terminal.

`write_all` writes every report of a run folder anew, `rendered` returns one format as bytes, `print_run` prints the run on
standard output. All three show one model of the run, a `Page`. Other packages render their pages with `environment` and `asset`.

The modules `sentences` (wording) and `text` (numbers and foreign text) are public too. `legacy`, `probes`, `scripts`,
`suite_csv` and `terminal` serve one command each.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from abprof.report.model import Page
    from abprof.report.render import FORMATS, asset, environment, rendered, write_all
    from abprof.report.terminal import print_run

__all__ = ["FORMATS", "Page", "asset", "environment", "print_run", "rendered", "write_all"]
_MODULES = {"Page": "model", "print_run": "terminal"}  # all others are in `render`


def __getattr__(name: str) -> Any:
    """Import a public name on first use, because importing jinja2 and rich takes longer than a short command."""
    if name in __all__:
        return getattr(import_module(f"abprof.report.{_MODULES.get(name, 'render')}"), name)
    raise AttributeError(name)
