"""What a run holds while it lasts, and releases however it ends: worktrees, devices, signal handlers."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import types
from collections.abc import Iterator

from abprof import sides as repo
from abprof.builds import environment
from abprof.devices import Device, lease
from abprof.measure.run_context import RunContext
from abprof.records import Checkout
from abprof.records.errors import AbprofError
from abprof.system.console import View


@contextlib.contextmanager
def worktrees(place: RunContext, run_id: str, view: View) -> Iterator[tuple[Checkout, ...]]:
    """A worktree of each side while the block runs; with --keep-worktrees they stay, and their paths are shown."""
    keep = place.options.keep_worktrees
    with repo.checkouts(place.repository, place.sides, run=run_id, submodules=place.submodules, keep=keep) as made:
        for checkout in made if keep else ():
            view.say(f"{checkout.side.id}'s worktree is kept: {checkout.path}")
        if keep:
            view.say("abprof clean --all removes kept worktrees")
        yield made


@contextlib.contextmanager
def alone(place: RunContext, view: View, *, wait: bool) -> Iterator[RunContext]:
    """Reserve the devices while the block runs, and yield the context with those that were reserved.

    Waits for other abprofs; raises AbprofError for any other user of a device. Among GPUs that no option names, those in
    use are left out if others are free. From here on code under test may run, so this process hides its secrets.
    """
    environment.scrub_secrets(place.file.environment.allow)
    if place.options.executor:  # each shard reserves its own device, which may be this one
        yield place
        return
    with contextlib.ExitStack() as held:
        if len(place.devices) == 1 or place.options.device:
            for device in sorted(place.devices, key=lambda device: device.lease):  # one order: no deadlocks
                _reserve(held, place, device, view, wait=wait)
            yield place
            return
        free = []
        for device in place.devices:
            try:
                _reserve(held, place, device, view, wait=False)
                free.append(device)
            except AbprofError as error:
                view.say(f"{device.lease} is left out: {error.what}")
        if not free:
            _reserve(held, place, place.devices[0], view, wait=wait)
        yield dataclasses.replace(place, devices=tuple(free) or place.devices[:1])


def _reserve(held: contextlib.ExitStack, place: RunContext, device: Device, view: View, *, wait: bool) -> None:
    with contextlib.ExitStack() as kept:
        kept.enter_context(lease(place.state, device.lease, wait=wait, label=place.label, say=view.say))
        not_busy(device)
        held.push(kept.pop_all())


def not_busy(device: Device) -> None:
    """Raises AbprofError if a process that is no abprof uses the device."""
    busy = device.busy()
    if busy:
        raise AbprofError(busy[0], where=device.lease, advice=busy[1])


@contextlib.contextmanager
def signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end a run as ^C does, with a report. An ignored signal stays ignored (nohup)."""

    def stop(_number: int, _frame: types.FrameType | None) -> None:
        raise KeyboardInterrupt

    handled = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
