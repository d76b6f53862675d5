"""Benchmarks that exist, as workloads: one line in a workload file (docs/ADOPT.md).

from abprof.adapters import perf_report
WORKLOAD = perf_report("benchmarks/bench_softmax.py:benchmark", kernel="mylib")

The benchmark's file comes from one place for all sides, as workloads do, and the package that it imports from each side. What
it would have timed is caught and timed by abprof's own protocol. It has no reference: only that the sides agree is checked.
Standard library and torch only; what a benchmark is written for (triton, pytest, tritonbench) is imported when it is asked.
"""

from abprof.worker.adapters.operators import tritonbench
from abprof.worker.adapters.reports import perf_report
from abprof.worker.adapters.suites import pytest_benchmark

__all__ = ["perf_report", "pytest_benchmark", "tritonbench"]
