"""Every request and its reply."""

from __future__ import annotations

from abprof.wire.begin import (
    Build,
    Built,
    Closed,
    Describe,
    Described,
    Inventory,
    Listed,
    Reach,
    Reached,
    Ready,
    Screen,
    Screened,
    Start,
    Stop,
)
from abprof.wire.cell import (
    Capture,
    Captured,
    Check,
    Checked,
    Close,
    Examine,
    Hand,
    Handed,
    Open,
    Opened,
    Recordable,
    Records,
    Turn,
    Turned,
)
from abprof.wire.evidence import Load, Loaded, Phased, Phases, Prove, Proved, Trace, Traced

VERBS: dict[str, tuple[type, type]] = {
    "start": (Start, Ready),
    "describe": (Describe, Described),
    "screen": (Screen, Screened),
    "reach": (Reach, Reached),
    "inventory": (Inventory, Listed),
    "build": (Build, Built),
    "open": (Open, Opened),
    "records": (Records, Recordable),
    "capture": (Capture, Captured),
    "check": (Check, Checked),
    "hand": (Hand, Handed),
    "examine": (Examine, Checked),
    "turn": (Turn, Turned),
    "phases": (Phases, Phased),
    "trace": (Trace, Traced),
    "load": (Load, Loaded),
    "close": (Close, Closed),
    "prove": (Prove, Proved),
    "stop": (Stop, Closed),
}
NAMES = {args: verb for verb, (args, _) in VERBS.items()}
