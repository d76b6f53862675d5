"""`abprof init`: propose abprof.toml and a first workload for a repository. The repository's files are read, never run.

`look` reads the tracked files, `candidates` lists the functions that can be measured, `changes` those that two refs differ
in, `best` chooses among these, `proposed` proposes files. There, GUESSED marks each uncertain value. `checked` runs a
written proposal once.
"""

from abprof.extras.init.changed import Change, best, changes
from abprof.extras.init.propose import Made, checked, proposed
from abprof.extras.init.source import Found, Function, candidates, look

__all__ = [
    "Change", "Found", "Function", "Made", "best", "candidates", "changes", "checked", "look", "proposed",
]  # fmt: skip
