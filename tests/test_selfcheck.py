"""`abprof selfcheck`: exact counts from programmed rounds, and a real one on the CPU."""

from __future__ import annotations

import json
import math
import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from abprof.extras import selfcheck
from abprof.extras.selfcheck.examine import Selfcheck, examine, stopped
from abprof.records import (
    ALONE,
    DO_BENCH_METRIC,
    IDLE_SECOND,
    SEED_METRIC,
    TURN_LENGTH,
    Block,
    Cell,
    Machine,
    Run,
    Turn,
)
from tests import blocks, schemas
from tests.tinyrepo import abprof

CUDA = Machine(host="test", device="NVIDIA H200", kind="cuda")


def cell(name: str, inject: float, how: str = "work") -> Cell:
    params = {"op": name, "inject": inject, "how": how}
    return Cell(id=f"dense/op={name}", workload="dense", kernel="ffa", suite="dense", params=params)


def made(*cells: Cell, machine: Machine = CUDA) -> Run:
    return msgspec.structs.replace(blocks.head(0), cells=cells, machine=machine)


def measured(cell: Cell, percents: list[float], us: float = 1000.0) -> list[Block]:
    """An epoch for each programmed change of time in per cent."""
    ratios = [1 + pct / 100 for pct in percents]
    return blocks.epochs(ratios, cell=cell.id, base_ns=1000 * us)


def read(cell: Cell, pct: float, metric: str, us: float = 1000.0) -> Block:
    """One reading a side, as a sequential protocol makes it."""
    return blocks.block(
        99, {"base": 1.0, "target": 1 + pct / 100}, cell=cell.id, rounds=1, base_ns=1000 * us, metric=metric
    )


def row(rows: Any, **wanted: Any) -> Any:
    (found,) = (each for each in rows if all(getattr(each, name) == value for name, value in wanted.items()))
    return found


QUIET = [0.01, -0.01, 0.02, -0.02]
SHIFTED = [3.01, 2.99, 3.02, 2.98]


def test_false_alarms_are_counted_by_protocol_threshold_and_duration() -> None:
    quiet, lied, short = cell("quiet", 0.0), cell("lied", 0.0), cell("short", 0.0)
    found = examine(
        made(quiet, lied, short),
        [
            *measured(quiet, QUIET),
            *measured(lied, SHIFTED),
            *measured(short, QUIET, us=10),
            read(quiet, -2.0, SEED_METRIC),
            read(lied, 0.1, SEED_METRIC),
            read(lied, 1.4, DO_BENCH_METRIC),
        ],
    )
    long = row(found.alarms, protocol="abprof", threshold=1.5, duration_class="0.3 ms and longer")
    assert (long.cells, long.slower, long.faster, long.same, long.unclear) == (2, 1, 0, 1, 0)
    assert long.epochs == 4
    assert row(found.alarms, protocol="abprof", threshold=0.25, duration_class="under 20 us").same == 1
    seed = row(found.alarms, protocol="seed")
    assert (seed.cells, seed.slower, seed.faster) == (2, 0, 1)
    bench = row(found.alarms, protocol="do_bench")
    assert (bench.cells, bench.slower, bench.faster) == (1, 0, 0), "a cell without a reading is counted in none"
    assert row(found.alarms, protocol="pooled U", duration_class="0.3 ms and longer").slower == 1
    assert found.false_alarms == 1, "of abprof's own, at its default threshold"
    assert found.cells == 3


