"""The machine's side of things: processes, locks, files that are written whole, configuration files, the console."""
