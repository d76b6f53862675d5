"""`abprof init`: what a repository holds, found without running any of it, and what abprof needs to measure there."""
