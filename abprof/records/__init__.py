"""The records that travel between the stages, and the one typed definition of run.json and rounds.jsonl.

Each module holds the records of one stage, and all of them can be imported from here. Every record is frozen. `Record` is
a msgspec struct, which also gives the strict reader and the JSON Schemas in docs/schemas/. Units: times in nanoseconds,
memory in bytes, changes in per cent of time (negative is faster). `messages` has plain
dataclasses: workers use them too, without msgspec.
"""

from abprof.records.base import *
from abprof.records.blocks import *
from abprof.records.builds import *
from abprof.records.cells import *
from abprof.records.messages import *
from abprof.records.options import *
from abprof.records.probes import *
from abprof.records.run import *
