"""The next crew's processes, started while this one measures (abprof/measure/prefork.py)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from abprof.builds.worker_factory import Workshop
from abprof.devices.cpu import CpuDevice
from abprof.devices.device import SimulatedDevice
from abprof.measure import prefork as relay
from abprof.measure.pool import Crew, Post
from abprof.measure.prefork import Relay
from abprof.records import Build, Checkout, Package, Side
from tests.simulated.client import LOAD
from tests.simulated.processes import alive
from tests.simulated.scenario import Scenario
from tests.simulated.workshop import workshop


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    Scenario(workloads={"w": LOAD}).write(tmp_path / "scenario.json")
    return workshop(tmp_path)


@pytest.fixture
def posts(tmp_path: Path) -> list[Post]:
    made = []
    for id in ("base", "target"):
        side = Side(id=id, spec=id, kind="commit", commit="0" * 40, tree="0" * 40, label=id)
        build = Build(side=id, kernel="k", key="k", path=str(tmp_path / "build"))
        made.append(Post(id, Checkout(side=side, path=str(tmp_path)), Package(name="k"), build))
    return made


@pytest.fixture
def hand(shop: Workshop) -> Iterator[Relay]:
    with Relay(shop, SimulatedDevice()) as found:
        yield found


def pids(crew: Crew) -> list[int]:
    """Of its living workers."""
    return [pid for id in ("base", "target") if (pid := crew.pid(id)) is not None]


def waiting(hand: Relay) -> list[int]:
    return pids(hand._waiting) if hand._waiting is not None else []


def test_the_crew_that_was_awaited_works_with_the_processes_that_waited(hand: Relay, posts: list[Post]) -> None:
    hand.ahead(posts, 2)
    early = waiting(hand)
    assert len(early) == 2
    with hand.crew(posts, 2) as crew:
        assert sorted(pids(crew)) == sorted(early)
        assert all(proved.ok for proved in crew.prove().values())
        assert crew.start_order == ("target", "base")
    assert not any(alive(pid, wait=60) for pid in early)


@pytest.mark.parametrize(("epoch", "ahead"), [(3, slice(None)), (2, slice(1))])
def test_one_that_was_not_is_ended(hand: Relay, posts: list[Post], epoch: int, ahead: slice) -> None:
    hand.ahead(posts[ahead], 2)
    early = waiting(hand)
    with hand.crew(posts, epoch) as crew:
        assert not set(pids(crew)) & set(early)
        assert not any(alive(pid, wait=60) for pid in early)


def test_one_of_another_build_is_ended(hand: Relay, posts: list[Post]) -> None:
    hand.ahead(posts, 2)
    early = waiting(hand)
    build = msgspec.structs.replace(posts[1].build, key="another")
    with hand.crew([posts[0], dataclasses.replace(posts[1], build=build)], 2) as crew:
        assert not set(pids(crew)) & set(early)


@pytest.mark.parametrize("of", [0, 1])
def test_one_that_has_more_than_are_needed_works_without_the_others(hand: Relay, posts: list[Post], of: int) -> None:
    """The last cell that has a control was decided."""
    hand.ahead(posts, 2)
    early = waiting(hand)
    with hand.crew([posts[of]], 2) as crew:
        (pid,) = pids(crew)
        assert (pid in early, crew.start_order) == (True, (posts[of].id,))
        assert list(crew.prove()) == [posts[of].id]
        (other,) = set(early) - {pid}
        assert not alive(other, wait=60)


@pytest.mark.parametrize("epoch", [2, 3])
def test_who_starts_first_is_who_would_in_a_crew_of_those_alone(shop: Workshop, posts: list[Post], epoch: int) -> None:
    third = dataclasses.replace(posts[0], id="control")
    crew = Crew(shop, [*posts, third], epoch)
    assert crew.becomes(posts, epoch)
    assert crew.start_order == Crew(shop, posts, epoch).start_order
    assert not crew.becomes([*posts, third], epoch)


def test_a_process_that_died_waiting_is_started_again(hand: Relay, posts: list[Post]) -> None:
    hand.ahead(posts, 2)
    early = waiting(hand)
    os.kill(early[0], 9)
    assert not alive(early[0], wait=60)
    with hand.crew(posts, 2) as crew:
        assert len(pids(crew)) == 2
        assert len(set(pids(crew)) & set(early)) == 1


def test_nobody_waits_on_after_the_run(shop: Workshop, posts: list[Post]) -> None:
    with Relay(shop, SimulatedDevice()) as hand:
        hand.ahead(posts, 2)
        early = waiting(hand)
    assert early
    assert not any(alive(pid, wait=60) for pid in early)


def test_nobody_waits_where_they_would_take_what_is_measured(
    shop: Workshop, posts: list[Post], monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = Relay(shop, CpuDevice())
    cpu.ahead(posts, 2)
    assert not waiting(cpu)
    gpu = SimulatedDevice()
    gpu.kind = "cuda"  # type: ignore[assignment]
    monkeypatch.setattr(relay.os, "sched_getaffinity", lambda _: range(4))
    few = Relay(shop, gpu)
    few.ahead(posts, 2)
    assert not waiting(few)
    monkeypatch.setattr(relay.os, "sched_getaffinity", lambda _: range(16))
    with few:
        few.ahead(posts, 2)
        assert len(waiting(few)) == 2
