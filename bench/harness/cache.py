"""The page cache: put files in it, get them out of it, and ask the kernel whether that worked."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterable
from pathlib import Path

COLD_AT_MOST = 0.001
"""Share of a cold file that may stay resident: readers that map a page can hold on to it for a moment."""

WARM_AT_LEAST = 0.99
ATTEMPTS = 20
PAUSE_SECONDS = 0.05
READ_BYTES = 1 << 20

_MAP_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


class CacheState(RuntimeError):
    """The kernel did not bring the cache into the state asked for."""


def resident_share(paths: Iterable[Path]) -> float:
    """The share of the files' pages that is in the page cache, by mincore(2)."""
    resident = total = 0
    for path in paths:
        pages = _residency(path)
        resident += sum(byte & 1 for byte in pages)
        total += len(pages)
    return resident / total if total else 0.0


def make_cold(paths: Iterable[Path]) -> float:
    """Drops the files from the page cache; answers the share that stayed, or raises CacheState."""
    paths = list(paths)
    share = 1.0
    for _ in range(ATTEMPTS):
        for path in paths:
            _drop(path)
        share = resident_share(paths)
        if share <= COLD_AT_MOST:
            return share
        time.sleep(PAUSE_SECONDS)
    raise CacheState(f"{share:.1%} of the files stayed in the page cache after POSIX_FADV_DONTNEED")


def make_warm(paths: Iterable[Path]) -> float:
    """Reads the files into the page cache; answers the resident share, or raises CacheState."""
    paths = list(paths)
    for path in paths:
        if resident_share([path]) < 1.0:
            with open(path, "rb", buffering=0) as file:
                while file.read(READ_BYTES):
                    pass
    share = resident_share(paths)
    if share < WARM_AT_LEAST:
        raise CacheState(f"only {share:.1%} of the files fit in the page cache")
    return share


def _drop(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Dirty pages survive DONTNEED.
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _residency(path: Path) -> bytes:
    """One byte a page, its lowest bit set when the page is resident."""
    length = path.stat().st_size
    if length == 0:
        return b""
    pages = -(-length // mmap.PAGESIZE)
    vector = ctypes.create_string_buffer(pages)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    if address == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), f"mmap of {path.name} ({length} bytes) failed")
    try:
        if _libc.mincore(address, length, vector) != 0:
            raise OSError(ctypes.get_errno(), f"mincore of {path.name} ({length} bytes) failed")
    finally:
        _libc.munmap(address, length)
    return vector.raw
