"""The simulated worker itself, driven over its pipes: every verb answers, and its numbers are exact."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from abprof.records import messages as wire
from tests.simulated.client import CASE, CELL, SCENARIO, WORKER, Client, Spawn, faulty, opened, turns
from tests.simulated.scenario import Fault, Noise, Scenario, Time


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    """spawn(scenario, side=..., epoch=..., mount=...) starts a worker and sends it `start` (not with begin=False)."""
    clients: list[Client] = []
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    def make(scenario: Scenario = SCENARIO, begin: bool = True, **start: Any) -> Client:
        client = Client(scenario.write(tmp_path / "scenario.json"), tmp_path)
        clients.append(client)
        if begin:
            ready = client.ask(wire.Start(device="cpu", side=start.pop("side", "base"), scratch=str(scratch), **start))
            assert isinstance(ready, wire.Ready)
        return client

    yield make
    for client in clients:
        client.end()


def test_scenario_round_trip() -> None:
    full = replace(
        SCENARIO,
        noise=[Noise(turn=0.01, cell="w/*")],
        times=[Time(ns=5.0), Time(factor=1.1, side="target")],
        faults=[Fault("exit:3", "open", epoch=2)],
    )
    assert Scenario.from_json(full.to_json()) == full


@pytest.mark.parametrize(
    "spoil",
    [
        lambda loose: loose.update(surprise=1),
        lambda loose: loose["workloads"]["w"].update(surprise=1),
        lambda loose: loose["faults"].append({"do": "hang", "verb": "turn", "surprise": 1}),
        lambda loose: loose["times"].append({"surprise": 1}),
    ],
)
def test_scenario_refuses_unknown_keys(spoil: Callable[[dict[str, Any]], None]) -> None:
    loose = json.loads(SCENARIO.to_json())
    spoil(loose)
    with pytest.raises(TypeError, match="surprise"):
        Scenario.from_json(json.dumps(loose))


def test_times_rules() -> None:
    rules = [
        Time(ns=100.0),
        Time(ns=200.0, cell="w/n=2*"),
        Time(factor=1.5, side="target"),
        Time(factor=2, arm="peer:*"),
        Time(factor=3, side="base", cell="z/*"),
    ]
    scenario = replace(SCENARIO, times=rules)
    assert scenario.ns("base", "w/n=1", "") == 100
    assert scenario.ns("target", "w/n=2", "") == 300
    assert scenario.ns("base", "w/n=2", "peer:lib") == 400
    assert scenario.ns("control", "z/n=1", "") == 300
    with pytest.raises(ValueError, match="no time"):
        replace(SCENARIO, times=[]).ns("base", "w/n=1", "")


def test_every_verb_answers_with_its_record(spawn: Spawn, tmp_path: Path) -> None:
    client = spawn(begin=False)
    scratch = str(tmp_path / "scratch")
    ready = client.ask(wire.Start(device="cpu", side="target", scratch=scratch, epoch=1))
    assert isinstance(ready, wire.Ready)
    described = client.ask(wire.Describe("w"))
    assert (described.kernel, described.variants, described.peers) == ("k", ("v1",), ("lib",))
    assert described.presets == {
        "default": [(["n"], [[1], [2]]), (["mask"], [["full"]])],
        "zipped": [(["a", "b"], [[1, 2], [3, 4]])],
    }
    assert described.phases == (
        wire.Phase("run", "k.run", "the kernel itself"),
        wire.Phase("cast", "k.cast", "never runs"),
    )
    screened = client.ask(wire.Screen("w", [CASE, {**CASE, "n": 2}]))
    assert screened == wire.Screened(["", "too large here"], [1e9, 1e9], [1e6, 1e6], ["simulated", "simulated"])
    assert client.ask(wire.Build()) == wire.Built(has_build=True, seconds=0.0)
    assert opened(client) == wire.Opened(1e6, 0.0, 1 << 20)
    checked = client.ask(wire.Check(arm="a", expected="expected", sample="sample"))
    assert (checked.ok, checked.max_abs, checked.base_max_abs) == (True, 1e-6, None)
    again = client.ask(wire.Check(arm="a", expected="expected", sample="sample2", against="sample"))
    assert (again.digest, again.base_max_abs) == (checked.digest, 0.0)
    turned = client.ask(wire.Turn(arm="a", calls=3, timer="cpu_clock"))
    assert turned == wire.Turned(value=1e6, wall=1e6, start=1_001_000, end=4_001_000)
    assert client.ask(wire.Phases("a", 2)) == wire.Phased({"run": 0.75e6, "cast": None}, 1e6)
    assert client.ask(wire.Prove()) == wire.Proved(True, "", [], 0)
    assert client.ask(wire.Close()) == wire.Done()
    assert client.ask(wire.Turn(arm="a", calls=1, timer="cpu_clock")).status == "crash"
    assert client.ask(wire.Stop()) == wire.Done()
    assert client.process.wait(60) == 0


def test_a_worker_dies_with_its_parent(tmp_path: Path) -> None:
    """Also when it hangs: a parent that is killed cannot clean up."""
    path = faulty(Fault("hang", "start")).write(tmp_path / "scenario.json")
    parent = f"""
