"""Where the run folders of a repository are, and from when on a person asks."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from abprof.records.errors import AbprofError


def runs_of(repo: str, runs_dir: str) -> Path:
    """`--runs-dir`, or runs/ of the repository that `repo` lies in. Git is not asked: the folder need not be one."""
    if runs_dir:
        return Path(runs_dir).absolute()
    start = Path(repo).absolute()
    if not start.is_dir():
        raise AbprofError("no such folder", where=f"--repo {repo}")
    root = next((folder for folder in (start, *start.parents) if (folder / ".git").exists()), start)
    return root / "runs"


def since(text: str, now: datetime | None = None) -> str:
    """ "2026-11-20", "2026-11-20T02:00" (UTC) or "30d" as ISO 8601, or "". Raises AbprofError naming the option."""
    if not text:
        return ""
    days = re.fullmatch(r"(\d{1,5})\s*d", text.strip())
    if days:
        return ((now or datetime.now(UTC)) - timedelta(days=int(days[1]))).isoformat(timespec="seconds")
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        raise AbprofError(f"{text!r} is no date", where="--since", advice="write 2026-11-20 or 30d") from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone(UTC).isoformat(timespec="seconds")
