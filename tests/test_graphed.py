"""Cells timed by CUDA graphs or CUPTI because `--timer` says so."""

from dataclasses import replace

import pytest

from abprof.records import GPU_GRAPH, Block
from abprof.store import runfolder
from tests.simulated.lab import Result, loose
from tests.simulated.planted import LONG, NewLab, broken, load, planted, times
from tests.simulated.scenario import Fault, Scenario, Time


def blocks(result: Result) -> list[Block]:
    return runfolder.read(result.folder)[1]


# By the host's clock `both` and `host` are slower on the target; in graphs only `both` is.
ASKED = Scenario(
    workloads={"w": load(["both", "host"], judge="wall")},
    times=times(
        Time(ns=LONG / 4, timer="cuda_graph"),
        planted("both", 1.15),
        Time(factor=1.15, cell="*case=host", side="target", timer="simulated"),
        Time(ns=LONG / 5, timer="cupti"),
        planted("both", 1.15),
    ),
    packages={"torch": "2.13.0"},  # an importable CUPTI need not be a distribution of that name
)


@pytest.mark.parametrize(
    ("timer", "metric", "ns"), [("graph", GPU_GRAPH, LONG / 4), ("cupti", "gpu_kernels", LONG / 5)]
)
def test_a_timer_that_is_asked_for_judges_every_cell(new_lab: NewLab, timer: str, metric: str, ns: float) -> None:
    """After torch's profiler CUPTI's records are in ticks of the processor's counter (on an H200 1.011 ms were reported as 2.123):
    it runs in no process that CUPTI times."""
    lab = new_lab(ASKED)
    result = lab.abprof("main", "fast", "--timer", timer, "--margin", "1.5")  # `same` then takes 8 epochs
    assert result.table() == {"w/case=both": "slower", "w/case=host": "same"}
    assert {row.metric for row in result.run.comparisons} == {metric}
    seen = next(o for o in result.run.observations if (o.cell, o.arm) == ("w/case=host", "base"))
    assert seen.metrics[metric].value == pytest.approx(ns)
    assert (result.run.options.timer, result.run.workloads[0].judge) == (timer, {"cupti": "kernels"}.get(timer, timer))
    profiled = [block for block in blocks(result) if any(o.census is not None for o in block.outcomes.values())]
    assert profiled
    assert profiled == [block for block in blocks(result) if not block.rounds]
    again = lab.command("rerun", str(result.folder), "--only", "*case=host", "--repo", str(lab.repo.path))
    assert {row.metric for row in again.run.comparisons} == {metric}, again.err


@pytest.mark.slow
def test_one_side_without_graphs_leaves_its_cell_unsupported_and_no_side_broken(new_lab: NewLab) -> None:
    faults = [broken("uncaptured:1", "host", side="target", verb="capture", text="the call waits for the device")]
    result = new_lab(replace(ASKED, faults=faults)).abprof("main", "fast", "--timer", "graph")
    assert result.table() == {"w/case=both": "slower", "w/case=host": "unclear"}
    assert result.row("w/case=host").reasons == ("unsupported",)
    assert result.status("w/case=host", "target") == ("unsupported", "host_sync: the call waits for the device")
    status, reason = result.status("w/case=host", "base")
    assert (status, reason.startswith("not timed in a CUDA graph: target cannot be captured")) == ("unsupported", True)


def test_cuptis_timer_without_cupti_says_how_to_get_it(new_lab: NewLab) -> None:
    lab = new_lab(
        replace(ASKED, faults=[Fault("unsupported", "turn", text="cannot import cupti: install cupti-python")])
    )
    result = lab.abprof("main", "fast", "--timer", "cupti")
    assert result.code == 2
    assert "unsupported, cannot import cupti: install cupti-python" in result.err


def test_abprof_toml_names_the_timer_and_the_command_line_another(new_lab: NewLab) -> None:
    lab = new_lab(ASKED)
    lab.repo.write({"abprof.toml": 'schema = 1\n[defaults]\ntimer = "cupti"\n'})
    for words, timer in (((), "cupti"), (("--timer", "events"), "events")):
        assert loose(lab.abprof("main", "fast", "--dry-run", "--json", *words))["options"]["timer"] == timer


@pytest.mark.parametrize(
    ("do", "status"), [("never_launched", "wrong"), ("crash", "ok")], ids=["launches nothing", "died once"]
)
def test_what_the_profiled_pass_finds_counts_as_if_it_had_come_before_the_turns(
    new_lab: NewLab, do: str, status: str
) -> None:
    lab = new_lab(replace(ASKED, faults=[broken(do, "host", side="target", verb="phases")]))
    result = lab.abprof("main", "fast")
    assert result.status("w/case=host", "target")[0] == status, result.err
    assert result.status("w/case=host", "base")[0] == "ok"
    assert result.verdict("w/case=both") == "slower"
