"""Commands of abprof built on the public functions of other packages. Only `abprof.cli` imports this package."""
