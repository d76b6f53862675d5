"""`abprof bisect` on real repositories: the commits that were planted, each time, with simulated workers and with real ones."""

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bisect.histories import SCENARIO, Story
from tests.simulated.lab import Lab, Result, loose
from tests.simulated.planted import load
from tests.simulated.scenario import Fault, Noise
from tests.tinyrepo import abprof, source, tiny_repo

SLOW = 1.03


def test_the_only_commit_between_the_ends(tmp_path: Path) -> None:
    story = Story(tmp_path)
    good, bad = story.line([1.0, SLOW])
    result = story.written().bisect(good, bad, "--json")
    assert result.code == 0, result.err
    assert story.culprits(result) == [bad]
    answer = loose(result)
    assert [step["question"] for step in answer["steps"]] == ["ends", "parent"]
    assert all((Path(answer["bisect_dir"]) / step["run"] / "report.html").exists() for step in answer["steps"])
    assert story.lab.left_behind() == []


def test_a_step_that_its_budget_cannot_pay_ends_the_search_and_is_continued(tmp_path: Path) -> None:
    story = Story(tmp_path)
    good, bad = story.line([1.0, SLOW])
    ended = story.written().bisect(good, bad, "--budget", "0.01s")
    folder = _folder(story.lab).relative_to(tmp_path)
    assert (ended.code, ended.out[:25]) == (4, "w/case=a: undecided after"), ended.err
    assert f"abprof bisect --resume {tmp_path / folder} --budget TIME" in ended.err
    assert ended.err.startswith("warning: a step takes about 1 s, --budget allows 0 s"), "before anything is built"
    assert "% slower so far (1 of 4 epochs)" in ended.err
    result = story.lab.abprof("bisect", "--resume", str(folder), "--budget", "10m", "--json")
    assert (result.code, story.culprits(result)) == (0, [bad]), result.err


def sixteen(story: Story, slips: dict[int, float], broken: range = range(0)) -> list[int]:
    """17 commits, of which those in `slips` multiply the time from there on; the first is the good end."""
    factors, now = [], 1.0
    for place in range(17):
        now *= slips.get(place, 1.0)
        factors.append(now)
    return story.line(factors, broken=frozenset(broken))


@pytest.mark.slow
def test_two_slips_among_16_commits(tmp_path: Path) -> None:
    story = Story(tmp_path)
    commits = sixteen(story, {3: SLOW, 12: SLOW})
    result = story.written().bisect(commits[0], commits[-1], "--json")
    assert result.code == 0, result.err
    assert story.culprits(result) == [commits[3], commits[12]]
    assert [step["question"] for step in loose(result)["steps"]][:2] == ["ends", "step"]


@pytest.mark.slow
def test_a_slip_among_five_of_16_commits_that_do_not_build(tmp_path: Path) -> None:
    story = Story(tmp_path)
    commits = sixteen(story, {9: SLOW}, range(7, 12))
    result = story.written().bisect(commits[0], commits[-1], "--json")
    assert (result.code, story.culprits(result)) == (4, []), result.err
    (finding,) = loose(result)["found"][0]["findings"]
    assert finding["kind"] == "range"
    assert finding["commits"] == [story.hashes[commit] for commit in commits[7:13]]


@pytest.mark.slow
def test_a_slip_on_a_branch_that_was_merged(tmp_path: Path) -> None:
    story = Story(tmp_path)
    main = story.line([1.0] * 8)
    branch = story.line([1.0] * 3 + [SLOW] * 5, main[3])
    merge = story.commit(main[-1], branch[-1], factor=SLOW)
    after = story.line([SLOW] * 6, merge)
    result = story.written().bisect(main[0], after[-1], "--json")
    assert (result.code, story.culprits(result)) == (0, [branch[3]]), result.err


@pytest.mark.slow
def test_commits_that_leave_the_kernels_alone_are_not_measured(tmp_path: Path) -> None:
    story = Story(tmp_path)
    good = story.commit(factor=1.0)
    last = good
    for _ in range(40):
        last = story.commit(last)
    culprit = last = story.commit(last, factor=SLOW)
    for _ in range(20):
        last = story.commit(last)
    result = story.written().bisect(good, last, "--json")
    assert (result.code, story.culprits(result)) == (0, [culprit]), result.err
    assert [step["question"] for step in loose(result)["steps"]] == ["ends", "parent"]


