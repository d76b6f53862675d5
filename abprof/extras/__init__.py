"""Verbs built on a session and the public faces of other packages. Only `abprof.cli` imports this package."""
