"""The run folder: run.json, the journal (rounds.jsonl, evidence.jsonl), and removal of folders of killed runs.

`Record` writes the run's header (run.json without results) and its blocks while measuring; `read` reads a run folder.
"""

from abprof.store.record import Record, Wanted
from abprof.store.runfolder import LOGS, RUN, RunFolder, create, kernel_key, new_folder, read, sweep

__all__ = ["LOGS", "RUN", "Record", "RunFolder", "Wanted", "create", "kernel_key", "new_folder", "read", "sweep"]
