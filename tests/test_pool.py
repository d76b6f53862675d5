"""The next pool's processes, started while this one measures (Prefork)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from abprof.builds.worker_factory import WorkerFactory
from abprof.devices.cpu import CpuDevice
from abprof.devices.device import SimulatedDevice
from abprof.measure import pool as pools
from abprof.measure.pool import Prefork, WorkerPool, WorkerSpec
from abprof.records import Build, Checkout, Package, Side
from tests.simulated.client import LOAD, workshop
from tests.simulated.processes import alive
from tests.simulated.scenario import Scenario


@pytest.fixture
def factory(tmp_path: Path) -> WorkerFactory:
    Scenario(workloads={"w": LOAD}).write(tmp_path / "scenario.json")
    return workshop(tmp_path)


@pytest.fixture
def specs(tmp_path: Path) -> list[WorkerSpec]:
    made = []
    for id in ("base", "target"):
        side = Side(id=id, spec=id, kind="commit", commit="0" * 40, tree="0" * 40, label=id)
        build = Build(side=id, kernel="k", key="k", path=str(tmp_path / "build"))
        made.append(WorkerSpec(id, Checkout(side=side, path=str(tmp_path)), Package(name="k"), build))
    return made


@pytest.fixture
def hand(factory: WorkerFactory) -> Iterator[Prefork]:
    with Prefork(factory, SimulatedDevice()) as found:
        yield found


def pids(pool: WorkerPool) -> list[int]:
    """Of its living workers."""
    return [pid for id in ("base", "target") if (pid := pool.pid(id)) is not None]


def waiting(hand: Prefork) -> list[int]:
    return pids(hand._waiting) if hand._waiting is not None else []


def test_the_crew_that_was_awaited_works_with_the_processes_that_waited(hand: Prefork, specs: list[WorkerSpec]) -> None:
    hand.ahead(specs, 2)
    early = waiting(hand)
    assert len(early) == 2
    with hand.pool(specs, 2) as pool:
        assert sorted(pids(pool)) == sorted(early)
        assert all(proved.ok for proved in pool.prove().values())
        assert pool.start_order == ("target", "base")
    assert not any(alive(pid, wait=60) for pid in early)


@pytest.mark.parametrize(("epoch", "ahead"), [(3, slice(None)), (2, slice(1))])
def test_one_that_was_not_is_ended(hand: Prefork, specs: list[WorkerSpec], epoch: int, ahead: slice) -> None:
    hand.ahead(specs[ahead], 2)
    early = waiting(hand)
    with hand.pool(specs, epoch) as pool:
        assert not set(pids(pool)) & set(early)
        assert not any(alive(pid, wait=60) for pid in early)


def test_a_process_that_died_waiting_is_started_again(hand: Prefork, specs: list[WorkerSpec]) -> None:
    hand.ahead(specs, 2)
    early = waiting(hand)
    os.kill(early[0], 9)
    assert not alive(early[0], wait=60)
    with hand.pool(specs, 2) as pool:
        assert len(pids(pool)) == 2
        assert len(set(pids(pool)) & set(early)) == 1


def test_nobody_waits_where_they_would_take_what_is_measured(
    factory: WorkerFactory, specs: list[WorkerSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = Prefork(factory, CpuDevice())
    cpu.ahead(specs, 2)
    assert not waiting(cpu)
    gpu = SimulatedDevice()
    gpu.kind = "cuda"  # type: ignore[assignment]
    monkeypatch.setattr(pools.os, "sched_getaffinity", lambda _: range(4))
    few = Prefork(factory, gpu)
    few.ahead(specs, 2)
    assert not waiting(few)
    monkeypatch.setattr(pools.os, "sched_getaffinity", lambda _: range(16))
    with few:
        few.ahead(specs, 2)
        assert len(waiting(few)) == 2
