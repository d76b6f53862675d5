"""Report a judged run: as web page, Markdown, CSV and JSON files, and as text for the terminal and output.txt.

`write_all` writes all reports of a run folder, `rendered` returns one format as bytes, and `print_run` prints the run.
All three take their content from a `Page`. `frame` returns the comparisons as a DataFrame. Other packages render their
pages with `environment` and `asset`.

The modules `sentences` (wording) and `text` (numbers and untrusted text) are public too. `exports`, `legacy`, `probes`,
`recordings`, `scripts`, `suite_csv` and `terminal` serve one command each.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from abprof.report.csv_files import frame
    from abprof.report.layouts import asset, environment
    from abprof.report.model import Page
    from abprof.report.render import FORMATS, rendered, write_all
    from abprof.report.terminal import print_run

__all__ = ["FORMATS", "Page", "asset", "environment", "frame", "print_run", "rendered", "write_all"]
_MODULES = {
    "Page": "model",
    "frame": "csv_files",
    "print_run": "terminal",
    "asset": "layouts",
    "environment": "layouts",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, because jinja2 and rich are slow to import."""
    if name in __all__:
        return getattr(import_module(f"abprof.report.{_MODULES.get(name, 'render')}"), name)
    raise AttributeError(name)
