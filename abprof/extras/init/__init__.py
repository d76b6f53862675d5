"""Propose abprof.toml and a first workload for a repository (`abprof init`), by reading the repository's files and running none.

In: names and texts of the tracked files (`look`). Out: functions that can be measured (`candidates`), and the files to write for a
chosen function (`adopted`), in which GUESSED marks each uncertain value.
"""

from abprof.extras.init.propose import Made, adopted, begun, within
from abprof.extras.init.source import Found, Function, candidates, look

__all__ = ["Found", "Function", "Made", "adopted", "begun", "candidates", "look", "within"]
