"""`abprof init`: proposes abprof.toml and a first workload for a repository, by reading its files and running none.

In: names and texts of the tracked files (`look`). Out: functions that can be measured (`candidates`), and for one of them the files
to write (`adopted`). What is not certain is marked GUESSED.
"""

from abprof.extras.init.propose import Made, adopted, begun, within
from abprof.extras.init.source import Found, Function, candidates, look

__all__ = ["Found", "Function", "Made", "adopted", "begun", "candidates", "look", "within"]
