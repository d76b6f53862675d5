"""A run whose first row has a profiled pass and traces of both sides, for tests of the tree of a call and its traces."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec

from abprof.records import Census, Launch, Observation, Run, Trace
from tests import runs

CELL = "dense/seqlen=8192,mask_type=full,nhq=64,nhk=64,hd=128,dtype=bf16,direction=bwd"
BASE = (
    Launch(name="cast<bf16>", count=1, ns=100e3, phases=("bwd_prepare",)),
    Launch(name="dq_kernel", count=1, ns=3000e3, phases=("bwd_run",)),
    Launch(name="dkv_kernel", count=2, ns=6000e3, phases=("bwd_run",)),
    Launch(name="softmax_d", count=1, ns=400e3, phases=("bwd_run", "bwd_sum")),
    Launch(name="zero_", count=1, ns=500e3, phases=()),
)
TARGET = (
    BASE[0],
    replace(BASE[1], ns=2900e3),
    replace(BASE[2], ns=6600e3),
    BASE[3],
    Launch(name="copy_", count=1, ns=200e3, phases=()),
)


def seen(arm: str, launches: tuple[Launch, ...], *, on_device: bool = True, **phases: float) -> Observation:
    """An arm's profiled pass."""
    census = Census(launches=launches, hidden_ns=0.0, on_device=on_device)
    return Observation(cell=CELL, arm=arm, status="ok", phases=phases or None, census=census)


def run() -> Run:
    """A run of which one slower row has the launches above."""
    of, launches = runs.run(), {"base": BASE, "target": TARGET}
    found = tuple(
        msgspec.structs.replace(one, census=seen(one.arm, launches[one.arm]).census) if one.cell == CELL else one
        for one in of.observations
    )
    return msgspec.structs.replace(of, observations=found)


def traced(folder: Path, sides: tuple[str, ...] = ("base", "target")) -> Run:
    """The run with traces of these sides, whose files are in `folder`."""
    kept = []
    for side in sides:
        text = json.dumps({"traceEvents": [{"name": f"kernel of {side}", "ph": "X", "ts": 0, "dur": 5}]})
        path = folder / "traces" / f"dense-full.{side}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        kept.append(Trace(cell=CELL, arm=side, file=f"traces/{path.name}", bytes=len(text), calls=5))
    return msgspec.structs.replace(run(), traces=tuple(kept))
