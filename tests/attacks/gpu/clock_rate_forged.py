"""Says that the multiprocessors' clock was lower by a fifth, as if its times were shorter at base's clock."""

from abprof.worker.clocks import Stamps

real = Stamps.mhz
Stamps.mhz = lambda self: 0.8 * real(self)
