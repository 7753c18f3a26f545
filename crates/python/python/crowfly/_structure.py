"""What a state looks like without its tensors: JSON that every value in it comes back from, as it was.

A state is taken apart into tensors by name and a skeleton. In the skeleton, what JSON has stands as it is; the
rest is an object with one key that begins with ``$``:

=================================  ====================================================================
``{"$tensor": {"name": …}}``       a tensor; ``as`` says whose, ``dim`` along what it was cut, ``box`` where a
                                   part begins that was cut along several, and its shape, ``own`` that each
                                   rank has its own
``{"$tuple": […]}``                a tuple
``{"$dict": [[key, value], …]}``   a dict whose keys are no strings, begin with ``$``, or are in another
                                   order than that of letters
``{"$float": "nan"}``              a number that JSON does not have
``{"$int": "…"}``                  one that 64 bits do not hold
``{"$bytes": "…"}``                bytes, in base64
=================================  ====================================================================
"""

from __future__ import annotations

import base64
import math
import sys
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence

from ._crowfly import Tensor
from .errors import FormatError, LayoutError

KEY = "crowfly.state"
"""The name of the skeleton among the values beside the tensors."""

DEEPEST = 30
"""Levels of nesting. Deeper ones are most likely a value that contains itself."""


@dataclass(frozen=True)
class Part:
    """One rank's part of a tensor that is cut along one dimension or several: a box of it."""

    tensor: Any
    """This rank's elements."""
    global_shape: tuple[int, ...]
    """Elements of the whole tensor along each dimension."""
    offset: tuple[int, ...]
    """Where this part begins along each dimension."""
    dim: Optional[int] = None
    """The dimension along which it is cut, if it is one; seen from the shapes unless the part is everything."""


@dataclass(frozen=True)
class Own:
    """A tensor that each rank has its own of, such as the state of its random numbers."""

    tensor: Any


@dataclass(frozen=True)
class Leaf:
    """A tensor in a skeleton."""

    name: str
    framework: str
    dim: Optional[int] = None
    own: bool = False
    box: Optional[tuple[Sequence[int], Sequence[int]]] = None
    """Where this rank's part begins and its shape, of a tensor that is cut along several dimensions."""

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"name": self.name, "as": self.framework}
        if self.dim is not None:
            found["dim"] = self.dim
        if self.own:
            found["own"] = True
        if self.box is not None:
            found["box"] = [list(numbers) for numbers in self.box]
        return {"$tensor": found}


Entry = tuple[
    str,
    Any,
    "Optional[tuple[str, list[int]]]",
    "Optional[tuple[list[int], list[int]]]",
    bool,
]
"""Name, memory, what its elements are, the whole's shape and the part's place in it, whether all ranks hold it."""


class _Taking:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.entries: list[Entry] = []
        self.names: set[str] = set()

    def apart(self, value: Any, path: tuple[str, ...]) -> Any:
        if len(path) > DEEPEST:
            raise LayoutError(f"the state is nested more than {DEEPEST} levels deep", "too-deep")
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, int):
            return value if -(1 << 63) <= value < 1 << 63 else {"$int": str(int(value))}
        if isinstance(value, float) and _framework(value) is None:
            return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
        if isinstance(value, Mapping):
            return self.apart_dict(value, path)
        if isinstance(value, (list, tuple)):
            parts = [self.apart(one, (*path, str(n))) for n, one in enumerate(value)]
            return parts if isinstance(value, list) else {"$tuple": parts}
        if isinstance(value, (bytes, bytearray)):
            return {"$bytes": base64.b64encode(value).decode()}
        return self.tensor(value, ".".join(path) or "state").to_json()

    def apart_dict(self, value: Mapping[Any, Any], path: tuple[str, ...]) -> Any:
        pairs = [(key, self.apart(one, (*path, str(key)))) for key, one in value.items()]
        names = [key for key, _ in pairs if isinstance(key, str) and not key.startswith("$")]
        # JSON keeps no order; only keys that stand in the order of letters can be had back in theirs.
        if len(names) == len(pairs) and names == sorted(names):
            return dict(pairs)
        return {"$dict": [[self.apart(key, (*path, "key")), one] for key, one in pairs]}

    def tensor(self, value: Any, name: str) -> Leaf:
        held = _held(name, value)
        framework = _framework(held.tensor)
        if framework is None:
            raise LayoutError(
                f"`{name}` is {type(held.tensor)}, which only pickle could save",
                "not-a-value",
                "save its state_dict(), or what it is made of",
            )
        if held.own:
            name = f"{name}@rank{self.rank}"
        if name in self.names:
            raise LayoutError(f"two tensors of the state are both called `{name}`", "ambiguous-name")
        self.names.add(name)
        memory, meant = _memory(name, held.tensor, framework)
        dim, place = held.dim, held.place
        box = None
        if isinstance(value, Part):
            shape = meant[1] if meant is not None else list(held.tensor.shape)
            cut = _cut(name, value.global_shape, shape)
            if len(cut) > 1:
                dim, box = None, (value.offset, shape)
            elif dim is None:
                # A part that is everything, because there is only one rank, is most likely to be cut along the first.
                dim = cut[0] if cut else 0
        if held.written:
            replicated = place is None and not held.own
            self.entries.append((name, memory, meant, place and (list(place[0]), list(place[1])), replicated))
        return Leaf(name, framework, dim, held.own, box)


