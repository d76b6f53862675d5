"""`python -m abprof.fleet FOLDER/N.json [--with PID]`: measure a shard; append its messages to FOLDER/N.jsonl."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from abprof.builds import in_use
from abprof.devices import not_busy
from abprof.fleet.messages import ALIVE, DEVICE, Ended, News, Shard, read_shard
from abprof.measure import Plan, RunContext, epochs, follow_up, look_around
from abprof.records import Block, Build, Item, Kernel, Placed, Proof
from abprof.records.errors import AbprofError, Exit
from abprof.system import checksummed
from abprof.system import processes as proc
from abprof.system.console import View
from abprof.verdict import undecided

_ALONE_AFTER = 600.0  # seconds after which a cluster's shard ends if the coordinator does not touch the file ALIVE
Notify = Callable[[News], None]


class _NewsView(View):
    def __init__(self, notify: Notify) -> None:
        super().__init__(quiet=True)
        self._notify = notify

    def say(self, line: str, style: str = "") -> None:  # noqa: ARG002
        self._notify(News(line=line))

    def warn(self, line: str) -> None:
        self._notify(News(warning=line))


def measure(shard: Shard, notify: Notify) -> float:
    """Measure a shard and return the seconds spent. Raises AbprofError or, at ^C and SIGTERM, KeyboardInterrupt."""
    view = _NewsView(notify)
    if shard.cpus:
        os.sched_setaffinity(0, shard.cpus)
    Path(shard.logs).mkdir(parents=True, exist_ok=True)
    options = shard.run.as_asked(shard.repository, shard.budget)
    own = (shard.device,) if shard.device else () if shard.run.machine.kind == "cuda" else options.device
    options = msgspec.structs.replace(options, device=own, probe=(), executor="", file=shard.file)
    place = look_around(options, view, shard.run)
    with (
        proc.no_orphans(),
        place.worktrees(f"{shard.run.id}/{shard.number}") as trees,
        contextlib.nullcontext(place) if shard.held else place.alone(view, wait=True) as place,
        in_use(place.cache),
    ):
        not_busy(place.device)
        plan = Plan.of(place, trees, Path(shard.logs), view)
        return _measure(place, plan, shard, notify, view)


def _measure(place: RunContext, plan: Plan, shard: Shard, notify: Notify, view: View) -> float:
    watch = plan.watched(place)
    plan = dataclasses.replace(plan, arms=shard.arms, identical=frozenset(shard.identical))
    builds = _builds(place, plan, shard, view)
    machine = place.device.machine()
    head = msgspec.structs.replace(plan.run, builds=builds, machine=machine)
    plan = dataclasses.replace(plan, run=head)
    # A GPU's lease has a name unique among machines; on every machine the processor's lease is called cpu.
    device = f"cpu@{machine.host}" if machine.kind == "cpu" and not shard.held else place.device.lease
    machine = msgspec.structs.replace(machine, ceilings=head.ceilings, builds=builds)
    notify(News(placed=Placed(device=device, machine=machine)))
    for touched in watch.built(builds, "before it was measured"):
        notify(News(touched=touched))
    blocks, proofs, measured = list(shard.blocks), list[Proof](), set[tuple[str, int]]()

    def wanted() -> set[str]:
        """Return the ids of undecided cells, and of cells with fewer epochs than the coordinator asked for."""
        few = {cell for cell, least in shard.least.items() if sum(cell == one for one, _ in measured) < least}
        return undecided(head, blocks, proofs) | few

    def followed_up() -> Iterator[Block]:  # once the epochs have ended
        after = max(shard.first, 1 + max((block.epoch for block in blocks), default=0))
        yield from follow_up(plan, (*shard.earlier, *blocks), after, began + shard.budget)

    began, seconds = time.monotonic(), 0.0
    for items in (epochs(plan, wanted, first=shard.first, budget=shard.budget), followed_up()):
        for item in items:
            if _failed(item) and (why := place.device.gone()):  # a lost device: every further cell would fail here
                raise AbprofError(why, where=place.device.lease)
            if isinstance(item, Kernel):
                notify(News(kernel=item))
            elif isinstance(item, Proof):
                proofs.append(msgspec.structs.replace(item, device=device, shard=shard.number))
                notify(News(proof=proofs[-1]))
            else:
                blocks.append(msgspec.structs.replace(item, device=device, shard=shard.number))
                measured.add((item.cell, item.epoch))
                notify(News(block=blocks[-1]))
                for touched in watch.look(f"in epoch {item.epoch}"):
                    notify(News(touched=touched))
        seconds = seconds or time.monotonic() - began
    for touched in watch.look("after the epochs", contents=True):
        notify(News(touched=touched))
    return seconds


def _builds(place: RunContext, plan: Plan, shard: Shard, view: View) -> tuple[Build, ...]:
    """Return the run's builds if this machine has them and the same toolchain; else build the same commits here."""
    kernels = {cell.kernel for cell in shard.run.cells}
    mine = tuple(build for build in shard.run.builds if build.kernel in kernels)
    chains = shard.run.toolchains
    same = all(chains[side].versions == chain for side, chain in plan.factory.toolchain.items() if side in chains)
    if same and all(build.failure or Path(build.path, "src").is_dir() for build in mine):
        return mine
    return plan.second_builds(plan.build_kernels(place, view), view)


def _failed(item: Item) -> bool:
    if isinstance(item, Block):
        return not {"crash", "timeout", "oom"}.isdisjoint(outcome.status for outcome in item.outcomes.values())
    return isinstance(item, Proof) and not item.ok


def _end_without(alive: Path, most: float) -> None:
    """Send SIGTERM to this process once the file `alive` is gone or has not been touched for `most` seconds."""
    last, since = 0.0, time.monotonic()
    while time.monotonic() - since < most:
        try:
            now = alive.stat().st_mtime
        except FileNotFoundError:
            break
        except OSError:  # a network's disk does not answer
            now = last
        if now != last:
            last, since = now, time.monotonic()
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)


def main(argv: list[str] | None = None) -> int:
    """Measure the shard in `argv`, write its messages, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m abprof.fleet")
    parser.add_argument("shard", type=Path)
    parser.add_argument("--with", dest="parent", type=int, help="end when the process PID ends", metavar="PID")
    options = parser.parse_args(argv)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # Ray blocks some signals
    if options.parent:
        proc.dies_with(options.parent)
    most = math.inf if options.parent else _ALONE_AFTER
    threading.Thread(target=_end_without, args=(options.shard.with_name(ALIVE), most), daemon=True).start()
    out = os.open(options.shard.with_suffix(".jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def notify(news: News) -> None:
        line = memoryview(checksummed.line(news))
        while line:
            line = line[os.write(out, line) :]

    try:
        with proc.signals():
            shard = read_shard(options.shard.read_bytes())
            if DEVICE in os.environ and not shard.held:
                shard = msgspec.structs.replace(shard, device=os.environ[DEVICE])
            notify(News(ended=Ended(why="done", seconds=measure(shard, notify))))
    except (AbprofError, ValueError, OSError) as error:
        reason = error.line if isinstance(error, AbprofError) else str(error)
        print(reason, file=sys.stderr)
        notify(News(ended=Ended(why="refused", reason=reason)))
        return Exit.CANNOT_RUN
    except KeyboardInterrupt:
        notify(News(ended=Ended(why="interrupted")))
        return Exit.INTERRUPTED
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main())
