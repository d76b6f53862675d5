"""Partitions of an emulated kernel taking turns: one runs at a time, and a seed decides which.

Real threads would find a planted race on one machine and miss it on the next. Here every order of events comes from a
seed: partitions have priorities that change at random (Burckhardt et al., "A randomized scheduler with probabilistic
guarantees of finding bugs", ASPLOS 2010), so one runs far ahead of another and then falls behind it. When nobody can go
on, that is a deadlock, known at once.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

CHANGE = 0.1  # the chance that a partition gets a new priority when it gives way
LATE = 0.5  # the chance that a copy that could be done is done before a partition goes on


class Deadlock(RuntimeError):
    """Nobody can go on."""


@dataclass(eq=False)
class _Partition:
    thread: threading.Thread
    priority: float
    ready: Callable[[], bool] = lambda: True
    why: str = ""
    turn: threading.Event = field(default_factory=threading.Event)
    ended: bool = False


class Scheduler:
    """Runs functions as threads of which one at a time goes on, until each `give_way` or `wait`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._partitions: list[_Partition] = []
        self._late: list[Callable[[], None]] = []
        self._here = threading.local()
        self._error: BaseException | None = None
        self._over = threading.Event()

    def run(self, functions: list[Callable[[], Any]]) -> None:
        """Run all of them to their end.

        Raises
        ------
        Deadlock
            When no partition can go on; otherwise the first error of a partition.
        """
        for function in functions:
            thread = threading.Thread(target=self._body, args=(function, len(self._partitions)), daemon=True)
            self._partitions.append(_Partition(thread, self.random.random()))
        for partition in self._partitions:
            partition.thread.start()
        self._pass_on()
        self._over.wait()
        for partition in self._partitions:
            partition.turn.set()
            partition.thread.join()
        self._partitions.clear()
        if self._error is not None:
            raise self._error

    def later(self, copy: Callable[[], None]) -> None:
        """Do it at some time after now, before, between or after other such copies."""
        self._late.append(copy)

    def give_way(self) -> None:
        self.wait(lambda: True)

    def wait(self, ready: Callable[[], bool], why: str = "") -> None:
        """Let the others go on until it is this partition's turn and `ready()` holds."""
        me: _Partition | None = getattr(self._here, "partition", None)
        if me is None:  # the program's own beginning, before its partitions
            while not ready():
                if not self._late:
                    raise Deadlock(why)
                self._copy()
            return
        me.ready, me.why = ready, why
        if self.random.random() < CHANGE:
            me.priority = self.random.random()
        me.turn.clear()
        self._pass_on()
        self._await(me)

    def _body(self, function: Callable[[], Any], number: int) -> None:
        me = self._here.partition = self._partitions[number]
        try:
            self._await(me)
            function()
        except BaseException as error:
            self._error = self._error or error
            self._over.set()
        finally:
            me.ended = True
            self._pass_on()

    def _await(self, me: _Partition) -> None:
        me.turn.wait()
        if self._over.is_set():
            raise SystemExit

    def _pass_on(self) -> None:
        """Choose who goes on. Called by the one who runs, or by the last to end."""
        if self._over.is_set():
            return
        while True:
            going = [p for p in self._partitions if not p.ended]
            able = [p for p in going if p.ready()]
            if self._late and (not able or self.random.random() < LATE):
                self._copy()
                continue
            if able:
                max(able, key=lambda p: p.priority).turn.set()
                return
            if going:
                self._error = Deadlock("; ".join(p.why for p in going))
            self._over.set()
            return

    def _copy(self) -> None:
        self._late.pop(self.random.randrange(len(self._late)))()
