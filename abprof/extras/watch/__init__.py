"""`abprof BASE . --watch`: the chosen cells once more at every save, in one epoch of a fresh target beside a base that is kept.

`saves.py` tells that something was saved, `warm.py` keeps base's workers, `loop.py` measures and answers. Nothing is kept of it:
what is worth confirming is confirmed by a run.
"""
