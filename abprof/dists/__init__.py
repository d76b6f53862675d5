"""Releases as sides: `dist:NAME==VERSION` is a wheel that pip installs into a folder of abprof's, and nowhere else."""

from abprof.dists.needs import unmet
from abprof.dists.store import known, put, resolve, sweep, take_in
from abprof.dists.wanted import PREFIX, is_one

__all__ = ["PREFIX", "is_one", "known", "put", "resolve", "sweep", "take_in", "unmet"]