@dataclass(frozen=True)
class _Held:
    """What this rank has of a tensor."""

    tensor: Any
    place: Optional[tuple[Sequence[int], Sequence[int]]] = None
    """The whole's shape and where in it this begins, of a part."""
    dim: Optional[int] = None
    """The dimension along which the whole is cut, where it is one."""
    own: bool = False
    written: bool = True
    """Whether this rank is the one of those that have the same part which writes it."""


def _held(name: str, value: Any) -> _Held:
    if isinstance(value, Own):
        return _Held(value.tensor, own=True)
    if isinstance(value, Part):
        return _Held(value.tensor, (value.global_shape, value.offset), value.dim)
    if not _is_distributed(value):
        return _Held(value)
    if any(placement.is_partial() for placement in value.placements):
        raise LayoutError(
            f"`{name}` is a DTensor of partial sums", "partial-sums", "call .redistribute() on it first"
        )
    cut = {placement.dim for placement in value.placements if placement.is_shard()}
    if not cut:
        return _Held(value.to_local())
    _, offset = _box(value)
    at = value.device_mesh.get_coordinate() or []
    copies = [place for place, placement in zip(at, value.placements) if placement.is_replicate()]
    return _Held(
        value.to_local(),
        (tuple(value.shape), tuple(offset)),
        # Of one that is cut along several, there is no part along one.
        next(iter(cut)) if len(cut) == 1 else None,
        written=not any(copies),
    )


def _is_distributed(value: Any) -> bool:
    return type(value).__name__ == "DTensor" and hasattr(value, "to_local")


def _box(value: Any) -> tuple[Sequence[int], Sequence[int]]:
    """This rank's part of a DTensor: its shape, and where it begins."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(
        value.shape, value.device_mesh, value.placements
    )
    return tuple(shape), tuple(offset)


class Placed:
    """The DTensors and parts of a state by name, after which others are made."""

    def __init__(self, state: Any) -> None:
        self._found: dict[str, Any] = {}
        self._find(state, ())

    def _find(self, value: Any, path: tuple[str, ...]) -> None:
        if len(path) > DEEPEST:
            raise LayoutError(f"the state is nested more than {DEEPEST} levels deep", "too-deep")
        if isinstance(value, Mapping):
            for key, one in value.items():
                self._find(one, (*path, str(key)))
        elif isinstance(value, (list, tuple)):
            for place, one in enumerate(value):
                self._find(one, (*path, str(place)))
        elif isinstance(value, Part) or _is_distributed(value):
            self._found[".".join(path) or "state"] = value

    def is_distributed(self, name: str) -> bool:
        """Whether a tensor is a DTensor."""
        return name in self._found and not isinstance(self._found[name], Part)

    def part(self, name: str, shape: Sequence[int]) -> Optional[tuple[list[int], list[int]]]:
        """Where this rank's part of a tensor begins, and its shape; none of a tensor that is not cut.

        ``shape`` is that of the whole in the checkpoint.
        """
        value = self._found.get(name)
        if value is None:
            return None
        whole = value.global_shape if isinstance(value, Part) else value.shape
        if list(whole) != list(shape):
            raise LayoutError(
                f"`{name}` has shape {list(shape)} in the checkpoint and {list(whole)} in `like`", "other-shape"
            )
        if isinstance(value, Part):
            return list(value.offset), list(value.tensor.shape)
        local, offset = _box(value)
        return list(offset), list(local)

    def made(self, name: str, local: Any) -> Any:
        """A DTensor like that of this name, of a tensor of PyTorch's that is this rank's part."""
        from torch.distributed.tensor import DTensor

        value = self._found[name]
        return DTensor.from_local(
            local.to(value.to_local().device),
            value.device_mesh,
            value.placements,
            run_check=False,
            shape=value.shape,
            stride=value.stride(),
        )


def _cut(name: str, whole: Sequence[int], shape: Sequence[int]) -> list[int]:
    """The dimensions along which a part of this shape was cut from the whole."""
    if len(shape) != len(whole):
        raise LayoutError(
            f"`{name}` has {len(whole)} dimensions, and its part {len(shape)}", "other-shape"
        )
    return [n for n, (part, size) in enumerate(zip(shape, whole)) if part != size]


def grid_part(
    shape: Sequence[int], begins: Sequence[Sequence[int]], rank: int, world: int
) -> tuple[list[int], list[int]]:
    """Where a rank's part begins, and its shape, of a tensor that was saved in parts that begin there.

    The parts are a grid, numbered row by row, each dimension of which is cut as ``torch.chunk`` cuts. From the last
    dimension on, as many of the cuts stay as divide the ranks that are left; the first dimension takes the rest.
    """
    counts = [len(set(places)) for places in zip(*begins)]
    cut = [dim for dim, count in enumerate(counts) if count > 1] or [0]
    grid, left = {}, world
    for dim in reversed(cut[1:]):
        grid[dim] = math.gcd(counts[dim], left)
        left //= grid[dim]
    grid[cut[0]] = left
    offset, part, number = [0] * len(shape), list(shape), rank
    for dim in reversed(cut):
        number, at = divmod(number, grid[dim])
        step = -(-shape[dim] // grid[dim])
        offset[dim] = min(step * at, shape[dim])
        part[dim] = min(step, shape[dim] - offset[dim])
    return offset, part


def _framework(value: Any) -> Optional[str]:
    if isinstance(value, Tensor):
        return "crowfly"
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        return "pt"
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return "np"
    return None


def _memory(name: str, value: Any, framework: str) -> tuple[Any, Optional[tuple[str, list[int]]]]:
    if framework == "pt":
        from .torch import memory_of

        return memory_of(name, value.contiguous())
    if framework == "np":
        from .numpy import memory_of as memory_of_array

        return memory_of_array(value)
    return value.contiguous(), None


def taken_apart(state: Any, rank: int) -> tuple[list[Entry], dict[str, Any]]:
    """The tensors of a state, and the values beside them."""
    taking = _Taking(rank)
    skeleton = taking.apart(state, ())
    return taking.entries, {KEY: skeleton}


def of_objects(objects: Mapping[str, Any]) -> Any:
    """The skeleton among the values beside the tensors; ``None`` where there is none."""
    return objects.get(KEY)


def nested(named: Mapping[str, Any], paths: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Named values put where in a nested state each stood: text is a key, a number a place in a list.

    What has no path, or one that leads through another value, stands under its name.
    """
    tree: dict[Any, Any] = {}
    for name, value in named.items():
        *above, last = paths.get(name) or [name]
        branch: Any = tree
        for step in above:
            branch = branch.setdefault(step, _Branch()) if isinstance(branch, dict) else None
            if type(branch) is not _Branch:
                break
        if (above and type(branch) is not _Branch) or last in branch:
            branch, last = tree, name
        branch[last] = value
    return {key: _grown(value) for key, value in tree.items()}


