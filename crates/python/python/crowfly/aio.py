"""The same for asyncio: the event loop goes on while bytes move, and cancelling a task cancels its transfer."""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Mapping, Optional, TypeVar

from . import _load, _save
from ._crowfly import Engine, Tensor, Transfer, start_save
from ._load import Filename, Tensors
from ._receipt import Receipt

__all__ = ["load_file", "save_file"]

T = TypeVar("T")


async def _through(start: Callable[[], Transfer], finish: Callable[[Transfer], T]) -> T:
    loop = asyncio.get_running_loop()
    transfer = await loop.run_in_executor(None, start)
    try:
        return await loop.run_in_executor(None, finish, transfer)
    except asyncio.CancelledError:
        transfer.cancel()
        raise


async def load_file(
    filename: Filename, device: Any = "cpu", policy: str = "prefer", **options: Any
) -> Tensors[Tensor]:
    """As :func:`crowfly.load_file`."""
    progress = options.pop("progress", None)
    return await _through(
        lambda: _load.start_load(filename, device, policy, **options),
        lambda transfer: _load.finish_load(transfer, progress),
    )


async def save_file(
    tensors: Mapping[str, Any],
    filename: Filename,
    metadata: Optional[Mapping[str, str]] = None,
    *,
    policy: str = "prefer",
    path: Optional[str] = None,
) -> Receipt:
    """As :func:`crowfly.save_file`. Leave the tensors alone until it is done."""
    entries = _save.entries_of(tensors)
    pairs = None if metadata is None else dict(metadata)
    return await _through(
        lambda: start_save(Engine(), entries, str(filename), pairs, policy=policy, path=path),
        _save.finish_save,
    )
