"""Runs whose shards are jobs of a real Slurm, on simulated devices: exact verdicts, also if jobs are lost."""

import platform
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from abprof.records import Run
from abprof.store import runfolder
from tests.fleet.clusters import CELLS, LOADS, WIDE, Clustered, whole
from tests.simulated.processes import stopped
from tests.simulated.scenario import Fault, Scenario, Time
from tests.slurm.cluster import Cluster, cluster
from tests.slurm.conftest import installed
from tests.tinyrepo import abprof, source, tiny_repo

SLOWER = ("k/n=2", "k/n=5")
TRUTH = {cell: "slower" if cell in SLOWER else "same" for cell in CELLS}
TIMES = [Time(ns=20e6), *(Time(factor=1.2, cell=cell, side="target") for cell in SLOWER)]
HELD = "k/n=3"
# Whoever comes first to its third epoch stands still there until it is ended: a shard has a middle to be struck in, on
# the fastest machine and on the busiest.
STANDS = Scenario(workloads=LOADS, times=TIMES, faults=[Fault("sigstop:0", "turn", cell=HELD, epoch=3, once=True)])


class OnSlurm(Clustered):
    def __init__(self, folder: Path, on: Cluster) -> None:
        self.on = on
        super().__init__(folder, Scenario(workloads=LOADS, times=TIMES))

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **self.on.environment}

    def options(self, *more: str) -> list[str]:
        given = ("cpus=1", "parallel=2", *more)
        words = (word for one in given for word in ("--executor-option", one))
        return ["main", "fast", *WIDE, "--executor", "slurm", *words]


def no_job_is_left(on: Cluster) -> None:
    assert on.jobs("PENDING", "RUNNING", "COMPLETING", "SUSPENDED") == [], on.ask("squeue", "--array")


@pytest.fixture
def lab(tmp_path: Path, slurm: Cluster) -> Iterator[OnSlurm]:
    made = OnSlurm(tmp_path, slurm)
    before = made.fingerprint()
    yield made
    assert made.left_behind() == []
    assert made.fingerprint() == before
    no_job_is_left(slurm)


def test_verdicts_are_those_of_one_device(lab: OnSlurm) -> None:
    known = set(lab.on.jobs())
    done = lab.abprof(*lab.options("constraint=h100|h200", "time=10m"))
    assert done.code == 1, done.err
    assert done.table() == TRUTH
    whole(done)
    jobs = sorted(set(lab.on.jobs()) - known)
    assert len(jobs) >= 2
    facts = lab.on.facts(jobs[0])
    asked = {"TresPerNode": "gres:gpu:1", "Features": "h100|h200", "TimeLimit": "00:10:00", "Partition": "gpus"}
    assert asked.items() <= facts.items()
    assert done.folder
    assert not list((done.folder / "logs").glob("abprof-*"))


def in_the_middle(lab: OnSlurm, process: subprocess.Popen[str]) -> tuple[int, str]:
    """The shard that stands still after two epochs of HELD, and the node that it is on."""
    lab.waits_for(lambda: stopped(lab.scenario), process)
    lines = {file.stem: file.read_text().split("\n") for file in lab.runs.glob("*/logs/abprof-*/[0-9]*.jsonl")}
    found = [
        (int(number), said[0].partition('"device":"simulated:')[2].partition('"')[0])
        for number, said in sorted(lines.items())
        if sum('"block":' in line and f'"{HELD}"' in line for line in said) == 2
    ]
    assert len(found) == 1, lines
    return found[0]


def job_on(lab: OnSlurm, node: str) -> str:
    asked = ("squeue", "--array", "--noheader", "--states=RUNNING", f"--nodelist={node}", "--format=%i")
    jobs = lab.on.ask(*asked).split()
    assert len(jobs) == 1, (node, lab.on.ask("squeue", "--array"))
    return jobs[0]


