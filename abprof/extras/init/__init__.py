"""`abprof init`: propose abprof.toml and a first workload for a repository. The repository's files are read, never run.

`look` reads the tracked files, `candidates` lists the functions that can be measured, `changes` those that two refs differ
in, `best` chooses among these, `adopted` and `proposed` propose files. There, GUESSED marks each uncertain value. `checked` runs a written
proposal once.
"""

from abprof.extras.init.changed import Change, best, changes, proposed
from abprof.extras.init.check import checked
from abprof.extras.init.propose import Made, adopted, begun, within
from abprof.extras.init.source import Found, Function, candidates, look

__all__ = [
    "Change", "Found", "Function", "Made", "adopted", "begun", "best", "candidates", "changes", "checked", "look", "proposed", "within",
]  # fmt: skip
