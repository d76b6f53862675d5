"""`abprof init`: propose abprof.toml and a first workload for a repository. The repository's files are read, never run.

`look` reads the tracked files, `candidates` lists the functions that can be measured, and `adopted` proposes the files
for a chosen function; a comment with the word GUESSED marks each uncertain value. `checked` runs a written proposal once.
"""

from abprof.extras.init.check import checked
from abprof.extras.init.propose import Made, adopted, begun, within
from abprof.extras.init.source import Found, Function, candidates, look

__all__ = ["Found", "Function", "Made", "adopted", "begun", "candidates", "checked", "look", "within"]
