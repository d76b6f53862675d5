"""The worker's part: the only code of abprof that imports torch, besides abprof/kit.py.

It runs in the interpreter under test, which need not have abprof's dependencies: standard library and torch only.
"""