class _Branch(Dict[Any, Any]):
    """A dictionary of a state that is being put together, and none of its values."""


def _grown(value: Any) -> Any:
    if type(value) is not _Branch:
        return value
    grown = {key: _grown(one) for key, one in value.items()}
    places = sorted(key for key in grown if isinstance(key, int))
    return [grown[place] for place in places] if places == list(range(len(grown))) else grown


def leaves(skeleton: Any) -> Iterator[Leaf]:
    """All tensors of a skeleton."""
    found: list[Leaf] = []
    put_together(skeleton, found.append)
    return iter(found)


def put_together(skeleton: Any, leaf: Callable[[Leaf], Any], depth: int = 0) -> Any:
    """The state that a skeleton is of, with what ``leaf`` makes of its tensors."""
    if depth > 3 * DEEPEST:
        raise FormatError("the state in this checkpoint is nested too deep", "too-deep")

    def inner(value: Any) -> Any:
        return put_together(value, leaf, depth + 1)

    if isinstance(skeleton, list):
        return [inner(one) for one in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    if len(skeleton) == 1:
        ((mark, value),) = skeleton.items()
        if mark.startswith("$"):
            return _unmarked(mark, value, leaf, inner)
    return {key: inner(value) for key, value in skeleton.items()}


def _unmarked(
    mark: str, value: Any, leaf: Callable[[Leaf], Any], inner: Callable[[Any], Any]
) -> Any:
    try:
        if mark == "$tensor":
            box = value.get("box")
            if box is not None:
                offset, shape = box
                box = [int(n) for n in offset], [int(n) for n in shape]
            return leaf(Leaf(value["name"], value["as"], value.get("dim"), value.get("own", False), box))
        if mark == "$tuple":
            return tuple(inner(one) for one in value)
        if mark == "$dict":
            return {inner(key): inner(one) for key, one in value}
        if mark == "$float":
            return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[value]
        if mark == "$int":
            return int(value)
        if mark == "$bytes":
            return base64.b64decode(value, validate=True)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, FormatError) or type(error).__module__.startswith("crowfly"):
            raise
        raise FormatError(f"the state in this checkpoint has a bad {mark}: {error}", "bad-state") from None
    raise FormatError(f"the state in this checkpoint has an unknown {mark}", "bad-state")


