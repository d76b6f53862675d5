"""The worker: the process beside the code under test, and the only code of abprof that imports torch.

In: requests of `abprof.records.messages`, a JSON line each, on one descriptor. Out: a reply a line on another. It runs in
the interpreter under test, without abprof's dependencies: it imports the standard library, torch, Triton and
`abprof.records.messages` alone, and is copied there as a bundle (abprof/builds/worker_factory.py). The parent imports
nothing of it. Read main.py (the loop), bench.py (a method a request), arms.py and clocks.py (timing), checks.py
(correctness), package.py (the side's package, and tamper detection), api.py and adapters.py (what workloads import).
"""
