"""All-reduce of fp32 by sum over Gloo, measured as `crowfly bench collective` measures it.

    gloo.py RANKS SECONDS BYTES...

Starts the ranks as processes of itself; rank 0 prints one JSON object a size.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time

MOST_CALLS = 100_000
#: Gloo resolves the host's name, which need not lead anywhere; loopback does.
INTERFACE = {"GLOO_SOCKET_IFNAME": "lo"}


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def rank(number, ranks, store, seconds, sizes):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=ranks)

    def over_all(value, how):
        cell = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(cell, op=how)
        return cell.item()

    for size in sizes:
        count = size // 4
        places = torch.arange(count)
        data = ((number * 7 + places * 3) % 5).float()
        wanted = sum(((other * 7 + places * 3) % 5).float() for other in range(ranks))
        dist.all_reduce(data)
        wrong = over_all(float((data != wanted).sum()), dist.ReduceOp.SUM)
        del places, wanted
        data.zero_()
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(data)
        once = over_all(time.perf_counter() - began, dist.ReduceOp.MAX)
        calls = max(1, min(MOST_CALLS, int(seconds / max(once, 1e-9))))
        dist.barrier()
        spent, began = cpu_seconds(), time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(data)
        took, spent = time.perf_counter() - began, cpu_seconds() - spent
        took, spent = over_all(took, dist.ReduceOp.MAX), over_all(spent, dist.ReduceOp.SUM)
        if number == 0:
            found = {"bytes": size, "calls": calls, "seconds": took / calls}
            print(json.dumps({**found, "cpu_seconds": spent / calls, "wrong": int(wrong)}), flush=True)
    dist.destroy_process_group()


def main():
    if sys.argv[1] == "--rank":
        number, ranks, store, seconds = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], float(sys.argv[5])
        return rank(number, ranks, store, seconds, [int(size) for size in sys.argv[6:]])
    ranks = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        own = [sys.executable, os.path.abspath(__file__), "--rank"]
        started = [
            subprocess.Popen([*own, str(number), str(ranks), store, *sys.argv[2:]], env={**os.environ, **INTERFACE})
            for number in range(ranks)
        ]
        ended = [process.wait() for process in started]
    return max(ended, key=abs)


if __name__ == "__main__":
    sys.exit(main())
