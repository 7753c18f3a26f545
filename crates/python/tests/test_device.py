"""Loading into a GPU's memory, by a runtime that stands in for NVIDIA's: see fake_cuda.c."""

import struct
from functools import partial

import pytest
from conftest import pattern
from played import built, run

import crowfly


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    """The folder that the stand-in was built into."""
    return built(tmp_path_factory.mktemp("runtime"), "cuda")


@pytest.fixture
def with_gpus(runtime):
    """Runs code in a process that has the two GPUs."""
    return partial(run, runtime)


def test_tensors_lie_in_the_memory_of_the_gpu_that_cuda_calls_so(with_gpus, small):
    with_gpus(
        """
for device, place, number in (("cuda:0", "gpu:1", 0), ("cuda", "gpu:1", 0), (1, "gpu:0", 1), ("gpu:0", "gpu:0", 1)):
    loaded = crowfly.load_file(sys.argv[1], device=device, verify=True)
    weight, bias = loaded["weight"], loaded["bias"]
    assert (weight.place, weight.__dlpack_device__()) == (place, (2, number)), device
    assert held(weight) == weight.tobytes() == struct.pack("<6f", 0, 1, 2, 3, 4, 5)
    assert held(bias) == struct.pack("<2q", -1, 1 << 40)
    receipt = loaded.receipt
    assert receipt.to == place and receipt.verification.state == "matched"
    assert sum(receipt.by_path().values()) == receipt.requested == 42
    assert memoryview(weight.cpu()).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert weight.cpu().place == "host" and bias.copy().place == place
    assert held(bias.copy()) == held(bias) and bias.copy().data_ptr != bias.data_ptr
    assert held(weight[1]) == struct.pack("<3f", 3, 4, 5)
del loaded, weight, bias
gc.collect()
assert fake.fake_alive() == 0, "memory of the GPU was not freed"
""",
        small,
    )


def test_a_large_file_arrives_whole_by_the_staged_path_and_by_the_page_cache(with_gpus, write):
    data = pattern(9 << 20)
    file = write({"odd": ("U8", (5,), b"12345"), "large": ("U8", (len(data),), data)})
    with_gpus(
        """
data = open(sys.argv[1], "rb").read()[-(9 << 20):]
for path in ("staged", "cached"):
    loaded = crowfly.load_file(sys.argv[1], device="cuda:0", path=path)
    assert held(loaded["large"]) == data, path
    assert set(loaded.receipt.by_path()) == {path}, loaded.receipt
with Raised(crowfly.RouteRefused) as refused:
    crowfly.load_file(sys.argv[1], device="cuda:0", policy="require")
assert refused.value.obstacles and refused.value.hint
""",
        file,
    )


def test_cores_are_kept_from_the_memory_and_told_how_to_get_it(with_gpus, small):
    with_gpus(
        """
weight = crowfly.load_file(sys.argv[1], device="cuda:0")["weight"]
with Raised(BufferError) as refused:
    memoryview(weight)
assert "cpu()" in str(refused.value)
with Raised(AttributeError):
    weight.__array_interface__
with Raised(errors.LayoutError) as refused:
    weight[:, ::2].contiguous()
assert refused.value.code == "not-contiguous"
with Raised(errors.LayoutError) as refused:
    crowfly.save_file({"w": weight}, sys.argv[1])
assert refused.value.code == "not-in-host-memory" and refused.value.hint
""",
        small,
    )


