"""The records that stages pass to each other and that run.json, rounds.jsonl and evidence.jsonl store.

Each module defines the records of one stage; this package exports all of them. Every record is frozen. `Record` is a
msgspec struct: it reads JSON strictly, and docs/schemas/ is generated from its subclasses. Units: times in nanoseconds,
memory in bytes, changes in per cent of time (negative is faster). The classes in `messages` are plain dataclasses,
because workers use them without msgspec.
"""

from abprof.records.base import *
from abprof.records.blocks import *
from abprof.records.builds import *
from abprof.records.cells import *
from abprof.records.messages import *
from abprof.records.options import *
from abprof.records.probes import *
from abprof.records.run import *
