"""abprof: did this branch change the speed of these GPU kernels, by how much, and why?"""

__version__ = "0.1.0"