@pytest.mark.slow
def test_cells_with_culprits_of_their_own(tmp_path: Path) -> None:
    """Each cell has its own search; a cell without a change ends after one step."""
    story = Story(tmp_path, replace(SCENARIO, workloads={"w": load(["a", "b", "c"])}))
    commits = [story.commit(factor=1.0)]
    for place in range(1, 7):
        factors = {"*case=a": SLOW if place >= 2 else 1.0, "*case=b": SLOW if place >= 5 else 1.0}
        commits.append(story.commit(commits[-1], factors=factors))
    result = story.written().bisect(commits[0], commits[-1], "--json")
    assert (result.code, story.culprits(result)) == (0, [commits[2], commits[5]]), result.err
    found = {one["row"]["cell"]: len(one["findings"]) for one in loose(result)["found"]}
    assert found == {"w/case=a": 1, "w/case=b": 1, "w/case=c": 0}


@pytest.mark.slow
def test_what_is_never_certain_is_not_guessed(tmp_path: Path) -> None:
    """Processes that differ by far more than the change: at the last planned look the ends are open, and nothing is named."""
    story = Story(tmp_path, replace(SCENARIO, noise=[Noise(epoch=0.3)]))
    commits = story.line([1.0, SLOW])
    result = story.written().bisect(commits[0], commits[-1], "--json")
    assert (result.code, story.culprits(result)) == (4, []), result.err
    (finding,) = loose(result)["found"][0]["findings"]
    assert (finding["kind"], finding["answer"]["result"], finding["answer"]["epochs"]) == ("open", "unclear", 32)


@pytest.mark.slow
def test_a_step_that_was_tampered_with_answers_nothing(tmp_path: Path) -> None:
    """A file that the run depends on changed while it ran: its measurements are of unknown code."""
    planted = Fault(do="write", verb="turn", side="target", once=True, text="cache/builds/*/*/src/kernels/k/*.json")
    story = Story(tmp_path, replace(SCENARIO, faults=[planted]))
    good, bad = story.line([1.0, SLOW])
    result = story.written().bisect(good, bad, "--json")
    assert (result.code, story.culprits(result)) == (4, []), result.err
    (finding,) = loose(result)["found"][0]["findings"]
    assert (finding["kind"], finding["answer"]["result"], finding["answer"]["reason"]) == (
        "open",
        "unclear",
        "tampered",
    )


