"""Write and read a run's folder: run.json, the journal (rounds.jsonl) and evidence.jsonl.

`Record` writes results while a run is measured. `read` reads a run. `sweep` removes folders that killed runs left.
"""

from abprof.store.runfolder import LOGS, RUN, Record, RunFolder, Wanted, create, kernel_key, new_folder, read, sweep

__all__ = ["LOGS", "RUN", "Record", "RunFolder", "Wanted", "create", "kernel_key", "new_folder", "read", "sweep"]
