"""Whole runs with settings: whose thresholds decide, who wins over whom, which peers run, and what fits the budget."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from abprof.measure import turns
from abprof.measure.epoch_loop import affordable
from abprof.records import Machine
from abprof.store import runfolder
from abprof.store.runfolder import read
from abprof.system import certificate
from abprof.verdict import stats
from tests.simulated.lab import Lab, Result, loose
from tests.simulated.planted import NewLab, load
from tests.simulated.scenario import Fault, Noise, Scenario, Time, Workload

LOAD = Workload(kernel="k", presets={"default": {"case": ["a", "b"]}, "small": {"case": ["a"]}})
SIZED = Workload(kernel="k", presets={"default": {"case": ["a", "b"], "n": [1]}})
# Three per cent slower: beyond the default threshold of 1.5 %, inside one of 10 %.
PLANTED = Scenario(workloads={"w": LOAD}, times=[Time(ns=20e6), Time(factor=1.03, side="target")])
WIDE = "schema = 1\n[defaults]\nthreshold = 10.0\nmargin = 0.4\n"
CELLS = WIDE + '[[threshold]]\ncells = "w/case=b"\npercent = 2.0\n'
TOML = "abprof.toml"
SMALL = 'schema = 1\n[defaults]\npreset = "small"\nbudget = "90s"\n'


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path, PLANTED)


def planned(lab: Lab, *args: str, repo: Path | None = None) -> dict[str, Any]:
    """Return a dry run's output."""
    places = ["--repo", str(repo or lab.repo.path), "--device", "simulated"]
    return loose(lab.command("main", "fast", "--dry-run", "--json", *places, *args))


def test_thresholds_of_the_file_decide_verdicts_cell_by_cell(lab: Lab) -> None:
    lab.repo.write({"abprof.toml": CELLS})
    result = lab.abprof("main", "fast")
    assert result.table() == {"w/case=a": "slight", "w/case=b": "slower"}
    assert (result.run.options.threshold, result.run.options.margin) == (10.0, 0.4)
    assert result.code == 1


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(lab: Lab) -> None:
    assert planned(lab)["options"]["threshold"] == 1.5
    lab.repo.write({"abprof.toml": WIDE})
    assert planned(lab)["options"]["threshold"] == 10.0
    lab.more = {"ABPROF_THRESHOLD": "7"}
    assert planned(lab)["options"]["threshold"] == 7.0
    assert planned(lab, "--threshold", "3%")["options"]["threshold"] == 3.0


def test_options_from_the_environment(lab: Lab) -> None:
    lab.set(Scenario(workloads={"w": SIZED}))
    lab.more = {
        "ABPROF_REPO": str(lab.repo.path), "ABPROF_DEVICE": "simulated", "ABPROF_ONLY": "case=b n=2", "ABPROF_SET": "n=2,3",
        "ABPROF_SEED": "7", "ABPROF_BUDGET": "90s", "ABPROF_FAIL_ON": "never", "ABPROF_EPOCHS": "5",
    }  # fmt: skip

    def dry_run(*args: str) -> tuple[list[str], Any]:
        plan = loose(lab.command("main", "fast", "--dry-run", "--json", *args))
        return [cell["id"] for cell in plan["cells"]], plan["options"]

    cells, settings = dry_run()
    assert cells == ["w/case=b,n=2"]
    assert {name: settings[name] for name in ("seed", "budget", "fail_on", "epochs")} == {
        "seed": 7, "budget": 90.0, "fail_on": ["never"], "epochs": 5,
    }  # fmt: skip
    cells, settings = dry_run("--only", "n=3", "--seed", "8")
    assert (cells, settings["seed"]) == (["w/case=a,n=3", "w/case=b,n=3"], 8)


@pytest.mark.parametrize(
    ("option", "wrong", "right", "says"),
    [
        ("--threshold", "abc", "2", "ABPROF_THRESHOLD: 'abc' is not a positive percentage (write 1.5 or 1.5%)"),
        ("--preset", "nope", "small", "ABPROF_PRESET: workload w has no preset 'nope' (it has default, small)"),
    ],
)
def test_a_bad_value_from_the_environment_names_the_variable(
    lab: Lab, option: str, wrong: str, right: str, says: str
) -> None:
    """The command line wins over the variable."""
    lab.more = {"ABPROF_" + option.removeprefix("--").upper(): wrong}
    words = ("main", "fast", "--dry-run", "--repo", str(lab.repo.path), "--device", "simulated")
    done = lab.command(*words)
    assert (done.code, done.err.splitlines()[-1]) == (2, f"abprof: {says}")
    assert lab.command(*words, option, right).code == 0


