"""The programs that take turns: crowfly by shared memory and by TCP, Open MPI by the same, and Gloo, which has TCP alone. Beside
them, for two ranks, what is left to win: bare sockets that carry the same bytes, and bare copies by memory that both have.

Each runs all sizes in one go and answers a `Figure` for each.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
#: The kind of those that are no peers: nothing that reduces by such means gets far past them.
BARE = "bare"
#: Their programs and paths.
BARES = {"sockets": "tcp", "copies": "shm"}
TIME_LIMIT_S = 240

#: What Open MPI goes by: the byte transfer layers for a path, over loopback where there is a choice.
LAYERS = {
    "shm": ["--mca", "btl", "self,vader"],
    "tcp": ["--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"],
}


#: Has Open MPI bind ranks to cores although there are too few.
BOUND = ("--bind-to", "core:overload-allowed")


class Failed(Exception):
    """A contender that has no figures to show."""


@dataclass(frozen=True)
class Figure:
    """One size of one run."""

    bytes: int
    seconds: float
    """Of one call at the slowest rank."""

    cpu_seconds: float
    """Of one call, over all ranks."""

    wrong: int
    bound: float | None = None
    """Bytes per second of one rank's buffer that memory, or plain sockets, would allow, measured in the same run."""


@dataclass(frozen=True)
class Contender:
    name: str
    kind: str
    path: str
    """What it goes by."""

    command: tuple[str, ...]

    ranks: int | None = None
    """The only number of ranks it can do."""

    @property
    def is_peer(self) -> bool:
        return self.kind not in ("crowfly", BARE)

    def measure(self, ranks: int, seconds: float, sizes: Sequence[int]) -> list[Figure]:
        command = [part.format(ranks=ranks) for part in self.command]
        if self.kind == "crowfly":
            command += ["--time", str(round(seconds * 1000)), "--size", ",".join(map(str, sizes))]
        else:
            command += [str(seconds), *map(str, sizes)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S)
        except subprocess.TimeoutExpired as late:
            raise Failed(f"not done after {TIME_LIMIT_S} s") from late
        if done.returncode != 0:
            raise Failed(f"exit status {done.returncode}: {done.stderr.strip()[-200:] or 'no message'}")
        return of_crowfly(done.stdout) if self.kind == "crowfly" else of_lines(done.stdout)


def of_lines(text: str) -> list[Figure]:
    """What the peers' programs print: a JSON object a line."""
    objects = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [Figure(o["bytes"], o["seconds"], o["cpu_seconds"], o["wrong"]) for o in objects]


def of_crowfly(text: str) -> list[Figure]:
    """What `crowfly bench collective --json` prints."""
    figures = []
    for point in json.loads(text)["points"]:
        sample, ceiling = point["samples"][0], point["ceiling"]
        bound = ceiling["rate"] if ceiling else None
        figures.append(Figure(point["size"], sample["seconds"], sample["cpu_seconds"], point["wrong"], bound))
    return figures


def find(program: str, python: Path, crowded: bool = False) -> tuple[list[Contender], list[str]]:
    """Those that this machine has, and what is missing. `crowded` is whether ranks share cores: crowfly binds them, and
    Open MPI's launcher leaves them to the system unless it is told to bind them as well, which now helps and now does not."""
    own = (program, "bench", "collective", "--ranks", "{ranks}", "--rounds", "1", "--json", "--path")
    found = [Contender(f"crowfly {path}", "crowfly", path, (*own, path)) for path in LAYERS]
    # Buffers that the program takes from the group; no peer has such, and all others work on any memory.
    found.insert(1, Contender("crowfly shm, group's memory", "crowfly", "shm", (*own, "shm", "--buffers", "group")))
    missing = []
    mpi = built(["mpicc", "mpirun"], "mpi")
    if mpi:
        # More ranks than cores, and the user of a container, are refused otherwise.
        launch = ("mpirun", "--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else []))
        bindings = {"": (), ", bound": BOUND} if crowded else {"": ()}
        for path, layers in LAYERS.items():
            for word, binding in bindings.items():
                command = (*launch, *binding, *layers, "-n", "{ranks}", mpi)
                found.append(Contender(f"Open MPI {path}{word}", "Open MPI", path, command))
    else:
        missing.append("Open MPI (Debian: openmpi-bin libopenmpi-dev)")
    for what, path in BARES.items():
        bare = built(["cc"], what)
        if bare:
            found.append(Contender(f"{BARE} {what}", BARE, path, (bare,), ranks=2))
        else:
            missing.append(f"{BARE} {what} (a C compiler)")
    if python.exists():
        gloo = (str(python), str(HERE / "gloo.py"), "{ranks}")
        found.append(Contender("Gloo", "Gloo", "tcp", gloo))
    else:
        missing.append("Gloo (bench/setup-peers installs PyTorch)")
    return found, missing


def built(needs: Sequence[str], source: str) -> str | None:
    """A program of this folder, compiled by the first of the tools that it needs; `None` where one is missing."""
    if not all(map(shutil.which, needs)):
        return None
    program = Path(tempfile.gettempdir()) / f"crowfly-all-reduce-{source}-{os.getpid()}"
    subprocess.run([needs[0], "-O3", "-march=native", "-o", program, HERE / f"{source}.c"], check=True)
    return str(program)
