"""Everything git: finding the repository, resolving refs, snapshots and worktrees. Nothing else in abprof runs git."""

from abprof.sides.history import merge_base, read_file, ref_names
from abprof.sides.leftovers import landings, tidy
from abprof.sides.lineage import Link, between, contents, is_ancestor
from abprof.sides.locate import ADVICE, Folder, Repository, folders, open_repository, present
from abprof.sides.refs import commit_of, watched_branch
from abprof.sides.resolve import resolve, side_id
from abprof.sides.worktrees import checkouts

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
