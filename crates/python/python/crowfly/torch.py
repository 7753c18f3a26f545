"""Drop-in for ``safetensors.torch``, with receipts."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Optional, Sequence, Union

import torch

from . import _load, _save
from ._crowfly import deserialize, serialize
from ._frameworks import TORCH_TYPES, to_torch
from ._load import Filename, Tensors
from ._progress import Progress
from ._receipt import Receipt
from .errors import LayoutError, SharedMemoryError, UsageError

__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model"]

Device = Union[str, int, torch.device]

_NAMES = {
    getattr(torch, name): dtype for dtype, name in TORCH_TYPES.items() if hasattr(torch, name)
}


def load_file(
    filename: Filename,
    device: Device = "cpu",
    *,
    policy: str = "prefer",
    tensors: Optional[Sequence[str]] = None,
    shard: Optional[tuple[int, int]] = None,
    path: Optional[str] = None,
    verify: bool = False,
    progress: Progress = None,
) -> Tensors[torch.Tensor]:
    """As :func:`crowfly.load_file`, with PyTorch's tensors. They are the loaded memory itself, and writable."""
    loaded = _load.load_file(
        filename,
        device,
        policy,
        tensors=tensors,
        shard=shard,
        path=path,
        verify=verify,
        progress=progress,
    )
    return loaded.map(to_torch)


def load(data: bytes) -> dict[str, torch.Tensor]:
    """Tensors from the bytes of a safetensors file, copied: PyTorch has no read-only tensors."""
    return {name: to_torch(tensor) for name, tensor in deserialize(data)}


def save_file(
    tensors: Mapping[str, torch.Tensor],
    filename: Filename,
    metadata: Optional[Mapping[str, str]] = None,
    *,
    policy: str = "prefer",
    path: Optional[str] = None,
    progress: Progress = None,
) -> Receipt:
    """As :func:`crowfly.save_file`. Tensors of devices are copied to host memory first.

    Raises:
        SharedMemoryError: when tensors share memory, which would be written twice; see :func:`save_model`.
        LayoutError: when a tensor is sparse or has gaps.
    """
    return _save.save_entries(entries_of(tensors), filename, metadata, policy, path, progress)


def save(
    tensors: Mapping[str, torch.Tensor], metadata: Optional[Mapping[str, str]] = None
) -> bytes:
    """The bytes of a safetensors file of these tensors."""
    return serialize(entries_of(tensors), None if metadata is None else dict(metadata))


def save_model(
    model: torch.nn.Module,
    filename: Filename,
    metadata: Optional[Mapping[str, str]] = None,
    force_contiguous: bool = True,
) -> Receipt:
    """Writes a model's state, each memory that several of its tensors share once.

    The metadata says of each name that was left out which one was kept; :func:`load_model` needs no more.
    """
    state = dict(model.state_dict())
    pairs = dict(metadata or {})
    for kept, left_out in _duplicates(state).items():
        for name in left_out:
            pairs.setdefault(name, kept)
            del state[name]
    if force_contiguous:
        state = {name: tensor.contiguous() for name, tensor in state.items()}
    return save_file(state, filename, pairs or None)


def load_model(
    model: torch.nn.Module, filename: Filename, strict: bool = True, device: Device = "cpu"
) -> tuple[set[str], list[str]]:
    """Loads a file into a model.

    Returns:
        The names that the file lacks and those that the model lacks; with ``strict``, either is an error.
    """
    loaded = load_file(filename, device)
    duplicates = _duplicates(dict(model.state_dict()), preferred=set(loaded))
    missing, unexpected = model.load_state_dict(loaded, strict=False)
    lacking, beyond = set(missing), list(unexpected)
    for left_out in duplicates.values():
        for name in left_out:
            if name in lacking:
                lacking.remove(name)
            else:
                beyond.append(name)
    if strict and (lacking or beyond):
        names = [f"Missing key(s) in state_dict: {_listed(lacking)}"] if lacking else []
        names += [f"Unexpected key(s) in state_dict: {_listed(beyond)}"] if beyond else []
        raise RuntimeError(
            f"Error(s) in loading state_dict for {type(model).__name__}:\n    " + "\n    ".join(names)
        )
    return lacking, beyond


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in sorted(names))


