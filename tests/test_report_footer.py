"""The log footer: output.txt ends with the suites' case blocks and warnings, for both directions, and abprof's verdicts."""

from abprof import report
from tests.reports import footer

from . import runs

FORWARD = """\
Testing Config: {'mask_type': 'full', 'seqlen': 8192}
============================================================
FORWARD PERFORMANCE
============================================================
Total Runtime (ms)   | 3.5861
Achieved TFLOP/s     | 613.2075
------------------------------------------------------------
Internal Timing Breakdown:
  - fwd_range_merge   | not recorded
  - fwd_sparse_load_preprocess | not recorded
  - fwd_prepare       | 0.0153 ms
  - fwd_run           | 3.4247 ms
  - fwd_postprocess   | not recorded
  - fwd_cast          | 0.0032 ms
  - residual          | 0.2146 ms
  (from a profiled pass, which took 3.6578 ms a call)
============================================================
"""
WARNINGS = """\

============================================================
⚠️  Detected TFLOPs performance fluctuation over 1.5% in the following cases:
============================================================
  - Case: {'mask_type': 'full', 'direction': 'bwd', 'seqlen': 8192}
    tflops_per_sec Baseline: 549.1956
    tflops_per_sec Target: 537.8997
    Fluctuation: -2.06%
    Verdict: slower; time 2.1 % slower (95 % interval: 1.8 to 2.4 % slower)
  - Case: {'mask_type': 'full', 'direction': 'fwd', 'seqlen': 8192}
    tflops_per_sec Baseline: 613.2075
    tflops_per_sec Target: 653.7393
    Fluctuation: +6.61%
    Verdict: faster; time 6.2 % faster (95 % interval: 5.9 to 6.5 % faster)
============================================================
"""


def test_every_case_of_every_side_has_a_block_or_says_why_not():
    run = runs.run()
    text = footer(run)
    assert text.count("FORWARD PERFORMANCE") + text.count("BACKWARD PERFORMANCE") == sum(
        "gpu_span" in o.metrics and o.cell[:6] != "ladder" for o in run.observations
    )
    assert text.count("Testing Config: ") == 2 * (len(run.cells) + 1)  # the ladder's cell has two variants
    assert "    not measured: out of memory: tried to allocate 96.00 GiB" in text
    assert "-1.0" not in text
    assert FORWARD in text
    assert text.endswith(WARNINGS), "those of both directions stand last"


def test_the_good_line_only_when_every_cell_is_fine():
    good = "\n✅ TFLOPs performance fluctuation is within 1.5% for all test cases.\n"
    fine = runs.unchanged()
    assert footer(fine).endswith(good)
    spoiled = runs.changed(fine.comparisons[0], verdict="unclear", reasons=("budget",))
    undecided = runs.changed(fine, comparisons=(spoiled, *fine.comparisons[1:]))
    assert "✅" not in footer(undecided)
    assert footer(undecided).endswith("No case is certainly slower or faster by 1.5 %: 1 without a verdict on speed.\n")
    assert "✅" not in footer(runs.changed(fine, comparisons=fine.comparisons[1:]))  # one cell was never judged
    assert "✅" not in footer(runs.single())


def test_each_case_is_judged_by_its_own_threshold():
    """abprof.toml's [[threshold]] entries; the run's own threshold applies to all other cells."""
    strict = runs.changed(runs.unchanged().options, threshold=5.0, thresholds=(("*", 1.0),))
    fine = runs.changed(runs.unchanged(), options=strict)
    assert footer(fine).endswith("fluctuation is within 1% for all test cases.\n")
    mixed = runs.changed(strict, thresholds=(("dense/*", 1.0),))
    assert "is within 1% to 5% (each case has its own) for all" in footer(runs.changed(fine, options=mixed))
    assert "fluctuation over 1% in the following" in footer(runs.changed(runs.run(), options=mixed))
    spoiled = runs.changed(fine.comparisons[0], verdict="unclear", reasons=("budget",))
    undecided = runs.changed(fine, comparisons=(spoiled, *fine.comparisons[1:]))
    assert "certainly slower or faster by 1 %: 1 without a verdict" in footer(undecided)


def test_without_a_flop_count_times_are_compared():
    run = runs.run()
    ladder = tuple(
        runs.changed(c, verdict="slower", pct=5.0, low_pct=4.0, high_pct=6.0, discovery=True)
        if c.to == "target:ws" else c for c in run.comparisons
    )  # fmt: skip
    text = footer(runs.changed(run, comparisons=ladder))
    assert (
        "  - Case: {'n': 4096, 'variant': 'ws'}\n    latency_ms Baseline: 0.0412\n    latency_ms Target: 0.0412\n"
        in text
    )


def test_the_closing_part_is_replaced_when_the_report_is_made_again():
    run, log = runs.run(), "building\n======== abprof: results of run other ========\nmeasuring\n"

    def made(log):
        return footer(run, log)

    once = made(log)
    assert once.startswith(log)
    assert made(once) == once
    assert made("") == footer(run) == made(footer(run))


def test_write_all_leaves_a_whole_folder(tmp_path):
    run = runs.run()
    path = runs.write(tmp_path, run)
    (path / "output.txt").write_text("the log")
    for _ in range(2):
        made = report.write_all(path, run, runs.blocks(run))
    assert {file.name for file in made} >= {"cells.csv", "report.html", "report.md", "output.txt"}
    assert (path / "output.txt").read_text() == "the log\n" + footer(run)
    assert not list(path.glob(".*.partial"))
