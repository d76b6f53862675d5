"""The run folder: its journal, run.json, and the removal of folders that killed runs left.

In: a run's head, and blocks as they are measured. Out: the same, read from disk. Nothing here judges or reports.
"""

from abprof.store.record import Record, Wanted
from abprof.store.runfolder import LOGS, RUN, RunFolder, create, kernel_key, new_folder, read, sweep

__all__ = ["LOGS", "RUN", "Record", "RunFolder", "Wanted", "create", "kernel_key", "new_folder", "read", "sweep"]
