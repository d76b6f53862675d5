"""`abprof bisect GOOD BAD`: find the commits that made cells slower.

In: Options with two refs (`begin`) or a folder with a bisect.json (`read`). Out: a `Bisection`, and report.md and report.html
in its folder. search.py (pure) chooses the next commit; job.py measures the commit in an ordinary run, which continues until
the question about the commit is answered.
"""

from abprof.extras.bisect.job import Bisection, begin, finish, plan, read, result

__all__ = ["Bisection", "begin", "finish", "plan", "read", "result"]
