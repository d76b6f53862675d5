"""Use the operating system: processes, locks, atomic writes, configuration files, the console."""
