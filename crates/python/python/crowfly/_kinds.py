"""Kinds of numbers and of reductions, as PyTorch and the library call them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from .errors import UsageError

ELEMENTS = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    # As bytes that are 0 or 1; a sum of them is none.
    torch.bool: "u8",
}
REDUCTIONS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "mean",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.PRODUCT: "product",
    dist.ReduceOp.BAND: "and",
    dist.ReduceOp.BOR: "or",
    dist.ReduceOp.BXOR: "xor",
}


def reduction_of(opts: Any) -> str:
    """The reduction that the options of a call ask for."""
    wanted = dist.ReduceOp.SUM if opts is None else opts.reduceOp
    for known, name in REDUCTIONS.items():
        if wanted == known:
            return name
    raise UsageError(
        f"the backend crowfly cannot reduce by {name_of(wanted)}",
        "bad-reduction",
        f"these can be had: {', '.join(name_of(known) for known in REDUCTIONS)}",
    )


def name_of(reduction: Any) -> str:
    """What PyTorch calls a reduction."""
    return str(getattr(reduction, "op", reduction)).rsplit(".", 1)[-1]


def refuse_what_is_none(tensor: torch.Tensor, reduction: str) -> None:
    """Refuses the bits of floats, and sums of bools."""
    if tensor.dtype.is_floating_point and reduction in ("and", "or", "xor"):
        raise UsageError(f"the {reduction} of {tensor.dtype} is none", "bad-reduction", "it is of integers and bools")
    if tensor.dtype is torch.bool and reduction in ("sum", "mean"):
        raise UsageError(f"the {reduction} of bools is none", "bad-reduction", "take MAX for any, MIN for all")


def element(tensor: torch.Tensor) -> str:
    """The kind of a tensor's numbers."""
    found = ELEMENTS.get(tensor.dtype)
    if found is None:
        known = ", ".join(str(dtype) for dtype in ELEMENTS)
        raise UsageError(f"{tensor.dtype} cannot be reduced", "bad-element", f"these can: {known}")
    return found
