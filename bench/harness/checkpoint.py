"""Seeded inputs: a sharded safetensors checkpoint and many-tensor files whose header is the work.

The content is pseudo-random, so a file system that compresses or deduplicates cannot help anyone, and
the same on every machine, so the manifest can say what each tensor must hold.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

SEED = 20251129
SHARDS = 4
LAYERS = 40
"""40 layers of 8 tensors over 4 shards: 80 tensors a shard."""

DTYPE = "F16"
DTYPE_BYTES = 2
"""numpy has no bfloat16, and every contender must accept the same file."""

ROW = 1024
"""Elements of a tensor's inner dimension."""

MATRICES = {
    "self_attn.q_proj": 16,
    "self_attn.k_proj": 4,
    "self_attn.v_proj": 4,
    "self_attn.o_proj": 16,
    "mlp.gate_proj": 43,
    "mlp.up_proj": 43,
    "mlp.down_proj": 43,
}
"""Shares of a layer's rows, in the proportions of a grouped-query decoder; a one-row norm follows."""

HEADER_ALIGNMENT = 8
WRITE_BYTES = 4 << 20
EDGE_BYTES = 4096
"""Bytes at each end of a tensor that its fingerprint covers."""

MODEL = "model"
MANIFEST = "manifest.json"
INDEX = "model.safetensors.index.json"
LISTING_ROWS = 8
LISTING_COLUMNS = 4


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of its data."""
        count = DTYPE_BYTES
        for extent in self.shape:
            count *= extent
        return count


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk: ROOT/model holds what a model folder holds and nothing else."""

    root: Path
    shards: tuple[Path, ...]
    data_bytes: int

    @property
    def model(self) -> Path:
        return self.root / MODEL


def plan(size: int) -> list[list[Tensor]]:
    """Tensors by shard, in file order, whose data comes to about `size` bytes."""
    row_bytes = ROW * DTYPE_BYTES
    unit = max(1, size // LAYERS // row_bytes // sum(MATRICES.values()))
    shards: list[list[Tensor]] = []
    for layer in range(LAYERS):
        if layer % (LAYERS // SHARDS) == 0:
            shards.append([])
        prefix = f"model.layers.{layer}"
        # The small norm comes first, so that the matrices behind it start off page boundaries as
        # they do in real checkpoints.
        shards[-1].append(Tensor(f"{prefix}.input_layernorm.weight", (ROW,)))
        for name, share in MATRICES.items():
            shards[-1].append(Tensor(f"{prefix}.{name}.weight", (share * unit, ROW)))
    return shards


def header(tensors: list[Tensor]) -> bytes:
    """The length prefix and the JSON, padded as the format's own writer pads it."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        entries[tensor.name] = {
            "dtype": DTYPE,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.size],
        }
        offset += tensor.size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def fingerprint(head: bytes, tail: bytes) -> int:
    """CRC-32 of a tensor's first and last EDGE_BYTES; catches a tensor misplaced, stale or zero."""
    return zlib.crc32(tail, zlib.crc32(head))


def ensure(root: Path, size: int) -> Checkpoint:
    """The checkpoint of about `size` bytes under `root`, written now unless it is already whole."""
    found = open_existing(root, size)
    if found is not None:
        return found
    draft = root.with_name(root.name + ".partial")
    shutil.rmtree(draft, ignore_errors=True)
    (draft / MODEL).mkdir(parents=True)
    _write(draft, size)
    shutil.rmtree(root, ignore_errors=True)
    draft.rename(root)
    written = open_existing(root, size)
    if written is None:
        raise RuntimeError(f"the checkpoint of {size} bytes just written is not whole")
    return written


def open_existing(root: Path, size: int) -> Checkpoint | None:
    """The checkpoint when its manifest matches `size` and its files have the lengths it states."""
    try:
        manifest = json.loads((root / MANIFEST).read_text())
        if manifest["seed"] != SEED or manifest["size"] != size:
            return None
        shards = tuple(root / MODEL / name for name in manifest["files"])
        if any(shard.stat().st_size != manifest["files"][shard.name] for shard in shards):
            return None
        return Checkpoint(root, shards, manifest["data_bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(root: Path, size: int) -> None:
    shards = plan(size)
    files: dict[str, int] = {}
    prints: dict[str, int] = {}
    weight_map: dict[str, str] = {}
    data_bytes = 0
    for number, tensors in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        with open(root / MODEL / name, "wb") as out:
            out.write(header(tensors))
            for tensor in tensors:
                prints[tensor.name] = _write_tensor(out, tensor)
                weight_map[tensor.name] = name
                data_bytes += tensor.size
            files[name] = out.tell()
    index = {"metadata": {"total_size": data_bytes}, "weight_map": weight_map}
    (root / MODEL / INDEX).write_text(json.dumps(index, indent=2))
    manifest = {
        "seed": SEED,
        "size": size,
        "data_bytes": data_bytes,
        "files": files,
        "fingerprints": prints,
    }
    (root / MANIFEST).write_text(json.dumps(manifest))


def _write_tensor(out, tensor: Tensor) -> int:
    content = random.Random(f"{SEED}:{tensor.name}")
    head, tail, left = b"", b"", tensor.size
    while left:
        block = content.randbytes(min(WRITE_BYTES, left))
        head = head or block[:EDGE_BYTES]
        tail = (tail + block)[-EDGE_BYTES:]
        out.write(block)
        left -= len(block)
    return fingerprint(head, tail)


def ensure_listing(path: Path, count: int) -> Path:
    """A safetensors file of `count` tiny tensors, written now unless one of the right length is there."""
    tensors = [
        Tensor(
            f"model.layers.{number // 256}.mlp.experts.{number % 256}.down_proj.weight",
            (LISTING_ROWS, LISTING_COLUMNS),
        )
        for number in range(count)
    ]
    prefix = header(tensors)
    data = sum(tensor.size for tensor in tensors)
    if path.exists() and path.stat().st_size == len(prefix) + data:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".partial")
    with open(draft, "wb") as out:
        out.write(prefix)
        out.write(random.Random(SEED).randbytes(data))
    draft.rename(path)
    return path
