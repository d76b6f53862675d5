"""On what workers get warm before they time anything."""

from __future__ import annotations

from typing import Any

from abprof.measure.timeouts import Hung
from abprof.measure.warmup import Warming
from abprof.records import Arm, Cell
from abprof.records import messages as wire

SIDES = tuple(Arm(id=id, side=id) for id in ("base", "target", "control"))
TARGET = (SIDES[1],)
KINDS = [("1", "bwd", 9.0), ("2", "bwd", 3.0), ("3", "bwd", 5.0), ("4", "fwd", 1.0)]
CELLS = [
    Cell(id=id, workload="w", kernel="k", suite="w", params={"direction": way, "n": int(id)}, flops=flops)
    for id, way, flops in KINDS
]


class Crew:
    """Whose target never answers."""

    def __init__(self) -> None:
        self.asked: list[dict[str, wire.Open]] = []

    def warm(self, opens: dict[str, wire.Open]) -> list[str]:
        self.asked.append(opens)
        return [side for side in opens if side == "target"]


def warming(crew: Crew, arms: dict[str, tuple[Arm, ...]], hung: Hung, number: int = 1, **usual: Any) -> Warming:
    return Warming(crew, CELLS, arms, usual, hung, number, seed=0)  # type: ignore[arg-type]


def test_no_time_is_spent_on_warming_what_hung() -> None:
    crew, hung, arms = Crew(), Hung(), {cell.id: SIDES for cell in CELLS}
    for number in (1, 2):
        warming(crew, arms, hung, number).warm(CELLS[0])
    assert [list(opens) for opens in crew.asked] == [["base", "target", "control"], ["base", "control"]]
    assert hung.not_again("1", SIDES[1], 1) == "not asked again in this epoch"
    assert not hung.not_again("1", SIDES[1], 2), "once may be the machine's doing"
    hung.note("1", SIDES[1], 2)
    assert hung.not_again("1", SIDES[1], 3) == "in two epochs, and not asked again"
    assert not hung.before("1", SIDES[2])


def test_what_was_loaded_before_is_not_loaded_again() -> None:
    crew = Crew()
    each = warming(crew, {cell.id: SIDES[::2] for cell in CELLS}, Hung())
    for cell in CELLS:
        each.before(cell)
    assert [opens["base"].case["n"] for opens in crew.asked] == [2, 4]
    assert [list(opens) for opens in crew.asked] == [["base", "control"]] * 2


def test_the_cheapest_of_what_loads_the_same_code() -> None:
    arms: dict[str, tuple[Arm, ...]] = {cell.id: TARGET for cell in CELLS}
    hung = Hung()

    def chosen(like: int, **usual: dict[str, float]) -> str:
        return warming(Crew(), arms, hung, **usual).cheapest(CELLS[like]).id

    assert [chosen(0), chosen(3)] == ["2", "4"], "by its work, before anything was timed"
    told = {"1": {"target": 2e6}, "2": {"target": 9e6}, "3": {"target": 5e6}}
    assert chosen(2, **told) == "1"
    hung.note("1", SIDES[1], 1)
    assert chosen(0, **told) == "3", "not what hung"
    assert chosen(0, **told | {"3": {}}) == "2", "nor what could not be opened"
    arms["1"] = arms["3"] = SIDES[1:]
    hung = Hung()
    told |= {"1": {"target": 2e7, "control": 2e7}, "3": {}}
    assert [chosen(0, **told), chosen(1, **told)] == ["1", "2"], "a worker that this one needs gets warm too"


def test_no_dear_call_is_made_to_get_warm() -> None:
    """Its cell makes an untimed one of each arm anyway. What nobody timed yet may be short."""

    def asked(**ms: float) -> list[int]:
        crew = Crew()
        known = {id: dict.fromkeys(("base", "target", "control"), 1e6 * each) for id, each in ms.items()}
        each = warming(crew, {cell.id: SIDES for cell in CELLS}, Hung(), **{"1": {}, "2": {}, "3": {}} | known)
        for cell in CELLS:
            each.before(cell)
        return [int(opens["base"].case["n"]) for opens in crew.asked]

    assert asked(**{"1": 260.0, "2": 250.0, "3": 199.0, "4": 400.0}) == [3], "forwards take 400 ms"
    assert asked(**{"1": 260.0, "2": 250.0, "3": 200.0, "4": 1.0}) == [4]
    assert asked() == [2, 4], "nobody knows of the first epoch"
