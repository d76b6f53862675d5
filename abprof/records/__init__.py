"""The records that the parts of abprof exchange, and that run.json, rounds.jsonl and evidence.jsonl store.

This package exports the records of all its modules. Every record is frozen. docs/schemas/ is generated from the
subclasses of `Record`, a msgspec struct. Records in `messages` are dataclasses, because workers have no msgspec.
Times are in nanoseconds, memory in bytes, changes in per cent of time (negative is faster).
"""

from abprof.records.base import *
from abprof.records.blocks import *
from abprof.records.builds import *
from abprof.records.cells import *
from abprof.records.listings import *
from abprof.records.messages import *
from abprof.records.options import *
from abprof.records.probes import *
from abprof.records.run import *
