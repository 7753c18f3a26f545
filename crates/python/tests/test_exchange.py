"""Other libraries take tensors without a copy, and give theirs to be saved."""

import gc
import struct
import sys
import zlib

import pytest
from conftest import file_bytes

import crowfly

FORMATS = {"BOOL": "?", "U8": "B", "I8": "b", "U16": "H", "I16": "h", "F16": "e", "U32": "I"}
FORMATS.update({"I32": "i", "F32": "f", "U64": "Q", "I64": "q", "F64": "d", "C64": "Zf"})


def of(dtype, shape, data):
    return crowfly.load(file_bytes({"a": (dtype, shape, data)}))["a"].copy()


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_buffer_protocol_has_format_shape_and_strides(dtype):
    item = struct.calcsize(FORMATS[dtype]) if dtype != "C64" else 8
    tensor = of(dtype, (2, 3), bytes(6 * item))
    view = memoryview(tensor)
    assert (view.format, view.itemsize, view.shape) == (FORMATS[dtype], item, (2, 3))
    assert view.strides == (3 * item, item)
    assert not view.readonly and view.c_contiguous


def test_a_buffer_keeps_the_memory(small):
    view = memoryview(crowfly.load_file(small)["weight"])
    gc.collect()
    assert view.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_view_with_gaps_is_a_strided_buffer_and_no_flat_one():
    tensor = of("U8", (2, 4), bytes(range(8)))[:, ::2]
    view = memoryview(tensor)
    assert view.strides == (4, 2) and view.tolist() == [[0, 2], [4, 6]]
    with pytest.raises(BufferError):
        zlib.crc32(tensor)
    with pytest.raises(BufferError):
        tensor.bytes()
    assert zlib.crc32(tensor.contiguous()) == zlib.crc32(bytes([0, 2, 4, 6]))


def test_a_type_that_the_buffer_protocol_lacks_is_named():
    tensor = of("BF16", (1,), b"\x80\x3f")
    with pytest.raises(BufferError, match="BF16"):
        memoryview(tensor)
    assert memoryview(tensor.bytes()).tolist() == [0x80, 0x3F]


def test_a_read_only_tensor_gives_read_only_memory():
    tensor = crowfly.load(file_bytes({"a": ("U8", (2,), b"ab")}))["a"]
    assert memoryview(tensor).readonly
    with pytest.raises(TypeError):
        memoryview(tensor)[0] = 1
    with pytest.raises(BufferError):
        tensor.__dlpack__()
    assert tensor.__dlpack__(max_version=(1, 0)) is not None
    assert tensor.__array_interface__["data"][1] is True


def test_a_capsule_that_nobody_takes_frees_what_it_holds():
    tensor = of("F32", (2,), bytes(8))
    for version in (None, (0, 8), (1, 0)):
        assert "dltensor" in repr(tensor.__dlpack__(max_version=version))
    before = sys.getrefcount(tensor)
    for _ in range(100):
        tensor.__dlpack__(max_version=(1, 0))
    gc.collect()
    assert sys.getrefcount(tensor) == before


def test_a_device_that_the_memory_is_not_on_is_refused():
    tensor = of("F32", (2,), bytes(8))
    assert tensor.__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError, match="host memory"):
        tensor.__dlpack__(dl_device=(2, 0))


def test_tensors_come_from_the_library_only():
    with pytest.raises(TypeError):
        crowfly.Tensor()
    with pytest.raises(TypeError):
        crowfly.Tensor(b"x")


def test_numpy_takes_tensors_without_a_copy():
    np = pytest.importorskip("numpy", reason="waived: NumPy is not installed")
    tensor = of("F32", (2, 3), struct.pack("<6f", *range(6)))
    for array in (tensor.numpy(), np.asarray(tensor), np.from_dlpack(tensor)):
        assert array.__array_interface__["data"][0] == tensor.data_ptr
        assert array.shape == (2, 3) and array.dtype == np.float32
    tensor.numpy()[0, 0] = 9
    assert memoryview(tensor)[0, 0] == 9
    copied = np.from_dlpack(tensor, copy=True) if np.lib.NumpyVersion(np.__version__) >= "2.1.0" else None
    assert copied is None or copied.__array_interface__["data"][0] != tensor.data_ptr
    strided = tensor[:, ::2].numpy()
    assert strided.tolist() == [[9, 2], [3, 5]]


