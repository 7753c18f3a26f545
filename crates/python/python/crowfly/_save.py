"""Writing safetensors files."""

from __future__ import annotations

import os
from typing import Any, Mapping, Optional

from ._crowfly import Engine, Transfer, serialize, start_save
from ._load import Filename
from ._progress import Progress, telling
from ._receipt import Receipt

Entries = list[tuple[str, Any, Optional[tuple[str, list[int]]]]]
"""Name, memory, and what its elements are where the memory does not say."""


def entries_of(tensors: Mapping[str, Any]) -> Entries:
    """Tensors of any library that speaks DLPack or NumPy's array interface."""
    return [(name, tensor, None) for name, tensor in tensors.items()]


def finish_save(transfer: Transfer, progress: Progress = None) -> Receipt:
    """Waits until the bytes are durable."""
    with telling(progress, "saving") as tell:
        _, _, receipt, _ = transfer.wait(tell)
    return Receipt._parse(receipt)


def save_entries(
    entries: Entries,
    filename: Filename,
    metadata: Optional[Mapping[str, str]] = None,
    policy: str = "prefer",
    path: Optional[str] = None,
    progress: Progress = None,
) -> Receipt:
    """Writes a file and waits for it."""
    pairs = None if metadata is None else dict(metadata)
    transfer = start_save(Engine(), entries, os.fspath(filename), pairs, policy=policy, path=path)
    return finish_save(transfer, progress)


def save_file(
    tensors: Mapping[str, Any],
    filename: Filename,
    metadata: Optional[Mapping[str, str]] = None,
    *,
    policy: str = "prefer",
    path: Optional[str] = None,
    progress: Progress = None,
) -> Receipt:
    """Writes tensors of any library into a safetensors file, whole or not at all.

    The path holds the old file until every byte of the new one is durable: a crash, a full disk or Ctrl-C
    leaves it as it was. The bytes pass through 128 MiB of buffers at most, however large the file is. The same
    tensors make the same bytes as the safetensors package makes.

    Args:
        tensors: by name; anything in host memory that speaks DLPack or NumPy's array interface.
        filename: where to.
        metadata: text to keep with them.
        policy: as for :func:`crowfly.load_file`.
        path: force one engine path, to compare: ``"direct"``, ``"threads"`` or ``"cached"``.
        progress: as for :func:`crowfly.load_file`.

    Returns:
        What writing took.
    """
    return save_entries(entries_of(tensors), filename, metadata, policy, path, progress)


def save(tensors: Mapping[str, Any], metadata: Optional[Mapping[str, str]] = None) -> bytes:
    """The bytes of a safetensors file of these tensors."""
    return serialize(entries_of(tensors), None if metadata is None else dict(metadata))
