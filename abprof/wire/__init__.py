"""The worker's messages: newline JSON on two descriptors of their own. Standard library only, because the worker
runs in the interpreter under test, where abprof's own dependencies need not be installed.

The parent sends one `Request` a line and reads one reply a line, in strict turns:
    {"id": 7, "do": "turn", "args": {...}}      ->  {"id": 7, "reply": {...}}  |  {"id": 7, "fault": {...}}
`args` and `reply` are records, named in VERBS. docs/schemas/wire.schema.json is made from them.
"""

from __future__ import annotations

from abprof.wire.base import CALL_RANGE, LONG_CALL, PROTOCOL, WRAPPED, Failed, Value, cell_id, shown
from abprof.wire.begin import (
    Build,
    Built,
    Closed,
    Describe,
    Described,
    Fault,
    Inventory,
    Listed,
    Mount,
    Reach,
    Reached,
    Ready,
    Screen,
    Screened,
    Start,
    Stop,
    Sweep,
)
from abprof.wire.cell import Capture, Captured, Check, Checked, Close, Examine, Hand, Handed, Open, Opened, Turn, Turned
from abprof.wire.evidence import (
    Census,
    Compiled,
    Launch,
    Load,
    Loaded,
    Phased,
    Phases,
    Prove,
    Proved,
    Range,
    Trace,
    Traced,
)
from abprof.wire.foreground import Foreground, Told
from abprof.wire.text import dump, load, pack, unpack
from abprof.wire.verbs import NAMES, VERBS

__all__ = [
    "CALL_RANGE",
    "LONG_CALL",
    "NAMES",
    "PROTOCOL",
    "VERBS",
    "WRAPPED",
    "Build",
    "Built",
    "Capture",
    "Captured",
    "Census",
    "Check",
    "Checked",
    "Close",
    "Closed",
    "Compiled",
    "Describe",
    "Described",
    "Examine",
    "Failed",
    "Fault",
    "Foreground",
    "Hand",
    "Handed",
    "Inventory",
    "Launch",
    "Listed",
    "Load",
    "Loaded",
    "Mount",
    "Open",
    "Opened",
    "Phased",
    "Phases",
    "Prove",
    "Proved",
    "Range",
    "Reach",
    "Reached",
    "Ready",
    "Screen",
    "Screened",
    "Start",
    "Stop",
    "Sweep",
    "Told",
    "Trace",
    "Traced",
    "Turn",
    "Turned",
    "Value",
    "cell_id",
    "dump",
    "load",
    "pack",
    "shown",
    "unpack",
]