def test_a_numpy_array_keeps_the_memory(small):
    pytest.importorskip("numpy", reason="waived: NumPy is not installed")
    array = crowfly.load_file(small)["weight"].numpy()
    gc.collect()
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_numpy_has_the_small_floats_from_ml_dtypes_or_an_error_says_so():
    pytest.importorskip("numpy", reason="waived: NumPy is not installed")
    tensor = of("BF16", (2,), struct.pack("<2H", 0x3F80, 0xC000))
    try:
        import ml_dtypes
    except ImportError:
        with pytest.raises(crowfly.errors.LayoutError) as error:
            tensor.numpy()
        assert "ml_dtypes" in error.value.hint
        return
    array = tensor.numpy()
    assert array.dtype == ml_dtypes.bfloat16
    assert array.astype("f4").tolist() == [1.0, -2.0]
    assert array.__array_interface__["data"][0] == tensor.data_ptr


def test_jax_takes_tensors_without_a_copy_and_gives_them_to_be_saved(small, tmp_path):
    jax = pytest.importorskip("jax", reason="waived: JAX is not installed")
    data = struct.pack("<64f", *range(64))
    tensor = of("F32", (8, 8), data)
    array = jax.dlpack.from_dlpack(tensor)
    assert array.unsafe_buffer_pointer() == tensor.data_ptr, "JAX copied"
    assert array.shape == (8, 8) and array[3, 5] == 29
    file = tmp_path / "a.safetensors"
    file.write_bytes(file_bytes({"a": ("F32", (8, 8), data), "b": ("BF16", (2,), b"\x80\x3f\0\xc0")}))
    loaded = crowfly.load_file(file)
    with crowfly.safe_open(file, framework="jax") as opened:
        assert opened.get_tensor("a").tolist() == array.tolist()
        assert opened.get_tensor("b").dtype == jax.numpy.bfloat16
    del tensor
    gc.collect()
    assert float(array.sum()) == sum(range(64)), "the array keeps the memory"
    again = tmp_path / "again.safetensors"
    crowfly.save_file({"a": array, "b": jax.dlpack.from_dlpack(loaded["b"])}, again)
    assert crowfly.load_file(again)["a"].tobytes() == data
    assert crowfly.load_file(again)["b"].tobytes() == loaded["b"].tobytes()


TORCH = ["BOOL", "U8", "I8", "I16", "I32", "I64", "F16", "BF16", "F32", "F64", "C64"]
TORCH += ["U16", "U32", "U64", "F8_E4M3", "F8_E5M2", "F8_E8M0"]
BYTES = {"BOOL": b"\1\0\1\1\0\1"}


@pytest.mark.parametrize("dtype", TORCH)
def test_torch_takes_every_type_without_a_copy(dtype):
    torch = pytest.importorskip("torch", reason="waived: PyTorch is not installed")
    from conftest import BITS

    from crowfly._frameworks import TORCH_TYPES

    if not hasattr(torch, TORCH_TYPES[dtype]):
        pytest.skip(f"this PyTorch has no {TORCH_TYPES[dtype]}")
    tensor = of(dtype, (2, 3), BYTES.get(dtype, bytes(range(6 * BITS[dtype] // 8))))
    taken = tensor.torch()
    assert taken.dtype == getattr(torch, TORCH_TYPES[dtype])
    assert list(taken.shape) == [2, 3] and taken.data_ptr() == tensor.data_ptr
    assert taken.view(torch.uint8).numpy().tobytes() == tensor.tobytes()


def test_torch_counts_pairs_of_four_bit_floats():
    torch = pytest.importorskip("torch", reason="waived: PyTorch is not installed")
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this PyTorch has no float4_e2m1fn_x2")
    taken = of("F4", (2, 4), b"\x12\x34\x56\x78").torch()
    assert taken.dtype == torch.float4_e2m1fn_x2 and list(taken.shape) == [2, 2]
    assert taken.view(torch.uint8).flatten().tolist() == [0x12, 0x34, 0x56, 0x78]


def test_torch_gets_empty_tensors_scalars_and_copies_of_read_only_ones():
    torch = pytest.importorskip("torch", reason="waived: PyTorch is not installed")
    assert of("F32", (0, 4), b"").torch().shape == (0, 4)
    assert of("I64", (), struct.pack("<q", -5)).torch().item() == -5
    readonly = crowfly.load(file_bytes({"a": ("U8", (2,), b"ab")}))["a"]
    taken = readonly.torch()
    taken[0] = 0
    assert readonly.tobytes() == b"ab" and taken.tolist() == [0, ord("b")]
    assert torch.from_dlpack(of("F32", (2, 2), bytes(16))).shape == (2, 2)
