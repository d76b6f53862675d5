"""Workers of the shards of a run on simulated devices are forked too (tests/simulated/lab.py puts this folder on their path)."""

import sys

if "abprof.fleet" in sys.orig_argv:
    from tests.simulated.warm import fork_workers

    fork_workers()
