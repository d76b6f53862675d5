"""Stand-ins for missing packages that a benchmark imports, and the names of its timer."""

import runpy
import sys
from pathlib import Path

import pytest

from abprof.worker import adapters

REPORT = """
import triton.testing
import nolib
from nolib.sub import thing

@nolib.decorated
def helper(x):
    return thing(x)

@triton.testing.perf_report(triton.testing.Benchmark(
    x_names=["N"], x_vals={values}, line_arg="provider", line_vals=["nolib"], line_names=["n"],
    plot_name="speed", args={{}}))
def benchmark(N, provider):
    pass
"""


def report(folder: Path, values: str) -> adapters.perf_report:
    (folder / "bench.py").write_text(REPORT.format(values=values))
    loaded = (
        'from abprof.worker.adapters import perf_report\nWORKLOAD = perf_report("bench.py:benchmark", kernel="nolib")'
    )
    (folder / "workload.py").write_text(loaded)
    made: adapters.perf_report = runpy.run_path(str(folder / "workload.py"))["WORKLOAD"]
    return made


def test_a_package_that_is_not_there_can_be_named_called_and_decorated_with(tmp_path: Path) -> None:
    assert report(tmp_path, "[64, 128]").PRESETS["default"][("N",)] == [(64,), (128,)]
    assert "nolib" not in sys.modules


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "values",
    [
        "list(nolib.SIZES)", "nolib.SIZES", "[64] * len(nolib.SIZES)", "[64] if 64 in nolib.SIZES else []",
        "[64] if nolib.fast else [32]", "[thing.N, 64]",
    ],
)  # fmt: skip
def test_a_package_that_is_not_there_decides_about_no_case(tmp_path: Path, values: str) -> None:
    with pytest.raises(TypeError, match=r"^cases depend on the package nolib, which cannot be imported"):
        _ = report(tmp_path, values).PRESETS
