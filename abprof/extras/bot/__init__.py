"""The bot on GitHub: a run's answer as a comment on a pull request, and the `/abprof` command that starts a run.

Two stages: the stage that runs a branch's code holds no token and makes a `Notice` of its run; the stage that holds the token
reads that file as untrusted data and posts it. In: a run, or a notice file and GitHub's event. Out: text on GitHub.
"""

from abprof.extras.bot.comment import render
from abprof.extras.bot.github import admit, post_notice
from abprof.extras.bot.notice import Notice, encode, make_notice, read_notice

__all__ = ["Notice", "admit", "encode", "make_notice", "post_notice", "read_notice", "render"]
