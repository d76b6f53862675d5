"""The GitHub bot: post a run's answer as a comment on a pull request, and check comments that ask for a run.

Two CI jobs share the work: the measuring job runs the branch's code without a token and writes a `Notice` file; the
posting job, which has the token, posts the notice.
"""

from abprof.extras.bot.comment import job_summary, render
from abprof.extras.bot.github import admit, post_notice
from abprof.extras.bot.notice import Notice, encode, make_notice, read_notice

__all__ = ["Notice", "admit", "encode", "job_summary", "make_notice", "post_notice", "read_notice", "render"]
