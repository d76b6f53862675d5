"""`abprof compare`: two CSV files of the seeds, or ours, and nothing lost on the way."""

from pathlib import Path

import pandas as pd
import pytest

from abprof.records.errors import AbprofError
from abprof.report import suite_csv
from abprof.report.suite_csv import compare

from . import runs
from .test_report_csv import TARGET

TIMES = (
    "direction,latency_ms,tflops_per_sec,fwd_range_merge_ms,fwd_sparse_load_preprocess_ms,fwd_prepare_ms,fwd_run_ms,"
    "fwd_fill_ms,fwd_cast_ms,bwd_range_merge_ms,bwd_prepare_ms,bwd_preprocess_ms,bwd_run_ms,bwd_cast_ms"
)
DENSE = f"seqlen,mask_type,{TIMES}"
SPARSE = f"seqlen,sparsity_ratio,q_block_size,k_block_size,swap_ab,pack_gqa,sparse_load,kblockm,kblockn,{TIMES}"

FWD = ",3.5861,{tflops},-1.0000,-1.0000,0.0153,{run},-1.0000,0.0032,,,,,"


def write(path: Path, header: str, *rows: str) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def dense(path: Path, **tflops: str) -> Path:
    return write(path, DENSE, *(f"8192,{mask},fwd" + FWD.format(tflops=t, run="3.4125") for mask, t in tflops.items()))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.csv"


def test_cells_csv_is_no_profile(tmp_path, out):
    """Its commits and epochs would be keys: two runs had rows in common by chance alone."""
    cells = write(tmp_path / "cells.csv", "cell,workload,arm,side,variant,commit,epochs,latency_ms,tflops_per_sec",
                  "w/n=1,w,base,base,,abc,4,1.0,2.0")  # fmt: skip
    with pytest.raises(AbprofError, match=r"cells\.csv: not a table of profiled cases.* abprof report RUN1 RUN2"):
        compare(cells, cells, out)
    assert not out.exists()


def test_the_seeds_warning_to_the_letter(tmp_path, out):
    base = dense(tmp_path / "b.csv", full="600.0000", causal="500.0000", varlen_full="400.0000")
    target = dense(tmp_path / "t.csv", full="590.0000", causal="500.0001", varlen_full="410.0000")
    text = compare(base, target, out)
    line = "=" * 60
    assert text.endswith(
        f"\n\n{line}\n"
        "⚠️  Detected TFLOPs performance fluctuation over 1.5% in the following cases:\n"
        f"{line}\n"
        "  - Case: {'mask_type': 'full', 'direction': 'fwd', 'seqlen': 8192}\n"
        "    tflops_per_sec Baseline: 600.0000\n"
        "    tflops_per_sec Target: 590.0000\n"
        "    Fluctuation: -1.67%\n"
        "  - Case: {'mask_type': 'varlen_full', 'direction': 'fwd', 'seqlen': 8192}\n"
        "    tflops_per_sec Baseline: 400.0000\n"
        "    tflops_per_sec Target: 410.0000\n"
        "    Fluctuation: +2.50%\n"
        f"{line}\n"
    )
    assert "no percentage below has an interval" in text


def test_within_the_threshold(tmp_path, out):
    base, target = dense(tmp_path / "b.csv", full="600.0000"), dense(tmp_path / "t.csv", full="590.0000")
    text = compare(base, target, out, threshold=2.0)
    assert text.endswith("\n\n✅ TFLOPs performance fluctuation is within 2% for all test cases.\n")


def test_minus_one_never_enters_arithmetic(tmp_path, out):
    """The seed computed -105 % from a -1 against 0.05."""
    base = write(tmp_path / "b.csv", DENSE, "8192,full,fwd" + FWD.format(tflops="600.0000", run="-1.0000"))
    target = write(tmp_path / "t.csv", DENSE, "8192,full,fwd" + FWD.format(tflops="600.0000", run="0.0500"))
    compare(base, target, out)
    row = pd.read_csv(out, dtype=str, keep_default_na=False).iloc[0]
    assert (row.fwd_run_ms_baseline, row.fwd_run_ms_target, row["fwd_run_ms_improvement(%)"]) == (
        "-1.0000",
        "0.0500",
        "",
    )
    assert row["tflops_per_sec_improvement(%)"] == "0.0000"
    assert row["fwd_prepare_ms_improvement(%)"] == "0.0000"
    assert row["bwd_run_ms_improvement(%)"] == ""


