"""The worker: the process that runs the code under test, and the only part of abprof that imports torch.

A worker reads requests (`abprof.records.messages`, a line of JSON each) from one descriptor and writes replies to
another. The interpreter under test needs none of abprof's dependencies: workers run a copy of this package
(abprof/builds/worker_factory.py), which imports only the standard library, torch, Triton and `abprof.records.messages`.
Modules: main.py (the loop), bench.py (a method per request), arms.py and clocks.py (timing), checks.py (correctness),
package.py (import of the side's package, check of loaded files), api.py and adapters.py (imported by workload files).
"""
