"""What others' ways of timing say of the same cells: in every table and page, and without a verdict."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from abprof.records import DO_BENCH_METRIC, SEED_METRIC, Metric, Observation, Run
from abprof.report import cell_table, facts, seed_tables
from abprof.report.closing import closing
from abprof.report.html import html
from abprof.report.markdown import markdown
from tests.simulated.lab import Lab
from tests.simulated.planted import SPEEDS

from . import runs

RULE = "100 warm-up calls, then the mean of 100"


def seeded(run: Run, *names: str) -> Run:
    """The run with every time measured by these protocols too, where the target looks 1 % slower than it is."""

    def more(seen: Observation) -> Observation:
        if "gpu_span" not in seen.metrics or seen.arm.startswith("peer"):
            return seen
        ns = seen.metrics["gpu_span"].value * (1.01 if seen.arm.startswith("target") else 1.0)
        found = {name: Metric(value=ns, unit="ns", protocol=RULE) for name in names}
        return runs.changed(seen, metrics={**seen.metrics, **found})

    return runs.changed(run, observations=tuple(map(more, run.observations)))


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_csv_files_have_a_column_for_it() -> None:
    run = seeded(runs.run(), SEED_METRIC, DO_BENCH_METRIC)
    first = rows(cell_table.cells_csv(run))[0]
    assert float(first["seed_latency_ms"]) == float(first["do_bench_latency_ms"]) == pytest.approx(3.5861)
    for name, text in seed_tables.files(run).items():
        if name.startswith("profile_dense"):
            factor = 1.0 if "main" in name else 1.01
            line = rows(text)[0]
            assert float(line["seed_latency_ms"]) == pytest.approx(float(line["latency_ms"]) * factor, abs=2e-4)
            header = text.splitlines()[0].split(",")
            assert header.index("seed_latency_ms") > header.index("bwd_postprocess_ms")
    assert "seed_latency" not in cell_table.cells_csv(runs.run())


def test_a_side_that_did_not_run_has_an_empty_cell() -> None:
    run = seeded(runs.run(), SEED_METRIC)
    sparse = next(text for name, text in seed_tables.files(run).items() if name.startswith("profile_block_sparse_f"))
    broken = [row for row in rows(sparse) if row["status"] == "crash"]
    assert broken
    assert {row["seed_latency_ms"] for row in broken} == {""}


def test_the_pages_and_the_log_say_it_per_cell() -> None:
    run = seeded(runs.run(), SEED_METRIC)
    made = {"md": markdown(run, runs.blocks(run)), "html": html(run, runs.blocks(run)), "log": closing(run)}
    for kind, text in made.items():
        assert "Timed as others do: one process and one reading a side" in text, kind
        assert RULE in text, kind
        assert "3.1 % slower" in text, kind  # 2.1 % and the planted 1 %
    assert "base 10.01 ms, target 10.32 ms, change of time 3.1 % slower" in made["log"]
    plain = runs.run()
    assert "Timed as others do" not in closing(plain) + markdown(plain, []) + html(plain, [])


def test_one_branch_alone_has_its_times() -> None:
    run = seeded(runs.single(), SEED_METRIC)
    assert "mask_type=full direction=fwd by seed: time 3.586 ms" in closing(run)


def test_such_a_block_is_no_epoch_and_judges_nothing() -> None:
    run = runs.run()
    blocks = runs.blocks(run)
    beside = [runs.changed(block, metric=SEED_METRIC, epoch=9) for block in blocks[: len(run.cells)]]
    assert facts.trust(run, blocks + beside)[2:] == facts.trust(run, blocks)[2:]
    assert facts.method(run, [*beside, *blocks]) == facts.method(run, blocks)


def test_a_run_from_the_command_line_shows_it(tmp_path: Path) -> None:
    result = Lab(tmp_path, SPEEDS).abprof("main", "fast", "--quick", "--protocol", "seed")
    assert result.folder
    assert all(float(row["seed_latency_ms"]) > 0 for row in rows((result.folder / "cells.csv").read_text())
               if row["arm"] in ("base", "target"))  # fmt: skip
    for name in ("report.html", "report.md", "output.txt"):
        assert "Timed as others do" in (result.folder / name).read_text(), name
    assert "Timed as others do" in result.out


def test_do_bench_is_for_gpus(tmp_path: Path) -> None:
    lab = Lab(tmp_path, SPEEDS)
    places = ("--repo", str(lab.repo.path), "--device", "cpu")
    for asked in ("--dry-run", "--quick"):
        refused = lab.command("main", "fast", *places, "--protocol", "do_bench", asked)
        assert (refused.code, refused.out) == (2, "")
        assert "--protocol do_bench: do_bench does not time a cpu device (there it is abprof or seed)" in refused.err
