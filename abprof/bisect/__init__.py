"""`abprof bisect GOOD BAD`: which commit made the cells slower.

Pure: `lineage.py` (what can have done it), `search.py` (what to measure next, and what is found), `rule.py` (when an
answer is certain). `step.py` measures one commit against another, `start.py` says what is planned, `work.py` goes from step to step,
`state.py` keeps them, `telling.py` puts them into words.
"""
