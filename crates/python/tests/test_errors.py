"""Errors have a class to catch, a code to tell apart, and say what stands in the way."""

import os
import pickle
import struct

import pytest
from conftest import file_bytes

import crowfly
from crowfly import errors


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "too-short"),
        (struct.pack("<Q", 1 << 60) + b"{}", "header-too-long"),
        (struct.pack("<Q", 9) + b"{}", "header-past-end"),
        (struct.pack("<Q", 2) + b"[]", "not-an-object"),
        (file_bytes({"a": ("U8", (1,), b"x")}) + b"y", "trailing-bytes"),
        (file_bytes({"../a": ("U8", (1,), b"x")}), "path-like-name"),
    ],
)
def test_a_malformed_file_is_a_format_error_with_a_code(tmp_path, content, code):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    for reading in (crowfly.load_file, crowfly.safe_open):
        with pytest.raises(errors.FormatError) as error:
            reading(path)
        assert error.value.code == code and isinstance(error.value, ValueError)
    with pytest.raises(errors.FormatError) as error:
        crowfly.load(content)
    assert error.value.code == code


@pytest.mark.parametrize("device", ["mps", "gpu", "host:x", "s3://bucket", ""])
def test_a_word_that_is_no_device_is_told_with_those_that_are(small, device):
    with pytest.raises(errors.UsageError) as error:
        crowfly.load_file(small, device=device)
    assert "cuda:N" in error.value.hint and "cpu" in error.value.hint


def test_an_engine_that_could_do_nothing_is_a_mistake_of_the_call():
    for settings in ({"depth": 0}, {"workers": 0}):
        with pytest.raises(errors.UsageError) as error:
            crowfly.Engine(**settings)
        assert error.value.code == "usage" and "measured" in error.value.hint


def test_a_mistake_of_the_call_has_its_own_code():
    assert errors.UsageError("so").code == "usage" and errors.CrowflyError("so").code == "failed"
    assert pickle.loads(pickle.dumps(errors.UsageError("so", "other"))).code == "other"


def test_absent_and_denied_are_two_things(tmp_path, small):
    with pytest.raises(FileNotFoundError) as absent:
        crowfly.load_file(tmp_path / "nothing.safetensors")
    assert isinstance(absent.value, errors.NotFoundError) and absent.value.code == "not-found"
    if os.geteuid() == 0:
        pytest.skip("waived: root may read everything")
    small.chmod(0)
    with pytest.raises(PermissionError) as denied:
        crowfly.load_file(small)
    assert isinstance(denied.value, errors.AccessDeniedError)


def test_a_gpu_that_is_not_there_is_refused_with_the_obstacles(small):
    if crowfly.Topology.here().gpus:
        pytest.skip("waived: this machine has a GPU")
    for reading in (crowfly.load_file, lambda path, device: crowfly.safe_open(path, "crowfly", device)):
        with pytest.raises(crowfly.RouteRefused) as refused:
            reading(small, device="cuda:0")
        obstacles = {found.code: found for found in refused.value.obstacles}
        assert obstacles["no-gpu"].effect == "blocks" and obstacles["no-gpu"].evidence
        assert "no-gpu" in str(refused.value) and refused.value.hint


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"policy": "maybe"}, errors.UsageError),
        ({"path": "sideways"}, errors.UsageError),
        ({"path": "peer"}, errors.UsageError),
        ({"policy": "socket"}, crowfly.RouteRefused),
        ({"policy": "require", "path": "cached"}, errors.UsageError),
        ({"device": "abacus"}, errors.UsageError),
        ({"device": "nic:eth0"}, errors.UsageError),
        ({"tensors": ["nothing.*"]}, errors.UsageError),
        ({"tensors": ["["]}, errors.UsageError),
        ({"shard": (2, 2)}, errors.UsageError),
    ],
    ids=str,
)
def test_a_call_that_makes_no_sense_is_refused_before_anything_moves(small, options, error):
    with pytest.raises(error) as raised:
        crowfly.load_file(small, **options)
    assert raised.value.code and raised.value.message


def test_a_wrong_index_names_the_shard_that_is_missing(tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "gone.safetensors"}}')
    with pytest.raises(errors.NotFoundError) as error:
        crowfly.load_file(tmp_path)
    assert error.value.code == "missing-shard" and "gone.safetensors" in error.value.message


def test_an_error_survives_pickling(small):
    with pytest.raises(crowfly.RouteRefused) as refused:
        crowfly.load_file(small, device="gpu:0")
    again = pickle.loads(pickle.dumps(refused.value))
    assert (again.code, again.message, again.obstacles) == (
        refused.value.code,
        refused.value.message,
        refused.value.obstacles,
    )


def test_every_class_is_a_crowfly_error_and_listed():
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), crowfly.CrowflyError), name
