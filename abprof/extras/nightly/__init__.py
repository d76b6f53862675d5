"""Nightly jobs and their history: compares the last judged commit of a branch with its head, and finds changes over many nights.

In: a branch, and the run folders of earlier nights. Out: one run folder per night, a `NightReport`, an index of all nights
(`history.sqlite`) and a page of trends (`history.html`). The run folders are the truth: index and page are built from them.
"""

from abprof.extras.nightly.changes import history_changes
from abprof.extras.nightly.index import Query, open_index
from abprof.extras.nightly.job import NightOptions, NightReport, run_night, summary
from abprof.extras.nightly.page import history_page

__all__ = [
    "NightOptions",
    "NightReport",
    "Query",
    "history_changes",
    "history_page",
    "open_index",
    "run_night",
    "summary",
]
