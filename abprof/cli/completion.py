"""What a shell completes besides verbs and options. Completion never complains: where nothing is known, nothing is offered."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from abprof.records.errors import AbprofError

_DIST = "dist:"  # as abprof.sides.releases has it, which completion loads only where it is begun


def refs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Branches, tags and remote branches of the repository, after `BASE...` those that may follow; behind `dist:` releases."""
    from abprof import sides as repo
    from abprof.system import paths

    begun, word = _release(ctx.params.get("refs") or [], incomplete)
    if word.startswith(_DIST):
        return [found.removeprefix(begun) for found in _releases(paths.cache_dir()) if found.startswith(word)]
    offered = [_DIST] if incomplete and _DIST.startswith(incomplete) else []
    try:
        names = repo.open_repository(Path(ctx.params.get("repo") or "."), cache=paths.cache_dir()).ref_names()
    except AbprofError:
        return offered
    base, dots, begun = incomplete.rpartition("...")
    return [*(f"{base}{dots}{name}" for name in names if name.startswith(begun)), *offered]


def _release(before: Sequence[str], incomplete: str) -> tuple[str, str]:
    """What of a `dist:NAME==VERSION` stands before what is completed, and all of it so far.

    To bash `:` and `==` are words of their own, behind which a first letter is needed; to other shells they are letters.
    """
    words = [*before, incomplete]
    for place in range(len(words) - 2, max(-1, len(words) - 6), -1):
        if words[place : place + 2] == [_DIST[:-1], ":"]:
            word = "".join(words[place:])
            return word.removesuffix(incomplete), word
    return "", incomplete


def _releases(cache: Path) -> list[str]:
    """Releases that are known here: in abprof's cache, and what its own interpreter has installed. No index is asked."""
    from importlib import metadata

    from abprof.sides import releases as dists

    installed = (f"{one.metadata['Name']}=={one.version}" for one in metadata.distributions())
    return [f"{_DIST}{found}" for found in sorted({*dists.known(cache), *installed}, key=str.lower)]
