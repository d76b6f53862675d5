"""Implement verbs with a session and the public functions of other packages. Only `abprof.cli` imports this package."""
