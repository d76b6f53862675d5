"""The nights of a cell in the rows of reports and comments: of real runs beside nights of known times."""

import re
import shutil
from pathlib import Path

import pytest

from tests.nights import Nights
from tests.simulated.lab import Lab
from tests.simulated.scenario import Noise, Scenario, Time, Workload

LOAD = Workload(kernel="k", presets={"default": {"case": ["a", "b"]}})
TIMES = [Time(ns=20e6), Time(factor=1.1, side="target")]
SLOWER = Scenario(workloads={"w": LOAD}, times=TIMES, noise=[Noise(epoch=0.002)])


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path, SLOWER)


def ten_nights(lab: Lab, runs_dir: Path) -> list[str]:
    """Ten nights of main: w/case=a takes 5 % longer from night 6 on, on which there were two commits. Return their hashes."""
    before = lab.repo.git("rev-parse", "HEAD")
    new = [lab.repo.commit("Pipe | <b>@loads</b>", {"a": "1"}), lab.repo.commit("Wider tiles", {"a": "2"})]
    nights = Nights(runs_dir, metric="wall", commits={5: before, 6: new[1], 10: new[1]})
    nights.series_of("w/case=a", [20e6] * 5 + [21e6] * 5)
    return new


def test_a_row_has_its_nights_the_change_and_that_nights_commits(lab: Lab, tmp_path: Path) -> None:
    """In the terminal, the pages and the comment; once more from the run folder alone; nothing in a row without nights."""
    nights = tmp_path / "nights"
    pipe, wider = ten_nights(lab, nights)
    done = lab.abprof("run", "main", "fast", "--history", str(nights))
    change = "10 nights of main to 2026-01-11; 5.0 % slower since night 6 (2026-01-07): "
    spark = "▁▁▁▁▁█████"
    assert f"nights case=a: {spark} {change}{wider[:10]} Wider tiles; {pipe[:10]} Pipe" in done.out
    assert "nights case=b" not in done.out

    shutil.rmtree(nights)
    assert lab.command("report", str(done.folder)).out.count(spark) == 1
    page, markdown = ((done.folder / f"report.{kind}").read_text() for kind in ("html", "md"))
    (note,) = re.findall(r'<div class="note">(<svg class="spark".*?)</div>', page)
    (title,) = re.findall("<title>(.*?)</title>", note)
    assert title.startswith("Nights of main: 2026-01-02 20.00 ms, 2026-01-03 20.00 ms")
    assert title.endswith("2026-01-11 21.00 ms")
    assert change in note
    assert "&lt;b&gt;@loads" in note
    rows = [line for line in markdown.splitlines() if spark in line]
    assert len(rows) == 1
    assert "| case=a" in rows[0].replace("`", "")
    assert f"{spark} {change}" in rows[0]
    comment = lab.command("comment", str(done.folder), "--dry-run").out
    assert f"`{spark} {change}{wider[:10]} Wider tiles; {pipe[:10]} Pipe \\| <b>@loads</b>`" in comment
    assert comment.count("nights of main") == 1


def test_a_night_shows_itself_last(lab: Lab) -> None:
    """And the first night of a branch, which has no comparison, shows its cells' nights too."""
    ten_nights(lab, lab.runs)
    lab.repo.commit("Tonight", {"kernels/k/__init__.py": "WHO = 'tonight'\n"})
    done = lab.abprof("nightly", "--quiet")
    (one,) = [one for one in done.run.history if one.cell == "w/case=a"]
    assert one.dates[-2:] == ("2026-01-11", done.run.began[:10])
    assert len(one.ns) == 11
    assert (one.night, one.series, one.because) == (6, "main", "code")
    lab.abprof("nightly", "--quiet", "--series", "other", "--all")
    alone = lab.newest()
    page = (alone / "report.html").read_text()
    assert re.search(r"<title>Nights of other: \d{4}-\d\d-\d\d 2\d\.\d+ ms</title>", page)


def test_without_nights_there_is_nothing(lab: Lab) -> None:
    done = lab.abprof("run", "main", "fast")
    assert done.run.history == ()
    assert "nights of" not in (done.folder / "report.md").read_text()
    assert "spark" not in re.sub("<style>.*?</style>", "", (done.folder / "report.html").read_text(), flags=re.DOTALL)
    refused = lab.abprof("run", "main", "fast", "--history", "nowhere")
    assert (refused.code, "--history nowhere" in refused.err) == (2, True)


def test_the_machine_changes_and_the_line_goes_on(lab: Lab) -> None:
    """A new machine runs the old commit twice as fast: earlier nights are shown as it would run them."""
    nights = Nights(lab.runs)
    nights.series_of("w/case=a", [20e6] * 4)
    nights.machine = {**nights.machine, "driver": "590"}
    nights.add({"w/case=a": (10e6, 10e6)})
    done = lab.abprof("run", "main", "fast")
    (one,) = done.run.history
    assert one.ns == (10e6,) * 5
    assert "▅▅▅▅▅ 5 nights of main to 2026-01-06; no confirmed change" in done.out
