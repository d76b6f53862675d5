"""The bot on GitHub: a run's answer as a comment, a check run and an issue, and the `/abprof` command that starts a run.

Two stages: the stage that runs a branch's code holds no token and makes a `Notice` of its run; the stage that holds the token
reads that file as untrusted data and posts it. In: a run, or a notice file and GitHub's event. Out: text on GitHub.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from abprof.extras.bot.command import admit
    from abprof.extras.bot.comment import Context, render
    from abprof.extras.bot.make import make_notice
    from abprof.extras.bot.notice import encode, read_notice
    from abprof.extras.bot.posting import NightIssue, post_notice

__all__ = [
    "Context",
    "NightIssue",
    "admit",
    "encode",
    "make_notice",
    "post_notice",
    "read_notice",
    "render",
]


def __getattr__(name: str) -> Any:
    """Import on first use: only posting needs PyGithub, which is optional."""
    if name in __all__:
        for module in ("notice", "make", "comment", "command", "posting"):
            found = importlib.import_module(f"{__name__}.{module}")
            if hasattr(found, name):
                return getattr(found, name)
    raise AttributeError(name)
