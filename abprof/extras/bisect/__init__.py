"""`abprof bisect GOOD BAD`: find the commits that made cells slower.

`begin` makes a new bisection from Options with two refs, `read` loads an earlier one from its folder, and `finish`
measures until the search ends. search.py chooses the next commit; job.py measures it in an ordinary run.
"""

from abprof.extras.bisect.job import Bisection, begin, finish, plan, read, result

__all__ = ["Bisection", "begin", "finish", "plan", "read", "result"]
