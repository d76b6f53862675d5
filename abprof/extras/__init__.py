"""Packages that use a session and the faces of the other packages; only the command line imports them."""