@pytest.mark.parametrize(
    ("name", "text", "device", "says"),
    [
        (TOML, "[defaults]\npreset = 'nope'\n", "simulated", ", defaults.preset: workload w has no preset 'nope' (it has default,"),
        (TOML, "defaults = {preset = 'none'}\n", "simulated", ", defaults.preset: the matrix is empty: no cell is left"),
        (TOML, "[defaults]\n\ntimer = 'graph'\n", "cpu", ", defaults.timer: graph times a GPU, and this run is of a CPU (choose"),
        ("base's commit", "[defaults]\npreset = 'nope'\n", "simulated", ", defaults.preset: workload w has no preset 'nope' (it"),
    ],
)  # fmt: skip
def test_a_bad_value_of_the_file_names_file_and_key(lab: Lab, name: str, text: str, device: str, says: str) -> None:
    """Only given options are recorded; a given option wins over the file."""
    lab.set(Scenario(workloads={"w": replace(LOAD, presets={**LOAD.presets, "none": {"case": []}})}))
    where = f"{lab.repo.path}/{name}"
    if name == "base's commit":
        lab.repo.commit("file", {"abprof.toml": text})
        lab.repo.write({"abprof.toml": ""})
        lab.more = {"CI": "true"}
        where = "main:abprof.toml"
    else:
        lab.repo.write({name: text})
    places = ("--repo", str(lab.repo.path), "--device", device)
    for more in ([], ["--dry-run"]):
        done = lab.command("main", "fast", *places, *more)
        assert done.code == 2
        assert done.err.splitlines()[-1].startswith(f"abprof: {where}{says}"), done.err
        assert "--" not in done.err.splitlines()[-1]
    if "preset" in text:
        assert lab.command("main", "fast", *places, "--dry-run", "--preset", "small").code == 0
        asked = lab.command("main", "fast", *places, "--dry-run", "--preset", "wrong")
        assert asked.err.splitlines()[-1].startswith("abprof: --preset: workload w has no preset 'wrong'")


def test_the_file_is_found_from_a_folder_inside_the_repository(lab: Lab) -> None:
    lab.repo.write({"abprof.toml": SMALL})
    for place in (lab.repo.path, lab.repo.path / "kernels" / "k"):
        plan = planned(lab, repo=place)
        assert [cell["id"] for cell in plan["cells"]] == ["w/case=a"]
        assert plan["options"]["budget"] == 90.0


def test_in_ci_nothing_is_taken_from_the_working_trees_file(lab: Lab) -> None:
    """A change of the working tree's file has no effect: preset, budget and mistakes."""
    lab.repo.commit("all of it", {"abprof.toml": '[defaults]\npreset = "default"\nbudget = "7m"\n'})
    lab.repo.checkout("fast")
    lab.repo.commit("little", {"abprof.toml": '[defaults]\npreset = "small"\nbudget = "1s"\n'})

    def cells_and_budget() -> tuple[int, float]:
        plan = planned(lab)
        return len(plan["cells"]), plan["options"]["budget"]

    assert cells_and_budget() == (1, 1.0), "by hand: the working tree's"
    lab.more = {"CI": "true"}
    assert cells_and_budget() == (2, 420.0)
    lab.repo.write({"abprof.toml": "[defaults\n"})
    assert cells_and_budget() == (2, 420.0)
    assert planned(lab, "--preset", "small", "--budget", "5m")["options"]["budget"] == 300.0
    assert len(planned(lab, "--preset", "small")["cells"]) == 1


def test_in_ci_a_pull_request_brings_no_judge(lab: Lab) -> None:
    """Neither a path of workloads, nor an interpreter of its checkout, nor the benchmarks that base's workloads wrap."""
    judges = lab.repo.path.parent / "judges"
    judges.mkdir()
    (lab.repo.path / "workloads" / "w.py").rename(judges / "w.py")
    files = {
        "bench.py": "A = 1\n",
        "tools/bin/python": "",
        "abprof.toml": "workloads = '../judges'\nbenchmarks = ['bench.py']\n",
    }
    lab.repo.commit("outside", files)

    def digest(**more: str) -> str:
        lab.more = {**more}
        return str(planned(lab)["workloads_from"])

    before = digest(CI="true")
    lab.repo.write({"bench.py": "A = 2\n"})
    assert digest() != before, "by hand: the working tree's"
    assert digest(CI="true") == before
    lab.more = {}
    assert str(planned(lab, "--untrusted")["workloads_from"]) == before
    hostile = lab.command("main", "fast", "--dry-run", "--untrusted", "--workloads", "bench.py")
    assert hostile.err.splitlines()[-1].startswith(
        "abprof: --workloads bench.py: a path, and --untrusted is given (name"
    )

    def refused(*args: str, **more: str) -> str:
        lab.more = {"CI": "true", **more}
        done = lab.command("main", "fast", "--dry-run", "--repo", str(lab.repo.path), "--device", "simulated", *args)
        assert (done.code, done.out) == (2, "")
        return done.err.splitlines()[-1]

    for name in ("bench.py", ".", str(judges)):
        assert refused("--workloads", name).startswith(f"abprof: --workloads {name}: a path, and CI is set (name")
    assert refused(ABPROF_WORKLOADS="bench.py").startswith("abprof: ABPROF_WORKLOADS bench.py: a path, and CI is set")
    lab.repo.commit("interpreter", {"abprof.toml": "[python]\nall = './tools/bin/python'\n"})
    assert "abprof.toml, python.all: CI is set, and the checkout brings files of this interpreter" in refused()