import fcntl, os, subprocess, termios, time
reads, request = os.pipe()
argv = {[sys.executable, "-P", str(WORKER)]!r} + ["--in", str(reads), "--out", "1"]
child = subprocess.Popen(argv, pass_fds=(reads,))
os.write(request, {wire.dump({"id": 1, "do": "start", "args": wire.pack(wire.Start("cpu", "base"))})!r})
while any(fcntl.ioctl(reads, termios.FIONREAD, bytes(4))):  # until it has read its request, and hangs
    time.sleep(0.01)
print(child.pid, flush=True)
time.sleep(3600)
"""
    environment = {"PATH": os.environ["PATH"], "ABPROF_SIMULATED": str(path)}
    killed = subprocess.Popen([sys.executable, "-c", parent], env=environment, stdout=subprocess.PIPE, text=True)
    assert killed.stdout
    worker = Path("/proc") / killed.stdout.readline().strip()
    assert alive(worker)
    killed.kill()
    killed.wait()
    killed.stdout.close()
    latest = time.monotonic() + 60
    while alive(worker):
        assert time.monotonic() < latest
        time.sleep(0.02)


def alive(process: Path) -> bool:
    """Whether the process of this folder in /proc runs: one that nobody has waited for yet (`Z`) does not."""
    try:
        return "Z" not in (process / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_unknown_arms_workloads_and_early_requests_are_faults(spawn: Spawn) -> None:
    client = spawn(begin=False)
    assert client.ask(wire.Describe("w")).status == "crash"
    client.ask(wire.Start(device="cpu", side="base"))
    assert "no workload 'x'" in client.ask(wire.Describe("x")).reason
    assert opened(client, variant="v9").status == "missing"
    assert opened(client, peer="nobody").status == "missing"
    assert opened(client, variant="v1").call_ns > 0
    assert opened(client, arm="b", peer="lib").call_ns > 0


def test_the_end_of_the_input_ends_the_worker(spawn: Spawn) -> None:
    client = spawn()
    os.close(client.request)
    assert client.process.wait(60) == 0
    client.request = os.open(os.devnull, os.O_RDONLY)


def test_same_scenario_same_numbers(spawn: Spawn) -> None:
    noise = Noise(turn=0.01, common=0.01, epoch=0.01)
    noisy = replace(SCENARIO, noise=[noise])
    first, second, other = spawn(noisy, epoch=2), spawn(noisy, epoch=2), spawn(noisy, epoch=3)
    for client in (first, second, other):
        opened(client)
    opened(second, arm="other", variant="v1")
    turns(second, 5, "other")
    values = turns(first, 30)
    assert values == turns(second, 30)
    assert values == [noisy.noisy("base", 2, CELL, "", n) for n in range(30)]
    assert not set(values) & set(turns(other, 30))
    assert noisy.noisy("base", 2, CELL, "", 0) != replace(noisy, seed=1).noisy("base", 2, CELL, "", 0)


def mount(root: Path, module: str = "abprof_side.k", allowed: list[str] | None = None) -> wire.Mount:
    return wire.Mount("k", str(root), module, str(root / "build"), [str(root)] if allowed is None else allowed)


def package(root: Path, folder: str, text: str) -> Path:
    (root / folder / "sub").mkdir(parents=True)
    (root / folder / "__init__.py").write_text(text)
    (root / folder / "sub" / "__init__.py").write_text("")
    (root / folder / "sub" / "deep.py").write_text("X = 1\n")
    (root / "build").mkdir()
    (root / "build" / "k.so").write_bytes(b"\x7fELF")
    return root


def proof(client: Client) -> Any:
    return client.ask(wire.Prove())


def test_proof_hashes_the_real_files(spawn: Spawn, tmp_path: Path) -> None:
    one, two = package(tmp_path / "one", "k", "a = 1\n"), package(tmp_path / "two", "k", "a = 2\n")
    same = package(tmp_path / "same", "k", "a = 1\n")
    first, second, third = (proof(spawn(mount=mount(root))) for root in (one, two, same))
    names = [(item.kind, item.name) for item in first.artefacts]
    assert names == [
        ("module", "abprof_side.k"),
        ("module", "abprof_side.k.sub"),
        ("module", "abprof_side.k.sub.deep"),
        ("object", "k.so"),
    ]

    def content(proved: wire.Proved) -> list[str]:
        return [item.sha256 for item in proved.artefacts]

    assert content(first) == content(third)
    assert content(first)[0] != content(second)[0]
    assert content(first)[1:] == content(second)[1:]
    assert first.ok
