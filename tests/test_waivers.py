"""Waivers: their rows, their end, and that a branch cannot waive itself."""

import datetime
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from abprof.cli import run_command_line
from abprof.records import WAIVER_FILE, Waiver
from abprof.records.errors import AbprofError
from abprof.system import waiver_file
from abprof.verdict import waivers

from . import notices, runs
from .simulated.lab import Lab
from .simulated.scenario import Scenario, Time, Workload

DAY = "2026-12-31"


def waiver(cells: str = "dense/*", most: float = 5.0, expires: str = DAY, **more: str) -> Waiver:
    return Waiver(cells=cells, most_pct=most, reason=more.get("reason", "the new layout"), owner="ada", expires=expires)


def judged(*valid: Waiver):
    """A run with one row of +2.1 % (in it `dense/...direction=bwd`), its waivers applied."""
    run = runs.changed(notices.slower(), waivers=valid, warnings=())
    rows = waivers.applied(run, run.comparisons)
    return runs.changed(run, comparisons=rows), rows


def reasons(*valid: Waiver) -> list[tuple[str, ...]]:
    return [row.reasons for row in judged(*valid)[1] if row.verdict == "slower"]


def test_a_slower_row_within_its_waiver_is_still_slower_and_waived():
    assert reasons(waiver()) == [("waived",)]
    assert reasons() == [()]


@pytest.mark.parametrize(
    "other", [waiver("block_sparse/*"), waiver(most=2.0), waiver(expires="2026-11-19"), waiver("dense/*direction=fwd")]
)
def test_another_cell_a_larger_change_and_a_day_too_late_are_not_covered(other):
    assert reasons(other) == [()]


def test_expired_and_exceeded_waivers_warn():
    run, rows = judged(waiver(expires="2026-11-19"), waiver(most=2.0), waiver("elsewhere/*", expires="2020-01-01"))
    old, beyond = waivers.advice(run, rows)
    assert (old.kind, beyond.kind) == ("waiver_expired", "waiver_exceeded")
    assert "dense/*: up to 5 % slower until 2026-11-19 (ada: the new layout)" in old.text
    assert "elsewhere" not in old.text
    assert len(beyond.cells) == 1
    run, rows = judged(waiver())
    assert list(waivers.advice(run, rows)) == []


GOOD = 'schema = 1\n[[waiver]]\ncells = "a"\nmost_percent = 5\nreason = "r"\nowner = "o"\nexpires = 2026-12-31\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("schema = 2", ", schema: schema = 2, this abprof reads schema = 1"),
        (GOOD + GOOD[10:].replace("5", "'5'"), ", waiver.1.most_percent: Expected `float`, got `str`"),
        ("schema = ", "Invalid value"),
        (GOOD.replace('reason = "r"\n', ""), ", waiver.0: Object missing required field `reason`"),
        (GOOD.replace('"r"', '" "'), ", waiver.0.reason: reason is empty"),
        (GOOD.replace("5", "0"), ", waiver.0.most_percent: most_percent = 0"),
        (GOOD.replace("most_percent = 5", "most_percent = nan"), "most_percent = nan"),
        (GOOD.replace("2026-12-31", '"soon"'), "Invalid RFC3339"),
        (GOOD + "for_ever = true\n", ", waiver.0.for_ever: there is no key 'for_ever'"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_with_its_place(text, says):
    with pytest.raises(AbprofError) as raised:
        waiver_file.parse(text, "main:abprof-waivers.toml")
    assert says in raised.value.line
    assert raised.value.line.startswith("main:abprof-waivers.toml")
    assert " - at " not in raised.value.line


def run_waive(tmp_path: Path, *args: str, cells: str = "dense/*") -> int:
    (tmp_path / ".git").mkdir(exist_ok=True)
    (tmp_path / "sub").mkdir(exist_ok=True)
    given = {"--most": "5", "--reason": "why", "--owner": "ada", "--until": "2999-01-31", "--repo": f"{tmp_path}/sub"}
    given |= dict(zip(args[::2], args[1::2], strict=True))
    return run_command_line(["waive", cells, *(word for pair in given.items() for word in pair)])


def test_waive_writes_what_runs_read_and_keeps_what_is_there(tmp_path, capsys):
    reason = 'a "quoted" \\ reason = [x] # é'
    assert run_waive(tmp_path, "--reason", reason, cells="dense/*'`") == 0
    file = tmp_path / WAIVER_FILE
    file.write_text(file.read_text().replace("[[waiver]]", "# mine\n[[waiver]]"))
    assert run_waive(tmp_path, "--most", "7.5%") == 0
    first, second = waiver_file.parse(file.read_text(), "x")
    assert (first.reason, first.cells, second.most_pct, second.expires) == (reason, "dense/*'`", 7.5, "2999-01-31")
    assert "# mine" in file.read_text()
    assert tomllib.loads(file.read_text())["waiver"][1]["expires"] == datetime.date(2999, 1, 31)
    assert "once committed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--until", "soon"), "--until: invalid date 'soon'"),
        (("--until", "2020-01-01"), "--until: 2020-01-01 is in the past"),
        (("--most", "-1"), "--most"),
        (("--reason", "a\nb"), "--reason: the value contains unprintable characters"),
        (("--owner", " "), "--owner: the value is empty"),
        (("--repo", "/"), "not a git repository"),
    ],
)
def test_waive_refuses_in_one_line_and_writes_nothing(tmp_path, capsys, args, says):
    assert run_waive(tmp_path, *args) == 2
    err = capsys.readouterr().err
    assert says in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / WAIVER_FILE).exists()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    load = Workload(kernel="ffa", presets={"default": {"direction": ["fwd", "bwd"]}})
    slow = Time(factor=1.2, cell="*direction=bwd", side="target")
    made = Lab(tmp_path_factory.mktemp("waived"), Scenario(workloads={"dense": load}, times=[Time(ns=20e6), slow]))
    yield made
    assert made.left_behind() == []


def given(most: int) -> str:
    return GOOD.replace('"a"', '"dense/*direction=bwd"').replace("= 5", f"= {most}").replace("2026", "2999")


def test_a_branch_cannot_waive_itself_and_the_base_can(lab):
    lab.repo.checkout("fast")
    lab.repo.commit("Waive me", {WAIVER_FILE: given(30)})
    lab.repo.checkout("main")
    (lab.repo.path / WAIVER_FILE).write_text(given(30))  # nor does the working tree
    alone = lab.abprof("main", "fast", "--only", "direction=bwd")
    (lab.repo.path / WAIVER_FILE).unlink()
    assert (alone.code, alone.run.waivers) == (1, ())
    lab.repo.commit("Accept it", {WAIVER_FILE: given(30)})
    accepted = lab.abprof("main", "fast", "--only", "direction=bwd")
    assert accepted.code == 0
    assert accepted.row("dense/direction=bwd").reasons[-1] == "waived"
    assert accepted.row("dense/direction=bwd").verdict == "slower"
    assert "1 slower and waived" in accepted.run.header.sentence
    assert lab.command("report", str(accepted.folder)).code == 0
    lab.repo.commit("Accept less", {WAIVER_FILE: given(10)})
    beyond = lab.abprof("main", "fast", "--only", "direction=bwd")
    assert beyond.code == 1
    assert "waiver_exceeded" in {advice.kind for advice in beyond.run.warnings}
