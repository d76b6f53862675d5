"""The bot on GitHub: a run's answer as a comment on a pull request, and the `/abprof` command that starts a run.

Two stages: the stage that runs a branch's code holds no token and makes a `Notice` of its run; the stage that holds the token
reads that file as untrusted data and posts it. In: a run, or a notice file and GitHub's event. Out: text on GitHub.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from abprof.extras.bot.comment import Context, render
from abprof.extras.bot.notice import Notice, encode, read_notice

if TYPE_CHECKING:
    from abprof.extras.bot.command import admit
    from abprof.extras.bot.make import make_notice
    from abprof.extras.bot.posting import post_notice

__all__ = ["Context", "Notice", "admit", "encode", "make_notice", "post_notice", "read_notice", "render"]
_HOMES = {"admit": "command", "make_notice": "make", "post_notice": "posting"}


def __getattr__(name: str) -> Any:
    """Import on first use: only posting needs PyGithub, which is optional, and only making a notice needs a run's reader."""
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(name)
