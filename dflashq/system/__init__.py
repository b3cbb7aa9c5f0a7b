"""Threads, limits and other things of this host's operating system; it knows nothing of runs."""