def test_bases_file_and_waivers_may_begin_with_a_byte_order_mark_and_are_utf8(lab: Lab) -> None:
    lab.more = {"CI": "true"}
    waiver = "[[waiver]]\ncells = 'w/*'\nmost_percent = 5.0\nreason = 'caf\xe9'\nowner = 'me'\nexpires = 2099-01-01\n"
    texts = {"abprof.toml": SMALL, "abprof-waivers.toml": waiver}
    for name, text in texts.items():
        (lab.repo.path / name).write_bytes(b"\xef\xbb\xbf" + text.encode())
    lab.repo.commit("with a mark")
    plan = planned(lab)
    assert [cell["id"] for cell in plan["cells"]] == ["w/case=a"]
    assert [waived["reason"] for waived in plan["waivers"]] == ["caf\xe9"]
    for name, line in (("abprof-waivers.toml", 4), ("abprof.toml", 5)):
        (lab.repo.path / name).write_bytes((texts[name] + "# caf\xe9\n").encode("latin-1"))
        lab.repo.commit("latin")
        done = lab.command("main", "fast", "--dry-run", "--repo", str(lab.repo.path), "--device", "simulated")
        said = f"abprof: main:{name}:{line}: not UTF-8 (save the file as UTF-8)"
        assert (done.code, done.err.splitlines()[-1]) == (2, said)


def test_interpreters_for_sides_that_a_run_does_not_have_are_left_alone(lab: Lab) -> None:
    """One file serves runs of one, two and three sides; an impossible side is an error in each."""
    lab.repo.write(
        {"abprof.toml": f'[python]\ntarget = "{sys.executable}"\ntarget2 = "/no/python"\ntarget17 = "nothing"\n'}
    )
    lab.more = {"ABPROF_WORKER": None}
    places = ("--dry-run", "--repo", str(lab.repo.path), "--device", "cpu")
    assert lab.command("main", "fast", *places).code == 0
    done = lab.command("main", "fast", "main", *places)
    said = f"abprof: {lab.repo.path}/abprof.toml, python.target2: no Python interpreter '/no/python'"
    assert (done.code, done.err.splitlines()[-1]) == (2, said)
    for never in ("target1", "control"):
        lab.repo.write({"abprof.toml": f'[python]\n{never} = "python3"\n'})
        done = lab.command("main", *places)
        said = f"abprof: {lab.repo.path}/abprof.toml, python.{never}: unknown side '{never}', expected all, base, target, target2, ..."
        assert (done.code, done.err.splitlines()[-1]) == (2, said)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[kernels.k]\npath = '../k'\n", ", kernels.k.path: '../k' is not below the repository's root"),
        (
            "[kernels.k]\npath = 'src/k'\n",
            ", kernels.k.path: no side has a kernel package k: src/k does not exist on this",
        ),
    ],
)
def test_a_package_that_is_nowhere_is_refused_alike_by_a_run_and_a_dry_run(lab: Lab, text: str, says: str) -> None:
    """What lies beside the repository too, although it is there."""
    (lab.repo.path.parent / "k").mkdir()
    lab.repo.write({"abprof.toml": text})
    for more in ([], ["--dry-run"]):
        done = lab.command("main", "fast", "--repo", str(lab.repo.path), "--device", "simulated", *more)
        assert done.code == 2
        assert done.err.splitlines()[-1].startswith(f"abprof: {lab.repo.path}/abprof.toml{says}"), done.err
        assert lab.left_behind() == []
        assert not (lab.repo.path / "runs").exists()


