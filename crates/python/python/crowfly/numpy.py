"""Drop-in for ``safetensors.numpy``, with receipts."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

from . import _load, _save
from ._crowfly import deserialize, serialize
from ._frameworks import ML_TYPES, to_numpy
from ._load import Filename, Tensors
from ._progress import Progress
from ._receipt import Receipt

__all__ = ["load", "load_file", "save", "save_file"]

_NAMES = {name: dtype for dtype, name in ML_TYPES.items()}


def load_file(
    filename: Filename,
    *,
    policy: str = "prefer",
    tensors: Optional[Sequence[str]] = None,
    shard: Optional[tuple[int, int]] = None,
    path: Optional[str] = None,
    verify: bool = False,
    progress: Progress = None,
) -> Tensors[Any]:
    """As :func:`crowfly.load_file`, with NumPy's arrays. They are the loaded memory itself, and writable."""
    loaded = _load.load_file(
        filename,
        "cpu",
        policy,
        tensors=tensors,
        shard=shard,
        path=path,
        verify=verify,
        progress=progress,
    )
    return loaded.map(to_numpy)


def load(data: bytes) -> dict[str, Any]:
    """Arrays from the bytes of a safetensors file. They are those bytes themselves, so they are read-only."""
    return {name: to_numpy(tensor) for name, tensor in deserialize(data)}


def save_file(
    tensor_dict: Mapping[str, Any],
    filename: Filename,
    metadata: Optional[Mapping[str, str]] = None,
    *,
    policy: str = "prefer",
    path: Optional[str] = None,
    progress: Progress = None,
) -> Receipt:
    """As :func:`crowfly.save_file`; arrays of any order of bytes and dimensions are written as safetensors wants them."""
    return _save.save_entries(_entries(tensor_dict), filename, metadata, policy, path, progress)


def save(tensor_dict: Mapping[str, Any], metadata: Optional[Mapping[str, str]] = None) -> bytes:
    """The bytes of a safetensors file of these arrays."""
    return serialize(_entries(tensor_dict), None if metadata is None else dict(metadata))


def _entries(arrays: Mapping[str, Any]) -> _save.Entries:
    return [(name, *memory_of(array)) for name, array in arrays.items()]


def memory_of(array: Any) -> tuple[Any, Optional[tuple[str, list[int]]]]:
    """An array's memory as safetensors wants it, and what its elements are where NumPy alone cannot say."""
    import numpy

    array = numpy.asarray(array)
    shape = list(array.shape)
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    # This makes an array of one element of a scalar, hence the shape.
    array = numpy.ascontiguousarray(array)
    meant = _NAMES.get(array.dtype.name)
    if meant is None:
        return array.reshape(shape), None
    return array.reshape(-1).view(numpy.uint8), (meant, shape)
