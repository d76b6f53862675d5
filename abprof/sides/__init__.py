"""Turn the specs that the user typed (a ref, `.` for the working tree, a release) into sides with a folder each.

In: a folder inside a git repository, and specs. Out: `Side` records (`resolve`), and the sides' files on disk during a `with`
block (`checkouts`). abprof only reads the user's repository; abprof's bare clone in the cache folder borrows the repository's
objects and takes all writes. No other package runs git or pip.
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
