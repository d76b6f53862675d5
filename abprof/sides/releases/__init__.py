"""Releases as sides: `dist:NAME==VERSION` is a wheel that pip installs into a folder of abprof's, and nowhere else."""

from abprof.sides.releases.needs import unmet
from abprof.sides.releases.store import known, put, resolve, sweep, take_in
from abprof.sides.releases.wanted import PREFIX, is_one

__all__ = ["PREFIX", "is_one", "known", "put", "resolve", "sweep", "take_in", "unmet"]
