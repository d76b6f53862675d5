"""`abprof bisect GOOD BAD`: which commit made the cells slower.

In: Options with two refs or a folder with a bisect.json (steps.py). Out: a `Bisection`, and report.md and
report.html in its folder (report.py). search.py decides which commit is measured next, and is pure; every step is an
ordinary run that continues until its question is answered.
"""

from abprof.extras.bisect.steps import Bisection

__all__ = ["Bisection"]
