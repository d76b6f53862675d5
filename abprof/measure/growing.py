"""The ground while packages are built: each package's cells join it as soon as its builds on all sides are there.

Where several GPUs measure, all but the first begin while others' work is still being built (`overlapping`): builders run on the
first what they compile, so it joins when they are done. Else everything is built first, and the ground is whole from the
beginning.

What is to become of a cell may follow from builds that are not there yet, so:
- Packages of identical code wait for all others: a few of all their cells are measured, at random. So do those that no side has,
  for where no side has any nothing is measured at all.
- Which cells get a control is chosen before anything is built. Where that falls on cells of identical code, more of these are
  measured all the same, so that a run has as many controls as ever.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import chain

from abprof.builds.stage import build_kernels, builds_under_way, nowhere, on_some_side, to_build, told
from abprof.builds.tampering import Watch
from abprof.fleet import processors
from abprof.measure import plan
from abprof.measure.arms import (
    Choice,
    all_are_measured,
    arms_of,
    bare,
    has_controls,
    identical_cells,
    lay,
    lay_ground,
    measured_all_the_same,
)
from abprof.measure.epochs import Ground
from abprof.measure.prepare import Plan
from abprof.measure.run_context import Place
from abprof.records import Arm, Build
from abprof.store.record import Record

_MOMENT = "while kernels were built"


class Growing:
    """A ground that is whole."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.expected: Mapping[
            str, tuple[Arm, ...]
        ] = {}  # cells to come that will be measured, and their arms, as far as known

    @property
    def coming(self) -> bool:
        """Whether more cells are to come."""
        return False

    @property
    def builders_on(self) -> str:
        """The device (its lease) on which builders run what they compile just now, so that nothing may be timed there; "" for
        none."""
        return ""

    def grow(self) -> None:
        """Take in what is built by now."""

    def wait(self, seconds: float) -> None:
        """Until something more is built, and no longer than this."""


@contextlib.contextmanager
def laid(place: Place, ready: Plan, record: Record, watch: Watch, *, beside: bool) -> Iterator[Growing]:
    """The ground, with all packages built; or, where builds go on `beside` measuring, as they are. With the end of the block
    those that are not built are given up. Raises AbprofError."""
    if not beside:
        builds = build_kernels(place, ready, record.view)
        ground = lay_ground(place, ready, builds, record)
        record.note(watch.built(builds, _MOMENT))
        yield Growing(ground)
        return
    _, cpus = processors.divided(sorted(os.sched_getaffinity(0)), len(place.devices), builders=True)
    with builds_under_way(place, ready, record.view, cpus) as made:
        yield _ByPackage(place, ready, record, watch, made)


def overlapping(place: Place, ready: Plan) -> bool:
    """Whether builds may go on while devices measure: on several devices of this host, which time themselves, and with more
    processors than these need. A host's clock would read what builders take. A run that is gone on with has its builds made
    first: whether they are what they were is known before anything is added to it."""
    if len(place.devices) < 2 or place.config.executor or ready.head.builds or len(to_build(ready)) < 2:
        return False
    spare = len(os.sched_getaffinity(0)) > len(place.devices) or place.device.kind == "simulated"
    return spare and all(load.judge != "wall" for load in ready.survey.workloads)


class _ByPackage(Growing):
    """A ground that packages join."""

    def __init__(
        self, place: Place, ready: Plan, record: Record, watch: Watch, made: Mapping[str, list[Future[Build]]]
    ) -> None:
        super().__init__(bare(place, ready, record))
        self._place, self._ready, self._record, self._watch = place, ready, record, watch
        self._made = dict(made)  # package -> its builds, which have not been looked at
        self._seen = set[Future[Build]]()
        self._builds: list[Build] = []
        self._waiting: list[Build] = []  # of packages that wait for all others
        self._left = list(ready.survey.cells)
        measured = [cell for cell in self._left if cell.kernel and not cell.skip]
        self._measured = [cell.id for cell in measured]
        self._controlled = frozenset(plan.controls(measured, set()) if has_controls(place) else ())
        self.expected = {cell.id: arms_of(place, ready, (), cell, self._controlled) for cell in measured}

    @property
    def coming(self) -> bool:
        return bool(self._left)

    @property
    def builders_on(self) -> str:
        return self._place.device.lease if self._made else ""

    def wait(self, seconds: float) -> None:
        wait([one for one in chain.from_iterable(self._made.values()) if not one.done()], seconds, FIRST_COMPLETED)

    def grow(self) -> None:
        self._see()
        joining = list[Build]()
        for name in [name for name, made in self._made.items() if all(one.done() for one in made)]:
            builds = [one.result() for one in self._made.pop(name)]
            told(builds, self._record.view)
            self._builds += builds
            (self._waiting if self._waits(builds) else joining).extend(builds)
        if joining:
            same = frozenset(identical_cells(self._ready, joining))
            self._join({made.kernel for made in joining}, joining, Choice(same, same, self._controlled))
        if self._left and not self._made:
            self._close()

    def _see(self) -> None:
        """Builds are watched from when they are made, for code under test runs meanwhile; all of them are before a cell of
        theirs goes out."""
        made = [one for one in chain.from_iterable(self._made.values()) if one.done() and one not in self._seen]
        last = all(one.done() for one in chain.from_iterable(self._made.values()))
        if made:
            self._seen |= set(made)
            self._record.note(self._watch.built([one.result() for one in made], _MOMENT, last=last))

    def _waits(self, builds: Sequence[Build]) -> bool:
        """Whether what becomes of a package's cells follows from all builds."""
        alike = not all_are_measured(self._place, self._ready) and identical_cells(self._ready, builds)
        return nowhere(builds) or bool(alike)

    def _close(self) -> None:
        """All is built: what has waited for that, and what no package is needed for."""
        order = list(self._ready.packages)
        for builds in (self._builds, self._waiting):
            builds.sort(key=lambda made: order.index(made.kernel))
        on_some_side(self._place, self._builds)
        same = identical_cells(self._ready, self._waiting)
        anyway = measured_all_the_same(self._place, self._ready, same)
        without = sorted(self._controlled & same - anyway)  # cells that were to have a control, and are not measured
        candidates = [id for id in self._measured if id not in same or id in anyway]
        enough = min(len(self._controlled), len(candidates))
        anyway |= set(without[: max(0, enough - len((self._controlled - same) | anyway))])
        controlled = self._controlled - same | (anyway if self._controlled else set())
        choice = Choice(frozenset(same), frozenset(anyway), frozenset(controlled))
        self._join({cell.kernel for cell in self._left}, self._waiting, choice)

    def _join(self, kernels: set[str], builds: Sequence[Build], choice: Choice) -> None:
        cells = [cell for cell in self._left if cell.kernel in kernels]
        self._left = [cell for cell in self._left if cell.kernel not in kernels]
        self.ground = lay(self._place, self._ready, self._record, tuple(builds), cells, choice, self.ground)
        self.expected = {id: arms for id, arms in self.expected.items() if id not in self.ground.arms}
