"""What holds for the process: imports, threads, signals, the event loop, questions about the machine."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import pattern

import crowfly
import crowfly.aio


def test_the_package_imports_with_nothing_else_installed():
    blocked = "import sys\nfor name in ('numpy', 'torch', 'jax', 'tqdm', 'ml_dtypes'): sys.modules[name] = None\n"
    code = blocked + "import crowfly, crowfly.aio\nprint(crowfly.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stderr, done.stdout.strip()) == ("", crowfly.__version__)


def test_ctrl_c_ends_a_load_at_once():
    """The function that is told of progress sends the signal, so that it arrives while the load goes on."""
    code = """
import os, signal, sys, crowfly
def interrupt(moved, total):
    os.kill(os.getpid(), signal.SIGINT)
try:
    for _ in range(1000):
        crowfly.load_file(sys.argv[1], path="cached", progress=interrupt)
except KeyboardInterrupt:
    print("interrupted")
"""
    path = os.path.join(os.environ.get("PYTEST_TMP", "/tmp"), f"crowfly-ctrl-c-{os.getpid()}.safetensors")
    crowfly.save_file({}, path)
    try:
        done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60)
    finally:
        os.remove(path)
    assert (done.stdout.strip(), done.returncode) == ("interrupted", 0), done.stderr


def test_other_threads_run_while_a_load_waits(write):
    data = pattern(1 << 20) * 32
    path = write({"a": ("U8", (len(data),), data)})
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        before = counted[0]
        crowfly.load_file(path, path="cached", verify=True)
        assert counted[0] > before
    finally:
        stop.set()
        thread.join()


def test_many_threads_load_at_once(write):
    data = pattern(1 << 18)
    path = write({"a": ("U8", (len(data),), data)})
    found = []

    def load():
        found.append(crowfly.load_file(path)["a"].tobytes() == data)

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 8


def test_loading_and_saving_can_be_awaited_together(small, tmp_path):
    async def both():
        loaded = await crowfly.aio.load_file(small, verify=True)
        saved = await asyncio.gather(
            *(crowfly.aio.save_file(loaded, tmp_path / f"{i}.safetensors") for i in range(3))
        )
        return loaded, saved

    loaded, saved = asyncio.run(both())
    assert loaded.receipt.verification.state == "matched"
    assert len({receipt.requested for receipt in saved}) == 1
    assert (tmp_path / "0.safetensors").read_bytes() == (tmp_path / "2.safetensors").read_bytes()


def test_cancelling_a_task_cancels_its_transfer(write):
    data = pattern(1 << 20) * 64
    path = write({"a": ("U8", (len(data),), data)})

    async def cancelled():
        task = asyncio.ensure_future(crowfly.aio.load_file(path, path="cached", verify=True))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())


def test_a_cancelled_transfer_says_so(write):
    data = pattern(1 << 20) * 64
    path = write({"a": ("U8", (len(data),), data)})
    transfer = crowfly.start_load(path, path="cached")
    transfer.cancel()
    if transfer.moved == transfer.total:
        pytest.skip("waived: it was faster than its cancellation")
    with pytest.raises(crowfly.errors.CancelledError) as error:
        transfer.wait()
    assert error.value.code == "cancelled"


def test_a_forked_child_reads_what_its_parent_loaded(small):
    weight = crowfly.load_file(small)["weight"]
    child = os.fork()
    if child == 0:
        os._exit(0 if memoryview(weight)[1, 2] == 5 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_machine_answers_in_crowflys_nouns(small):
    topology = crowfly.Topology.here()
    assert topology.numa and topology.to_dict()["numa"] == topology.numa
    diagnosis = crowfly.doctor()
    assert diagnosis.verdict and diagnosis.headline
    assert diagnosis.to_dict()["schema"] == "crowfly.diagnosis/1"
    ways = crowfly.route(str(small), "host")
    assert ways and all(way.standing in ("open", "unproven", "blocked") for way in ways)
    open_ways = [way for way in ways if way.standing == "open"]
    assert all(way.copies >= 1 for way in open_ways)
    with pytest.raises(crowfly.errors.UsageError):
        crowfly.route("nowhere", "host")


def test_a_region_is_memory_that_can_be_seen_and_saved(tmp_path):
    region = crowfly.Region.zeroed(5)
    assert (len(region), region.nbytes, region.place, region.follows_file) == (5, 5, "host", False)
    memoryview(region.bytes())[1] = 7
    path = tmp_path / "r.safetensors"
    crowfly.save_file({"r": region.bytes()}, path)
    assert crowfly.load_file(path)["r"].tobytes() == b"\0\7\0\0\0"