def test_dlpack_exports_the_device_and_keeps_the_array_apis_contract_on_streams(with_gpus, small):
    with_gpus(
        """
class Managed(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("data", ctypes.c_uint64),
        ("kind", ctypes.c_int32), ("number", ctypes.c_int32),
    ]

def exported(tensor, **options):
    capsule = tensor.__dlpack__(max_version=(1, 0), **options)
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    found = Managed.from_address(get(capsule, b"dltensor_versioned"))
    return capsule, found

weight = crowfly.load_file(sys.argv[1], device="cuda:0")["weight"]
for stream in (None, -1, 1, 2, 0x7F0012345678):
    capsule, found = exported(weight, stream=stream)
    assert (found.kind, found.number, found.data) == (2, 0, weight.data_ptr)
for stream in (0, -2):
    with Raised(BufferError):
        weight.__dlpack__(stream=stream)
with Raised(TypeError):
    weight.__dlpack__(stream="default")
capsule, found = exported(weight, dl_device=(2, 0))
assert found.data == weight.data_ptr and found.flags == 0
capsule, found = exported(weight, copy=True)
assert (found.kind, found.flags) == (2, 2) and found.data != weight.data_ptr
capsule, found = exported(weight, dl_device=(1, 0))
assert (found.kind, found.number, found.flags) == (1, 0, 2)
assert ctypes.string_at(found.data, 24) == struct.pack("<6f", 0, 1, 2, 3, 4, 5)
for options in ({"dl_device": (1, 0), "copy": False}, {"dl_device": (2, 1)}):
    with Raised(BufferError):
        weight.__dlpack__(**options)
assert "dltensor" in repr(weight.__dlpack__())
""",
        small,
    )


def test_a_consumer_that_takes_tensors_as_cupy_does_owns_the_memory_until_it_lets_go(with_gpus, small):
    # CuPy asks for the device, makes it the current one, and asks for a capsule with the number of its stream, 1 for the
    # default one; an exporter that does not know a keyword gets another call without it.
    with_gpus(
        """
api = ctypes.pythonapi
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
USED = {b"dltensor": b"used_dltensor", b"dltensor_versioned": b"used_dltensor_versioned"}
# The deleter stands behind the tensor in the old layout, and before it in the new one.
DELETER = {b"dltensor": 56, b"dltensor_versioned": 16}

class Array:
    def __init__(self, exporter, stream, **options):
        kind, self.device = exporter.__dlpack_device__()
        assert kind == 2
        capsule = exporter.__dlpack__(stream=stream, **options)
        name = b"dltensor_versioned" if options else b"dltensor"
        self.managed = api.PyCapsule_GetPointer(capsule, name)
        assert api.PyCapsule_SetName(capsule, USED[name]) == 0
        at = ctypes.c_void_p.from_address(self.managed + DELETER[name]).value
        self.deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(at)
        self.data = ctypes.c_uint64.from_address(self.managed + (32 if options else 0)).value

    def free(self):
        self.deleter(self.managed)

versioned = {"max_version": (1, 0), "dl_device": None, "copy": None}
for stream in (1, 2, 0x7F0012345678):
    for options in ({}, versioned):
        weight = crowfly.load_file(sys.argv[1], device="cuda:1")["weight"]
        array = Array(weight, stream, **options)
        assert array.device == 1 and array.data == weight.data_ptr
        del weight
        gc.collect()
        out = ctypes.create_string_buffer(24)
        assert fake.fake_read(out, ctypes.c_uint64(array.data), ctypes.c_size_t(24)) == 0
        assert out.raw == struct.pack("<6f", 0, 1, 2, 3, 4, 5)
        array.free()
        assert fake.fake_alive() == 0
""",
        small,
    )