def entries_of(tensors: Mapping[str, torch.Tensor]) -> _save.Entries:
    """What is written of each tensor, checked."""
    if not isinstance(tensors, Mapping):
        raise UsageError(f"tensors come by name in a dict, not in {type(tensors)}")
    entries: _save.Entries = []
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise UsageError(f"`{name}` is {type(tensor)}, not a torch.Tensor")
        entries.append((name, *memory_of(name, tensor)))
    _refuse_shared(tensors)
    return entries


def memory_of(name: str, tensor: torch.Tensor) -> tuple[Any, tuple[str, list[int]]]:
    """A tensor's memory as plain bytes in host memory, and what its elements are."""
    if tensor.layout != torch.strided:
        raise LayoutError(f"`{name}` is sparse", "sparse", "make it dense with .to_dense()")
    if not tensor.is_contiguous():
        raise LayoutError(
            f"`{name}` has gaps between its elements, or another order",
            "not-contiguous",
            "call .contiguous() on it; for a model use save_model(..., force_contiguous=True)",
        )
    dtype = _NAMES.get(tensor.dtype)
    if dtype is None:
        raise LayoutError(f"`{name}` has elements of {tensor.dtype}, which safetensors does not have", "unknown-dtype")
    shape = list(tensor.shape)
    if dtype == "F4":
        # PyTorch counts pairs.
        if not shape:
            raise LayoutError(f"`{name}` is a scalar of {tensor.dtype}", "sub-byte")
        shape[-1] *= 2
    if tensor.device.type == "meta":
        raise LayoutError(f"`{name}` is on the meta device and has no memory", "no-memory")
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    # Every PyTorch exports plain bytes, whatever it calls the elements.
    return plain.reshape(-1).view(torch.uint8), (dtype, shape)


def _spans(tensors: Mapping[str, torch.Tensor]) -> list[tuple[str, int, int, str]]:
    """Device, first byte, end and name of each tensor with memory, in order."""
    found: list[tuple[str, int, int, str]] = []
    for name, tensor in tensors.items():
        if tensor.device.type == "meta" or tensor.numel() == 0:
            continue
        reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
        start = tensor.data_ptr()
        found.append((str(tensor.device), start, start + (reach + 1) * tensor.element_size(), name))
    return sorted(found)


def _groups(tensors: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Names of tensors that overlap in memory."""
    groups: list[list[str]] = []
    reached = ("", 0)
    for device, start, end, name in _spans(tensors):
        if groups and device == reached[0] and start < reached[1]:
            groups[-1].append(name)
        else:
            groups.append([name])
            reached = (device, 0)
        reached = (device, max(end, reached[1]))
    return [group for group in groups if len(group) > 1]


def _refuse_shared(tensors: Mapping[str, torch.Tensor]) -> None:
    shared = _groups(tensors)
    if shared:
        raise SharedMemoryError(
            f"Some tensors share memory, which would be written more than once: {shared}",
            "shared-memory",
            "save_model writes shared memory once; or .clone() them",
        )


def _duplicates(
    state: Mapping[str, torch.Tensor], preferred: Optional[set[str]] = None
) -> dict[str, list[str]]:
    """Of tensors that share memory: the name that is kept, and those that are left out."""
    found: dict[str, list[str]] = {}
    for group in _groups(state):
        longest = max(state[name].numel() * state[name].element_size() for name in group)
        spans = [(start, end) for _, start, end, _ in _spans({n: state[n] for n in group})]
        whole = max(end for _, end in spans) - min(start for start, _ in spans)
        complete = [n for n in group if state[n].numel() * state[n].element_size() == longest]
        if longest < whole:
            raise SharedMemoryError(
                f"{sorted(group)} share memory, and none of them covers all of it", "shared-memory"
            )
        kept = sorted(set(complete) & (preferred or set()) or set(complete))[0]
        found[kept] = sorted(name for name in group if name != kept)
    return found


