"""Runs on a real Ray cluster of several nodes with simulated devices: exact verdicts, also if nodes are lost."""

import importlib.util
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from abprof.fleet.messages import DEVICE
from abprof.store import runfolder
from tests.fleet.clusters import CELLS, LOADS, WIDE, Clustered, whole
from tests.on_ray.cluster import Cluster
from tests.simulated.scenario import Fault, Scenario, Time

ABSENT = not importlib.util.find_spec("ray") and os.environ.get("RAY_TESTS") != "required"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(ABSENT, reason="Ray is not installed: pip install 'abprof[ray]', or make ray"),
]
SLOWER, FASTER = "k/n=2", "k/n=5"
TRUTH = {cell: {SLOWER: "slower", FASTER: "faster"}.get(cell, "same") for cell in CELLS}
TIMES = [Time(ns=20e6), Time(factor=1.2, cell=SLOWER, side="target"), Time(factor=0.8, cell=FASTER, side="target")]
NODES = (1, 2, 3)
SLUGGISH = Fault("slow:0.05", "turn")  # so that there is a middle of a shard to strike in


class OnRay(Clustered):
    """The cluster's nodes see its folders."""

    def __init__(self, folder: Path, on: Cluster, *faults: Fault) -> None:
        self.on = on
        super().__init__(folder, Scenario(workloads=LOADS, times=TIMES, faults=list(faults)))

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **self.on.environment, "RAY_ADDRESS": f"127.0.0.1:{self.on.port}"}

    def begin(self, *more: str) -> subprocess.Popen[str]:
        """On a machine of the cluster."""
        return self.start("main", "fast", *WIDE, "--executor", "ray://auto", *more)

    def devices(self) -> list[str]:
        """Of the blocks in the run's folder."""
        folder = self.newest()
        return [block.device for block in list(runfolder.blocks(folder, []))] if folder else []


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        for number in NODES:
            switch_on(made, number)
        yield made
    finally:
        made.close()


def switch_on(cluster: Cluster, number: int) -> None:
    """n1 has simulated:1, and so on; the odd ones are labelled as H200, the even one as A100."""
    labels = {"ray.io/accelerator-type": "H200" if number % 2 else "A100"}
    cluster.node(f"n{number}", {DEVICE: f"simulated:{number}"}, labels)


@pytest.fixture
def lab(tmp_path: Path, on: Cluster) -> Iterator[OnRay]:
    made = OnRay(tmp_path / "lab", on)
    before = made.fingerprint()
    yield made
    assert made.left_behind() == []
    assert made.fingerprint() == before


def test_a_node_is_switched_off_in_the_middle(lab: OnRay) -> None:
    """Another node measures all cells of the lost shard again, from their first epoch."""
    lab.set(Scenario(workloads=LOADS, times=TIMES, faults=[SLUGGISH]))
    process = lab.begin()
    lab.waits_for(lambda: "simulated:2" in lab.devices(), process)
    lab.on.off("n2")
    done = lab.finish(process)
    assert done.code == 1, done.err
    assert done.table() == TRUTH
    homes = whole(done)
    assert set(homes.values()) == {"simulated:1", "simulated:3"}
    assert done.run.status == "complete"
    assert set(done.run.machines) == {"simulated:1", "simulated:2", "simulated:3"}
    assert done.run.losses
    assert "was lost" in done.err
    assert lab.on.free()
    switch_on(lab.on, 2)


def test_from_outside_of_the_cluster_on_nodes_of_one_model(on: Cluster, tmp_path: Path) -> None:
    """Uncommitted work, through the cluster's client server."""
    lab = OnRay(tmp_path / "lab", on)
    lab.repo.write({"kernels/k/__init__.py": "WHO = 'mine'\n"})
    before = lab.fingerprint()
    options = ("--executor", f"ray://{lab.on.address}", "--executor-option", "gpu=H200")
    done = lab.finish(lab.start("main", ".", *WIDE, *options))
    assert lab.fingerprint() == before
    assert (done.code, done.table()) == (1, TRUTH), done.err
    assert set(whole(done).values()) == {"simulated:1", "simulated:3"}
    assert done.folder
    assert len(list((done.folder / "logs").glob("shard-*/program.log"))) >= 2


def test_a_model_that_no_node_has_is_one_line(lab: OnRay) -> None:
    done = lab.finish(lab.begin("--executor-option", "gpu=B200"))
    assert done.code == 2
    assert "of model B200" in done.err


@pytest.mark.nightly
def test_it_ends_clean_in_the_middle(lab: OnRay) -> None:
    lab.set(Scenario(workloads=LOADS, times=TIMES, faults=[SLUGGISH]))
    process = lab.begin()
    lab.waits_for(lambda: len(set(lab.devices())) == len(NODES), process)
    process.send_signal(signal.SIGINT)
    done = lab.finish(process)
    assert done.code == 130, done.err
    assert done.run.status == "interrupted"
    assert [pid for number in NODES for pid in lab.on.living(f"n{number}", "abprof.fleet")] == []
    assert lab.on.free()
    went_on = lab.finish(lab.start("run", "--resume", str(done.folder)))
    assert (went_on.code, went_on.table()) == (1, TRUTH), f"{went_on.out}\n{went_on.err}"


def test_the_programs_end_when_abprof_is_killed(lab: OnRay) -> None:
    lab.set(Scenario(workloads=LOADS, times=TIMES, faults=[SLUGGISH]))
    process = lab.begin()
    lab.waits_for(lambda: len(set(lab.devices())) == len(NODES), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    end = time.monotonic() + 120
    while any(lab.on.living(f"n{number}", "abprof.fleet") for number in NODES) or not lab.on.free():
        assert time.monotonic() < end, "programs live on"
        time.sleep(0.5)
    lab.command("clean")