def test_base_a_second_time_makes_three_pairs_of_a_cell() -> None:
    """Of an unchanged cell three that must read the same; of an injected one two that must not, and one that must."""
    plain, more = cell("plain", 0.0), cell("more", 3.0)
    sides = (blocks.side("base"), blocks.side("target"), blocks.side("target2"))
    run = msgspec.structs.replace(blocks.head(0, sides=sides), cells=(plain, more), machine=CUDA)
    ratios = {plain.id: 1.0, more.id: 1.03}
    read = [
        blocks.block(epoch, {"base": 1.0, "target": ratio * (1 + 1e-4 * (-1) ** epoch), "target2": 1.0}, cell=id)
        for id, ratio in ratios.items()
        for epoch in range(1, 5)
    ]
    found = examine(run, read)
    alarms = row(found.alarms, protocol="abprof", threshold=1.5)
    assert (found.cells, alarms.cells, alarms.same, alarms.slower) == (2, 4, 4, 0)
    detected = row(found.detection, protocol="abprof", threshold=1.5)
    assert (detected.cells, detected.slower, detected.inject) == (2, 2, 3.0)
    assert detected.mean_pct == pytest.approx(3.0, abs=0.01)
    assert row(found.coverage, interval="student").intervals == 4


def test_detection_is_counted_at_every_threshold_and_beside_the_others() -> None:
    one, two = cell("one", 2.0), cell("two", 2.0)
    found = examine(
        made(one, two),
        [*measured(one, [2.0, 2.01, 1.99, 2.0]), *measured(two, [1.0, 1.01, 0.99, 1.0]), read(one, -3.0, SEED_METRIC)],
    )
    assert row(found.detection, protocol="abprof", threshold=1.5).slower == 1
    assert row(found.detection, protocol="abprof", threshold=0.5).slower == 2
    seed = row(found.detection, protocol="seed")
    assert (seed.cells, seed.slower, seed.faster) == (1, 0, 1)
    assert row(found.detection, protocol="abprof", threshold=0.5).mean_pct == pytest.approx(1.5, abs=0.01)
    assert not found.alarms


def test_a_cell_stops_at_the_first_look_that_decides() -> None:
    log = [math.log1p(pct / 100) for pct in (0.3, -0.3, 0.3, -0.3, 0.0, 0.0, 0.0, 0.0)]
    assert stopped(log[:4], 1.5, 0.5) == ("unclear", 4)
    assert stopped(log, 1.5, 0.5)[0] == "same"
    assert stopped(log, 1.5, 0.5)[1] in {6, 8}
    assert stopped([math.log1p(0.03)] * 32, 1.5, 0.5) == ("slower", 4)


def test_coverage_takes_disjoint_epochs_and_all_looks_together() -> None:
    good, drifts = cell("good", 0.0), cell("drifts", 0.0)
    later = [*QUIET, 1.0, 1.01, 0.99, 1.0]  # the second four are far from zero, and so is no look of all eight
    found = examine(made(good, drifts), [*measured(good, QUIET * 2), *measured(drifts, later)])
    plain, repeated = row(found.coverage, interval="student"), row(found.coverage, interval="repeated")
    assert (plain.intervals, plain.covered) == (4, 3)
    assert (repeated.intervals, repeated.covered) == (2, 2)
    assert row(found.resolution).cells == 2
    assert row(found.resolution).epoch_sd > 0


def test_the_page_says_what_each_protocol_called() -> None:
    quiet, changed = cell("quiet", 0.0), cell("changed", 5.0, "sleep")
    run = made(quiet, changed)
    found = examine(
        run, [*measured(quiet, QUIET), *measured(changed, [5.0, 5.1, 4.9, 5.0]), read(changed, -9, SEED_METRIC)]
    )
    text = selfcheck.as_markdown(found, Path("runs/x"))
    assert "| abprof | 0.3 ms and longer | 1.5 % | 0 of 1 (0 %) | 95.0 % | 1 of 1 (100 %) | 0 | 4.0 |" in text
    assert "| sleep +5 % | 0.3 ms and longer | +5.00 % | 1 of 1 | 1 of 1 | 1 of 1 | 0 of 1, 1 faster | 1 of 1 |" in text


# ---------------------------------------------------------------- the instrument's own tables


