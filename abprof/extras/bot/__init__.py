"""Run the GitHub bot: post a run's answer as a comment on a pull request, and check the `/abprof` command that starts a run.

Two jobs: the measuring job runs a branch's code without a token and writes a `Notice` file; the posting job has the token, reads
the file as untrusted data and posts the notice. In: a run, or a notice file and GitHub's event. Out: a comment on GitHub.
"""

from abprof.extras.bot.comment import render
from abprof.extras.bot.github import admit, post_notice
from abprof.extras.bot.notice import Notice, encode, make_notice, read_notice

__all__ = ["Notice", "admit", "encode", "make_notice", "post_notice", "read_notice", "render"]
