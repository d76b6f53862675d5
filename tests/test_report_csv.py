"""The CSV files. tests/data/golden/suites has headers, digits, signs and gaps to the letter."""

import io

import pandas as pd

from abprof.report import csv_files, suite_csv

from . import runs

TARGET = "feature-optimize-ffa"


def table(text: str) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)


def test_one_branch_alone_gets_its_profiles_only():
    assert set(suite_csv.files(runs.single())) == {"profile_dense_main.csv", "profile_block_sparse_main.csv"}


def test_two_labels_that_collide_get_the_commit():
    twin = runs.changed(runs.TARGET, label="main")
    names = set(suite_csv.files(runs.run(target=twin)))
    assert f"compare_main_main-{runs.TARGET.commit[:8]}_dense.csv" in names


def test_variants_have_rows_of_their_own():
    plain = runs.run()
    workloads = tuple(runs.changed(w, seed_columns=("n",)) if w.name == "ladder" else w for w in plain.workloads)
    files = suite_csv.files(runs.changed(plain, workloads=workloads))
    rows = table(files[f"compare_main_{TARGET}_ladder.csv"])
    assert list(rows.variant) == ["ws", "ws_pp"]
    assert list(rows.n) == ["4096", "4096"]
    assert list(rows.latency_ms_baseline) == ["0.0412", "0.0389"]


def test_two_targets_are_compared_each_with_base():
    files = suite_csv.files(runs.two_targets())
    assert "compare_main_other_dense.csv" in files
    verdicts = table(files["compare_main_other_dense.csv"]).verdict
    assert list(verdicts) == [""] * len(verdicts)  # nothing was judged against it, and nothing is made up


def test_a_text_that_looks_like_a_formula_is_defused():
    texts = {"one": "=HYPERLINK(1)", "two": "-2+3", "three": "plain", "four": "-1"}  # an axis's -1 stays a number
    assert csv_files.csv_text([*texts], [texts]).splitlines()[1] == "'=HYPERLINK(1),'-2+3,plain,-1"


def test_cells_csv_is_tidy():
    run = runs.run()
    rows = pd.read_csv(io.StringIO(csv_files.cells_csv(run)))
    assert len(rows) == len(run.observations)
    assert not rows.duplicated(["cell", "arm"]).any()
    seen = {(o.cell, o.arm): o for o in run.observations}
    for _, row in rows.iterrows():
        observation = seen[(row.cell, row.arm)]
        assert row.status == observation.status
        if "gpu_span" in observation.metrics:
            assert row.latency_ms == observation.metrics["gpu_span"].value / 1e6  # unrounded
        else:
            assert pd.isna(row.latency_ms)
    assert not (rows.select_dtypes("number") == -1).any(axis=None)  # -1 stands in the seeds' columns only
    slower = rows[(rows.verdict == "slower")].iloc[0]
    assert (slower.pct, slower.low_pct, slower.high_pct) == (2.1, 2.1 - 0.3, 2.1 + 0.3)
    assert set(rows[rows.peer == "sdpa"].arm) == {"peer:sdpa"}


def test_a_cell_that_was_never_reached_keeps_a_row():
    run = runs.changed(runs.run(), observations=(), comparisons=())
    rows = pd.read_csv(io.StringIO(csv_files.cells_csv(run)))
    assert list(rows.cell) == [cell.id for cell in run.cells]
    assert set(rows.status) == {"not measured"}