def study(metric: str, cell: Cell, values: list[dict[str, float]], calls: int = 1) -> Block:
    """A study's block with these ns a call, a round each; turns of 1 ms, 100 us between them."""
    arms = tuple(values[0])
    made = blocks.block(9, dict.fromkeys(arms, 1.0), cell=cell.id, rounds=len(values), metric=metric)
    rows = tuple(
        tuple(Turn(i, i * 1_100_000, i * 1_100_000 + 1_000_000, row[arm], row[arm]) for i, arm in enumerate(arms))
        for row in values
    )
    return msgspec.structs.replace(made, rounds=rows, calls=calls)


def test_turn_lengths_are_compared_by_what_a_second_of_them_tells() -> None:
    quiet = msgspec.structs.replace(
        cell("quiet", 0.0), params={"op": "chain", "steps": 400, "inject": 0.0, "how": "work"}
    )
    pairs = [{"base": 1000.0, "target": 1000.0 * math.exp(off / 100)} for off in (-2, -1, 0, 1, 2)]
    found = examine(made(quiet), [*measured(quiet, QUIET), study(TURN_LENGTH, quiet, pairs, calls=3)])
    (length,) = found.turn_lengths
    assert (length.kernel, length.call_ns, length.calls, length.pairs) == ("chain 400", 1000.0, 3, 5)
    assert length.scatter_pct == pytest.approx(100 * math.expm1(1.4826 * 0.01))
    # A pair takes 2 ms: in a second there are 500 of them.
    assert length.error_pct == pytest.approx(100 * math.expm1(math.sqrt(math.pi / 2) * 1.4826 * 0.01 / math.sqrt(500)))
    assert found.alarms == examine(made(quiet), measured(quiet, QUIET)).alarms, "no verdict reads a study"


def test_a_worker_alone_and_beside_an_idle_one() -> None:
    quiet, half = cell("quiet", 0.0), cell("half", 0.0)
    visits = ((ALONE, 1000.0), (IDLE_SECOND, 1100.0), (IDLE_SECOND, 1122.0), (ALONE, 1010.0))
    found = examine(
        made(quiet, half),
        [study(metric, quiet, [{"base": ns}] * 3) for metric, ns in visits]
        + [study(metric, half, [{"base": ns}]) for metric, ns in visits[:3]],
    )
    (row_,) = found.idle_worker
    assert (row_.alone_ns, row_.beside_ns) == (1005.0, 1111.0), "a kernel without all four visits has no row"
    assert (row_.alone_pct, row_.beside_pct) == (pytest.approx(1.0), pytest.approx(2.0))


# ---------------------------------------------------------------- the repository, and a real run


def test_only_the_share_of_injected_work_differs_between_the_branches(tmp_path: Path) -> None:
    selfcheck.make(tmp_path / "repository")
    git = ["git", "-C", str(tmp_path / "repository")]
    changed = subprocess.run(
        [*git, "diff", "--stat", "main", "injected"], capture_output=True, text=True, check=True
    ).stdout
    assert "1 file changed, 1 insertion(+), 1 deletion(-)" in changed
    assert "kernels/meter/share.py" in changed


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    home = tmp_path_factory.mktemp("selfcheck")
    done = abprof(
        *("selfcheck", "--quick", "--device", "cpu", "--json", "--runs-dir", str(home / "runs")),
        *("--only", "meter/op=chain,steps=400000,inject=0.0*", "--only", "meter/op=chain,*inject=20.0*"),
        cwd=home,
        home=home,
        TMPDIR=str(home),
    )
    assert done.code == 0, done.err
    return done.run, home


@pytest.mark.slow
def test_a_real_selfcheck_finds_the_injected_work_and_nothing_else(real: tuple[dict[str, Any], Path]) -> None:
    run, _ = real
    assert run["false_alarms"] == 0
    assert run["cells"] == 3
    assert run["epochs"] == 4
    (at_five,) = (each for each in run["detection"] if (each["protocol"], each["threshold"]) == ("abprof", 5.0))
    assert (at_five["inject"], at_five["cells"], at_five["faster"]) == (20.0, 1, 0)
    assert at_five["mean_pct"] > 0, "a busy machine may leave it undecided"
    assert {each["protocol"] for each in run["alarms"]} == {"abprof", "seed", "pooled U"}
    assert 0 < run["busy_share"] < 1