# The signal comes when the third step has its first block, however busy the machine is: only abprof itself knows when.
STRUCK = """
import os
from abprof.__main__ import main
from abprof.store import RunFolder
append, number = RunFolder.append_block, int(os.environ.pop("STRUCK_BY"))

def append_block(folder, block):
    append(folder, block)
    if "/steps/03/" in str(folder.path):
        RunFolder.append_block = append
        os.kill(os.getpid(), number)

RunFolder.append_block = append_block
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)])
def test_a_bisection_goes_on_where_it_was_ended(tmp_path: Path, how: signal.Signals) -> None:
    story = Story(tmp_path)
    commits = story.line([1.0] * 5 + [SLOW] * 4)
    lab = story.written().lab
    ends = story.hashes[commits[0]], story.hashes[commits[-1]]
    ended = lab.finish(lab.start("bisect", *ends, program=("-P", "-c", STRUCK), env={"STRUCK_BY": f"{int(how)}"}))
    assert ended.code == (-how if how == signal.SIGKILL else 130), (ended.out, ended.err)
    folder = _folder(lab)
    assert how == signal.SIGKILL or f"abprof bisect --resume {folder}" in ended.err
    done = sorted((folder / "steps").glob("0[12]/*/rounds.jsonl"))
    before = [path.read_bytes() for path in done]
    status = json.loads((folder / "bisect.json").read_text())["status"]
    assert status == ("running" if how == signal.SIGKILL else "interrupted")
    result = lab.abprof("bisect", "--resume", str(folder), "--json")
    assert (result.code, story.culprits(result)) == (0, [commits[5]]), result.err
    assert [path.read_bytes() for path in done] == before
    assert len(list((folder / "steps").glob("03/*/run.json"))) == 1
    again = lab.abprof("bisect", "--resume", str(folder), "--json")
    assert again.out == result.out
    assert lab.left_behind() == []


def refused(result: Result, *words: str) -> None:
    """One line, which has these words; exit 2."""
    assert result.code == 2, (result.out, result.err)
    last = result.err.strip().splitlines()[-1]
    assert last.startswith("abprof: "), result.err
    assert all(word in last for word in words), last
    assert "Traceback" not in result.err


def test_ends_that_are_none(tmp_path: Path) -> None:
    story = Story(tmp_path)
    good, bad = story.line([1.0, SLOW])
    lab = story.written().lab
    lab.repo.git("branch", "aside", story.hashes[good])
    lab.repo.checkout("aside")
    lab.repo.commit("Aside")
    lab.repo.checkout("main")
    refused(story.bisect(bad, good), "is not an ancestor of", "abprof bisect")
    refused(lab.abprof("bisect", "aside", "story"), "aside is not an ancestor of story", story.hashes[good][:10])
    refused(story.bisect(good, good), "GOOD and BAD are both commit")
    refused(lab.abprof("bisect", "storey", "main"), "storey", "story")
    refused(lab.abprof("bisect", "main"), "needs two refs")
    refused(lab.abprof("bisect", "main", "."), ".: not a commit")
    refused(story.bisect(good, bad, "--only", "case=z"), "case has no value 'z'")
    refused(lab.command("bisect", "--resume", str(tmp_path)), "has no bisect.json")
    refused(lab.abprof("bisect", "--resume", str(tmp_path), "--seed", "1"), "--seed", "keeps its options")
    assert not lab.runs.exists()


def test_ends_that_cannot_be_measured(tmp_path: Path) -> None:
    story = Story(tmp_path)
    good, bad = story.commit(factor=1.0), story.commit(1, build="no such header")
    refused(story.written().bisect(good, bad), "no cell can be measured on both GOOD and BAD", "build_failed")


def test_the_plan_is_shown_and_nothing_is_measured(tmp_path: Path) -> None:
    workloads = {"w": replace(SCENARIO.workloads["w"], checked="sides")}
    story = Story(tmp_path, replace(SCENARIO, workloads=workloads))
    commits = story.line([1.0] * 65)
    result = story.written().bisect(commits[0], commits[-1], "--dry-run")
    assert result.code == 0, result.err
    assert "changed by 64 commits along first parents: 6 steps to halve them" in result.out
    assert "9 steps for one culprit" in result.out
    assert (result.out + result.err).count("steps for one culprit") == 1
    assert "Weaker guarantee: w has no reference." in result.out
    assert not story.lab.runs.exists()


def _folder(lab: Lab) -> Path:
    (found,) = (path for path in lab.runs.iterdir() if path.is_dir())
    return found


@pytest.mark.slow
def test_every_step_is_read_by_the_given_timer(tmp_path: Path) -> None:
    story = Story(tmp_path)
    good, bad = story.line([1.0, SLOW])
    result = story.written().bisect(good, bad, "--timer", "graph", "--json")
    answer = loose(result)
    assert story.culprits(result) == [bad], result.err
    runs = [Path(answer["bisect_dir"]) / step["run"] / "run.json" for step in answer["steps"]]
    assert {row["metric"] for run in runs for row in json.loads(run.read_text())["comparisons"]} == {"gpu_graph"}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_commit_that_made_a_c_kernel_slower(tmp_path: Path) -> None:
    repo = tiny_repo(tmp_path / "repo")
    file = "kernels/tiny/tiny.c"
    repo.commit("Say what it is for", {"README.md": "It doubles.\n"})  # changes no kernel, so it is not measured
    culprit = repo.commit("Four times the work", {file: source(400)})
    repo.commit("What does not compile", {file: f"{source(400)} oh"})
    repo.commit("Taken back", {file: source(400)})  # as slow as the culprit, which is not measured for that
    done = abprof("bisect", "main~4", "main", "--device", "cpu", "--json", cwd=repo.path, home=tmp_path)
    assert done.code == 0, done.err
    assert done.run["culprits"] == [culprit]
    (finding,) = done.run["found"][0]["findings"]
    assert finding["parent"] == repo.git("rev-parse", "main~3")
    assert finding["answer"]["result"] == "above"
    assert finding["answer"]["theta"] > 0.5, (
        "log ratio: four times is 1.39; how wide its interval is depends on the load"
    )
