"""A wheel of crowfly, importable without being installed among the peers."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import zipfile
from pathlib import Path


def unpack(wheel: Path) -> str:
    """A folder with the wheel's packages, for PYTHONPATH; it is gone when this process ends."""
    folder = tempfile.mkdtemp(prefix="crowfly-wheel-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder
