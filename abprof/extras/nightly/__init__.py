"""Run nightly jobs: compare a branch's head with its last judged commit, and find changes over many nights.

In: a branch, and the run folders of earlier nights. Out: one run folder per night, a `NightReport`, the `History` of all
nights, and a page of trends (`history.html`).
"""

from abprof.extras.nightly.changes import history_changes
from abprof.extras.nightly.history import COLUMNS, History, read_history
from abprof.extras.nightly.job import NightReport, run_night, summary
from abprof.extras.nightly.page import history_page

__all__ = [
    "COLUMNS", "History", "NightReport", "history_changes", "history_page", "read_history", "run_night", "summary",
]  # fmt: skip
