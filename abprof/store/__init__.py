"""The run folder: run.json, the journal (rounds.jsonl) and evidence.jsonl; removal of folders that killed runs left.

While a run is measured, `Record` writes its header (run.json without results) and blocks. `read` reads a run folder.
"""

from abprof.store.record import Record, Wanted
from abprof.store.runfolder import LOGS, RUN, RunFolder, create, kernel_key, new_folder, read, sweep

__all__ = ["LOGS", "RUN", "Record", "RunFolder", "Wanted", "create", "kernel_key", "new_folder", "read", "sweep"]
