"""Whole runs on a GPU of short and long calls, read by events and by CUPTI."""

import importlib.util
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from abprof.records import Block
from abprof.store import runfolder
from tests.gitrepo import GitRepo, make_repo
from tests.tinyrepo import abprof

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.alone,
    pytest.mark.skipif(importlib.util.find_spec("cupti") is None, reason="cupti-python is not installed"),
]

PACKAGE = """
import torch

CYCLES = 8_000  # some 4 us


def one(x):
    return x * 2


def two(x):
    torch.cuda._sleep(CYCLES)
    return x * 2


def long(x):
    torch.cuda._sleep(125 * CYCLES)
    return x * 2
"""

WORKLOAD = '''
"""Doubling, by one kernel or behind one that waits."""
import torch
from abprof.kit import Op, compare

API = 1
KERNEL = "parts"
SUITE = "parts"
PRESETS = {"default": {"part": ["one", "two", "long"]}}
ELEMENTS = {"one": 1 << 22, "two": 1 << 16, "long": 1 << 16}


def inputs(case, device, seed):
    made = torch.Generator(device).manual_seed(seed)
    return torch.randn(ELEMENTS[case["part"]], generator=made, device=device)


def prepare(kernel, variant, case, inputs):
    double = getattr(kernel, case["part"])
    return Op(lambda: double(inputs))


def reference(case, inputs):
    return inputs.double() * 2


def check(case, outputs, expected):
    return compare(outputs, expected, rtol=1e-6, atol=0.0)
'''
CELLS = ONE, TWO, LONG = ("parts/part=one", "parts/part=two", "parts/part=long")


@dataclass(frozen=True)
class Measured:
    """A run of main against a branch whose waits are half as long again."""

    run: dict[str, Any]
    blocks: list[Block]

    def read_by(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for block in self.blocks:
            if block.judged and block.rounds:
                found.setdefault(block.cell, set()).add(block.timer)
        return found


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> GitRepo:
    made = make_repo(tmp_path_factory.mktemp("parts") / "repo")
    files = {"kernels/parts/__init__.py": PACKAGE, "workloads/parts.py": WORKLOAD, ".gitignore": "runs/\n"}
    made.commit("parts", files)
    made.branch("slower")
    made.commit("slower", {"kernels/parts/__init__.py": PACKAGE.replace("8_000", "12_000")})
    return made


def measured(repo: GitRepo, *more: str) -> Measured:
    requested = ("main", "slower", "--device", "cuda", "--devices", "1", "--json", *more)
    done = abprof(*requested, cwd=repo.path, home=repo.path.parent)
    assert done.out, done.err
    run = done.run
    return Measured(run, runfolder.read(Path(run["run_dir"]))[1])


@pytest.mark.parametrize("timer", ["auto", "cupti"])
def test_short_and_long_calls_are_read_in_nanoseconds_by_either_timer(repo: GitRepo, timer: str) -> None:
    found = measured(repo, "--epochs", "4", "--budget", "5m", "--timer", timer)
    by = {"auto": "cuda_event", "cupti": "cupti"}[timer]
    assert found.read_by() == {cell: {by} for cell in CELLS}
    verdicts = {row["cell"]: row["verdict"] for row in found.run["comparisons"] if row["from"] == "base"}
    assert (verdicts[TWO], verdicts[LONG]) == ("slower", "slower")
    assert verdicts[ONE] in ("same", "slight", "unclear")
    for cell in CELLS:  # the profiled pass comes after the turns, in processes of its own
        seen = next(o for o in found.run["observations"] if (o["cell"], o["arm"]) == (cell, "target"))
        assert not seen["census"]["missing"], seen
        assert sum(launch["count"] for launch in seen["census"]["launches"]) == (1 if cell == ONE else 2)
        medians = {
            block.epoch: statistics.median(turn.value for row in block.rounds for turn in row if turn.arm == 0)
            for block in found.blocks
            if block.cell == cell and block.judged and block.rounds
        }
        assert len(medians) == 4
        assert max(medians.values()) < 1.3 * min(medians.values()), medians
