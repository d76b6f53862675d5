"""Everything git: finding the repository, resolving refs, snapshots and worktrees. Nothing else in abprof runs git."""

from abprof.repo.history import read_file, ref_names
from abprof.repo.leftovers import tidy
from abprof.repo.locate import Repository, folders, open_repository
from abprof.repo.refs import commit_of
from abprof.repo.sides import resolve
from abprof.repo.worktrees import checkouts

__all__ = [
    "Repository",
    "checkouts",
    "commit_of",
    "folders",
    "open_repository",
    "read_file",
    "ref_names",
    "resolve",
    "tidy",
]
