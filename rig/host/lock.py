"""Keeps two runs of the rig out of each other's way: they share one cache."""

import contextlib
import fcntl


@contextlib.contextmanager
def held(path, say):
    """Hold the lock file `path`, waiting for whoever else holds it. It goes with the process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another run holds {path.name}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
