"""The simulated worker goes wrong for real: each programmed failure is seen from the parent's end of the pipes."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from abprof.records import messages as wire
from tests.simulated.client import CASE, SCENARIO, Spawn, faulty, opened, turns
from tests.simulated.fixtures import spawn
from tests.simulated.processes import ignores
from tests.simulated.scenario import FAULTS, Fault

__all__ = ["spawn"]


TYPED = ["unsupported", "missing", "oom", "crash_status"]
ENDINGS = {"exit:5": 5, "exit:0": 0, "crash": -signal.SIGSEGV, "kill": -signal.SIGKILL, "partial": 0}
HANGS = ["hang", "stubborn", "close", "sigstop"]
PAUSES = ["slow:0.5", "sigstop:0.5"]
CHILDREN = ["fork", "daemon"]
SPOILT: dict[str, Callable[[int, bytes, Any], bool]] = {
    "garbage": lambda number, line, message: message is None,
    "nan": lambda number, line, message: math.isnan(message["reply"]["value"]),
    "extra_key": lambda number, line, message: "surprise" in message["reply"],
    "wrong_id": lambda number, line, message: message["id"] == number - 1,
    "bigreply:3000000": lambda number, line, message: len(line) > 3_000_000 and message["reply"]["value"] == 1e6,
    "null": lambda number, line, message: message["reply"]["value"] is None,
}
IMPOSSIBLE = {"negative": -1e6, "zero": 0.0}
# Have tests of their own: below, in test_never_launched.py, test_probes.py, test_outside.py, test_untouched.py, test_graphed.py
# and shards/test_growing.py; what eats memory, disappears or jumps in time is played by test_campaign.py, and shards/ kills
# parents.
ELSEWHERE = [
    "eat",
    "gone",
    "jump",
    "kill_parent",
    "print",
    "wrong",
    "foreign_path",
    "compile",
    "never_launched",
    "torn_trace",
    "kept",
    "packed",
    "write",
    "uncaptured",
    "unrecorded",
    "wait",
]


def test_every_fault_has_a_test() -> None:
    tried = [*TYPED, *ENDINGS, *HANGS, *PAUSES, *CHILDREN, *SPOILT, *IMPOSSIBLE, *ELSEWHERE]
    assert {word.partition(":")[0] for word in tried} == FAULTS


@pytest.mark.parametrize("status", TYPED)
def test_typed_faults(spawn: Spawn, status: str) -> None:
    """`open` answers with its status, other verbs with a fault; the worker lives on."""
    client = spawn(faulty(Fault(status, "open", cell="w/n=2*", text="why"), Fault(status, "check", text="why")))
    word = "crash" if status == "crash_status" else status
    assert opened(client, case={**CASE, "n": 2}) == wire.Opened(word, "why")
    assert opened(client).status == "ok"
    assert client.ask(wire.Check("a", "e", "s")) == wire.Fault(word, "why")
    assert turns(client, 1) == [1e6]


@pytest.mark.parametrize(
    ("do", "code"),
    [("exit:5", 5), ("exit:0", 0), ("crash", -signal.SIGSEGV), ("kill", -signal.SIGKILL), ("partial", 0)],
)
@pytest.mark.parametrize("verb", ["start", "turn"])
def test_endings(spawn: Spawn, do: str, code: int, verb: str) -> None:
    client = spawn(faulty(Fault(do, verb)), begin=verb != "start")
    if verb == "start":
        client.send(wire.Start(device="cpu", side="base"))
    else:
        opened(client)
        client.send(wire.Turn("a", 1, "cpu_clock"))
    assert client.line() == b""
    assert client.process.wait(60) == code
    assert client.pending.startswith(b'{"id"') == (do == "partial")


@pytest.mark.parametrize("do", HANGS)
def test_hangs_until_killed(spawn: Spawn, do: str) -> None:
    client = spawn(faulty(Fault(do, "turn")))
    opened(client)
    client.send(wire.Turn("a", 1, "cpu_clock"))
    assert client.line(120 if do == "close" else 0.5) == (b"" if do == "close" else None)
    assert client.process.poll() is None
    if do == "stubborn":
        until(lambda: ignores(client.process.pid, signal.SIGTERM, signal.SIGINT))
        client.process.terminate()
        client.process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            client.process.wait(0.5)
    if do == "sigstop":
        stat = Path(f"/proc/{client.process.pid}/stat")
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
    client.process.kill()
    assert client.process.wait(60) == -signal.SIGKILL


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(("do", "holds"), SPOILT.items())
def test_spoilt_replies(spawn: Spawn, do: str, holds: Callable[[int, bytes, Any], bool]) -> None:
    client = spawn(faulty(Fault(do, "turn", times=1)))
    opened(client)
    number = client.send(wire.Turn("a", 1, "cpu_clock"))
    line = client.line()
    assert line
    try:
        message = json.loads(line)
    except json.JSONDecodeError:
        message = None
    assert holds(number, line, message)
    assert turns(client, 1) == [1e6], "and the worker lives on"


def test_wrong_outputs(spawn: Spawn) -> None:
    client = spawn(faulty(Fault("wrong", "check", arm="v1")))
    opened(client)
    opened(client, arm="b", variant="v1")
    good = client.ask(wire.Check("a", "e", "s1"))
    bad = client.ask(wire.Check("b", "e", "s2", against="s1"))
    assert good.ok
    assert not bad.ok
    assert bad.reason
    assert (bad.max_abs, bad.base_max_abs) == (1.0, 1.0)
    assert bad.digest != good.digest


def test_spoilt_proofs(spawn: Spawn) -> None:
    client = spawn(faulty(Fault("foreign_path", "prove", after=2), Fault("compile:2", "prove", after=2)))
    assert client.ask(wire.Prove()) == wire.Proved(True, "", [], 0)
    proved = client.ask(wire.Prove())
    assert (proved.ok, proved.compiles) == (False, 2)
    assert "/elsewhere/module.py" in proved.reason


def test_where_and_when_faults_strike(spawn: Spawn) -> None:
    faults = [
        Fault("unsupported", "open", side="target", epoch=2, after=2, times=1),
        Fault("missing", "build", cell="k"),
        Fault("missing", "describe", cell="w"),
    ]
    scenario = replace(SCENARIO, faults=faults)
    target, early, base = (
        spawn(scenario, side="target", epoch=2),
        spawn(scenario, side="target", epoch=1),
        spawn(scenario, side="base", epoch=2),
    )
    assert [opened(target).status for _ in range(3)] == ["ok", "unsupported", "ok"]
    assert [opened(early).status for _ in range(3)] == ["ok"] * 3
    assert [opened(base).status for _ in range(3)] == ["ok"] * 3
    assert isinstance(base.ask(wire.Build()), wire.Built), "no mount, so no kernel's name"
    assert base.ask(wire.Describe("w")).status == "missing"
