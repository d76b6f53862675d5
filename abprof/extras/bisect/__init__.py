"""`abprof bisect GOOD BAD`: which commit made the cells slower.

In: Options with two refs (`begin`) or a folder with a bisect.json (`read`). Out: a `Bisection`, and report.md and report.html
in its folder. search.py decides which commit is measured next, and is pure; every step (job.py) is an ordinary run that
continues until its question is answered.
"""

from abprof.extras.bisect.job import Bisection, begin, finish, plan, read, result

__all__ = ["Bisection", "begin", "finish", "plan", "read", "result"]
