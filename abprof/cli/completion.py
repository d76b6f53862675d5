"""What a shell completes besides verbs and options. Completion never complains: where nothing is known, nothing is offered."""

from __future__ import annotations

from pathlib import Path

import typer

from abprof.errors import AbprofError


def refs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Branches, tags and remote branches of the repository; after `BASE...` those that may follow."""
    from abprof import paths, repo

    try:
        names = repo.ref_names(repo.open_repository(Path(ctx.params.get("repo") or "."), cache=paths.cache_dir()))
    except AbprofError:
        return []
    base, dots, begun = incomplete.rpartition("...")
    return [f"{base}{dots}{name}" for name in names if name.startswith(begun)]
