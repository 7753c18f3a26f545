"""fio over the checkpoint's own files, each byte read once, at several settings."""

from __future__ import annotations

import json
import shutil

from ..process import Command, Finished
from .contender import REMARK, Arena, Contender, Failed, Reading, Setting

ALIGNMENT = 1 << 20
"""Job boundaries inside a file fall on whole MiB, so O_DIRECT accepts them."""

READ_AT_LEAST = 0.9
"""Share of the data fio must have read: it leaves out the last partial block of each section, and the
rate is computed from the bytes it did read."""


def _setting(engine: str, direct: int, block: str, depth: int, jobs: int) -> Setting:
    label = f"{engine} {'O_DIRECT' if direct else 'buffered'} bs={block} qd={depth} jobs={jobs}"
    values = {"engine": engine, "direct": direct, "block": block, "depth": depth, "jobs": jobs}
    return Setting(label, values)


class Fio(Contender):
    name = "fio"
    settings = (
        _setting("io_uring", 1, "4m", 32, 1),
        _setting("io_uring", 1, "1m", 32, 1),
        _setting("io_uring", 1, "1m", 8, 4),
        _setting("io_uring", 1, "2m", 8, 4),
        _setting("io_uring", 1, "4m", 8, 4),
        _setting("io_uring", 1, "512k", 8, 16),
        _setting("io_uring", 1, "2m", 4, 16),
        _setting("psync", 0, "1m", 1, 4),
        _setting("psync", 0, "2m", 1, 16),
        _setting("psync", 0, "128k", 1, 4),
    )
    note = "its own reported run time, without its start; CPU of the whole process"

    def waived(self) -> str | None:
        if shutil.which("fio") is None:
            return "fio is not on the PATH; it comes from the system's package manager"
        return None

    def command(self, arena: Arena, setting: Setting) -> Command:
        values = setting.values
        common = [
            "fio",
            "--output-format=json",
            "--readonly",
            # Threads, so that memory and CPU are those of one process.
            "--thread",
            "--rw=read",
            f"--ioengine={values['engine']}",
            f"--direct={values['direct']}",
            f"--bs={values['block']}",
            f"--iodepth={values['depth']}",
            # The cache state is set by the harness; fio would drop a warm file.
            "--invalidate=0",
            "--file_service_type=sequential",
        ]
        return Command([*common, *_jobs(arena, int(str(values["jobs"])))], {})

    def read(self, finished: Finished, arena: Arena) -> Reading:
        try:
            jobs = [job["read"] for job in json.loads(finished.stdout)["jobs"]]
            size = sum(job["io_bytes"] for job in jobs)
            wall = max(job["runtime"] for job in jobs) / 1000
        except (ValueError, KeyError, TypeError) as error:
            raise Failed(f"fio's report has no read figures: {error!r}") from error
        if wall <= 0 or size < arena.data_bytes * READ_AT_LEAST:
            raise Failed(f"fio read {size} bytes in {wall} s; {arena.data_bytes} were to be read")
        return Reading(
            wall_s=wall,
            cpu_s=finished.cpu_s,
            bytes=size,
            peak_rss=finished.peak_rss,
            peak_rss_is_floor=finished.rss_is_floor,
        )


class Ceiling(Fio):
    """What the drive gives when the memory for all of it is there before the clock starts, so that no loader's time can
    be less by more than the noise."""

    name = "fio, memory there"
    role = REMARK
    settings = (_setting("io_uring", 1, "4m", 256, 1),)
    note = (
        "io_uring, O_DIRECT, into pinned buffers as large as the checkpoint; the drive's ceiling for bytes that stay"
    )

    def command(self, arena: Arena, setting: Setting) -> Command:
        block = 4 << 20
        depth = -(-arena.data_bytes // block) + len(arena.files)
        found = super().command(arena, Setting(setting.label, {**setting.values, "depth": depth}))
        # An option of the engine's, so behind its name.
        engine = next(n for n, option in enumerate(found.argv) if option.startswith("--ioengine="))
        argv = [*found.argv[: engine + 1], "--fixedbufs=1", *found.argv[engine + 1 :]]
        return Command(argv, found.env)


def _jobs(arena: Arena, jobs: int) -> list[str]:
    """Job sections that together read every file once: all files in one job, or each file in
    `jobs / files` consecutive parts."""
    if jobs == 1:
        names = ":".join(_escaped(str(file)) for file in arena.files)
        return ["--name=all", f"--filename={names}"]
    parts = max(1, jobs // len(arena.files))
    sections: list[str] = []
    for number, file in enumerate(arena.files):
        length = file.stat().st_size
        step = -(-length // parts // ALIGNMENT) * ALIGNMENT
        for part in range(parts):
            offset = part * step
            if offset >= length:
                break
            sections += [
                f"--name=file{number}part{part}",
                f"--filename={_escaped(str(file))}",
                f"--offset={offset}",
                f"--size={min(step, length - offset)}",
            ]
    return sections


def _escaped(path: str) -> str:
    return path.replace(":", "\\:")
