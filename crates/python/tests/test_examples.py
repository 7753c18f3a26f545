"""The examples do what they say."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from crowfly import checkpoint

EXAMPLES = os.path.join(os.path.dirname(__file__), "..", "examples")


def run(name, *arguments):
    command = [sys.executable, os.path.join(EXAMPLES, name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_training_that_is_killed_ends_with_the_same_weights_bit_by_bit(tmp_path):
    pytest.importorskip("torch", reason="waived: PyTorch is not installed")
    folder, endless = tmp_path / "killed", ["--steps", "1000000000", "--every", "5"]
    for _ in range(3):
        command = [sys.executable, os.path.join(EXAMPLES, "train_resume.py"), str(folder), *endless]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for _ in range(4):
            child.stdout.readline()
        time.sleep(0.003)
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        child.stdout.close()
    end = ["--steps", checkpoint.latest(folder) + 7, "--every", "5"]
    resumed = run("train_resume.py", folder, *end)
    undisturbed = run("train_resume.py", tmp_path / "undisturbed", *end)
    assert "resumed at step" in resumed and "resumed" not in undisturbed
    weights = re.compile(r"weights ([0-9a-f]{64})")
    assert weights.search(resumed).group(1) == weights.search(undisturbed).group(1)
    assert re.search(r"stall \d+\.\d+ ms", undisturbed)


def test_every_token_is_streamed_once_whoever_reads_ahead(tmp_path):
    np = pytest.importorskip("numpy", reason="waived: NumPy is not installed")
    run("stream_tokens.py", "make", tmp_path, "--shards", 3, "--tokens", 1000)
    tokens = [np.random.default_rng(shard).integers(0, 50_000, 1000, dtype=np.uint16) for shard in range(3)]
    stream = np.concatenate(tokens)
    size = 4 * 16
    count = (len(stream) - 1) // size
    expected = int(stream[: count * size].astype("u8").sum())
    expected += sum(int(stream[(n + 1) * size]) for n in range(count))
    for ahead in (0, 2):
        told = run("stream_tokens.py", "read", tmp_path, "--ahead", ahead, "--rows", 4, "--columns", 16)
        assert told.startswith(f"{count} batches, sum {expected}, ")
