"""The measuring of a command: each epoch one fresh process on every side, in an order that is random and balanced."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from abprof.devices import Device
from abprof.measure import turns
from abprof.measure.commands import process
from abprof.measure.commands.bench import AXIS, CONTROL, Bench, log
from abprof.measure.commands.process import Ended
from abprof.records import LONGEST_CALL, REPORTED, Arm, Block, Cell, MachineState, Outcome, Turn

RULE = "the command's own timing, a process of each side an epoch"
_ORDERS = 64  # that are drawn: more than epochs, and the same however many are measured


def epochs(
    bench: Bench,
    device: Device,
    wanted: Callable[[], set[str]],
    warn: Callable[[str], None],
    *,
    first: int,
    budget: float,
) -> Iterator[Block]:
    """Blocks of all cells, epoch by epoch, until none is wanted or another epoch does not fit into `budget` seconds.

    A process prints all that it measures, so cells that are decided get its further times too.
    """
    number, cost, told = first, 0.0, False
    while todo := wanted() & bench.arms.keys():
        if number > first and (bench.head.options.quick or cost > budget):
            return
        began, clock = time.time(), time.monotonic()
        device.watch(frozenset)  # whose processes the command's are is not known
        ended = {arm.id: _run(bench, arm, number) for arm in _order(bench, todo, number)}
        cost = time.monotonic() - clock
        budget -= cost
        told = told or _new_names(bench, ended, warn)
        bad, state = _bad(device, ended), device.state()
        for cell in (cell for cell in bench.head.cells if cell.id in bench.arms):
            yield _block(bench, cell, number, ended, (began, cost), (bad, state))
        number += 1


def _order(bench: Bench, todo: set[str], number: int) -> list[Arm]:
    """Who runs in this epoch, the control only where a cell that is not decided has one. Every second order mirrors the
    one before."""
    arms = list({arm.id: arm for cell in sorted(todo) for arm in bench.arms[cell]}.values())
    arms.sort(key=lambda arm: (arm.side == CONTROL, arm.id))
    orders = turns.orders(len(arms), max(_ORDERS, number), bench.head.options.seed)
    return [arms[place] for place in orders[number - 1]]


def _run(bench: Bench, arm: Arm, number: int) -> Ended:
    side = "base" if arm.side == CONTROL else arm.side
    return process.run(bench.stands[side], f"epoch {number}, {arm.id}", log(bench.logs, side), bench.timeout)


def _new_names(bench: Bench, ended: Mapping[str, Ended], warn: Callable[[str], None]) -> bool:
    """Say that names were printed that the first run did not print; they have no cell."""
    new = dict.fromkeys(name for each in ended.values() for name in each.readings.times if name not in bench.names)
    if new:
        warn(f"{len(new)} names are left out that the first run did not print (first: {next(iter(new))[:80]!r})")
    return bool(new)


def _bad(device: Device, ended: Mapping[str, Ended]) -> str:
    """What voids the epoch, by the rules fixed beforehand; "" for nothing."""
    start, end = min(each.began for each in ended.values()), max(each.ended for each in ended.values())
    return "; ".join(dict.fromkeys(why for begin, stop, why in device.bad_times() if begin <= end and stop >= start))


def _block(
    bench: Bench,
    cell: Cell,
    number: int,
    ended: Mapping[str, Ended],
    span: tuple[float, float],
    machine: tuple[str, MachineState],
) -> Block:
    name, (bad, state) = str(cell.params[AXIS]), machine
    arms = [arm for arm in bench.arms[cell.id] if arm.id in ended]
    outcomes = {arm.id: _outcome(bench, arm, ended[arm.id], name) for arm in arms}
    ran = [(place, ended[arm.id]) for place, arm in enumerate(arms) if outcomes[arm.id].status == "ok"]
    rounds = _rounds(ran, name, min(each.began for each in ended.values()))
    return Block(
        epoch=number,
        cell=cell.id,
        metric=REPORTED,
        timer="the command",
        calls=1,
        rule=RULE,
        arms=tuple(arm.id for arm in arms),
        began=span[0],
        seconds=span[1],
        rounds=rounds,
        rejected=tuple(range(len(rounds))) if bad else (),
        rejected_why=bad,
        outcomes=outcomes,
        state=state,
        start_order=tuple(ended),
        quick=bench.head.options.quick,
    )


def _outcome(bench: Bench, arm: Arm, ended: Ended, name: str) -> Outcome:
    """What became of one name in one process."""
    side = "base" if arm.side == CONTROL else arm.side
    where = log(bench.logs, side).name
    if ended.status != "ok":
        return Outcome(status=ended.status, reason=ended.reason, log=where)
    if name not in ended.readings.times:
        return Outcome(status="missing", reason="the command printed no such name", log=where)
    bad = next((ns for ns in ended.readings.times[name] if not 0 < ns <= LONGEST_CALL), None)
    if bad is not None:
        return Outcome(status="crash", reason=f"the command printed {bad / 1e6:g} ms, which is no time", log=where)
    return Outcome(status="ok")


def _rounds(ran: Sequence[tuple[int, Ended]], name: str, origin: int) -> tuple[tuple[Turn, ...], ...]:
    """The first times that the processes printed, then the second ones, and so on. Each spans its whole process: when it
    was within that is not known."""
    times = {place: ended.readings.times[name] for place, ended in ran}
    longest = max(map(len, times.values()), default=0)
    return tuple(
        tuple(
            Turn(place, ended.began - origin, ended.ended - origin, times[place][number], 0.0)
            for place, ended in sorted(ran, key=lambda one: one[1].began)
            if number < len(times[place])
        )
        for number in range(longest)
    )
