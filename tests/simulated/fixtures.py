"""The fixture that starts simulated workers and ends them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from abprof.records import messages as wire
from tests.simulated.client import SCENARIO, Client, Spawn
from tests.simulated.scenario import Scenario


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
