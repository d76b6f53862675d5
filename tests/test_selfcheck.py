"""`abprof selfcheck`: exact counts from programmed rounds, and a real one on the CPU."""

import json
import math
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from abprof.extras import selfcheck
from abprof.extras.selfcheck import Recording, Selfcheck, Timed, called, examine, record, stopped
from abprof.records import Block, Cell, Machine, Run
from abprof.system.console import View
from tests import blocks, schemas
from tests.programs import program
from tests.tinyrepo import Done, abprof

LONG = "0.3 ms and longer"
QUIET = [0.01, -0.01, 0.02, -0.02]


def cell(name: str, inject: float) -> Cell:
    params = {"op": name, "inject": inject}
    return Cell(id=f"dense/op={name}", workload="dense", kernel="ffa", suite="dense", params=params)


def made(*cells: Cell) -> Run:
    machine = Machine(host="test", device="NVIDIA H200", kind="cuda")
    return msgspec.structs.replace(blocks.head(0), cells=cells, machine=machine)


def measured(cell: Cell, percents: list[float], us: float = 1000.0) -> list[Block]:
    """An epoch for each programmed change of time in per cent."""
    return blocks.epochs([1 + pct / 100 for pct in percents], cell=cell.id, base_ns=1000 * us)


def row(rows: Any, **wanted: Any) -> Any:
    (found,) = (each for each in rows if all(getattr(each, name) == value for name, value in wanted.items()))
    return found


def test_verdicts_are_counted_by_injection_threshold_and_duration() -> None:
    quiet, lied, short = (cell(name, 0.0) for name in ("quiet", "lied", "short"))
    one, two = cell("one", 2.0), cell("two", 2.0)
    undescribed = Cell(id="dense/", workload="dense", kernel="ffa", suite="dense", params={})  # its workload raised
    found = examine(
        made(quiet, lied, short, one, two, undescribed),
        [
            *measured(quiet, QUIET), *measured(lied, [3.01, 2.99, 3.02, 2.98]), *measured(short, QUIET, us=10),
            *measured(one, [2.0, 2.01, 1.99, 2.0]), *measured(two, [1.0, 1.01, 0.99, 1.0]),
        ],
    )  # fmt: skip
    long = row(found.tallies, inject=0.0, threshold=1.5, duration_class=LONG)
    assert (long.cells, long.slower, long.faster, long.same, long.unclear, long.epochs) == (2, 1, 0, 1, 0, 4)
    assert row(found.tallies, inject=0.0, threshold=0.25, duration_class="under 20 us").same == 1
    assert row(found.tallies, inject=2.0, threshold=1.5).slower == 1
    injected = row(found.tallies, inject=2.0, threshold=0.5)
    assert (injected.slower, injected.mean_pct) == (2, pytest.approx(1.5, abs=0.01))
    assert (found.false_alarms, found.cells) == (1, 5), "false alarms are those at the default threshold"
    text = selfcheck.as_markdown(found, Path("runs/x"))
    assert "**1 false alarms at the default threshold.**" in text
    assert f"| {LONG} | 1.5 % | 0.5 % | 1 of 2 (50 %) | 97.5 % | 1 of 2 (50 %) | 0 | 4.0 |" in text
    assert f"| +2 % | {LONG} | +1.50 % | 0.5 % | 2 of 2 (100 %) | 0 | 4.0 |" in text


def test_base_a_second_time_makes_three_pairs_of_a_cell() -> None:
    """All three of an unchanged cell must read the same; of an injected cell one must, and two must not."""
    found = examine(*three_sides())
    alarms = row(found.tallies, inject=0.0, threshold=1.5)
    assert (found.cells, alarms.cells, alarms.same, alarms.slower) == (2, 4, 4, 0)
    detected = row(found.tallies, inject=2.0, threshold=1.5)
    assert (detected.cells, detected.slower) == (2, 2)
    assert detected.mean_pct == pytest.approx(2.0, abs=0.01)
    assert row(found.precision).plain == 4


PLAIN, MORE = (cell(name, inject) for name, inject in (("plain", 0.0), ("more", 2.0)))


def three_sides() -> tuple[Run, list[Block]]:
    """An unchanged and a changed cell of base, target and base a second time."""
    sides = (blocks.side("base"), blocks.side("target"), blocks.side("target2"))
    read = [
        blocks.block(epoch, {"base": 1.0, "target": ratio * (1 + 1e-4 * (-1) ** epoch), "target2": 1.0}, cell=id)
        for id, ratio in ((PLAIN.id, 1.0), (MORE.id, 1.02))
        for epoch in range(1, 5)
    ]
    return msgspec.structs.replace(made(PLAIN, MORE), sides=sides), read


