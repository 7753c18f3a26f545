"""Loading in the order of a stream, by a runtime and a storage library that stand in for NVIDIA's: see fake_cuda.c and
fake_cufile.c."""

import struct

import pytest
from conftest import pattern
from played import built, run

import crowfly
from crowfly._stream import handle_of

SMALL = struct.pack("<6f", 0, 1, 2, 3, 4, 5)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """A folder with both stand-ins, and one with the runtime alone."""
    both, alone = tmp_path_factory.mktemp("both"), tmp_path_factory.mktemp("alone")
    return built(both, "cuda", "cufile"), built(alone, "cuda")


@pytest.fixture
def with_gpus(libraries):
    """Runs code in a process that has the two GPUs, and the storage library unless that is left out."""
    both, alone = libraries

    def with_gpus(code, *arguments, storage=True):
        run(both if storage else alone, code, *arguments)

    return with_gpus


def test_it_returns_before_the_bytes_are_there_and_what_waits_finds_them_with_a_receipt(with_gpus, write):
    data = pattern(17 << 20)
    file = write({"weight": ("F32", (2, 3), SMALL), "large": ("U8", (len(data),), data)})
    with_gpus(
        """
class Stream:
    cuda_stream = 0x10

storage = ctypes.CDLL("libcufile.so.0")
storage.fake_hold()
load = crowfly.load_on_stream(sys.argv[1], Stream(), "cuda:1")
weight, large = load.ahead["weight"], load.ahead["large"]
assert weight.place == "gpu:0" and weight.__dlpack_device__() == (2, 1) and weight.shape == (2, 3)
assert held(weight) == b"\\xa5" * 24, "nothing is there yet, and nobody waited"
assert storage.fake_let_go() == 2, "two requests of 16 MiB at most"
data = open(sys.argv[1], "rb").read()[-(17 << 20):]
assert held(large) == data and held(weight) == struct.pack("<6f", 0, 1, 2, 3, 4, 5)
arrived = load.wait()
receipt = arrived.receipt
assert receipt.by_path() == {"cufile": 24 + len(data)} and receipt.policy == "require"
assert [share.route_class for share in receipt.shares] == ["direct"] and receipt.bounced == 0
assert arrived["large"].data_ptr == large.data_ptr and len(arrived.regions) == 1
with Raised(errors.UsageError):
    load.wait()
del load, arrived, weight, large
gc.collect()
assert fake.fake_alive() == 0
""",
        file,
    )


def test_some_tensors_and_one_rank_s_share_are_chosen_as_in_other_loads(with_gpus, small):
    with_gpus(
        """
load = crowfly.load_on_stream(sys.argv[1], 0, "gpu:1", tensors=["w*"])
assert list(load.ahead) == ["weight"] and load.done
assert list(load.wait()) == ["weight"]
shares = [set(crowfly.load_on_stream(sys.argv[1], 0, "gpu:1", shard=(rank, 2)).wait()) for rank in range(2)]
assert shares[0] | shares[1] == {"weight", "bias", "scale"} and not shares[0] & shares[1]
""",
        small,
    )


def test_dropping_one_that_nobody_waited_for_leaves_nothing(with_gpus, small):
    with_gpus(
        """
crowfly.load_on_stream(sys.argv[1], 0, "cuda:0")
gc.collect()
assert fake.fake_alive() == 0
""",
        small,
    )


def test_where_it_does_not_go_straight_it_is_refused_and_nothing_is_done_in_its_place(with_gpus, small):
    with_gpus(
        """
with Raised(crowfly.RouteRefused) as refused:
    crowfly.load_on_stream(sys.argv[1], 0, "cuda:0")
codes = [found.code for found in refused.value.obstacles]
assert "no-storage-library" in codes, codes
gc.collect()
assert fake.fake_alive() == 0
""",
        small,
        storage=False,
    )


def test_what_the_library_refuses_on_that_stream_is_told_by_its_call(with_gpus, small):
    with_gpus(
        """
with Raised(errors.TransferError) as refused:
    crowfly.load_on_stream(sys.argv[1], 1234, "cuda:0")
assert "cuFileReadAsync" in str(refused.value), refused.value
gc.collect()
assert fake.fake_alive() == 0
""",
        small,
    )


def test_tensors_that_would_have_to_be_moved_first_are_refused(with_gpus, write):
    # The header is padded, so that what follows three bytes begins at no multiple of eight.
    data = {"odd": ("U8", (3,), b"abc"), "w": ("F64", (2,), struct.pack("<2d", 1.5, -2))}
    with_gpus(
        """
with Raised(errors.LayoutError) as refused:
    crowfly.load_on_stream(sys.argv[1], 0, "cuda:0")
assert refused.value.code == "not-aligned" and refused.value.hint
gc.collect()
assert fake.fake_alive() == 0
""",
        write(data),
    )


def test_a_place_without_streams_and_what_is_no_stream_are_mistakes_of_the_call(small):
    with pytest.raises(crowfly.errors.UsageError) as error:
        crowfly.load_on_stream(small, 0, "cpu")
    assert "cpu" in error.value.message and error.value.hint
    for stream in (None, "default", -1, True, 1.5):
        with pytest.raises(crowfly.errors.UsageError):
            crowfly.load_on_stream(small, stream, "cuda:0")


def test_streams_of_other_libraries_are_known_by_how_they_show_their_handle():
    class Torch:
        cuda_stream = 7

    class CuPy:
        ptr = 8

    class Protocol:
        cuda_stream = 1

        def __cuda_stream__(self):
            return (0, 9)

    class Later:
        def __cuda_stream__(self):
            return (1, 9)

    assert [handle_of(stream) for stream in (Torch(), CuPy(), Protocol(), 10)] == [7, 8, 9, 10]
    with pytest.raises(crowfly.errors.UsageError):
        handle_of(Later())
