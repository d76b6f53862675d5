"""Everything git: finding the repository, resolving refs, snapshots and worktrees. Nothing else in abprof runs git."""

from abprof.repo.history import commits_between, commits_touching, merge_base, nearest_names, read_file
from abprof.repo.leftovers import tidy
from abprof.repo.locate import Repository, folders, open_repository
from abprof.repo.sides import resolve
from abprof.repo.worktrees import checkout, checkouts, release, retain

__all__ = [
    "Repository",
    "checkout",
    "checkouts",
    "commits_between",
    "commits_touching",
    "folders",
    "merge_base",
    "nearest_names",
    "open_repository",
    "read_file",
    "release",
    "resolve",
    "retain",
    "tidy",
]