def test_a_dry_run_of_a_package_that_one_side_alone_has_is_a_plan(lab: Lab) -> None:
    lab.repo.checkout("fast")
    lab.repo.git("mv", "kernels/k", "kernels/elsewhere")
    lab.repo.commit("moved")
    lab.repo.checkout("main")
    assert len(planned(lab)["cells"]) == 2
    lab.repo.git("branch", "--force", "main2", "fast")
    done = lab.command("fast", "main2", "--dry-run", "--repo", str(lab.repo.path), "--device", "simulated")
    said = (
        "abprof: no side has a kernel package k: kernels/k does not exist on this side (name its folder in abprof.toml"
    )
    assert (done.code, done.err.splitlines()[-1][: len(said)]) == (2, said)


@pytest.mark.slow
def test_in_ci_the_workloads_are_those_of_base(lab: Lab) -> None:
    lab.repo.write({"workloads/_tolerance.py": "RTOL = 1.0\n"})
    root = str(lab.repo.path)
    assert planned(lab)["workloads_from"].startswith(f"{root}/workloads "), "by hand: the working tree's"
    lab.more = {"CI": "true"}
    with_ci = planned(lab)["workloads_from"]
    assert "/s0/workloads sha256:" in with_ci, with_ci
    first = lab.abprof("main", "fast", "--only", "case=a")
    assert first.run.workloads_from.rpartition(" ")[2] == with_ci.rpartition(" ")[2]
    assert planned(lab, "--workloads-from", f"{root}/workloads")["workloads_from"].startswith(f"{root}/workloads ")
    lab.more = {}
    epochs = first.row("w/case=a").epochs
    again = lab.command("rerun", str(first.folder), "--repo", root)
    assert again.row("w/case=a").epochs > epochs, "the judge was found in base's worktree"


def test_in_ci_a_slow_down_fails_a_run_only_where_this_boot_passed_a_selfcheck(lab: Lab) -> None:
    """Wrong output fails it anywhere: no clock is asked for that."""

    def ended() -> tuple[int, str]:
        done = lab.abprof("main", "fast", "--contain", "never", "--epochs", "4")
        assert done.run.uncertified in "".join(one.text for one in done.run.warnings if one.kind == "uncertified")
        return done.code, done.run.uncertified

    here = Machine(host="simulated", device="simulated", kind="simulated")
    assert ended() == (1, ""), "by hand"
    lab.more = {"CI": "true"}
    assert ended() == (4, "this machine has passed no selfcheck")
    certificate.keep(lab.state, here, "")
    assert ended() == (1, "")
    certificate.keep(lab.state, here, "2 false alarms on unchanged code")
    assert ended() == (4, "this machine failed its last selfcheck (2 false alarms on unchanged code)")
    certificate.keep(lab.state, msgspec.structs.replace(here, facts={"driver": "550.1"}), "")
    assert ended() == (4, "this machine has passed no selfcheck since its driver was changed")
    (file,) = (lab.state / "certificates").iterdir()
    file.write_text(file.read_text().replace('"boot":"', '"boot":"an earlier '))
    assert ended() == (4, "this machine has passed no selfcheck since it was booted")
    lab.set(replace(PLANTED, faults=[Fault("wrong", "check", side="target")]))
    assert lab.abprof("main", "fast", "--contain", "never", "--epochs", "4").code == 1


CELL, OTHER = "w/case=one", "w/case=other"


def scenario(*faults: Fault, peers: list[str]) -> Scenario:
    load = Workload(kernel="k", presets={"default": {"case": ["one", "other"]}}, peers=peers)
    times = [Time(ns=1e6), Time(ns=2e6, arm="peer:lib")]
    return Scenario(workloads={"w": load}, times=times, faults=list(faults))


def test_only_measured_workloads_are_said_to_lack_a_reference(new_lab: NewLab) -> None:
    one = scenario(peers=[])
    shared = replace(one.workloads["w"], checked="sides")
    lab = new_lab(replace(one, workloads={"w": shared, "v": shared}))
    lab.repo.commit("Another", {"workloads/v.py": "# simulated\n"})
    assert "Weaker guarantee: w has no reference." in lab.abprof("main", "fast", "--only", "w/*", "--quick").out


