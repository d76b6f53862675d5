"""Who comes first: in the rounds, at the start of the workers and at the opening, epoch by epoch (`turns.ranked`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from abprof.measure.arm_state import Request
from abprof.measure.graphs import Graphed
from abprof.measure.pool import Crew, Post
from abprof.measure.setup import Opening
from abprof.records import SUSTAINED, Arm, Block, Build, Cell, Checkout, Options, Package, Side
from abprof.records import messages as wire
from abprof.store.runfolder import read
from tests.simulated.planted import NewLab, load, new_lab, times
from tests.simulated.scenario import Scenario

__all__ = ["new_lab"]

CELL = Cell(id="w/case=a", workload="w", kernel="k", suite="w", params={"case": "a"})
THREE = ("base", "target", "control")
IN_TURN = ["btc", "tbc", "tcb", "bct", "cbt", "ctb"]


class Asked:
    """A crew that notes whom it asks, and for what."""

    token = "t"

    def __init__(self) -> None:
        self.of: list[tuple[str, str]] = []

    def worker(self, side: str) -> Any:
        def call(request: Any, timeout: float) -> Any:
            del timeout
            self.of.append((side[0], type(request).__name__))
            return wire.Opened("ok", "", 1e4, 1e4, None, 1e3) if isinstance(request, wire.Open) else wire.Captured()

        return SimpleNamespace(call=call)

    def who(self, verb: str) -> str:
        return "".join(side for side, asked in self.of if asked == verb)


def request(epoch: int) -> Request:
    settings = Options(threshold=1.5, margin=0.5, budget=1.0)
    arms = tuple(Arm(id=side, side=side) for side in THREE)
    return Request(CELL, arms, epoch, settings, check=False, profile=False, phases=False, judge="gpu", timeout=1.0)


def test_who_starts_first(tmp_path: Path) -> None:
    def order(epoch: int) -> Sequence[str]:
        side = Side(id="base", spec="base", kind="commit", commit="0" * 40, tree="0" * 40, label="base")
        build = Build(side="base", kernel="k", key="k", path=str(tmp_path))
        posts = [Post(id, Checkout(side=side, path=str(tmp_path)), Package(name="k"), build) for id in THREE]
        return Crew(SimpleNamespace(), posts, epoch).start_order  # type: ignore[arg-type]

    assert ["".join(id[0] for id in order(epoch)) for epoch in range(1, 7)] == IN_TURN


def test_who_opens_first() -> None:
    found = []
    for epoch in range(1, 7):
        crew: Any = Asked()
        Opening(crew, SimpleNamespace(kind="cuda"), request(epoch))._open_all()  # type: ignore[arg-type]
        found.append(crew.who("Open"))
    assert found == IN_TURN


def test_who_is_captured_first() -> None:
    found = []
    for epoch in range(1, 7):
        crew: Any = Asked()
        sitting = Graphed(crew, SimpleNamespace(kind="cuda"), request(epoch))  # type: ignore[arg-type]
        sitting._open_all()
        with pytest.raises(AttributeError):  # nobody takes turns here
            sitting._take_turns()
        found.append(crew.who("Capture"))
    assert found == IN_TURN


def places(block: Block) -> dict[str, int]:
    """Arm -> its place in the first round."""
    ordered = sorted(block.rounds[0], key=lambda turn: turn.start)
    return {block.arms[turn.arm]: place for place, turn in enumerate(ordered)}


def test_base_and_target_have_the_same_places_after_every_second_epoch(new_lab: NewLab) -> None:
    lab = new_lab(Scenario(workloads={"w": load(["a", "b", "c"])}, times=times()))
    result = lab.abprof("main", "fast", "--sustained", "--epochs", "8")
    _, blocks, _ = read(result.folder)
    for cell in {block.cell for block in blocks}:
        timed = [block for block in blocks if block.cell == cell and block.rounds]
        slices = [places(block) for block in timed if block.metric == SUSTAINED]
        judged = [places(block) for block in timed if block.judged]
        assert (len(slices), len(judged)) == (4, 8)
        for found in (slices, judged):
            for one, two in zip(found[::2], found[1::2], strict=True):
                assert (one["base"], one["target"]) == (two["target"], two["base"])
