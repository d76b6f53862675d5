"""Faults at random: a round draws a scenario, what goes wrong in it, and what happens to abprof itself, from its number
alone, runs it, and says which of the promises were broken. A number that found something is a test from then on.

What is promised whatever goes wrong: no cell is lost or there twice; a verdict is the programmed one, or says why there is
none; a cell that no fault touched has its verdict; no process and no worktree stays; the user's repository is as it
was; abprof itself never fails (exit code 3, a traceback).
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from tests.simulated.lab import Lab, Result
from tests.simulated.scenario import SPOIL, STATUS, Fault, Noise, Scenario, Time, Workload

TRUTH = {"w/case=like": "same", "w/case=slow": "slower", "w/case=fast": "faster", "w/case=alike": "same"}
_FACTORS = {"w/case=slow": 1.1, "w/case=fast": 0.9}
_DEEDS = ("exit:3", "exit:0", "crash", "kill", "partial", "close", "hang", "stubborn", "fork", "daemon", "print:200000")
_OF_A_CELL = ("open", "check", "turn", "phases", "close")
_OF_A_WORKER = ("start", "describe", "screen", "build", "prove", "load", "stop")
_ANSWERS_OF = {"turn": ("negative", "zero", "null"), "check": ("wrong",), "phases": ("never_launched",),
               "prove": ("foreign_path", "compile:3")}  # fmt: skip
_HANGS = {"hang", "stubborn", "close"}
ENDS = ("none", "SIGKILL", "SIGINT", "SIGTERM", "spoilt cache", "spoilt rounds")
TIMEOUT = "8s"


@dataclass(frozen=True)
class Round:
    """What a number stands for."""

    number: int
    faults: tuple[Fault, ...]
    end: str  # of ENDS: what happens to abprof, or to its files
    after: float  # seconds until it does

    @property
    def told(self) -> str:
        """In a line, for a report."""
        what = [
            f"{f.do} at {f.verb} of {f.side} {f.cell}" + (f" epoch {f.epoch}" if f.epoch else "") for f in self.faults
        ]
        return f"round {self.number}: {'; '.join(what) or 'no fault'}; {self.end}"


def drawn(number: int) -> Round:
    """The round of that number: always the same one."""
    rng = random.Random(number)
    faults = tuple(_fault(rng) for _ in range(rng.choice((0, 1, 1, 2, 3))))
    return Round(number, faults, rng.choice(("none", *ENDS)), rng.uniform(0.1, 4.0))


def _fault(rng: random.Random) -> Fault:
    verb = rng.choice((*_OF_A_CELL, *_OF_A_CELL, *_OF_A_WORKER))
    words = [*_DEEDS, *(word for word in sorted(SPOIL) if word != "bigreply"), *_ANSWERS_OF.get(verb, ()) * 3]
    words += sorted(STATUS) if verb == "open" else []
    return Fault(
        do=rng.choice(words),
        verb=verb,
        side=rng.choice(("base", "target", "target", "*")),
        cell=rng.choice(tuple(TRUTH)) if verb in _OF_A_CELL else "*",
        epoch=rng.choice((None, None, 1, 2, 4)),
        after=rng.choice((1, 1, 2, 5)),
        times=rng.choice((0, 1)),
        once=rng.random() < 0.3,
    )


def play(round_: Round, folder: Path) -> list[str]:
    """Play the round in a fresh laboratory. The promises that were broken, each in a line."""
    lab = Lab(folder, _scenario(round_))
    before = lab.fingerprint()
    try:
        result, killed = _run(lab, round_)
    except AssertionError as endless:
        return [f"{str(endless).splitlines()[0]} ({round_.told})"]
    too_early = result.code == -signal.SIGTERM and result.folder is None  # as any program: nothing was begun
    broken = [] if killed or too_early else _of_a_run(round_, result)
    if killed or too_early or (result.folder and result.code == 130):
        broken += _goes_on(lab, round_)
    cleaned = lab.command("clean")
    broken += [f"clean: {line}" for line in _of_a_command(cleaned)]
    broken += [f"left behind: {line}" for line in lab.left_behind()]
    now = lab.fingerprint()
    changed = [path for path in before.keys() | now.keys() if before.get(path) != now.get(path)]
    broken += [f"the user's repository: {path} changed" for path in changed]
    return [f"{line} ({round_.told})" for line in broken]


def _scenario(round_: Round) -> Scenario:
    cases = [cell.rpartition("=")[2] for cell in TRUTH]
    load = Workload(kernel="k", presets={"default": {"case": cases}}, phases=[("run", "k.run", "all of it", 0.9)])
    times = [Time(ns=20e6), *(Time(factor=factor, side="target", cell=cell) for cell, factor in _FACTORS.items())]
    noise = [Noise(turn=0.002, epoch=0.0005)]
    return Scenario(workloads={"w": load}, times=times, noise=noise, faults=list(round_.faults), seed=round_.number)


def _run(lab: Lab, round_: Round) -> tuple[Result, bool]:
    """The run, and whether abprof was killed in it."""
    command = ("main", "fast", "--timeout", TIMEOUT, "--build-timeout", TIMEOUT)
    if round_.end == "spoilt cache":
        lab.abprof(*command)
        _spoil(lab.cache, random.Random(round_.number))
    if not round_.end.startswith("SIG"):
        result = lab.abprof(*command)
        if round_.end == "spoilt rounds" and result.folder:
            _tear(result.folder / "rounds.jsonl", random.Random(round_.number))
            result = lab.command("report", str(result.folder))
        return result, False
    process = lab.start(*command)
    try:
        process.wait(timeout=round_.after)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.Signals[round_.end])
    result = lab.finish(process)
    return result, result.code == -signal.SIGKILL


def _goes_on(lab: Lab, round_: Round) -> list[str]:
    """What was interrupted is continued, or begun again where nothing was there yet; now nothing more goes wrong."""
    folder = lab.newest()
    lab.set(_scenario(Round(round_.number, (), "none", 0.0)))
    if folder and (folder / "run.json").exists():
        result = lab.command("run", "--resume", str(folder), "--repo", str(lab.repo.path))
    else:
        result = lab.abprof("main", "fast")
    return [f"then: {line}" for line in _of_a_run(round_, result)]


def _of_a_command(result: Result) -> list[str]:
    return [f"exit code {result.code}: {result.err[-300:]}"] if result.code == 3 or "Traceback" in result.err else []


def _of_a_run(round_: Round, result: Result) -> list[str]:
    broken = _of_a_command(result)
    if result.code not in (0, 1, 2, 4, 130) and not broken:
        broken.append(f"exit code {result.code}")
    if broken or result.folder is None or not (result.folder / "run.json").exists():
        return broken or ([] if result.code in (2, 130) else [f"exit code {result.code} and no run.json"])
    run = result.run
    cells = [cell.id for cell in run.cells]
    rows = [row.cell for row in run.comparisons if row.to == "target"]
    if run.status == "running":
        broken.append("run.json says running")
    if cells and sorted(cells) != sorted(TRUTH):
        broken.append(f"cells: {cells}")
    if cells and run.status == "complete" and sorted(rows) != sorted(cells):
        broken.append(f"rows: {rows}")
    for row in run.comparisons:
        allowed = {TRUTH[row.cell]} if _spared(round_, row.cell, result) else {TRUTH[row.cell], "unclear", "broken"}
        if row.verdict not in allowed:
            broken.append(f"{row.cell} is {row.verdict} {row.reasons}, not {' or '.join(sorted(allowed))}")
    text = (result.folder / "run.json").read_text()
    json.loads(text, parse_constant=lambda word: broken.append(f"{word} in run.json"))
    return broken


def _spared(round_: Round, cell: str, result: Result) -> bool:
    """Whether nothing stood in the way of the cell's verdict: no fault of its own or of a whole worker, and no end."""
    own = [fault for fault in round_.faults if fnmatchcase(cell, fault.cell)]
    return not own and round_.end == "none" and result.run.status == "complete"


def _spoil(cache: Path, rng: random.Random) -> None:
    """Some of abprof's cached files are cut short, emptied, filled with something else, or gone."""
    files = sorted(path for path in cache.rglob("*") if path.is_file() and "harness" not in path.parts)
    for path in rng.sample(files, min(len(files), 5)):
        how = rng.choice(("cut", "empty", "other", "gone"))
        if how == "gone":
            path.unlink()
            continue
        data = path.read_bytes()
        path.chmod(0o644)
        path.write_bytes({"cut": data[: len(data) // 2], "empty": b"", "other": rng.randbytes(64)}[how])


def _tear(rounds: Path, rng: random.Random) -> None:
    """The last line is cut, or one in the middle is another."""
    if not rounds.exists() or not (data := rounds.read_bytes()):
        return
    if rng.random() < 0.5:
        rounds.write_bytes(data[: -rng.randint(1, 200)])
        return
    at = rng.randrange(len(data))
    rounds.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
