"""Where the workloads that judge all sides are taken from, and whose own are others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from abprof.measure.discovery import content
from abprof.measure.run_context import Place
from abprof.records import Checkout
from abprof.records.errors import AbprofError


def workloads_folder(place: Place, trees: Sequence[Checkout], recorded: str = "") -> Path:
    """Where the judge comes from: the working tree, or --workloads-from. With CI set it is base's commit, like
    abprof.toml, so that a pull request does not bring its own judge; one that lies beside the repository is in no commit,
    and stays where it is.

    It may be a file, where one workload alone was asked for by its path.
    A run that is gone on with takes the folder that judged it (`recorded`, its "PATH sha256:HEX"). Where that was a
    worktree which is gone, it is the one of the new worktrees that holds the same. Raises AbprofError.
    """
    name = place.file.workloads or "workloads"
    own = Path(os.path.normpath(place.root / name))
    in_commits = own.is_relative_to(place.root) and place.sides[0].kind != "dist"
    in_ci = "base" if os.environ.get("CI") and in_commits else ""
    wanted = place.options.workloads_from or in_ci
    by_side = {checkout.side.id: Path(checkout.path) / name for checkout in trees}
    folder = by_side.get(wanted) or (Path(wanted) if wanted else own)
    before, _, digest = recorded.rpartition(" sha256:")
    if digest and Path(before).exists():
        folder = Path(before)
    elif digest:
        places = (folder, *by_side.values())
        folder = next((path for path in places if path.is_dir() and content(path) == digest), folder)
    if not folder.exists() and folder == by_side.get(wanted):
        spec = next(checkout.side.spec for checkout in trees if checkout.side.id == wanted)
        advice = "commit them there, or name another place with --workloads-from"
        raise AbprofError(f"no workloads: {spec} has no such folder", where=name, advice=advice)
    if not folder.exists():
        advice = "put them there, name a folder in abprof.toml (docs/CONFIG.md), or give their path to --workloads"
        configured = place.file.workloads and folder == own
        where = f"{place.file.at('workloads')}: {folder}" if configured else str(folder)
        where = f"--workloads-from {folder}" if place.options.workloads_from else where
        raise AbprofError("no workloads: there is no such folder", where=where, advice=advice)
    return folder


def root_of(place: Place, trees: Sequence[Checkout], source: Path) -> Path:
    """The tree that the workloads are of: what they wrap comes from there too."""
    return next((Path(tree.path) for tree in trees if source.is_relative_to(tree.path)), place.root)


def workloads_differ(place: Place, trees: Sequence[Checkout], source: Path) -> list[str]:
    """A line for each side whose own workloads are not those that judge."""
    name = place.file.workloads or "workloads"
    mine = content(source)
    lines = []
    for checkout in trees:
        folder = Path(checkout.path) / name
        if folder.is_dir() and content(folder) != mine:
            lines.append(f"{checkout.side.label}'s own {name}/ differs from the one that judges, {source}")
    return lines
