"""Night after night: the last judged commit of a branch with its head, everything else from the run folders."""