def test_peers_have_a_worker_of_their_own_for_eight_epochs(new_lab: NewLab) -> None:
    lab = new_lab(scenario(peers=["lib"]))
    result = lab.abprof()
    run, blocks, _ = read(result.folder)
    assert result.table() == {CELL: "same", OTHER: "same"}
    for block in (block for block in blocks if block.rounds):
        beside = {"control", "peers"} if block.epoch <= 8 else set[str]()
        assert ("peer:lib" in block.arms) == ("control" in block.arms) == bool(beside)
        assert set(block.start_order) == {"base", "target"} | beside
    assert {proof.side for proof in run.proofs} == {"base", "target", "control"}
    assert {kernel.side for kernel in run.kernels} <= {"base", "target"}
    assert {arm.side for arm in run.arms if arm.peer} == {"base"}, "of base, whose workload it stands beside"
    lab.set(scenario(Fault("kill", "turn", side="peers", cell=CELL), peers=["lib"]))
    result = lab.abprof("main", "fast", "--margin", "1.5")
    assert result.table() == {CELL: "same", OTHER: "same"}, "a peer that kills its process takes no side with it"
    assert result.status(CELL, "peer:lib")[0] == "crash"
    assert result.status(CELL, "base") == result.status(CELL, "target") == ("ok", "")
    assert not any(block.rejected for block in read(result.folder)[1])
    lab.set(scenario(peers=[]))
    alone = lab.abprof("main", "fast", "--epochs", "4")
    assert {id for block in read(alone.folder)[1] for id in block.start_order} == {"base", "target", "control"}


# Turns that take real time and scatter so much that no epoch settles early.
SLOW = Scenario(
    workloads={"w": load(["slower", "same"])},
    times=[Time(ns=4e6), Time(factor=2.0, cell="*case=slower", side="target")],
    noise=[Noise(turn=0.2)],
    faults=[Fault("slow:0.012", "turn")],
)


@pytest.mark.parametrize(
    ("done", "cost", "left", "fits"),
    [(5, 4.0, 4.0, True), (5, 4.0, 3.9, True), (4, 4.0, 3.4, False), (4, 4.0, 4.0, True), (11, 5.0, 0.6, True),
     (11, 5.0, 0.4, False), (32, 5.0, 1.0, True)],
)  # fmt: skip
@pytest.mark.parametrize("asked", [None, 48])
def test_a_look_may_be_late_by_a_tenth_of_the_budget(
    done: int, cost: float, left: float, fits: bool, asked: int | None
) -> None:
    costs = {"a": (done, cost - 1.5), "b": (done, 1.0)}
    assert (affordable(costs, 0.5, left, 45.0, asked) == {"a", "b"}) == fits


@pytest.mark.parametrize(
    ("costs", "left", "measured"),
    [({"a": (1, 3.0), "b": (1, 9.0), "c": (1, 2.0)}, 20.0, "ac"),  # three epochs of b do not fit
     ({"a": (4, 1.0), "b": (1, 5.0), "c": (4, 2.0)}, 18.6, "ab"),  # a first look comes before the second one of others
     ({"a": (1, 7.0), "b": (1, 9.0)}, 17.0, "ab"), ({"a": (1, 7.0), "b": (1, 9.0)}, 16.0, "")],  # no look can be reached
)  # fmt: skip
def test_a_budget_too_small_for_all_cells_decides_some(
    costs: dict[str, tuple[int, float]], left: float, measured: str
) -> None:
    assert affordable(costs, 0.5, left, 0.0) == {*measured}


def rounds(result: Result) -> dict[int, list[int]]:
    """Epoch -> rounds of each of its blocks."""
    found: dict[int, list[int]] = {}
    for block in (block for block in runfolder.read(result.folder)[1] if block.rounds):
        found.setdefault(block.epoch, []).append(len(block.rounds))
    return found


@pytest.mark.slow
def test_epochs_are_so_short_that_a_small_budget_reaches_a_look(new_lab: NewLab) -> None:
    result = new_lab(SLOW).abprof("main", "fast", "--budget", "20s")
    found = rounds(result)
    assert len(found) >= stats.LOOKS[0]
    assert all(few >= turns.FEWEST for each in found.values() for few in each)
    assert result.verdict("w/case=slower") == "slower"


def test_cells_that_cannot_reach_a_look_leave_the_budget_to_others(new_lab: NewLab) -> None:
    heavy = [Fault("slow:0.8", "open", cell="*case=same")]
    result = new_lab(replace(SLOW, noise=[], faults=heavy)).abprof("main", "fast", "--budget", "8s")
    assert (result.verdict("w/case=slower"), result.verdict("w/case=same")) == ("slower", "unclear")


def test_a_budget_that_cannot_reach_the_first_look_is_reported_with_one_that_can(new_lab: NewLab) -> None:
    result = new_lab(replace(SLOW, faults=[])).abprof("main", "fast", "--budget", "0.1s")
    assert list(rounds(result)) == [1]
    assert set(result.table().values()) == {"unclear"}
    (warning,) = [warning for warning in result.run.warnings if warning.kind == "undecided"]
    assert "ended before 4 epochs" in warning.text
