"""Peers run in a worker of their own: a turn after one of the same process is shorter, and base must have no more of them."""

from __future__ import annotations

from abprof.store.runfolder import read
from tests.simulated.planted import NewLab, new_lab
from tests.simulated.scenario import Fault, Scenario, Time, Workload

__all__ = ["new_lab"]

CELL, OTHER = "w/case=one", "w/case=other"


def scenario(*faults: Fault, peers: list[str]) -> Scenario:
    load = Workload(kernel="k", presets={"default": {"case": ["one", "other"]}}, peers=peers)
    times = [Time(ns=1e6), Time(ns=2e6, arm="peer:lib")]
    return Scenario(workloads={"w": load}, times=times, faults=list(faults))


def test_peers_have_a_worker_of_their_own_for_eight_epochs(new_lab: NewLab) -> None:
    result = new_lab(scenario(peers=["lib"])).abprof()
    assert result.folder is not None
    run, blocks, _ = read(result.folder)
    assert result.table() == {CELL: "same", OTHER: "same"}
    for block in (block for block in blocks if block.rounds):
        beside = {"control", "peers"} if block.epoch <= 8 else set[str]()
        assert ("peer:lib" in block.arms) == ("control" in block.arms) == bool(beside)
        assert set(block.start_order) == {"base", "target"} | beside
    assert {proof.side for proof in run.proofs} == {"base", "target", "control"}
    assert {kernel.side for kernel in run.kernels} <= {"base", "target"}
    assert {arm.side for arm in run.arms if arm.peer} == {"base"}, "of base, whose workload it stands beside"


def test_without_peers_there_is_no_such_worker(new_lab: NewLab) -> None:
    result = new_lab(scenario(peers=[])).abprof()
    assert result.folder is not None
    assert {id for block in read(result.folder)[1] for id in block.start_order} == {"base", "target", "control"}


def test_a_peer_that_kills_its_process_takes_no_side_with_it(new_lab: NewLab) -> None:
    fault = Fault("kill", "turn", side="peers", cell=CELL)
    result = new_lab(scenario(fault, peers=["lib"])).abprof()
    assert result.table() == {CELL: "same", OTHER: "same"}
    assert result.status(CELL, "peer:lib")[0] == "crash"
    assert result.status(CELL, "base") == result.status(CELL, "target") == ("ok", "")
    assert result.folder is not None
    _, blocks, _ = read(result.folder)
    assert not any(block.rejected for block in blocks)
