"""`abprof init`: propose abprof.toml and a first workload for a repository, by reading its files and running none.

In: the tracked files' names and texts. repository.py lists what can be measured (source.py reads one Python file), propose.py
says how it is called, built and imported. Out: `Made`, the files to write (scaffold.py).
"""

from abprof.extras.init.repository import Candidate, Found, candidates, look
from abprof.extras.init.scaffold import Made, adopted, begun, plain_name, shown, within
from abprof.extras.init.source import content

__all__ = [
    "Candidate",
    "Found",
    "Made",
    "adopted",
    "begun",
    "candidates",
    "content",
    "look",
    "plain_name",
    "shown",
    "within",
]
