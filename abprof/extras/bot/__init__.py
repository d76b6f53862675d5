"""What goes out of a run to where code is reviewed: the notice, the comment that carries it, the check.

`notice.py` is all that a posting stage reads; `github.py` is the doorway to GitHub.
"""
