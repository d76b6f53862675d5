"""How long a GPU waits before a turn's calls with --untrusted (wire.Turn.lead), so that the host enqueues them ahead of it.

The parent's clock then reads the GPU's work, and not how quickly the host enqueues.
"""

from __future__ import annotations

import statistics

# Fewest calls of a turn with a lead: for fewer, waits before each call are shorter, and code under test could hide less in them.
_FEWEST = 4
_GUESS = 3e5  # ns for each call, until base's turns show what they need
_LEAST, _MOST = 1e5, 5e7  # ns
_MARGIN = 2.0  # the lead over what was needed: turns' hosts differ
_BLOCKED = 0.75  # share of such a lead that the host uses only if it waits for the GPU


class Lead:
    """The lead of a cell's turns, by what base's turns needed: a target could hide work in a longer one. It is the same for all
    turns of a round and, once base's turns have shown it, of an epoch: the quickest turns of an epoch are compared."""

    def __init__(self) -> None:
        self.ns = 0.0  # 0: the GPU waits before each call
        self._shown = False  # whether base's turns have shown what they need
        self._needed: dict[str, list[float]] = {}  # arm -> ns that its turns with this lead needed

    def begin(self, calls: int) -> None:
        """Begin an epoch with `calls` calls a turn."""
        usual = max((statistics.median(times) for times in self._needed.values()), default=0.0)
        if calls < _FEWEST:
            self.ns, self._shown = 0.0, False
        elif not self._shown:
            self.ns = min(_GUESS * calls, _MOST)
        elif usual > _BLOCKED * self.ns:  # too short or, as the host waits for the GPU, in vain
            self.ns = 0.0
        elif usual:
            self.ns = max(_MARGIN * usual, _LEAST)
        self._needed.clear()

    def note(self, arm: str, needed: float) -> None:
        """Note what a turn of an arm of base needed (wire.Turned.lead)."""
        if self.ns:
            self._needed.setdefault(arm, []).append(needed)

    def end_round(self) -> None:
        """Until base's turns have shown what they need, double a lead that was too short. The first turns of an epoch do not
        count: their hosts are slow."""
        times = self._needed.values()
        if self._shown or not times or min(map(len, times)) < 2:
            return
        last = max(of_arm[-1] for of_arm in times)
        if last > self.ns and 2 * self.ns <= _MOST:
            self.ns *= 2
            return
        self._shown, self.ns = True, max(_MARGIN * last, _LEAST) if last <= _MOST / _MARGIN else 0.0
        self._needed.clear()
