"""Turn the user's specs (a ref, `.` for the working tree, or a release) into sides, each with a folder of files.

`resolve` returns the `Side` records for specs; `install_environments` makes the environments that they name with ` with
REQUIREMENTS`. `checkouts` puts the sides' files on disk for the time of a `with`
block. The user's repository is only read; all writes go to abprof's bare clone in the cache folder. No other package
runs git, pip or uv.
"""

from abprof.sides.releases import install as install_releases
from abprof.sides.releases import is_release
from abprof.sides.repository import Folder, Link, NewRepository, Repository, open_repository
from abprof.sides.resolve import resolve
from abprof.sides.toolchains import install as install_environments
from abprof.sides.worktrees import checkouts, sweep

__all__ = [
    "Folder", "Link", "NewRepository", "Repository", "checkouts", "install_environments", "install_releases",
    "is_release", "open_repository", "resolve", "sweep",
]  # fmt: skip
