"""`abprof BASE TARGET -- COMMAND`: a command that times itself, one process an epoch on each side, judged by the same rules.

`readings.py` (pure) reads what it prints, `process.py` runs it once, `bench.py` gets it ready on every side, `epochs.py`
lets the sides take turns. docs/ADOPT.md says what it is good for, and what it cannot vouch for.
"""