@pytest.mark.slow
def test_the_result_stands_in_the_run_folder_and_nothing_else_is_left(real: tuple[dict[str, Any], Path]) -> None:
    run, home = real
    folder = Path(run["run_dir"])
    stored = json.loads((folder / "selfcheck.json").read_text())
    jsonschema.Draft202012Validator(schemas.schemas()["selfcheck.schema.json"]).validate(stored)
    assert msgspec.convert(stored, Selfcheck) == selfcheck.read(folder), "the rounds alone say the same"
    assert (folder / "selfcheck.md").read_text().startswith("# What abprof says")
    assert {path.name for path in home.iterdir()} <= {"runs", "cache", "state"}


@pytest.mark.slow
def test_where_nothing_was_built_there_is_a_report_and_no_study(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "cc").write_text("#!/bin/sh\necho no compiler today >&2\nexit 1\n")
    (tmp_path / "bin" / "cc").chmod(0o755)
    asked = ("selfcheck", "--epochs", "4", "--device", "cpu", "--json", "--runs-dir", str(tmp_path / "runs"))
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    done = abprof(*asked, "--only", "*copy=0", cwd=tmp_path, home=tmp_path, PATH=path)
    assert done.code == 2, "nothing was measured"
    assert (done.run["cells"], done.run["turn_lengths"]) == (0, [])
    assert "returned non-zero exit status 1" in done.err
    assert (Path(done.run["run_dir"]) / "selfcheck.md").exists()


@pytest.mark.slow
def test_real_studies_of_the_instrument(tmp_path: Path) -> None:
    cell = "meter/op=chain,steps=400000,inject=0.0,how=work,copy=0"
    asked = ("selfcheck", "--epochs", "4", "--device", "cpu", "--json", "--only", cell)
    done = abprof(*asked, "--runs-dir", str(tmp_path / "runs"), cwd=tmp_path, home=tmp_path)
    assert done.code == 0, done.err
    calls = [row["calls"] for row in done.run["turn_lengths"]]
    assert calls[0] == 1
    assert calls == sorted(set(calls)), "each length once, from short to long"
    assert {row["kernel"] for row in done.run["turn_lengths"]} == {"chain 400000"}
    (idle,) = done.run["idle_worker"]
    assert 0.2 < idle["beside_ns"] / idle["alone_ns"] < 5, "the same call: far from it only if one was not measured"
    assert done.run["between_turns_us"] > 0
    folder = Path(done.run["run_dir"])
    assert (folder / "selfcheck.md").read_text().count("\n## ") == 7
    run = json.loads((folder / "run.json").read_text())
    assert [row["epochs"] for row in run["comparisons"]] == [4, 4], "studies are no epochs"


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (("--against", "nosuch"), "no protocol 'nosuch'"),
        (("--against", "do_bench"), "do_bench does not time a cpu device"),
        (("--budget", "soon"), "'soon' is not a duration"),
        (("--preset", "huge"), "has no preset 'huge'"),
        (("--only", "op=nosuch"), "op has no value 'nosuch'"),
    ],
)
def test_bad_input_is_one_clear_line(args: tuple[str, ...], line: str, tmp_path: Path) -> None:
    done = abprof("selfcheck", "--device", "cpu", *args, cwd=tmp_path, home=tmp_path)
    assert done.code == 2
    assert line in done.err
    assert len(done.err.strip().splitlines()) <= 3
    assert "Traceback" not in done.err


def test_selfchecks_timer_is_the_runs(tmp_path: Path) -> None:
    """Refused where the run it makes would refuse it."""
    for timer, said in (("graph", "graph times a GPU"), ("sundial", "'sundial' is not one of 'auto', 'events'")):
        asked = ("selfcheck", "--quick", "--device", "cpu", "--timer", timer)
        done = abprof(*asked, cwd=tmp_path, home=tmp_path)
        assert (done.code, said in done.err) == (2, True), done.err