def test_a_cell_stops_where_a_run_does() -> None:
    log = [math.log1p(pct / 100) for pct in (0.3, -0.3, 0.3, -0.3, 0.0, 0.0, 0.0, 0.0)]
    assert stopped(log[:4], 1.5, 0.5) == ("unclear", 4)
    assert stopped(log, 1.5, 0.5) == ("same", 8), "all of its epochs: a run would go on to 24"
    assert stopped(log * 4, 1.5, 0.5) == ("same", 24)
    assert stopped(log * 4, 5.0, 5.0) == ("same", 4)
    assert stopped([math.log1p(0.03)] * 32, 1.5, 0.5) == ("slower", 4)


def test_coverage_takes_disjoint_epochs_and_all_looks_together() -> None:
    good, drifts = cell("good", 0.0), cell("drifts", 0.0)
    later = [*QUIET, 1.0, 1.01, 0.99, 1.0]  # the second four are far from zero, and so is no look of all eight
    found = row(examine(made(good, drifts), [*measured(good, QUIET * 2), *measured(drifts, later)]).precision)
    assert (found.plain, found.plain_covered, found.repeated, found.repeated_covered) == (4, 3, 2, 2)
    assert (found.cells, found.epoch_sd > 0) == (2, True)


@pytest.mark.parametrize(
    ("change", "by_time", "by_rate"),  # TFLOP/s are the inverse of times
    [
        (1.51, "slower", "unclear"), (1.53, "slower", "slower"), (-1.49, "unclear", "faster"),
        (-1.51, "faster", "faster"), (0.0, "unclear", "unclear"),
    ],
)  # fmt: skip
def test_other_protocols_judge_one_value_by_a_fixed_rule(change: float, by_time: str, by_rate: str) -> None:
    values = [math.log1p(change / 100)]
    assert called("do_bench", values, 1.5) == called("autorange", values, 1.5) == (by_time, 1)
    assert called("original", values, 1.5) == (by_rate, 1)


def compared() -> Selfcheck:
    """The cells on three sides, by abprof and by two other protocols, of which one failed."""
    timed = (
        Timed(cell=PLAIN.id, ns={"base": 1000.0, "target": 1010.0, "target2": 990.0}, seconds=0.25),
        Timed(cell=MORE.id, ns={"base": 1000.0, "target": 1020.0, "target2": 1016.0}, seconds=0.5),
    )
    failed = Recording(protocol="original", seconds=1.0, fault="killed by SIGKILL, see protocols.log")
    return examine(*three_sides(), (Recording(protocol="do_bench", seconds=30.0, load=1.5, cells=timed), failed))


def test_other_protocols_are_counted_over_the_same_pairs_as_abprof() -> None:
    found = compared()
    assert {each.protocol for each in found.others} == {"do_bench"}, "nothing is counted of a protocol that failed"
    # Of the plain cell 1.0, 2.02 and -1.0 %; base against itself in the changed one 1.6 %.
    alarms = row(found.others, inject=0.0, threshold=1.5)
    assert (alarms.cells, alarms.slower, alarms.faster, alarms.unclear) == (4, 2, 0, 2)
    assert alarms.seconds == pytest.approx((3 * 0.25 + 0.5) / 4)
    close = row(found.others, inject=0.0, threshold=0.5)
    assert (close.slower, close.faster, close.unclear) == (3, 1, 0)
    detected = row(found.others, inject=2.0, threshold=1.5)  # 2 and 0.39 %
    assert (detected.cells, detected.slower, detected.epochs) == (2, 1, 1)
    ours = row(found.tallies, inject=0.0, threshold=1.5)
    assert (ours.protocol, ours.cells, ours.same, ours.slower + ours.faster) == ("abprof", 4, 4, 0)
    assert ours.seconds == pytest.approx(4 * blocks.block(1, {"base": 1.0}).seconds), "four epochs to the first verdict"


def test_the_pages_put_abprof_beside_the_other_protocols() -> None:
    pages = selfcheck.pages(compared())
    text = pages["certificate.md"]
    assert "| abprof | 0 of 4 | 2 of 2 | 0 of 4 | 2 of 2 |" in text
    assert "| do\\_bench, A then B | 2 of 4 | 1 of 2 | 4 of 4 | 1 of 2 | 30 | 1.5 |" in text
    assert f"| {LONG} | do\\_bench, A then B | 2 of 4 | 90.2 % | 1 of 2 | 0.3 |" in text
    assert "**original scripts** failed: killed by SIGKILL, see protocols.log" in text
    assert "nvbench" in text, "what was left out is named"
    page = pages["certificate.html"]
    assert "no false alarm in 4 unchanged pairs, 2 of 2 planted changes found" in page
    assert "http:" not in page
    assert "https:" not in page, "it loads nothing"


