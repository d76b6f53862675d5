"""The simulated worker: abprof's wire protocol with programmed times, noise and failures, and no torch."""