def struck(lab: OnSlurm, strike: Callable[[OnSlurm, str], None]) -> tuple[Run, int]:
    """A run in whose middle something happens to a shard's job, on a node; it ends with all verdicts all the same."""
    lab.set(STANDS)
    process = lab.start(*lab.options())
    shard, node = in_the_middle(lab, process)
    strike(lab, node)
    done = lab.finish(process)
    assert done.code == 1, done.err
    assert done.table() == TRUTH
    whole(done)
    assert shard in {loss.shard for loss in done.run.losses}, done.err
    return done.run, shard


@pytest.mark.nightly
def test_a_job_that_somebody_cancels_is_measured_again_whole(lab: OnSlurm) -> None:
    run, shard = struck(lab, lambda lab, node: lab.on.cancel(job_on(lab, node)))
    (loss,) = [loss for loss in run.losses if loss.shard == shard]
    assert "CANCELLED" in loss.reason or "interrupted" in loss.reason


@pytest.mark.nightly
def test_a_lost_nodes_cells_are_measured_on_another(tmp_path: Path) -> None:
    installed()
    with cluster(tmp_path / "slurm", {"n1": "h200", "n2": "h100"}) as made:
        lab = OnSlurm(tmp_path, made)
        run, shard = struck(lab, lambda lab, node: lab.on.lose(node))
        (loss,) = [loss for loss in run.losses if loss.shard == shard]
        assert "NODE_FAIL" in loss.reason
        assert lab.left_behind() == []


def test_a_machine_without_a_gpu_plans_none_of_a_gpus_cells(lab: OnSlurm) -> None:
    done = lab.abprof(*lab.options(), "--device", "cpu")
    assert done.code == 2
    assert "jobs with gres=gpu:1 are to measure a GPU, and this machine has none to plan and build with" in done.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["partition=nowhere"], "Slurm would refuse a job with these options: "),
        (["constraint=b200"], "Invalid feature specification"),
        (["partition=gpus\ntouch pwned"], "Slurm would refuse a job with these options: "),
        (["partition"], "'partition' is not KEY=VALUE"),
    ],
)
def test_what_slurm_would_refuse_is_said_before_anything_is_measured(
    lab: OnSlurm, options: Sequence[str], said: str
) -> None:
    known = lab.on.jobs()
    done = lab.abprof(*lab.options(*options))
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err
    assert lab.on.jobs() == known
    assert not list(lab.folder.rglob("pwned"))
    assert lab.newest() is None


@pytest.mark.slow
def test_real_workers_in_real_jobs(tmp_path: Path, slurm: Cluster) -> None:
    """Built here once, and measured by jobs that take these builds; the host's one CPU is leased by one of them at a time."""
    repo = tiny_repo(tmp_path / "repo", 40)
    repo.branch("slow")
    repo.commit("twice the work", {"kernels/tiny/tiny.c": source(80)})
    repo.checkout("main")
    asked = ["main", "slow", "--preset", "two", "--quick", "--device", "cpu", "--runs-dir", str(tmp_path / "runs")]
    asked += ["--executor", "slurm", "--executor-option", "gres=", "--executor-option", "parallel=2"]
    done = abprof(*asked, cwd=repo.path, home=tmp_path / "home", **slurm.environment)
    assert done.code in {0, 1, 4}, done.err  # one epoch of a busy machine is no verdict
    (folder,) = [path.parent for path in (tmp_path / "runs").glob("*/run.json")]
    run, blocks, notes = runfolder.read(folder)
    assert not notes
    assert not run.losses, done.err
    assert {(one.cell, one.arm, one.status) for one in run.observations} == {
        (f"tiny/n={n}", arm, "ok") for n in (4096, 8192) for arm in ("base", "target")
    }
    assert {block.device for block in blocks} == {f"cpu@{platform.node()}"}
    assert {block.shard for block in blocks} <= {1, 2}
    assert all(proof.ok for proof in run.proofs)
    assert run.proofs
    assert [build.failure for build in run.builds] == [None, None]
    no_job_is_left(slurm)
