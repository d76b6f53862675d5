"""`abprof nightly`: compare a branch's head with its last judged commit each night, and find changes over many nights.

Each night makes one run folder and a `NightReport`. `read_history` reads the `History` of all nights from these
folders, `history_page` draws their trends (history.html), and `cell_history` returns the nights of a run's cells.
"""

from abprof.extras.nightly.changes import cell_history, history_changes
from abprof.extras.nightly.history import COLUMNS, History, read_history
from abprof.extras.nightly.job import NightReport, run_night, summary
from abprof.extras.nightly.page import history_page

__all__ = [
    "COLUMNS", "History", "NightReport", "cell_history", "history_changes", "history_page", "read_history", "run_night",
    "summary",
]  # fmt: skip
