"""`abprof bisect GOOD BAD`: which commit made the cells slower.

Pure: `lineage.py` (what can have done it), `search.py` (what to measure next between two ends, and what is found),
`explore.py` (from one pair of ends to the next, reverts), `rule.py` (when an answer is certain), `telling.py` (in words).
`start.py` says what is planned, `step.py` measures one commit against another, `work.py` goes from step to step,
`state.py` keeps them.
"""
