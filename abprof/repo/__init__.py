"""Everything git: finding the repository, resolving refs, snapshots and worktrees. Nothing else in abprof runs git."""

from abprof.repo.history import merge_base, read_file, ref_names
from abprof.repo.leftovers import landings, tidy
from abprof.repo.lineage import Link, between, contents, is_ancestor
from abprof.repo.locate import ADVICE, Folder, Repository, folders, open_repository, present
from abprof.repo.refs import commit_of, watched_branch
from abprof.repo.sides import resolve, side_id
from abprof.repo.worktrees import checkouts

__all__ = [
    "ADVICE",
    "Folder",
    "Link",
    "Repository",
    "between",
    "checkouts",
    "commit_of",
    "contents",
    "folders",
    "is_ancestor",
    "landings",
    "merge_base",
    "open_repository",
    "present",
    "read_file",
    "ref_names",
    "resolve",
    "side_id",
    "tidy",
    "watched_branch",
]
