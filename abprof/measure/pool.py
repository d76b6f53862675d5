"""The workers of one kernel package in one epoch: one for each side, one for the control, and one for the peers."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from abprof.builds.worker_factory import Workshop
from abprof.measure import turns
from abprof.records import PEERS, STANDING_IN, Artefact, Build, Checkout, Kernel, Package, Proof
from abprof.records import messages as wire
from abprof.system.processes import Worker, WorkerDied, WorkerFault, WorkerHung, to_start

_MOST_STARTS = 2  # failed starts in a row at one post, in one epoch


@dataclass(frozen=True)
class Post:
    """Where a worker stands: whose build it loads."""

    id: str  # a side's id, "control" or "peers"
    checkout: Checkout
    package: Package
    build: Build


class Crew:
    """Starts the workers together, so that their start-up overlaps; revives one that died; ends them all."""

    def __init__(self, shop: Workshop, posts: Sequence[Post], epoch: int) -> None:
        self._shop = shop
        self._posts = {post.id: post for post in posts}
        self._epoch = epoch
        self._workers: dict[str, Worker] = {}
        # Who starts first gets other memory, and so may who is in the middle.
        self.start_order = tuple(turns.ranked(tuple(self._posts), epoch - 1))
        self._judge: Worker | None = None
        self._adopted: set[str] = set()  # posts whose worker was ready before
        self._failed_starts: dict[str, list[WorkerDied]] = {id: [] for id in self._posts}  # since the last good one

    def adopt(self, id: str, worker: Worker) -> None:
        """Take a living worker of this post's build, of an earlier crew, in the place of starting one."""
        self._workers[id] = worker
        self._adopted.add(id)

    def release(self, id: str) -> Worker | None:
        """Give up the living worker at this post, for another crew; None where none lives."""
        worker = self._workers.pop(id, None)
        if worker is not None and not worker.alive:
            worker.kill()
            return None
        return worker

    def becomes(self, posts: Sequence[Post], epoch: int) -> bool:
        """Whether this crew, not yet entered, has whom these posts of this epoch need; then it is theirs, and the others end."""
        if epoch != self._epoch or any(self._posts.get(post.id) != post for post in posts):
            return False
        self._posts = {post.id: post for post in posts}
        self.start_order = tuple(turns.ranked(tuple(self._posts), epoch - 1))
        for id in self._workers.keys() - self._posts.keys():
            self._workers.pop(id).kill()
        return True

    def summon(self) -> None:
        """Start the processes, which import torch and wait: they touch no device before `__enter__` tells them which."""
        for id in self.start_order:
            with contextlib.suppress(WorkerDied):  # it is tried again, and typed, when it is needed
                self._spawn(self._posts[id])

    def __enter__(self) -> Crew:
        try:
            starting = [id for id in self.start_order if id not in self._adopted and self._begin(id)]
            for id in starting:
                self._receive_ready(id)
        except BaseException:  # ^C
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.dismiss()

    def dismiss(self) -> None:
        """End every worker."""
        if self._judge is not None:
            self._judge.kill()
        for worker in self._workers.values():  # all at once: taking down a CUDA context takes its time
            worker.end()
        for worker in self._workers.values():
            worker.kill()

    def _spawn(self, post: Post) -> Worker:
        log = self._shop.logs / self.log_name(post.id)
        place = Path(post.build.path)
        worker = self._shop.worker(post.id, post.checkout, post.package, place, log=log, name=post.id)
        self._workers[post.id] = worker
        return worker

    def _start(self, post: Post) -> wire.Start:
        seen = self._shop.mount(post.checkout, post.package, Path(post.build.path))
        scratch = str(self._shop.scratch)
        return wire.Start(self._shop.device, post.id, seen, dict(self._shop.workloads), scratch, self._epoch)

    def _begin(self, id: str) -> bool:
        """Start the worker at this post, or the one that was summoned, without waiting for it."""
        summoned = self._workers.get(id)
        if summoned is not None and not summoned.alive:
            summoned.kill()
        try:
            worker = summoned if summoned is not None and summoned.alive else self._spawn(self._posts[id])
            worker.send(self._start(self._posts[id]))
        except WorkerDied as died:
            self._failed_starts[id].append(died)
            return False
        return True

    def _receive_ready(self, id: str) -> bool:
        worker = self._workers[id]
        try:
            worker.receive(wire.Start(self._shop.device, id), to_start(self._shop.timeout))
        except WorkerDied as died:
            self._failed_starts[id].append(died)
            return False
        except WorkerFault as fault:
            worker.kill()
            self._failed_starts[id].append(WorkerDied(fault.reason))
            return False
        self._failed_starts[id].clear()
        return True

    def warm(self, opens: Mapping[str, wire.Open]) -> list[str]:
        """First calls import, load and compile: all workers make theirs at once, before anything is timed. Returns the posts
        whose worker gave no answer in its time.

        What fails here in another way fails again when the cell is opened, and is typed there.
        """
        hung = []
        asked = []
        for name, request in opens.items():
            worker = self._workers.get(name)
            if worker is not None and worker.alive:
                with contextlib.suppress(WorkerDied):
                    worker.send(request)
                    asked.append((name, worker, request))
        for name, worker, request in asked:
            try:
                worker.receive(request, self._shop.timeout)
            except WorkerHung:
                hung.append(name)
            except (WorkerDied, WorkerFault):
                continue
        self.close()
        return hung

    def log_name(self, id: str) -> str:
        """The worker's log inside logs/."""
        return f"worker-{id}-{self._posts[id].package.name}.log"

    def worker(self, id: str) -> Worker:
        """The living worker at this post, started anew if it died.

        Raises WorkerDied when it cannot be: after two failed starts, or one that hung, at once, so that a thousand cells do not
        wait for a thousand starts.
        """
        worker = self._workers.get(id)
        if worker is not None and worker.alive:
            return worker
        failed = self._failed_starts[id]
        given_up = len(failed) >= _MOST_STARTS or (failed and isinstance(failed[-1], WorkerHung))
        if given_up or not (self._begin(id) and self._receive_ready(id)):
            raise failed[-1]
        return self._workers[id]

    def retire(self, id: str) -> None:
        """End the worker at this post, on whose word nothing rests any more: the next that is asked there is a new one."""
        worker = self._workers.get(id)
        if worker is not None:
            worker.kill()

    def judge(self) -> Worker:
        """A living worker that holds no code under test, started when it is first needed. Raises WorkerDied, WorkerFault."""
        if self._judge is None or not self._judge.alive:
            if self._judge is not None:
                self._judge.kill()
            self._judge = self._shop.judge()
            scratch, workloads = str(self._shop.scratch), dict(self._shop.workloads)
            start = wire.Start(self._shop.device, "judge", None, workloads, scratch, self._epoch)
            self._judge.call(start, self._shop.timeout)
        return self._judge

    def close(self) -> None:
        """Every living worker forgets the cell. One that cannot is killed, and started anew for the next."""
        for id, reply in self._ask_all(wire.Close()).items():
            if isinstance(reply, Exception):
                self._workers[id].kill()

    @property
    def token(self) -> str:
        """The run's: no builder knows under which names expected values will lie."""
        return self._shop.token

    def own(self) -> frozenset[int]:
        """Process ids of all that the run has started so far, of any crew, the ended too."""
        return frozenset(self._shop.own)

    def prove(self) -> dict[str, wire.Proved]:
        """What each living worker has loaded now. One that cannot say so proves nothing: that is not ok."""
        proofs: dict[str, wire.Proved] = {}
        for id, reply in self._ask_all(wire.Prove()).items():
            if isinstance(reply, WorkerDied | WorkerFault):
                proofs[id] = wire.Proved(False, f"it could not say what it had loaded: {reply.reason}", [])
            else:
                proofs[id] = self._as_built(id, reply)
        return proofs

    def _as_built(self, id: str, proved: wire.Proved) -> wire.Proved:
        """What is loaded must be what was built: the same bytes at every path that the build recorded."""
        built = {a.path: a.sha256 for a in self._posts[id].build.artefacts if a.path}
        for loaded in proved.artefacts:
            if built.get(loaded["path"], loaded["sha256"]) != loaded["sha256"]:
                return wire.Proved(False, f"{loaded['path']} is not the file that was built", proved.artefacts)
        return proved

    def pid(self, id: str) -> int | None:
        """The process at this post, None when none lives."""
        worker = self._workers.get(id)
        return worker.pid if worker is not None and worker.alive else None

    def _ask_all(self, request: Any) -> dict[str, Any]:
        """Ask every living worker at the same time: worker id -> its reply, or the WorkerDied or WorkerFault."""
        replies: dict[str, Any] = {}
        living = [(id, worker) for id, worker in self._workers.items() if worker.alive]
        for id, worker in living:
            try:
                worker.send(request)
            except WorkerDied as died:
                replies[id] = died
        for id, worker in living:
            if id not in replies:
                try:
                    replies[id] = worker.receive(request, self._shop.timeout)
                except (WorkerDied, WorkerFault) as error:
                    replies[id] = error
        return replies

    def proofs(self) -> list[Proof]:
        """The same as records of the run, of those that live on."""
        return [
            Proof(
                epoch=self._epoch,
                side=id,
                kernel=self._posts[id].package.name,
                ok=proved.ok,
                reason=proved.reason,
                artefacts=tuple(msgspec.convert(a, Artefact) for a in proved.artefacts),
            )
            for id, proved in self.prove().items()
            if self._workers[id].alive and id != PEERS  # what they load is no side's
        ]

    def kernels(self) -> list[Kernel]:
        """What Triton compiled for each side's worker, as records of the run; of a worker that cannot say, nothing."""
        return [
            msgspec.convert(dataclasses.asdict(made) | {"side": id, "package": package, "kind": "triton"}, Kernel)
            for id, reply in self._ask_all(wire.Load()).items()
            if isinstance(reply, wire.Loaded) and id not in STANDING_IN
            for package in [self._posts[id].package.name]
            for made in reply.kernels
        ]


def posts(
    sides: Mapping[str, Checkout], package: Package, find: Callable[[str, str], Build | None], ids: Sequence[str]
) -> list[Post]:
    """A post for each worker id whose side has a whole build of this package."""
    found = []
    for id in ids:
        side = "base" if id in STANDING_IN else id
        made = find(side, package.name)
        if made is not None and made.failure is None:
            found.append(Post(id, sides[side], package.of(sides[side].side), made))
    return found
