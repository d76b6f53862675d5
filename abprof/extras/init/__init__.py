"""`abprof init`: propose abprof.toml and a first workload for a repository, by reading its files and running none.

In: the tracked files' names and texts. project.py and source.py read them, look.py lists callables that can be measured,
arguments.py and propose.py say how one is called, built and imported. Out: `Made`, the files to write (scaffold.py).
"""
