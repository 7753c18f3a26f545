"""safe_open: one tensor or slice at a time."""

import struct

import pytest
from conftest import pattern

import crowfly

np = pytest.importorskip("numpy", reason="waived: NumPy is not installed")


def test_what_is_open_says_what_it_is(small):
    with crowfly.safe_open(small) as file:
        assert repr(file) == f"crowfly.safe_open({str(small)!r}, 3 tensors)"
        assert repr(file.get_slice("weight")) == "crowfly.Slice('weight', F32, [2, 3])"
    assert repr(file) == f"crowfly.safe_open({str(small)!r}, closed)"


def test_names_types_shapes_and_metadata_come_from_the_header_alone(small):
    with crowfly.safe_open(small) as file:
        assert file.keys() == ["bias", "scale", "weight"]
        assert file.offset_keys() == ["weight", "bias", "scale"]
        assert file.metadata() == {"format": "pt"}
        assert len(file) == 3 and "bias" in file and "nothing" not in file
        part = file.get_slice("weight")
        assert (part.get_shape(), part.get_dtype()) == ([2, 3], "F32")
        assert file.receipts == []


def test_a_file_without_metadata_has_none(write):
    with crowfly.safe_open(write({})) as file:
        assert file.metadata() is None


def test_a_small_tensor_is_the_files_own_pages_and_outlives_the_file(small):
    with crowfly.safe_open(small) as file:
        weight = file.get_tensor("weight")
    assert weight.follows_file
    assert memoryview(weight).tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(crowfly.CrowflyError) as closed:
        file.keys()
    assert closed.value.code == "closed"


def test_a_large_tensor_that_is_asked_for_by_another_policy_is_moved_with_a_receipt(write):
    data = pattern(3 << 20)
    path = write({"a": ("U8", (3, 1 << 20), data)})
    with crowfly.safe_open(path, policy="staged") as file:
        tensor = file.get_tensor("a")
        assert tensor.tobytes() == data and not tensor.follows_file
        assert [receipt.by_path() for receipt in file.receipts] == [{"cached": len(data)}]
        row = file.get_slice("a")[1]
        assert row.tobytes() == data[1 << 20 : 2 << 20]
        assert file.receipts[1].requested == 1 << 20


INDICES = [
    (),
    ...,
    0,
    -1,
    (1, 2),
    (slice(None),),
    slice(1, 3),
    slice(None, None, 2),
    slice(None, None, -1),
    slice(3, 1),
    (slice(None), slice(1, 4)),
    (slice(None), slice(None, None, 3)),
    (slice(None), slice(4, None, -2), 0),
    (..., 1),
    (0, ..., slice(1, 2)),
    (None, 1, None),
    (slice(1, 3), None, slice(0, 5), slice(1, 2)),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_a_slice_is_what_numpy_picks_without_gaps(write, index):
    whole = np.arange(4 * 5 * 3, dtype="<u2").reshape(4, 5, 3)
    path = write({"a": ("U16", whole.shape, whole.tobytes())})
    with crowfly.safe_open(path, framework="np") as file:
        part = file.get_slice("a")[index]
    assert part.dtype == whole.dtype and part.flags.c_contiguous
    np.testing.assert_array_equal(part, whole[index])
    view = crowfly.load_file(path)["a"][index]
    np.testing.assert_array_equal(view.numpy(), whole[index])
    assert view.contiguous().tobytes() == whole[index].tobytes()


@pytest.mark.parametrize(
    ("index", "code"),
    [
        (4, "index-out-of-range"),
        ((0, -6), "index-out-of-range"),
        (slice(0, 5), "index-out-of-range"),
        ((slice(None), slice(-7, None)), "index-out-of-range"),
        ((0, 0, 0, 0), "too-many-indices"),
        ((..., 0, ...), "too-many-indices"),
        ([0, 1], "not-an-index"),
        (True, "not-an-index"),
        ("a", "not-an-index"),
        (0.5, "not-an-index"),
    ],
    ids=str,
)
def test_an_index_that_picks_nothing_of_the_tensor_is_an_error(write, index, code):
    path = write({"a": ("U8", (4, 5, 3), pattern(60))})
    with crowfly.safe_open(path) as file, pytest.raises(IndexError) as error:
        file.get_slice("a")[index]
    assert error.value.code == code


def test_types_smaller_than_a_byte_come_whole_or_not_at_all(write):
    path = write({"a": ("F4", (2, 4), b"\x12\x34\x56\x78")})
    with crowfly.safe_open(path) as file:
        assert file.get_slice("a")[:].tobytes() == b"\x12\x34\x56\x78"
        with pytest.raises(crowfly.errors.LayoutError) as error:
            file.get_slice("a")[1]
    assert error.value.code == "sub-byte"


def test_a_name_that_is_not_there_is_a_key_error(small):
    with crowfly.safe_open(small) as file, pytest.raises(KeyError) as error:
        file.get_tensor("nothing")
    assert error.value.code == "no-such-tensor"
    assert "nothing" in str(error.value)


def test_all_tensors_in_the_frameworks_form(small):
    with crowfly.safe_open(small, framework="np") as file:
        arrays = file.get_tensors()
    assert {name: array.dtype.name for name, array in arrays.items()} == {
        "weight": "float32",
        "bias": "int64",
        "scale": "float16",
    }
    assert arrays["scale"].tobytes() == struct.pack("<e", 0.5)
    with pytest.raises(crowfly.errors.UsageError) as error:
        crowfly.safe_open(small, framework="fortran")
    assert error.value.code == "unknown-framework"


def test_a_file_that_was_replaced_after_its_header_was_read_is_refused(small, write):
    file = crowfly.safe_open(small)
    write({"weight": ("F32", (2, 3), bytes(24)), "other": ("U8", (400,), bytes(400))})
    with pytest.raises(crowfly.errors.TransferError) as error:
        file.get_tensor("weight")
    assert error.value.code == "file-changed"
