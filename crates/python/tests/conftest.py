"""What the tests stand on: files written by hand, so that nothing of crowfly's vouches for itself."""

import json
import struct

import pytest

BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4}
BITS.update({"U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32})
BITS.update({"U64": 64, "I64": 64, "F64": 64, "C64": 64})


def pattern(length, seed=0):
    """Bytes that look like nothing else."""
    return bytes((i * 131 + (i >> 8) * 7 + seed * 29) % 251 for i in range(length))


def file_bytes(tensors, metadata=None, pad=True):
    """The bytes of a safetensors file: tensors are name → (dtype, shape, bytes)."""
    header = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        count = 1
        for dim in shape:
            count *= dim
        assert len(data) * 8 == count * BITS[dtype], name
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    if pad:
        text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values())


@pytest.fixture
def write(tmp_path):
    """Writes a safetensors file and gives its path."""

    def write(tensors, name="model.safetensors", metadata=None, pad=True):
        path = tmp_path / name
        path.write_bytes(file_bytes(tensors, metadata, pad))
        return path

    return write


@pytest.fixture
def small(write):
    """Three small tensors of different types, in another order than their names."""
    return write(
        {
            "weight": ("F32", (2, 3), struct.pack("<6f", 0, 1, 2, 3, 4, 5)),
            "bias": ("I64", (2,), struct.pack("<2q", -1, 1 << 40)),
            "scale": ("F16", (), struct.pack("<e", 0.5)),
        },
        metadata={"format": "pt"},
    )