def test_a_protocol_that_fails_leaves_the_reason_and_the_next_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ABPROF_STATE_DIR", str(tmp_path / "state"))
    repository, log = selfcheck.make(tmp_path / "repository"), tmp_path / "protocols.log"
    machine = Machine(host="test", device="CPU", kind="cpu")
    found = list(record(repository, [], machine, shutil.which("false") or "", log, View(quiet=True)))
    reason = "ended with exit code 1, see protocols.log"
    assert [(each.protocol, each.fault, each.cells) for each in found] == [
        ("autorange", reason, ()),
        ("original", reason, ()),
    ]


def test_one_line_differs_between_the_branches(tmp_path: Path) -> None:
    selfcheck.make(tmp_path / "repository")
    command = ["git", "-C", str(tmp_path / "repository"), "diff", "--stat", "main", "injected"]
    changed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "1 file changed, 1 insertion(+), 1 deletion(-)" in changed


def real(place: Path, *options: str) -> Done:
    options = ("selfcheck", "--device", "cpu", "--runs-dir", str(place / "runs"), *options)
    return abprof(*options, cwd=place, home=place, TMPDIR=str(place))


@pytest.mark.slow
def test_a_real_selfcheck_finds_the_injected_work_and_nothing_else(tmp_path: Path) -> None:
    only = ("--only", "meter/op=chain,steps=400000,inject=0.0*", "--only", "meter/op=chain,*inject=20.0*")
    done = real(tmp_path, "--quick", "--json", *only)
    assert done.code == (4 if done.run["fault"] else 0), done.err
    assert (done.run["false_alarms"], done.run["cells"], done.run["epochs"]) == (0, 3, 4)
    at_five = next(each for each in done.run["tallies"] if (each["inject"], each["threshold"]) == (20.0, 5.0))
    assert (at_five["cells"], at_five["faster"]) == (2, 0)
    assert at_five["mean_pct"] > 0, "a busy machine may leave it undecided"
    folder = Path(done.run["run_dir"])
    stored = json.loads((folder / "selfcheck.json").read_text())
    jsonschema.Draft202012Validator(schemas.schemas()["selfcheck.schema.json"]).validate(stored)
    assert msgspec.convert(stored, Selfcheck) == selfcheck.read(folder), "the blocks alone give the same result"
    assert {path.name for path in tmp_path.iterdir()} <= {"runs", "cache", "state"}


@pytest.mark.slow
def test_a_certificate_times_the_same_cells_by_each_protocol(tmp_path: Path) -> None:
    done = real(tmp_path, "--certificate", "--preset", "ci", "--only", "meter/op=chain,*")
    assert done.code in {0, 4}, done.err
    folder = Path(done.out.splitlines()[-1]).parent
    assert done.out.splitlines()[-2:] == [str(folder / name) for name in selfcheck.PAGES]
    stored = json.loads((folder / "selfcheck.json").read_text())
    jsonschema.Draft202012Validator(schemas.schemas()["selfcheck.schema.json"]).validate(stored)
    recordings = {each["protocol"]: each for each in stored["recordings"]}
    assert set(recordings) == {"autorange", "original"}
    for each in recordings.values():
        assert len(each["cells"]) == stored["cells"] == 2, each["fault"]
        assert all(ns > 0 for it in each["cells"] for ns in it["ns"].values())
    shares = [
        line.split()[-1] for line in (folder / "logs" / "protocols.log").read_text().splitlines() if "SHARE" in line
    ]
    assert shares == ["0.0", "1.0", "0.0"] * 2, "each protocol times base, the planted changes, and base again"
    pages = [(folder / name).read_text() for name in selfcheck.PAGES]
    for name in selfcheck.PAGES:
        (folder / name).unlink()
    assert msgspec.convert(stored, Selfcheck) == selfcheck.read(folder)
    assert [(folder / name).read_text() for name in selfcheck.PAGES] == pages, "made again from the folder"
    assert {path.name for path in tmp_path.iterdir()} <= {"runs", "cache", "state"}


@pytest.mark.slow
def test_where_nothing_was_built_there_is_a_report(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "cc", "echo no compiler today >&2\nexit 1")
    options = ("--epochs", "4", "--device", "cpu", "--json", "--runs-dir", str(tmp_path / "runs"), "--only", "*copy=0")
    done = abprof("selfcheck", *options, cwd=tmp_path, home=tmp_path, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert (done.code, done.run["cells"]) == (2, 0), "nothing was measured"
    assert "returned non-zero exit status 1" in done.err
    assert (Path(done.run["run_dir"]) / "selfcheck.md").exists()
