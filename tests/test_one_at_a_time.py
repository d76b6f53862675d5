"""Arms that do not fit into memory together: each alone, base, target, target, base, and it is said."""

import json
from pathlib import Path

import pytest

from abprof.records import Block
from abprof.store.runfolder import read
from tests.gitrepo import GitRepo
from tests.simulated.planted import NewLab
from tests.simulated.scenario import Fault, Scenario, Time, Workload
from tests.tinyrepo import PACKAGE, WORKLOAD, Done, abprof, source, tiny_repo

CROWDED = Fault("oom", "open", side="target", cell="w/case=big", epoch=1, times=1, text="out of memory")


def scenario(*faults: Fault) -> Scenario:
    load = Workload(kernel="k", presets={"default": {"case": ["big", "small"]}})
    times = [Time(ns=1e6), Time(factor=1.1, side="target", cell="w/case=big")]
    return Scenario(workloads={"w": load}, times=times, faults=list(faults))


def visits(block: Block) -> list[str]:
    """Arms in the order of their turns, repetitions left out."""
    turns = sorted((turn for row in block.rounds for turn in row), key=lambda turn: turn.start)
    order = [block.arms[turn.arm] for turn in turns]
    return [arm for i, arm in enumerate(order) if not i or arm != order[i - 1]]


def test_the_verdict_is_found_with_one_side_in_memory_at_a_time(new_lab: NewLab) -> None:
    result = new_lab(scenario(CROWDED)).abprof("main", "fast", "--epochs", "4")
    assert result.table() == {"w/case=big": "slower", "w/case=small": "same"}
    assert result.status("w/case=big", "target") == ("ok", "")
    _, blocks, _ = read(result.folder)
    big = [block for block in blocks if block.cell == "w/case=big" and block.rounds]
    assert len(big) >= 4
    assert all(block.alone for block in big), "what did not fit once is not tried again"
    arms = list(big[0].arms)
    assert visits(big[0]) == [*arms, *arms[::-1][1:]], "the last arm's two visits meet"
    first = [
        block.arms[min((turn for row in block.rounds for turn in row), key=lambda turn: turn.start).arm]
        for block in big
    ]
    assert all({one, two} == {"base", "target"} for one, two in zip(first[::2], first[1::2], strict=True))
    assert not any(block.alone for block in blocks if block.cell == "w/case=small")
    (said,) = (advice for advice in result.run.warnings if advice.kind == "one_at_a_time")
    assert said.cells == ("w/case=big",)


def test_what_does_not_fit_alone_either_is_that_arms_outcome(new_lab: NewLab) -> None:
    result = new_lab(scenario(Fault("oom", "open", side="target", cell="w/case=big", text="out of memory"))).abprof(
        "main", "fast", "--epochs", "4"
    )
    assert result.verdict("w/case=big") == "broken"
    assert result.status("w/case=big", "target")[0] == "oom"
    assert result.verdict("w/case=small") == "same"


# A simulated device memory, which inputs take the whole of: one process has it until its tensors are gone.
MEMORY = """
import fcntl, os

class Memory:
    def __init__(self):
        self.file = os.open(%r, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self.file)
            self.file = None
            raise torch.OutOfMemoryError("another process has it all")

    def __del__(self):
        if self.file is not None:
            os.close(self.file)

_inputs = inputs
def inputs(case, device, seed):
    x = _inputs(case, device, seed)
    x.memory = Memory()
    return x
"""


@pytest.fixture(scope="module")
def greedy(tmp_path_factory: pytest.TempPathFactory) -> Done:
    home = tmp_path_factory.mktemp("greedy")
    repo: GitRepo = tiny_repo(home / "repo")
    repo.commit("greedy", {"workloads/tiny.py": WORKLOAD + MEMORY % str(home / "memory")})
    repo.branch("slow")
    repo.commit("slower", {"kernels/tiny/__init__.py": PACKAGE, "kernels/tiny/tiny.c": source(1000)})
    repo.checkout("main")
    return abprof("main", "slow", "--device", "cpu", "--no-peers", "--quick", "--json", cwd=repo.path, home=home)


@pytest.mark.slow
def test_real_workers_give_the_memory_back_for_the_next(greedy: Done) -> None:
    assert greedy.statuses("base") == greedy.statuses("target") == {"tiny/n=4096": "ok"}
    (row,) = (row for row in greedy.run["comparisons"] if row["to"] == "target")
    assert row["pct"] > 100, "ten times the work"
    folder = Path(greedy.run["run_dir"])
    timed, profiled = (json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines())
    assert (timed["alone"], profiled["rounds"]) == (True, [])
