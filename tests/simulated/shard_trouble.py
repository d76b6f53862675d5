"""What happens to a shard while its run goes on: its program is ended, stopped or left without memory, its news is cut."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.simulated.lab import Lab, Result
from tests.simulated.trouble import LONGEST, Command, Moment, Trouble, hit

CUTTING = Path(__file__).with_name("cutting.py")


def shard(how: str) -> Trouble:
    """The program of a shard that is out at that moment is sent a signal, or gets no more memory."""

    def struck(lab: Lab, command: Command, moment: Moment, rng: random.Random) -> Result:
        process = lab.start(*command)
        while moment.wait(lab, process):
            if found := sorted(_programs(process.pid), key=lambda one: one.pid):
                hit(rng.choice(found), how)
                break
        return lab.finish(process, LONGEST)

    return struck


def _programs(parent: int) -> Iterator[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        for one in psutil.Process(parent).children():
            with contextlib.suppress(psutil.Error):
                if "abprof.fleet" in one.cmdline():
                    yield one


def news_cut(lab: Lab, command: Command, moment: Moment, rng: random.Random) -> Result:
    """Of what the programs of shards say a line is lost, torn, spoilt or said twice."""
    env = {"CUTS": str(rng.randrange(1 << 30))}
    return lab.finish(lab.start(*command, program=("-P", str(CUTTING)), env=env), LONGEST)


SHARD_TROUBLES: dict[str, Trouble] = {
    "shard SIGKILL": shard("SIGKILL"),
    "shard SIGSEGV": shard("SIGSEGV"),
    "shard SIGTERM": shard("SIGTERM"),
    "shard SIGSTOP": shard("SIGSTOP"),
    "shard memory": shard("memory"),
    "news cut": news_cut,
}
