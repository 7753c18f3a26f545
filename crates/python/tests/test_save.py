"""save_file: whole or not at all, and the same bytes as the safetensors package writes."""

import os
import signal
import struct
import subprocess
import sys
import time

import pytest
from conftest import file_bytes

import crowfly

np = pytest.importorskip("numpy", reason="waived: NumPy is not installed")
import crowfly.numpy  # noqa: E402


def test_the_largest_elements_come_first_then_names(tmp_path):
    path = tmp_path / "a.safetensors"
    arrays = {
        "b": np.array([1, 2], dtype="u1"),
        "a": np.array([3], dtype="u1"),
        "w": np.array([[0.5]], dtype="f8"),
        "h": np.array([1, 2, 3], dtype="f2"),
    }
    receipt = crowfly.save_file(arrays, path, {"format": "np"})
    expected = {
        "w": ("F64", (1, 1), struct.pack("<d", 0.5)),
        "h": ("F16", (3,), struct.pack("<3e", 1, 2, 3)),
        "a": ("U8", (1,), b"\3"),
        "b": ("U8", (2,), b"\1\2"),
    }
    assert path.read_bytes() == file_bytes(expected, {"format": "np"})
    assert crowfly.save(arrays, {"format": "np"}) == path.read_bytes()
    assert sum(receipt.by_path().values()) == receipt.requested == path.stat().st_size
    assert receipt.to == f"file:{path}"


def test_what_was_loaded_is_saved_as_it_was(small, tmp_path):
    again = tmp_path / "again.safetensors"
    crowfly.save_file(crowfly.load_file(small), again, {"format": "pt"})
    loaded = crowfly.load_file(again)
    for name, tensor in crowfly.load_file(small).items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape)
        assert loaded[name].tobytes() == tensor.tobytes()


def test_a_failed_save_leaves_the_old_file_and_nothing_else(small, tmp_path):
    before = small.read_bytes()
    with pytest.raises(crowfly.errors.FormatError):
        crowfly.save_file({"../x": np.zeros(3)}, small)
    with pytest.raises(crowfly.errors.LayoutError):
        crowfly.save_file({"x": np.zeros((4, 4))[:, ::2]}, small)
    with pytest.raises(crowfly.errors.LayoutError):
        crowfly.save_file({"x": "text"}, small)
    with pytest.raises(FileNotFoundError):
        crowfly.save_file({"x": np.zeros(3)}, tmp_path / "no" / "folder.safetensors")
    assert small.read_bytes() == before
    assert os.listdir(tmp_path) == [small.name]


OVERWRITES = """
import sys
import numpy as np
import crowfly
number = 0
while True:
    number += 1
    crowfly.save_file({"a": np.full(1 << 20, number % 251, "u1"), "n": np.array([number])}, sys.argv[1])
    print(number, flush=True)
"""


def test_a_kill_at_any_instant_leaves_one_file_or_the_other(tmp_path):
    path = tmp_path / "model.safetensors"
    for lines, delay in ((1, 0.0), (2, 0.002), (1, 0.005), (3, 0.001), (2, 0.013)):
        child = subprocess.Popen([sys.executable, "-c", OVERWRITES, str(path)], stdout=subprocess.PIPE, text=True)
        last = [int(child.stdout.readline()) for _ in range(lines)][-1]
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=60)
        child.stdout.close()
        loaded = crowfly.numpy.load_file(path)
        number = int(loaded["n"][0])
        assert number >= last and (loaded["a"] == number % 251).all()
    crowfly.save_file({}, path)
    assert os.listdir(tmp_path) == [path.name], "what the dead left is gone"


def test_a_file_larger_than_its_buffers_needs_no_memory_of_its_size(tmp_path):
    """The peak is that of a process of its own, in which nothing else was ever that large."""
    code = """
import sys
import numpy as np
import crowfly
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) << 10
state = {str(n): np.full(32 << 20, n, "u1") for n in range(12)}
before = peak()
receipt = crowfly.save_file(state, sys.argv[1])
assert receipt.requested > 12 * (32 << 20)
print(peak() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "large.safetensors")], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 160 << 20, done.stdout


def test_arrays_of_any_order_are_written_as_the_format_wants_them(tmp_path):
    path = tmp_path / "a.safetensors"
    arrays = {
        "big": np.array([1, 256], dtype=">i4"),
        "columns": np.asfortranarray(np.arange(6, dtype="i2").reshape(2, 3)),
        "every": np.arange(10, dtype="i8")[::3],
        "scalar": np.float32(2.5),
    }
    crowfly.numpy.save_file(arrays, path)
    loaded = crowfly.numpy.load_file(path)
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].shape == np.shape(array)
    assert crowfly.numpy.load(crowfly.numpy.save(arrays))["big"].tolist() == [1, 256]


def test_torch_models_with_shared_weights_are_saved_once_and_loaded_whole(tmp_path):
    torch = pytest.importorskip("torch", reason="waived: PyTorch is not installed")
    import crowfly.torch

    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(5, 4)
            self.head = torch.nn.Linear(4, 5, bias=False)
            self.head.weight = self.embedding.weight

    path = tmp_path / "tied.safetensors"
    model, other = Tied(), Tied()
    with pytest.raises(RuntimeError) as shared:
        crowfly.torch.save_file(model.state_dict(), path)
    assert shared.value.code == "shared-memory"
    crowfly.torch.save_model(model, path)
    assert list(crowfly.torch.load_file(path)) == ["embedding.weight"]
    assert crowfly.torch.load_model(other, path) == (set(), [])
    assert torch.equal(other.head.weight, model.embedding.weight)


def test_the_safetensors_package_writes_the_same_bytes_and_reads_the_same_tensors(tmp_path):
    torch = pytest.importorskip("torch", reason="waived: PyTorch is not installed")
    theirs = pytest.importorskip("safetensors.torch", reason="waived: safetensors is not installed")
    import crowfly.torch

    torch.manual_seed(7)
    state = {
        f"{name}.{i}": (torch.randn(3, i + 1) * 50).to(dtype)
        for i in range(3)
        for name, dtype in {
            "f32": torch.float32,
            "bf16": torch.bfloat16,
            "f8": torch.float8_e4m3fn,
            "u8": torch.uint8,
            "bool": torch.bool,
            "c64": torch.complex64,
        }.items()
    }
    ours_path, theirs_path = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    crowfly.torch.save_file(state, ours_path, {"format": "pt"})
    theirs.save_file(state, theirs_path, {"format": "pt"})
    assert ours_path.read_bytes() == theirs_path.read_bytes()
    ours, expected = crowfly.torch.load_file(theirs_path), theirs.load_file(ours_path)
    assert list(ours) == list(expected)
    for name, tensor in expected.items():
        assert ours[name].dtype == tensor.dtype and ours[name].shape == tensor.shape
        assert ours[name].view(torch.uint8).equal(tensor.view(torch.uint8)), name
