"""load_file: everything at once, with a receipt."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest
from conftest import file_bytes, pattern

import crowfly

MIB = 1 << 20


def test_one_glob_needs_no_list(small):
    assert list(crowfly.load_file(small, tensors="w*")) == ["weight"]


def test_tensors_arrive_in_file_order_with_their_types_shapes_and_bytes(small):
    loaded = crowfly.load_file(small)
    assert [(n, t.dtype, t.shape) for n, t in loaded.items()] == [
        ("weight", "F32", (2, 3)),
        ("bias", "I64", (2,)),
        ("scale", "F16", ()),
    ]
    assert loaded["weight"].tobytes() == struct.pack("<6f", 0, 1, 2, 3, 4, 5)
    assert memoryview(loaded["bias"]).tolist() == [-1, 1 << 40]
    assert loaded["scale"].tobytes() == struct.pack("<e", 0.5)


def test_the_receipt_accounts_for_every_byte_by_path(small):
    receipt = crowfly.load_file(small).receipt
    assert receipt.requested == 24 + 16 + 2
    assert sum(receipt.by_path().values()) == receipt.requested
    assert (receipt.source, receipt.to) == (f"file:{small}", "host")
    assert receipt.policy == "prefer"
    assert receipt.verification.state == "not-asked"
    assert receipt.to_dict()["schema"] == "crowfly.receipt/1"


@pytest.mark.parametrize("path", ["direct", "threads", "mapped", "cached"])
def test_every_engine_path_brings_the_same_bytes(write, path):
    data = pattern(3 * MIB + 8)
    file = write({"a": ("U8", (len(data),), data)})
    try:
        loaded = crowfly.load_file(file, path=path)
    except crowfly.RouteRefused as refused:
        pytest.skip(f"this file system has no O_DIRECT: {refused.obstacles[0].summary}")
    assert loaded["a"].tobytes() == data
    assert loaded["a"].follows_file == (path == "mapped")
    assert loaded.receipt.by_path() == {path: len(data)}


def test_what_is_written_into_a_tensor_stays_in_memory(small):
    before = small.read_bytes()
    for path in ("mapped", "cached"):
        loaded = crowfly.load_file(small, path=path)
        memoryview(loaded["bias"])[0] = 7
        assert memoryview(loaded["bias"])[0] == 7
    assert small.read_bytes() == before


def test_verification_reads_the_source_once_more(small):
    receipt = crowfly.load_file(small, verify=True).receipt
    assert receipt.verification.state == "matched"
    assert receipt.verification.algorithm.startswith("xxh3-64")


def test_globs_and_ranks_pick_a_part(write):
    data = {f"layer.{i}.w": ("U8", (4,), bytes([i] * 4)) for i in range(4)}
    file = write(data)
    assert list(crowfly.load_file(file, tensors=["layer.[12].*"])) == ["layer.1.w", "layer.2.w"]
    shares = [set(crowfly.load_file(file, shard=(rank, 2))) for rank in range(2)]
    assert shares[0] | shares[1] == set(data) and not shares[0] & shares[1]


def test_a_model_folder_and_its_index_are_one_model(tmp_path):
    parts = {"a": pattern(100), "b": pattern(50, 1)}
    for number, (name, data) in enumerate(parts.items(), 1):
        file = tmp_path / f"model-0000{number}-of-00002.safetensors"
        file.write_bytes(file_bytes({name: ("U8", (len(data),), data)}))
    index = tmp_path / "model.safetensors.index.json"
    weight_map = {name: f"model-0000{n}-of-00002.safetensors" for n, name in enumerate(parts, 1)}
    index.write_text(json.dumps({"metadata": {"total_size": 150}, "weight_map": weight_map}))
    for path in (tmp_path, index):
        loaded = crowfly.load_file(path)
        assert {name: tensor.tobytes() for name, tensor in loaded.items()} == parts
        assert loaded.notes == []
    index.write_text(json.dumps({"metadata": {"total_size": 9}, "weight_map": weight_map}))
    assert crowfly.load_file(tmp_path).notes == [
        "the index says the tensors take 9 bytes; they take 150 bytes"
    ]


def test_a_file_of_any_other_name_is_read_as_safetensors(small, tmp_path):
    other = tmp_path / "weights"
    os.rename(small, other)
    assert len(crowfly.load_file(other)) == 3


def test_tensors_of_an_unpadded_file_are_moved_to_where_their_type_wants_them(write):
    data = {"odd": ("U8", (3,), b"abc"), "w": ("F64", (2,), struct.pack("<2d", 1.5, -2))}
    file = write(data, pad=False)
    loaded = crowfly.load_file(file)
    assert loaded["w"].data_ptr % 8 == 0
    assert memoryview(loaded["w"]).tolist() == [1.5, -2]
    assert loaded["odd"].tobytes() == b"abc"
    from_bytes = crowfly.load(file.read_bytes())
    assert from_bytes["w"].data_ptr % 8 == 0
    assert memoryview(from_bytes["w"]).tolist() == [1.5, -2]


def test_empty_files_and_empty_tensors_are_no_special_case(write):
    assert crowfly.load_file(write({}, "none.safetensors")) == {}
    loaded = crowfly.load_file(write({"e": ("F32", (0, 4), b""), "x": ("U8", (1,), b"x")}))
    assert loaded["e"].shape == (0, 4) and loaded["e"].tobytes() == b""
    only_empty = crowfly.load_file(write({"e": ("F32", (0, 4), b"")}, "e.safetensors"))
    assert only_empty["e"].nbytes == 0 and only_empty.receipt.requested == 0


def test_the_memory_outlives_the_result(small):
    weight = crowfly.load_file(small)["weight"]
    assert memoryview(weight).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_bytes_are_loaded_without_a_copy_and_nobody_may_write_to_them(small):
    loaded = crowfly.load(small.read_bytes())
    assert list(loaded) == ["weight", "bias", "scale"]
    assert loaded["weight"].readonly and memoryview(loaded["weight"]).readonly
    assert not loaded["weight"].copy().readonly


def test_progress_tells_bytes_and_ends_at_the_total(small):
    told = []
    crowfly.load_file(small, progress=lambda moved, total: told.append((moved, total)))
    assert told[-1] == (42, 42)


def load_with_a_bar(path, stderr):
    code = "import crowfly, sys; crowfly.load_file(sys.argv[1], progress=True)"
    subprocess.run([sys.executable, "-c", code, str(path)], stderr=stderr, check=True)


def test_a_bar_of_tqdm_is_drawn_on_a_terminal(small):
    pytest.importorskip("tqdm", reason="waived: tqdm is not installed")
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        load_with_a_bar(small, theirs)
        assert b"loading" in os.read(ours, 4096)
    finally:
        os.close(theirs)
        os.close(ours)


def test_no_bar_is_written_into_a_log(small, tmp_path):
    pytest.importorskip("tqdm", reason="waived: tqdm is not installed")
    with open(tmp_path / "log", "w+") as log:
        load_with_a_bar(small, log)
    assert (tmp_path / "log").read_text() == ""


def test_where_tqdm_is_missing_there_is_no_bar_and_no_error(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    assert len(crowfly.load_file(small, progress=True)) == 3


def test_an_error_of_the_progress_function_cancels_and_is_passed_on(small):
    def fail(moved, total):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        crowfly.load_file(small, progress=fail)


def test_a_transfer_can_be_waited_for_once_and_elsewhere(small):
    transfer = crowfly.start_load(small)
    loaded = crowfly.finish_load(transfer)
    assert transfer.done and transfer.moved == transfer.total == 42
    assert len(loaded.regions) == 1 and loaded.regions[0].nbytes == 42
    with pytest.raises(crowfly.errors.UsageError, match="already"):
        transfer.wait()
