#!/usr/bin/env python3
"""One engine's rate between two processes, for bench/net: writes of one buffer, two under way at a time.

    handing.py nixl|mooncake SIZE SECONDS ADDRESS [PREFIX...]

Starts the other process itself, behind PREFIX, and prints one line of JSON. ADDRESS is where that one is
reached. UCX_TLS and the like are the caller's business.
"""

import json
import os
import subprocess
import sys
import time

AHEAD = 2


class Nixl:
    def __init__(self, name, size, _address):
        import numpy
        from nixl_cu12._api import nixl_agent, nixl_agent_config

        self.agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
        self.memory = numpy.ones(size, dtype=numpy.uint8)
        self.ends = [(self.memory.ctypes.data, size, 0)]
        self.agent.register_memory([(*self.ends[0], "")], mem_type="DRAM")
        self.descs = self.agent.get_xfer_descs(self.ends, mem_type="DRAM")

    def describe(self):
        return [self.agent.get_agent_metadata().hex(), self.agent.get_serialized_descs(self.descs).hex()]

    def meet(self, described):
        metadata, descs = (bytes.fromhex(text) for text in described)
        self.peer = self.agent.add_remote_agent(metadata)
        self.remote = self.agent.deserialize_descs(descs)
        self.handles = [self.agent.initialize_xfer("WRITE", self.descs, self.remote, self.peer) for _ in range(AHEAD)]

    def start(self, turn):
        handle = self.handles[turn % AHEAD]
        if self.agent.transfer(handle) == "ERR":
            raise RuntimeError("nixl: a transfer could not be started")
        return handle

    def wait(self, handle):
        while (state := self.agent.check_xfer_state(handle)) != "DONE":
            if state == "ERR":
                raise RuntimeError("nixl: a transfer failed")


class Mooncake:
    def __init__(self, _name, size, address):
        import numpy
        from mooncake.engine import TransferEngine

        self.engine = TransferEngine()
        if self.engine.initialize(address, "P2PHANDSHAKE", "tcp", "") != 0:
            raise RuntimeError("mooncake: cannot initialise")
        self.memory = numpy.ones(size, dtype=numpy.uint8)
        self.size, self.address = size, address
        if self.engine.register_memory(self.memory.ctypes.data, size) != 0:
            raise RuntimeError("mooncake: cannot register")

    def describe(self):
        host = self.address.split(":")[0]
        return [f"{host}:{self.engine.get_rpc_port()}", self.memory.ctypes.data]

    def meet(self, described):
        self.peer, self.remote = described

    def start(self, _turn):
        return None

    def wait(self, _handle):
        # Its blocking call; it has no other that tells of a failure.
        if self.engine.transfer_sync_write(self.peer, self.memory.ctypes.data, self.remote, self.size) != 0:
            raise RuntimeError("mooncake: a transfer failed")


ENGINES = {"nixl": Nixl, "mooncake": Mooncake}


def main():
    if sys.argv[1] == "lend":
        _, _, engine, size, address = sys.argv
        end = ENGINES[engine]("lender", int(size), address)
        print("described " + json.dumps(end.describe()), flush=True)
        sys.stdin.read()
        # NIXL's agents end the process with a signal when they are taken down.
        os._exit(0)
    _, engine, size, seconds, address, *prefix = sys.argv
    size, seconds = int(size), float(seconds)
    command = [*prefix, sys.executable, __file__, "lend", engine, str(size), address]
    lender = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    own = os.environ.get("HANDING_OWN", "127.0.0.1")
    end = ENGINES[engine]("writer", size, own)
    for line in lender.stdout:
        # The engines print to standard output as well.
        if line.startswith("described "):
            end.meet(json.loads(line.removeprefix("described ")))
            break
    for turn in range(AHEAD):
        end.wait(end.start(turn))
    began, moved, turn, running = time.monotonic(), 0, 0, []
    while time.monotonic() - began < seconds:
        running.append(end.start(turn))
        turn += 1
        if len(running) >= AHEAD:
            end.wait(running.pop(0))
            moved += size
    for handle in running:
        end.wait(handle)
        moved += size
    took = time.monotonic() - began
    lender.stdin.close()
    lender.wait(timeout=30)
    print("\n" + json.dumps({"bytes": moved, "seconds": took}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
