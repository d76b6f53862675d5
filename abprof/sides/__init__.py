"""Sides of a comparison: what the user typed (a ref, `.` for the working tree, a release) becomes a `Side` with a folder.

In: a folder inside a git repository and specs. Out: `Side` records (`resolve`), and their files on disk while a block runs
(`checkouts`). The user's repository is only read: abprof's own bare clone in its cache borrows the objects and gets everything
that is written. No other package runs git or pip.
"""

from abprof.sides import releases
from abprof.sides.repository import Folder, Link, NewRepository, Repository, open_repository
from abprof.sides.resolve import resolve
from abprof.sides.worktrees import checkouts, sweep

__all__ = [
    "Folder",
    "Link",
    "NewRepository",
    "Repository",
    "checkouts",
    "open_repository",
    "releases",
    "resolve",
    "sweep",
]
