"""Existing benchmarks as workloads: one line in a workload file (docs/ADOPT.md).

    from abprof.adapters import perf_report
    WORKLOAD = perf_report("benchmarks/bench_softmax.py:benchmark", kernel="mylib")

The benchmark's file comes from one place for all sides, as workloads do, and the package that it imports from each side.
The call that it would have timed is intercepted and timed by abprof. There is no reference: outputs are only compared
between the sides. triton, pytest and tritonbench are imported when a benchmark needs them.
"""

from abprof.worker.adapters.styles import perf_report, pytest_benchmark, tritonbench

__all__ = ["perf_report", "pytest_benchmark", "tritonbench"]
