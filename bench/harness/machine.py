"""Facts about the machine that a reader of a result needs; nothing that names the machine or its user."""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path

QUEUE_FACTS = (
    "nr_requests",
    "max_sectors_kb",
    "max_segments",
    "read_ahead_kb",
    "rotational",
    "logical_block_size",
    "physical_block_size",
)
CHOICES = ("scheduler",)
"""Files that list every choice and put the one in force in brackets."""

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")


def facts(folder: Path) -> dict[str, object]:
    """The machine as seen from the drive that holds `folder`. A fact that cannot be read is null."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _field("/proc/cpuinfo", "model name"),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "page_bytes": os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "memlock_limit_bytes": _limit(resource.RLIMIT_MEMLOCK),
        "io_uring_disabled": _read("/proc/sys/kernel/io_uring_disabled"),
        "transparent_huge_pages": _chosen(_read(HUGE_PAGES / "enabled")),
        "transparent_huge_pages_defrag": _chosen(_read(HUGE_PAGES / "defrag")),
        "huge_pages_free": _field("/proc/meminfo", "HugePages_Free"),
        "file_system": _file_system(folder),
        "block_device": _block_device(folder),
        "load_average_at_start": os.getloadavg()[0],
    }


def available_memory() -> int:
    """Bytes that can be used without swapping, as the kernel estimates."""
    text = _field("/proc/meminfo", "MemAvailable")
    return int(text.split()[0]) * 1024 if text else 0


def _read(path: str | Path) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _chosen(text: str | None) -> str | None:
    if text is None or "[" not in text:
        return text
    return text.partition("[")[2].partition("]")[0]


def _field(path: str, name: str) -> str | None:
    for line in (_read(path) or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _limit(which: int) -> int | str:
    soft, _ = resource.getrlimit(which)
    return "unlimited" if soft == resource.RLIM_INFINITY else soft


def _device_number(folder: Path) -> str:
    device = folder.stat().st_dev
    return f"{os.major(device)}:{os.minor(device)}"


def _file_system(folder: Path) -> dict[str, str] | None:
    number = _device_number(folder)
    for line in (_read("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) > 5 and fields[2] == number:
            return {"type": right.split()[0], "options": fields[5]}
    return None


def _block_device(folder: Path) -> dict[str, str | None] | None:
    node = Path("/sys/dev/block") / _device_number(folder)
    if not node.exists():
        return None
    node = node.resolve()
    if (node / "partition").exists():
        node = node.parent
    return {
        "name": node.name,
        "model": _read(node / "device" / "model"),
        **{fact: _read(node / "queue" / fact) for fact in QUEUE_FACTS},
        **{fact: _chosen(_read(node / "queue" / fact)) for fact in CHOICES},
    }
