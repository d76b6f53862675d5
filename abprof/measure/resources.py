"""What a run holds while it lasts, and gives back however it ends: its sides' worktrees, its devices, what signals mean."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import types
from collections.abc import Iterator

from abprof import sides as repo
from abprof.builds import environment
from abprof.devices import Device, lease
from abprof.measure.run_context import Place
from abprof.records import Checkout
from abprof.records.errors import AbprofError
from abprof.system.console import View


@contextlib.contextmanager
def worktrees(place: Place, run_id: str, view: View) -> Iterator[tuple[Checkout, ...]]:
    """A worktree of each side while the block runs; where those are that are kept is said, and stands in the log."""
    keep, submodules = place.options.keep_worktrees, place.submodules
    with repo.checkouts(place.repository, place.sides, run=run_id, submodules=submodules, keep=keep) as made:
        for checkout in made if keep else ():
            view.say(f"{checkout.side.id}'s worktree is kept: {checkout.path}")
        if keep:
            view.say("abprof clean --all removes kept worktrees")
        yield made


@contextlib.contextmanager
def alone(place: Place, view: View, *, wait: bool) -> Iterator[Place]:
    """The devices for this run alone while the block runs: other abprofs are waited for, anybody else is refused. Of GPUs that
    nobody named those that somebody uses are left out, while there are others: the place that is left. From here on code
    under test may run, so this process's secrets are out of its reach."""
    environment.scrub_secrets(place.file.environment.allow)
    if place.options.executor:  # each shard has the lease of its own device, which may be this one
        yield place
        return
    with contextlib.ExitStack() as held:
        if len(place.devices) == 1 or place.options.device:
            for device in sorted(
                place.devices, key=lambda device: device.lease
            ):  # in one order: nobody waits in a circle
                _take(held, place, device, view, wait=wait)
            yield place
        else:
            yield dataclasses.replace(place, devices=_free(held, place, view, wait=wait))


def _take(held: contextlib.ExitStack, place: Place, device: Device, view: View, *, wait: bool) -> None:
    """Raises AbprofError where it cannot be had."""
    with contextlib.ExitStack() as kept:
        kept.enter_context(lease(place.state, device.lease, wait=wait, label=place.label, say=view.say))
        not_busy(device)
        held.push(kept.pop_all())


def _free(held: contextlib.ExitStack, place: Place, view: View, *, wait: bool) -> tuple[Device, ...]:
    """Those that nobody uses; where there is none, the first, which is waited for."""
    free = []
    for device in place.devices:
        try:
            _take(held, place, device, view, wait=False)
            free.append(device)
        except AbprofError as error:
            view.say(f"{device.lease} is left out: {error.what}")
    if not free:
        _take(held, place, place.devices[0], view, wait=wait)
    return tuple(free) or place.devices[:1]


def not_busy(device: Device) -> None:
    """Raises AbprofError where somebody who is no abprof uses the device."""
    busy = device.busy()
    if busy:
        raise AbprofError(busy[0], where=device.lease, advice=busy[1])


@contextlib.contextmanager
def signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end a run as ^C does: what was begun is put away, and a run that measures writes its report.

    A signal that is ignored stays ignored: `nohup abprof ...` outlives its terminal.
    """

    def stop(_number: int, _frame: types.FrameType | None) -> None:
        raise KeyboardInterrupt

    heard = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