def test_an_unrecorded_rate_is_no_change_and_no_success(tmp_path, out):
    base, target = dense(tmp_path / "b.csv", full="600.0000"), dense(tmp_path / "t.csv", full="-1.0000")
    text = compare(base, target, out)
    assert "✅" not in text
    assert "⚠️" not in text
    assert "{'mask_type': 'full', 'direction': 'fwd', 'seqlen': 8192}: TFLOP/s not recorded in the target" in text
    lines = target.read_text().splitlines()
    target.write_text("\n".join([f"{lines[0]},status", *(f"{line},wrong" for line in lines[1:]), ""]))
    assert "TFLOP/s not recorded in the target (wrong)" in compare(base, target, out)


def test_a_text_where_a_number_belongs_is_refused(tmp_path, out):
    """It is not "not recorded": somebody's spreadsheet or editor has spoiled the file."""
    base = dense(tmp_path / "b.csv", full="600.0000", causal="500.0000")
    target = dense(tmp_path / "t.csv", full="600.0000", causal="5OO")
    with pytest.raises(AbprofError) as error:
        compare(base, target, out)
    assert error.value.line == f"{target}: row 3, column tflops_per_sec: '5OO' is not a number"
    assert not out.exists()


def test_rows_of_one_file_are_shown(tmp_path, out):
    base = dense(tmp_path / "b.csv", full="600.0000", causal="500.0000")
    target = dense(tmp_path / "t.csv", causal="500.0000", varlen_full="400.0000")
    text = compare(base, target, out)
    rows = pd.read_csv(out, dtype=str, keep_default_na=False).set_index("mask_type")
    assert dict(rows.in_files) == {"full": "baseline only", "causal": "both", "varlen_full": "target only"}
    assert rows.loc["full"].tflops_per_sec_target == ""
    assert "'full', 'direction': 'fwd', 'seqlen': 8192}: no row in the target" in text
    assert "'varlen_full', 'direction': 'fwd', 'seqlen': 8192}: no row in the baseline" in text
    assert "No case that could be compared fluctuates over 1.5%." in text


@pytest.mark.parametrize(
    ("header", "case", "keys"),
    [
        (SPARSE, "49152,0.05,64,64,False,False,False,64,64,fwd",
         "seqlen,sparsity_ratio,q_block_size,k_block_size,swap_ab,pack_gqa,sparse_load,kblockm,kblockn,direction"),
        (SPARSE.replace(",kblockm,kblockn", ""), "49152,0.05,64,64,False,False,False,fwd",
         "seqlen,sparsity_ratio,q_block_size,k_block_size,swap_ab,pack_gqa,sparse_load,direction"),
        ("seqlen,sparsity_ratio,block_size," + SPARSE[SPARSE.index("direction"):], "49152,0.05,64,fwd",
         "seqlen,sparsity_ratio,block_size,direction"),
    ],
)  # fmt: skip
def test_block_sparse_files_of_all_ages(tmp_path, out, header, case, keys):
    base = write(tmp_path / "b.csv", header, case + FWD.format(tflops="600.0000", run="3.4"))
    target = write(tmp_path / "t.csv", header, case + FWD.format(tflops="630.0000", run="3.2"))
    text = compare(base, target, out)
    assert "--- Automatically detected mode: 'block_sparse' ---" in text
    assert "    Fluctuation: +5.00%" in text
    assert out.read_text().startswith(
        f"{keys},latency_ms_baseline,latency_ms_target,latency_ms_improvement(%),tflops_per_"
    )