def test_a_checkpoint_is_restored_into_the_memory_of_a_gpu_whole_cut_anew_and_damaged(with_gpus, tmp_path):
    pytest.importorskip("numpy", reason="waived: NumPy is not installed")
    with_gpus(
        """
import os
import numpy as np
from concurrent.futures import ThreadPoolExecutor
from crowfly import checkpoint
from crowfly.checkpoint import Part
root = sys.argv[1]
whole = np.arange(6 * 8, dtype="<i4").reshape(6, 8)
shared = crowfly.save({"w": np.arange(5, dtype="<f8")})
shared = crowfly.load(shared)["w"]
def box(top, left): return np.ascontiguousarray(whole[top : top + 3, left : left + 4])
def state(rank):
    top, left = rank // 2 * 3, rank % 2 * 4
    return {"w": Part(box(top, left), (6, 8), (top, left)), "shared": shared, "lr": 0.5}
with ThreadPoolExecutor(4) as ranks:
    list(ranks.map(lambda rank: checkpoint.save(state(rank), root, rank, 4, step=1), range(4)))
for world, shape in ((4, (3, 4)), (1, (6, 8)), (2, (6, 4))):
    for rank in range(world):
        found = checkpoint.restore(root, rank, world, device="cuda:0", framework="crowfly")
        part = found.state["w"]
        (top, left), (height, width) = part.offset, shape
        assert part.tensor.place == "gpu:1" and part.tensor.__dlpack_device__() == (2, 0)
        assert held(part.tensor) == np.ascontiguousarray(whole[top : top + height, left : left + width]).tobytes()
        assert held(found.state["shared"]) == struct.pack("<5d", 0, 1, 2, 3, 4) and found.state["lr"] == 0.5
        assert found.receipt.to == "gpu:1" and found.unchecked_bytes == 0 and found.checked_bytes > 0
del found, part
gc.collect()
assert fake.fake_alive() == 0
with Raised(errors.LayoutError) as refused:
    checkpoint.restore(root, 0, 4, device="cuda:0")
assert refused.value.code == "not-in-host-memory"
file = os.path.join(root, "step-1", "rank-00000-of-00004.safetensors")
with open(file, "r+b") as opened:
    opened.seek(-1, os.SEEK_END)
    last = opened.read(1)
    opened.seek(-1, os.SEEK_END)
    opened.write(bytes([last[0] ^ 1]))
with Raised(errors.DataDiffersError):
    checkpoint.restore(root, 0, 1, device="cuda:0", framework="crowfly")
with Raised(errors.UsageError) as refused:
    checkpoint.restore(root, 0, 1, device="peer:0000:01:00.0")
""",
        tmp_path,
    )


def test_unaligned_and_empty_tensors_are_where_they_should_be(with_gpus, write):
    data = {"odd": ("U8", (3,), b"abc"), "w": ("F64", (2,), struct.pack("<2d", 1.5, -2)), "e": ("F32", (0, 4), b"")}
    unpadded = write(data, pad=False)
    empty = write({"e": ("F32", (0, 4), b"")}, "empty.safetensors")
    with_gpus(
        """
loaded = crowfly.load_file(sys.argv[1], device="cuda:0")
assert loaded["w"].data_ptr % 8 == 0 and held(loaded["w"]) == struct.pack("<2d", 1.5, -2)
assert held(loaded["odd"]) == b"abc"
for tensor in (loaded["e"], crowfly.load_file(sys.argv[2], device="cuda:0")["e"]):
    assert tensor.place == "gpu:1" and tensor.__dlpack_device__() == (2, 0) and tensor.tobytes() == b""
""",
        unpadded,
        empty,
    )


def test_single_tensors_and_slices_go_there_too(with_gpus, small):
    with_gpus(
        """
with crowfly.safe_open(sys.argv[1], device="cuda:1") as file:
    for tensor, expected in (
        (file.get_tensor("weight"), struct.pack("<6f", 0, 1, 2, 3, 4, 5)),
        (file.get_slice("weight")[1:], struct.pack("<3f", 3, 4, 5)),
        (file.get_slice("weight")[:, ::2], struct.pack("<4f", 0, 2, 3, 5)),
        (file.get_tensor("scale"), struct.pack("<e", 0.5)),
    ):
        assert tensor.__dlpack_device__() == (2, 1) and held(tensor) == expected
    assert all(receipt.to == "gpu:0" for receipt in file.receipts)
""",
        small,
    )


def test_a_gpu_that_the_runtime_does_not_show_is_refused_by_name(with_gpus, small):
    with_gpus(
        """
with Raised(crowfly.RouteRefused) as refused:
    crowfly.load_file(sys.argv[1], device="cuda:7")
assert refused.value.code == "no-gpu" and "cuda:7" in refused.value.message
shown = [found for found in refused.value.obstacles if found.code == "no-gpu"]
assert any("2 GPUs" in evidence.shows for found in shown for evidence in found.evidence), shown
""",
        small,
    )


@pytest.mark.parametrize("device", ["cuda:x", "cuda:-1", "cuda:"])
def test_a_word_that_names_no_gpu_is_a_mistake_of_the_call(small, device):
    with pytest.raises(crowfly.errors.UsageError) as error:
        crowfly.load_file(small, device=device)
    assert device in error.value.message and error.value.hint
