"""Sides of a comparison: what the user typed (a ref, `.` for the working tree, a release) becomes a `Side` with a folder.

In: a folder inside a git repository and specs. Out: `Side` records (`resolve`), and their files on disk while a block runs
(`checkouts`). The user's repository is only read: abprof's own bare clone in its cache borrows the objects and gets everything
that is written. No other package runs git or pip.
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
