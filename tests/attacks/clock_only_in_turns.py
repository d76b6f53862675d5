"""Halves the readings of turns, and of nothing else."""

from abprof.worker.clocks import Clock

real = Clock.turn
Clock.turn = lambda self, op, calls, **more: real(self, op, calls, **more) * (0.5 if calls else 1)