def test_a_column_that_only_newer_files_have_is_no_key(tmp_path, out):
    values = FWD.format(tflops="600.0000", run="3.4")
    older = SPARSE.replace(",kblockm,kblockn", "")
    base = write(tmp_path / "b.csv", older, f"49152,0.05,64,64,False,False,False,fwd{values}")
    target = write(tmp_path / "t.csv", SPARSE, f"49152,0.05,64,64,False,False,False,64,64,fwd{values}")
    assert "✅" in compare(base, target, out)


def test_our_own_profiles(tmp_path, out):
    files = suite_csv.files(runs.run())
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for suite in ("dense", "block_sparse"):
        base, target = (tmp_path / f"profile_{suite}_{branch}.csv" for branch in ("main", TARGET))
        compare(base, target, out)
        mine = pd.read_csv(out, dtype=str, keep_default_na=False)
        ours = pd.read_csv(tmp_path / f"compare_main_{TARGET}_{suite}.csv", dtype=str, keep_default_na=False)
        shared = [name for name in ours.columns if name.endswith(("_baseline", "_target", "improvement(%)"))]
        shared = [name for name in shared if name in mine.columns]
        assert len(shared) > 40
        pd.testing.assert_frame_equal(mine.set_index("cell")[shared], ours.set_index("cell")[shared])


@pytest.mark.parametrize(
    ("base", "target", "says"),
    [
        ("a,b\n1,2\n", None, "not a table of profiled cases: its columns are a, b"),
        ("", None, "no rows"),
        (DENSE + "\n", None, "no rows"),
        (DENSE + "\n8192,full\n", None, "row 2 has fewer cells than the header"),
        (DENSE.replace("seqlen", "mask_type") + "\n", None, "column 'mask_type' stands twice"),
        (None, DENSE.replace("mask_type", "mask") + "\n8192,full,fwd" + FWD + "\n", "no column 'mask_type'"),
        (
            None,
            DENSE.replace("tflops_per_sec", "tflops") + "\n8192,full,fwd" + FWD + "\n",
            "no column 'tflops_per_sec'",
        ),
        (None, f"{DENSE}\n8192,full,fwd{FWD}\n8192,full,fwd{FWD}\n", "two rows for mask_type=full, direction=fwd"),
        (None, f"{DENSE}\n4096,full,fwd{FWD}\n", "no case of"),
        ("\0\xff", None, "no rows"),
    ],
)
def test_files_that_cannot_be_compared_are_one_clear_line(tmp_path, out, base, target, says):
    good = f"{DENSE}\n8192,full,fwd{FWD}\n".format(tflops="6", run="3")
    target = target and target.format(tflops="6", run="3")
    (tmp_path / "b.csv").write_text(good if base is None else base)
    (tmp_path / "t.csv").write_text(good if target is None else target)
    with pytest.raises(AbprofError) as caught:
        compare(tmp_path / "b.csv", tmp_path / "t.csv", out)
    assert says in caught.value.line
    assert ("b.csv" if base is not None else "t.csv") in caught.value.line
    assert "\n" not in caught.value.line
    assert not out.exists()


def test_bytes_that_are_no_text(tmp_path, out):
    (tmp_path / "b.csv").write_bytes(b"seqlen\n\xff\xfe\n")
    with pytest.raises(AbprofError, match="not a CSV file"):
        compare(tmp_path / "b.csv", dense(tmp_path / "t.csv", full="1"), out)


def test_files_that_are_not_there(tmp_path, out):
    with pytest.raises(AbprofError, match="No such file"):
        compare(tmp_path / "none.csv", dense(tmp_path / "t.csv", full="1"), out)
    good = dense(tmp_path / "b.csv", full="1")
    with pytest.raises(AbprofError, match=r"none/out.csv: No such file"):
        compare(good, good, tmp_path / "none" / "out.csv")
    with pytest.raises(AbprofError, match="not a regular file"):
        compare(good, good, Path("/dev/null"))
