"""Faults at random: a round draws a scenario, what goes wrong in it, and what happens to abprof itself, from its number
alone, plays it, and says which of the promises (tests/simulated/promises.py) were broken. A number that found something is a
test from then on.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.simulated import promises
from tests.simulated.disturbances import LONGEST, SHARD_TROUBLES, TROUBLES, Moment
from tests.simulated.faults import gone
from tests.simulated.lab import Lab, Result
from tests.simulated.scenario import SPOIL, STATUS, Fault, Noise, Scenario, Time, Workload

TRUTH = {"w/case=like": "same", "w/case=slow": "slower", "w/case=fast": "faster", "w/case=alike": "same"}
_FACTORS = {"w/case=slow": 1.1, "w/case=fast": 0.9}
_DEEDS = ("exit:3", "exit:0", "crash", "kill", "partial", "close", "hang", "stubborn", "sigstop", "fork", "daemon",
          "print:200000", "eat", "gone")  # fmt: skip
_OF_A_CELL = ("open", "check", "turn", "phases", "close")
_OF_A_WORKER = ("start", "describe", "screen", "build", "prove", "stop")
_JUMPS = ("jump:3600", "jump:-3600", "jump:-0.01")
_ANSWERS_OF = {"turn": ("negative", "zero", "null", *_JUMPS), "check": ("wrong",), "phases": ("never_launched",),
               "prove": ("foreign_path", "compile:3")}  # fmt: skip
TIMEOUT = "8s"
COMMAND = ("main", "fast", "--timeout", TIMEOUT, "--build-timeout", TIMEOUT)
_MOST_WORKERS = 36  # that an undisturbed round begins, about

SPREAD = 1000  # from this number on a round's run is spread over two devices
DEVICES = ("simulated:0", "simulated:1")
_SPREAD_COMMAND = (*COMMAND, *(word for device in DEVICES for word in ("--device", device)))
_SPREAD_ENDS = ("none", "SIGKILL", "SIGKILL", "SIGINT", "SIGTERM", "stopped", "memory", "child SIGKILL",
                "child SIGSTOP", "child memory", *SHARD_TROUBLES, *SHARD_TROUBLES)  # fmt: skip
_ALL = TROUBLES | SHARD_TROUBLES
_PARTIAL = ("torn rounds", "torn run")  # what was measured is no longer all there: nothing is asked but that it is said


AT_ONCE = Moment(0, 0.0)


@dataclass(frozen=True)
class Round:
    """Return the round of a number."""

    number: int
    faults: tuple[Fault, ...]
    end: str  # key of TROUBLES: the disturbance of abprof, its machine or its files
    moment: Moment = AT_ONCE
    again: Moment | None = None  # when it is killed once more while it goes on

    @property
    def command(self) -> tuple[str, ...]:
        """The command line."""
        return _SPREAD_COMMAND if self.number >= SPREAD else COMMAND

    @property
    def summary(self) -> str:
        """One line for a report."""
        what = [
            f"{f.do} at {f.verb} of {f.side} {f.cell}"
            + (f" on {f.device}" if f.device != "*" else "")
            + (f" epoch {f.epoch}" if f.epoch else "")
            for f in self.faults
        ]
        return f"{'; '.join(what) or 'no fault'}; {self.end}"


def drawn(number: int) -> Round:
    """The round of that number: always the same one."""
    rng = random.Random(number)
    if number >= SPREAD:
        return _spread(number, rng)
    faults = tuple(_fault(rng) for _ in range(rng.choice((0, 0, 1, 1, 2, 3))))
    end = rng.choice(("none", "SIGKILL", *TROUBLES))
    again = _moment(rng) if end == "SIGKILL" and rng.random() < 0.3 else None
    return Round(number, faults, end, _moment(rng), again)


def _spread(number: int, rng: random.Random) -> Round:
    faults = tuple(replace(_fault(rng), device=rng.choice(("*", *DEVICES))) for _ in range(rng.choice((0, 0, 1, 1, 2))))
    if rng.random() < 0.3:
        word = rng.choice(("gone", "kill_parent"))
        cell = rng.choice(("*", *TRUTH))
        where = rng.choice(DEVICES) if word == "gone" else rng.choice(("*", *DEVICES))
        verb = rng.choice(_OF_A_CELL)
        faults += (Fault(word, verb, cell=cell, device=where, after=rng.choice((1, 2, 5)), once=rng.random() < 0.7),)
    end = rng.choice(_SPREAD_ENDS)
    again = _moment(rng) if end == "SIGKILL" and rng.random() < 0.3 else None
    return Round(number, faults, end, _moment(rng), again)


def _moment(rng: random.Random) -> Moment:
    return Moment(rng.randrange(_MOST_WORKERS), rng.choice((0.0, rng.uniform(0, 0.05), rng.uniform(0, 0.5))))


def _fault(rng: random.Random) -> Fault:
    verb = rng.choice((*_OF_A_CELL, *_OF_A_CELL, *_OF_A_WORKER))
    words = [*_DEEDS, *(word for word in sorted(SPOIL) if word != "bigreply"), *_ANSWERS_OF.get(verb, ()) * 3]
    words += sorted(STATUS) if verb == "open" else []
    fault = Fault(
        do=rng.choice(words), verb=verb, side=rng.choice(("base", "target", "target", "*")),
        cell=rng.choice(tuple(TRUTH)) if verb in _OF_A_CELL else "*", epoch=rng.choice((None, None, 1, 2, 4)),
        after=rng.choice((1, 1, 2, 5)), times=rng.choice((0, 1)), once=rng.random() < 0.3,
    )  # fmt: skip
    # A clock jumps now and then: one that always does so is a wrong timer, and what it says is the time.
    return replace(fault, times=1) if fault.word == "jump" else fault


def play(round_: Round, folder: Path) -> list[str]:
    """Play the round in a fresh laboratory. The promises that were broken, each in a line."""
    lab = Lab(folder, _scenario(round_))
    return promises.of_a_round(lab, _played(lab, round_), f"round {round_.number}: {round_.summary}")


def _played(lab: Lab, round_: Round) -> Iterator[str]:
    """The run, and when it did not come to its end how it goes on."""
    try:
        result = _ALL[round_.end](lab, round_.command, round_.moment, random.Random(round_.number))
        if _died(round_, result):
            yield from _goes_on(lab, round_)
            return
        yield from promises.of_a_run(result, TRUTH, spared=_spared(round_))
        if result.code in (2, 130) and round_.end not in _PARTIAL and not finished(result):
            yield from _goes_on(lab, round_)
    except AssertionError as endless:
        yield " | ".join(str(endless).splitlines())


def _spared(round_: Round) -> bool:
    """Whether every cell has its verdict in the end: nothing stood in its way, or the other of two devices had it."""
    if not round_.faults:
        return round_.end in _HARMLESS
    lone = len(round_.faults) == 1 and round_.end in ("none", "stopped")
    return lone and all(f.word == "gone" and f.device != "*" and f.verb in _OF_A_CELL for f in round_.faults)


def finished(result: Result) -> bool:
    """Whether the run ended by itself, as one does of which a base cannot be built: it is left as it is."""
    return bool(result.folder and (result.folder / "run.json").exists() and result.run.status == "complete")


# After each of these disturbances every cell has its verdict in the end.
_HARMLESS = ("none", "stopped", "spoilt cache", "spoilt state", "stale locks",
             "shard SIGKILL", "shard SIGSEGV", "shard SIGTERM")  # fmt: skip


def _died(round_: Round, result: Result) -> bool:
    """Whether abprof was killed, or ended without the memory for a message."""
    without_memory = round_.end == "memory" and result.code not in promises.CODES and "Traceback" not in result.err
    too_early = round_.end in ("SIGTERM", "SIGINT") and result.code < 0  # as any program: nothing was begun
    return (round_.end == "SIGKILL" and result.code < 0) or without_memory or too_early


def _scenario(round_: Round) -> Scenario:
    cases = [cell.rpartition("=")[2] for cell in TRUTH]
    load = Workload(kernel="k", presets={"default": {"case": cases}}, phases=[("run", "k.run", "all of it", 0.9)])
    times = [Time(ns=20e6), *(Time(factor=factor, side="target", cell=cell) for cell, factor in _FACTORS.items())]
    noise = [Noise(turn=0.002, epoch=0.0005)]
    return Scenario(workloads={"w": load}, times=times, noise=noise, faults=list(round_.faults), seed=round_.number)


def _goes_on(lab: Lab, round_: Round) -> Iterator[str]:
    """What was interrupted is continued, or begun again where nothing was there yet; now nothing more goes wrong, but
    that it may be killed once more."""
    lab.set(_scenario(Round(round_.number, (), "none")))
    for mark in (gone(lab.scenario, device) for device in ("simulated", *DEVICES)):
        mark.unlink(missing_ok=True)
    if round_.again:
        kept = kept_rounds(lab)
        result = _resumed(lab, round_, round_.again)
        yield from (f"killed again: {line}" for line in grew(lab, kept))
        if result.code >= 0:
            yield from (f"killed again: {line}" for line in promises.of_a_run(result, TRUTH, spared=False))
    kept = kept_rounds(lab)
    result = _resumed(lab, round_, None)
    yield from (f"then: {line}" for line in grew(lab, kept))
    yield from (f"then: {line}" for line in promises.of_a_run(result, TRUTH, spared=not round_.faults))
    if result.code not in (0, 1, 4) and not round_.faults:
        yield f"then: exit code {result.code}: {result.err[-300:]}"


def _resumed(lab: Lab, round_: Round, kill: Moment | None) -> Result:
    folder = lab.newest()
    if folder and (folder / "run.json").exists():
        command: tuple[str, ...] = ("run", "--resume", str(folder))
    else:
        command = round_.command
    if kill is None:
        return lab.abprof(*command, seconds=LONGEST)
    lab.scenario.with_name(f"{lab.scenario.name}.pids").unlink(missing_ok=True)  # the moment is counted anew
    return TROUBLES["SIGKILL"](lab, command, kill, random.Random(0))


def kept_rounds(lab: Lab) -> tuple[Path, bytes] | None:
    """The whole lines of the newest run's rounds.jsonl."""
    folder = lab.newest()
    path = folder / "rounds.jsonl" if folder else None
    if path is None or not path.exists():
        return None
    data = path.read_bytes()
    return path, data[: data.rfind(b"\n") + 1]


def grew(lab: Lab, kept: tuple[Path, bytes] | None) -> Iterator[str]:
    """Whether the earlier measurements are unchanged, byte for byte."""
    if kept is not None and kept[0].exists() and not kept[0].read_bytes().startswith(kept[1]):
        yield f"{kept[0].name} lost what it held"
