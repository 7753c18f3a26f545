"""One measured child process: wall clock, CPU seconds of its whole tree, peak memory."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TIMEOUT_SECONDS = 900
KIB = 1024


@dataclass(frozen=True)
class Command:
    argv: Sequence[str]
    env: Mapping[str, str]
    """Set on top of this process's own environment."""

    discard_output: bool = False
    """Standard output goes to /dev/null: for programs whose output is the data."""


@dataclass(frozen=True)
class Finished:
    exit_code: int
    wall_s: float
    user_s: float
    system_s: float
    peak_rss: int
    """Bytes; when `rss_is_floor`, only known to be at most this."""

    rss_is_floor: bool
    stdout: str
    stderr: str

    @property
    def cpu_s(self) -> float:
        return self.user_s + self.system_s


def run(command: Command) -> Finished:
    """Runs the command to its end, or kills it after TIMEOUT_SECONDS."""
    environment = {**os.environ, **command.env}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sink = os.open(os.devnull, os.O_WRONLY)
        actions = [
            (os.POSIX_SPAWN_DUP2, sink if command.discard_output else out.fileno(), 1),
            (os.POSIX_SPAWN_DUP2, err.fileno(), 2),
        ]
        floor = _own_peak_rss()
        try:
            start = time.perf_counter()
            child = os.posix_spawnp(
                command.argv[0], list(command.argv), environment, file_actions=actions
            )
            watchdog = threading.Timer(TIMEOUT_SECONDS, os.kill, (child, signal.SIGKILL))
            watchdog.start()
            try:
                _, status, usage = os.wait4(child, 0)
                wall = time.perf_counter() - start
            finally:
                watchdog.cancel()
        finally:
            os.close(sink)
        # The kernel carries the parent's high-water mark over spawn into the child's figure, so a
        # child smaller than this process cannot be told from it.
        peak = usage.ru_maxrss * KIB
        return Finished(
            exit_code=os.waitstatus_to_exitcode(status),
            wall_s=wall,
            user_s=usage.ru_utime,
            system_s=usage.ru_stime,
            peak_rss=peak,
            rss_is_floor=peak <= floor,
            stdout=_text(out),
            stderr=_text(err),
        )


def _own_peak_rss() -> int:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * KIB
    return 0


def _text(file) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
