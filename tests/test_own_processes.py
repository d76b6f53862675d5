"""abprof's own processes never count as foreign on the device, whenever a worker starts or ends (Device.watch).

Real pools of simulated workers on a simulated GPU. The GPU lists each worker that got `start`, as NVML
lists each process with a context. It is sampled before and after every answer, on the workers' clock.
"""

import math
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from abprof.builds import WorkerFactory
from abprof.builds.worker_factory import ForkServers
from abprof.devices import cuda
from abprof.devices.cuda import CudaDevice
from abprof.measure.epoch_loop import epochs
from abprof.measure.followup import follow_up
from abprof.measure.matrix import arms
from abprof.measure.plan import Plan
from abprof.records import SUSTAINED, Block, Build, Cell, Checkout, Options, Package, Proof, Workload
from abprof.system import processes as proc
from tests.blocks import head, side
from tests.nvml import Nvml
from tests.simulated.client import worker_factory
from tests.simulated.clock import Clock
from tests.simulated.planted import broken, load
from tests.simulated.processes import alive, noted
from tests.simulated.scenario import Fault, Scenario, Time

SIDES = (side("base"), side("target"))
CASES = ["a", "b", "c"]


class Played(Nvml):
    """A GPU on which the scenario's workers are, and `others`."""

    def __init__(self, scenario: Path) -> None:
        self.scenario, self.others, self.late, self.ended = scenario, list[int](), False, set[int]()
        super().__init__()

    @property
    def pids(self) -> list[int]:  # type: ignore[override]
        """`late`: the driver still lists ended processes."""
        begun = noted(self.scenario, "worker")
        if not self.late:
            self.ended |= {pid for pid in {*begun} - self.ended if not alive(pid)}
        return [pid for pid in begun if pid not in self.ended] + self.others

    @pids.setter
    def pids(self, given: object) -> None:
        del given


class ByHand(CudaDevice):
    """Samples on request."""

    def watch(self, *own: Any) -> None:
        self._thread = threading.current_thread()
        super().watch(*own)


@pytest.fixture
def factory(tmp_path: Path) -> WorkerFactory:
    return worker_factory(tmp_path)


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Played, ByHand]]:
    nvml = Played(tmp_path / "scenario.json")
    nvml.reasons = 4  # at the power limit: cells have slices without pauses
    gpu = ByHand(nvml, 0, "GPU-aaaa")
    # Samplers of other tests' devices live on in this process, and sleep by it too.
    monkeypatch.setattr(cuda, "time", SimpleNamespace(sleep=time.sleep, monotonic_ns=Clock(str(tmp_path), None).now))
    usual = proc.Worker.receive

    def receive(worker: proc.Worker, *of: Any) -> Any:
        gpu._sample()
        try:
            return usual(worker, *of)
        finally:
            gpu._sample()

    monkeypatch.setattr(proc.Worker, "receive", receive)
    return nvml, gpu


def plan(folder: Path, factory: WorkerFactory, device: CudaDevice, *faults: Fault, check: str = "inside") -> Plan:
    """Three short cells of one workload, whose base has a peer."""
    planned = load(CASES, judge="gpu", peers=["lib"])
    Scenario(workloads={"w": planned}, times=[Time(ns=1e4)], faults=list(faults)).write(folder / "scenario.json")
    workload = Workload(name="w", kernel="k", suite="w", axes=("case",), judge="gpu", peers=("lib",))
    cells = tuple(Cell(id=f"w/case={c}", workload="w", kernel="k", suite="w", params={"case": c}) for c in CASES)
    builds = tuple(Build(side=s.id, kernel="k", key="k", path=str(folder / "build")) for s in SIDES)
    options = Options(threshold=1.5, margin=0.5, timer="auto", check=check)
    run = head(sides=SIDES, workloads=(workload,), cells=cells, builds=builds, options=options)
    return Plan(
        factory=factory, device=device, run=run, cells=run.cells, broken={}, packages={"k": Package(name="k")},
        checkouts={s.id: Checkout(side=s, path=str(folder)) for s in SIDES},
        arms={cell.id: arms(workload, SIDES, builds, control=False, peers=True) for cell in cells},
    )  # fmt: skip


def measured(on: Plan, number: int = 2) -> list[Block]:
    """Blocks of so many epochs, and of slices after them."""
    made = [item for item in run(on, number) if isinstance(item, Block)]
    return [*made, *follow_up(on, made, number + 1)]


def run(on: Plan, number: int) -> Iterator[object]:
    """Blocks and proofs of so many epochs."""
    done = set[int]()
    for item in epochs(on, lambda: set(on.arms) if len(done) < number else set(), first=1, budget=600.0):
        if isinstance(item, Block):
            done.add(item.epoch)
        yield item


