"""What looks at cells that changed, after all timing (--probe). Names alone here: options are read before anything is loaded."""

KNOWN = ("torch", "proton", "ncu", "perf")
