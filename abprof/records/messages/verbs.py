"""Every request and its reply."""

from __future__ import annotations

from abprof.records.messages import begin, cell, evidence

VERBS: dict[str, tuple[type, type]] = {
    "start": (begin.Start, begin.Ready),
    "describe": (begin.Describe, begin.Described),
    "screen": (begin.Screen, begin.Screened),
    "reach": (begin.Reach, begin.Reached),
    "inventory": (begin.Inventory, begin.Listed),
    "build": (begin.Build, begin.Built),
    "open": (cell.Open, cell.Opened),
    "records": (cell.Records, cell.Recordable),
    "capture": (cell.Capture, cell.Captured),
    "check": (cell.Check, cell.Checked),
    "hand": (cell.Hand, cell.Handed),
    "examine": (cell.Examine, cell.Checked),
    "turn": (cell.Turn, cell.Turned),
    "phases": (evidence.Phases, evidence.Phased),
    "trace": (evidence.Trace, evidence.Traced),
    "load": (evidence.Load, evidence.Loaded),
    "close": (cell.Close, begin.Closed),
    "prove": (evidence.Prove, evidence.Proved),
    "stop": (begin.Stop, begin.Closed),
}
NAMES = {args: verb for verb, (args, _) in VERBS.items()}