def starts(folder: Path) -> int:
    return len(noted(folder / "scenario.json", "worker"))


DIES_OF_THE_PASS = broken("kill", "*", side="base", verb="phases", once=True)
FAULTS = (
    broken("kill", "*", side="peers", verb="turn", arm="peer:lib", after=3, once=True),
    broken("kill", "b", side="target", after=2, once=True),  # while it is opened
    DIES_OF_THE_PASS,
    broken("kill", "*", side="target", verb="turn", epoch=3, once=True),  # in a slice
)


@pytest.mark.parametrize("late", [False, True])
def test_workers_that_are_started_anew_are_no_strangers(
    tmp_path: Path, factory: WorkerFactory, played: tuple[Played, ByHand], late: bool
) -> None:
    nvml, gpu = played
    nvml.late = late
    blocks = measured(plan(tmp_path, factory, gpu, *FAULTS))
    assert len(list(tmp_path.glob("scenario.json.once.*"))) == len(FAULTS), "each died"
    assert starts(tmp_path) > 2 * (2 + 4) + 2, "more than one for each side and pool, and the peers of each epoch"
    assert any(block.rounds for block in blocks)
    assert {block.state.foreign for block in blocks} == {()}
    assert {(block.rejected, block.rejected_why) for block in blocks} == {((), "")}


def test_a_stranger_is_seen_all_the_same(tmp_path: Path, factory: WorkerFactory, played: tuple[Played, ByHand]) -> None:
    """The test's own process, which no worker factory started."""
    nvml, gpu = played
    nvml.others = [os.getpid()]
    blocks = measured(plan(tmp_path, factory, gpu, DIES_OF_THE_PASS), 1)
    name = f"{Path('/proc/self/comm').read_text().strip()} {os.getpid()}"
    turned = [block for block in blocks if block.rounds and block.metric == "gpu_span"]
    assert len(turned) == len(CASES)
    for block in turned:
        assert block.state.foreign == (name,)
        assert block.rejected == tuple(range(len(block.rounds)))
        assert block.rejected_why == name


def test_workers_start_two_epochs_ahead_and_not_beyond_the_next_look(
    tmp_path: Path, factory: WorkerFactory, played: tuple[Played, ByHand]
) -> None:
    on, done = plan(tmp_path, factory, played[1]), list[int]()

    def begun(epoch: int) -> bool:
        notes = (tmp_path / "scenario.json.pids").read_text().splitlines()
        return any(line.split()[1:] == ["worker", side.id, str(epoch)] for line in notes for side in SIDES)

    for item in epochs(on, lambda: set(on.arms) if len(done) < 5 * len(CASES) else set(), first=1, budget=600.0):
        if isinstance(item, Block):
            done.append(item.epoch)
        elif done.count(2) == len(CASES) and 3 not in done:  # behind the turns of the second epoch
            end = time.monotonic() + 60
            while not begun(4) and time.monotonic() < end:
                time.sleep(0.01)
            assert begun(4)
        assert done.count(4) == len(CASES) or not begun(5), "the fourth epoch is a look"


def test_neither_slices_nor_a_profiled_pass_begin_when_their_time_is_up(
    tmp_path: Path, factory: WorkerFactory, played: tuple[Played, ByHand]
) -> None:
    on = plan(tmp_path, factory, played[1])
    blocks = [item for item in run(on, 1) if isinstance(item, Block)]
    late, in_time = (list(follow_up(on, blocks, 2, until, until)) for until in (0.0, math.inf))
    assert late == []
    assert {block.cell for block in in_time if block.judged} == set(on.arms)
    assert {block.cell for block in in_time if block.metric == SUSTAINED} == set(on.arms)


@pytest.mark.parametrize("ends", [False, True])
def test_the_workers_of_an_epoch_start_in_one_way(
    tmp_path: Path, factory: WorkerFactory, played: tuple[Played, ByHand], ends: bool
) -> None:
    """If the target's fork server ends in the first epoch, its later workers start fresh, and so do base's."""
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "sitecustomize.py").write_text(
        f"import os, sys\n{ends} and '--fork' in sys.orig_argv and os._exit(3)\n"
    )
    package = Package(name="k", env={"PYTHONPATH": f"{tmp_path}/{{side}}"})
    forks = ForkServers(factory.env, tmp_path, tmp_path / "forks.log")
    on = replace(plan(tmp_path, replace(factory, forks=forks), played[1]), packages={"k": package})
    try:
        later = {(one.side, one.forked) for one in run(on, 2) if isinstance(one, Proof) and one.epoch > 1}
    finally:
        forks.close()
    assert later == {("base", not ends), ("target", not ends)}
