"""Sides of a comparison: what the user typed (a ref, `.` for the working tree, a release) becomes a `Side` with a folder.

In: a folder inside a git repository, and specs. Out: `Side` records (`resolve`), and the sides' files on disk during a `with`
block (`checkouts`). abprof only reads the user's repository; its bare clone in the cache folder borrows the objects and takes
all writes. No other package runs git or pip.
"""

from abprof.sides.releases import install as install_releases
from abprof.sides.releases import is_release
from abprof.sides.repository import Folder, Link, NewRepository, Repository, open_repository
from abprof.sides.resolve import resolve
from abprof.sides.worktrees import checkouts, sweep

__all__ = [
    "Folder", "Link", "NewRepository", "Repository", "checkouts", "install_releases", "is_release",
    "open_repository", "resolve", "sweep",
]  # fmt: skip
