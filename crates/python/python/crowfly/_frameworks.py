"""Tensors as those of NumPy, PyTorch and JAX. Each is imported when it is first needed."""

from __future__ import annotations

from typing import Any, Callable

from ._crowfly import Tensor
from .errors import LayoutError, UsageError

TORCH_TYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F4": "float4_e2m1fn_x2",
}
"""What PyTorch calls each element type."""

HOST_MEMORY = (1, 0)
"""DLPack's device type and number of it."""

SINCE_THE_BEGINNING = frozenset(
    ["U8", "I8", "I16", "I32", "I64", "F16", "BF16", "F32", "F64", "C64", "BOOL"]
)
"""Element types that every PyTorch takes through DLPack."""

ML_TYPES = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
"""Element types that NumPy has from the package ml_dtypes."""


def to_torch(tensor: Tensor) -> Any:
    """As ``torch.Tensor``. No bytes are copied, except of a read-only tensor: PyTorch knows no such."""
    import torch

    if tensor.readonly:
        tensor = tensor.copy()
    if tensor.dtype in SINCE_THE_BEGINNING:
        return torch.from_dlpack(tensor)
    dtype = getattr(torch, TORCH_TYPES.get(tensor.dtype, ""), None)
    if dtype is None:
        raise LayoutError(
            f"this PyTorch ({torch.__version__}) has no element type {tensor.dtype}", "no-such-dtype"
        )
    shape = list(tensor.shape)
    if tensor.dtype == "F4":
        # Two elements are one of PyTorch's.
        if not shape or shape[-1] % 2:
            raise LayoutError(f"{tensor.dtype} {shape} has no whole pairs along its last dimension", "sub-byte")
        shape[-1] //= 2
    return torch.from_dlpack(tensor.contiguous().bytes()).view(dtype).reshape(shape)


def to_numpy(tensor: Tensor) -> Any:
    """As ``numpy.ndarray``, without a copy."""
    import numpy

    if tensor.__dlpack_device__() != HOST_MEMORY:
        raise LayoutError(
            f"NumPy takes no tensor of {tensor.place}", "not-in-host-memory", "take tensor.cpu().numpy()"
        )
    if tensor.dtype in ML_TYPES:
        try:
            import ml_dtypes
        except ImportError:
            raise LayoutError(
                f"NumPy has no element type {tensor.dtype}",
                "no-such-dtype",
                "install ml_dtypes, or take tensor.bytes()",
            ) from None
        dtype = numpy.dtype(getattr(ml_dtypes, ML_TYPES[tensor.dtype]))
        return numpy.asarray(tensor.contiguous().bytes()).view(dtype).reshape(tensor.shape)
    try:
        return numpy.asarray(_Interface(tensor))
    except AttributeError:
        raise LayoutError(
            f"NumPy has no element type {tensor.dtype}", "no-such-dtype", "take tensor.bytes()"
        ) from None


class _Interface:
    """Only the array interface of a tensor: NumPy would try the buffer protocol first, which keeps a lock."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.__array_interface__ = tensor.__array_interface__


def to_jax(tensor: Tensor) -> Any:
    """As ``jax.Array``; whether JAX copies depends on the alignment that its backend wants."""
    import jax

    return jax.dlpack.from_dlpack(tensor)


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


_CONVERSIONS: dict[str, Callable[[Tensor], Any]] = {
    "crowfly": _as_it_is,
    "pt": to_torch,
    "torch": to_torch,
    "pytorch": to_torch,
    "np": to_numpy,
    "numpy": to_numpy,
    "jax": to_jax,
    "flax": to_jax,
}


def conversion(framework: str) -> Callable[[Tensor], Any]:
    """The function that makes a framework's tensors."""
    try:
        return _CONVERSIONS[framework]
    except KeyError:
        raise UsageError(
            f"framework {framework!r} is not known", "unknown-framework", "choose " + ", ".join(_CONVERSIONS)
        ) from None
