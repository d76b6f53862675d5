"""`abprof init`: propose abprof.toml and a first workload for a repository. The repository's files are read, never run.

`look` reads the tracked files, `candidates` lists the functions that can be measured, and `adopted` proposes the files for
one; `changes` lists the functions that two refs differ in, `best` chooses, `proposed` proposes their files. A comment with the
word GUESSED marks each uncertain value. `checked` runs a written proposal once.
"""

from abprof.extras.init.changed import Change, best, changes, proposed
from abprof.extras.init.check import checked
from abprof.extras.init.propose import Made, adopted, begun, within
from abprof.extras.init.source import Found, Function, candidates, look

__all__ = [
    "Change", "Found", "Function", "Made", "adopted", "begun", "best", "candidates", "changes", "checked", "look", "proposed", "within",
]  # fmt: skip
