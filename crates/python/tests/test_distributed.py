"""Given processes that PyTorch joins by the backend crowfly, when they do collectives, then each has what the
definition says; DistributedDataParallel trains as with Gloo; and when one is killed, the others hear which."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch", reason="waived: PyTorch is not installed")

#: For everything that must end: a busy machine is slow to start interpreters.
END_S = 180
#: What a collective may take.
LIMIT_S = 20

START = """
import json, math, os, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
import crowfly.distributed as cd

torch.set_num_threads(1)
BACKEND, RANK, SIZE, STORE = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
dist.init_process_group(
    BACKEND, init_method="file://" + STORE, rank=RANK, world_size=SIZE, timeout=timedelta(seconds=%d)
)

def tell(answer):
    print(json.dumps(answer), flush=True)
""" % LIMIT_S


class Job:
    """Ranks as processes that run the same program; each prints lines of JSON."""

    def __init__(self, folder, program, size, backend="crowfly"):
        store = folder / f"store-{backend}"
        script = folder / f"rank-{backend}.py"
        script.write_text(START + program)
        self.processes = [
            subprocess.Popen(
                [sys.executable, str(script), backend, str(rank), str(size), str(store)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
            )
            for rank in range(size)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.communicate()

    def answers(self, ranks=None):
        """The lines of each rank that is to end well."""
        found = []
        for rank, process in enumerate(self.processes):
            if ranks is not None and rank not in ranks:
                continue
            out, err = process.communicate(timeout=END_S)
            assert process.returncode == 0, f"rank {rank}: {err}"
            found.append([json.loads(line) for line in out.splitlines()])
        return found


EVERYTHING = """
n, me = SIZE, RANK
own = torch.arange(6, dtype=torch.float32) + me
total = sum(torch.arange(6, dtype=torch.float32) + r for r in range(n))

for op, wanted in [
    (dist.ReduceOp.SUM, total),
    (dist.ReduceOp.AVG, total / n),
    (dist.ReduceOp.MIN, torch.arange(6.0)),
    (dist.ReduceOp.MAX, torch.arange(6.0) + n - 1),
]:
    data = own.clone()
    dist.all_reduce(data, op=op)
    assert torch.equal(data, wanted), op

for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int32, torch.int64, torch.uint8):
    data = own.to(dtype)
    dist.all_reduce(data)
    assert torch.equal(data, total.to(dtype)), dtype

gaps = torch.zeros(6, 2)
gaps[:, 1] = own
column = gaps[:, 1]
work = dist.all_reduce(column, async_op=True)
work.wait()
assert torch.equal(gaps[:, 1], total) and not gaps[:, 0].any()

flag = torch.tensor([me == 1, False])
dist.all_reduce(flag, op=dist.ReduceOp.MAX)
assert flag.tolist() == [True, False]

data = own.clone()
dist.broadcast(data, src=1)
assert torch.equal(data, torch.arange(6.0) + 1)

parts = [torch.empty(6) for _ in range(n)]
dist.all_gather(parts, own)
assert all(torch.equal(part, torch.arange(6.0) + r) for r, part in enumerate(parts))
whole = torch.empty(6 * n)
dist.all_gather_into_tensor(whole, own)
assert torch.equal(whole, torch.cat(parts))

share = torch.empty(2)
dist.reduce_scatter_tensor(share, torch.arange(2.0 * n) + me)
assert torch.equal(share, (torch.arange(2.0 * n) * n + sum(range(n)))[2 * me : 2 * me + 2])
dist.reduce_scatter(share, [torch.full((2,), float(r)) for r in range(n)])
assert share.tolist() == [me * n, me * n]

out = torch.empty(n)
dist.all_to_all_single(out, torch.arange(float(n)) + 10 * me)
assert out.tolist() == [10 * r + me for r in range(n)]
uneven = torch.empty(sum(range(1, n + 1)))
dist.all_to_all_single(uneven, torch.full((n * (me + 1),), float(me)), list(range(1, n + 1)), [me + 1] * n)
assert uneven.tolist() == [r for r in range(n) for _ in range(r + 1)]
lists = [torch.empty(2) for _ in range(n)]
dist.all_to_all(lists, [torch.full((2,), float(10 * me + r)) for r in range(n)])
assert [part.tolist() for part in lists] == [[10 * r + me] * 2 for r in range(n)]

found = [torch.empty(6) for _ in range(n)] if me == 0 else None
dist.gather(own, found, dst=0)
assert me > 0 or all(torch.equal(part, torch.arange(6.0) + r) for r, part in enumerate(found))
if hasattr(dist, "gather_single"):
    for shape in [(6 * n,), (n, 6), (2, 3 * n)]:
        found = torch.full(shape, -1.0) if me == 1 else None
        dist.gather_single(own, found, dst=1)
        assert me != 1 or torch.equal(found.view(-1), whole), shape
    nothing = torch.empty(0) if me == 1 else None
    dist.gather_single(torch.empty(0), nothing, dst=1)
    late = torch.full((6 * n,), -1.0) if me == 0 else None
    dist.gather_single(own, late, dst=0, async_op=True).wait()
    assert me > 0 or torch.equal(late, whole)
given = torch.empty(3)
dist.scatter(given, [torch.full((3,), float(r)) for r in range(n)] if me == 0 else None, src=0)
assert given.tolist() == [me] * 3
data = own.clone()
dist.reduce(data, dst=1)
assert torch.equal(data, total if me == 1 else own)

objects = [None] * n
dist.all_gather_object(objects, {"rank": me})
assert objects == [{"rank": r} for r in range(n)]
dist.barrier()

pair = dist.new_group([0, 1])
if me < 2:
    data = torch.tensor([float(me + 1)])
    dist.all_reduce(data, group=pair)
    assert data.item() == 3

product = torch.full((3,), me + 2)
dist.all_reduce(product, op=dist.ReduceOp.PRODUCT)
assert product.tolist() == [math.prod(range(2, n + 2))] * 3
for op, wanted in [
    (dist.ReduceOp.BAND, [4 & 5 & 6, 0 & 1 & 2]),
    (dist.ReduceOp.BOR, [4 | 5 | 6, 0 | 1 | 2]),
    (dist.ReduceOp.BXOR, [4 ^ 5 ^ 6, 0 ^ 1 ^ 2]),
]:
    data = torch.tensor([4 | me, me])
    dist.all_reduce(data, op=op)
    assert data.tolist() == wanted, (op, data)

for length in (3, 100_000):
    work = dist.isend(torch.full((length,), float(me)), (me + 1) % n, tag=length)
    data = torch.empty(length)
    dist.recv(data, (me - 1) % n, tag=length)
    work.wait()
    assert (data == (me - 1) % n).all()
given, taken = torch.full((5, 2), float(me)), torch.zeros(5, 2)
works = dist.batch_isend_irecv(
    [dist.P2POp(dist.isend, given[:, 0], (me + 1) % n), dist.P2POp(dist.irecv, taken[:, 1], (me - 1) % n)]
)
for work in works:
    work.wait()
assert (taken[:, 1] == (me - 1) % n).all() and not taken[:, 0].any()
if me > 0:
    dist.send(torch.tensor([me]), 0)
else:
    came = torch.empty(1, dtype=torch.int64)
    assert sorted(dist.recv(came) for _ in range(n - 1)) == list(range(1, n))

both = [[torch.empty(2), torch.empty(1)] for _ in range(n)]
dist.group.WORLD.allgather_coalesced(both, [own[:2].clone(), own[:1].clone()]).wait()
assert [part.tolist() for parts in both for part in parts] == [part for r in range(n) for part in ([r, r + 1.0], [r])]

ours = cd.empty(1000, 7)
ours.fill_(me)
dist.all_reduce(ours[16:])
assert (ours[16:] == sum(range(n))).all() and (ours[:16] == me).all()
assert cd.receipt()["algorithm"] == "in-place"

refused = []
for call in (
    lambda: dist.all_reduce(own.clone(), op=dist.ReduceOp.BAND),
    lambda: dist.all_reduce(torch.tensor([True])),
    lambda: dist.group.WORLD.monitored_barrier(),
    lambda: dist.all_reduce(torch.zeros(2, dtype=torch.uint16)),
):
    try:
        call()
    except Exception as error:
        refused.append(getattr(error, "code", repr(error)))
data = own.clone()
dist.all_reduce(data)
receipt = cd.receipt()
tell([refused, receipt["algorithm"], [moved["path"] for moved in receipt["moved"]], receipt["ranks"]])
dist.barrier()
dist.destroy_process_group()
"""


def test_every_collective_has_the_result_that_it_is_defined_to_have(tmp_path):
    with Job(tmp_path, EVERYTHING, 3) as job:
        for [[refused, algorithm, paths, ranks]] in job.answers():
            assert refused == ["bad-reduction", "bad-reduction", "not-built", "bad-element"]
            assert (algorithm, paths, ranks) == ("flat", ["shm"], 3)


TRAINING = """
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
torch.manual_seed(100 + RANK)
losses = []
for step in range(20):
    inputs = torch.randn(16, 8)
    loss = (model(inputs).squeeze(1) - inputs.sum(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
bits = b"".join(p.detach().numpy().tobytes() for p in model.parameters()).hex()
tell([losses, bits])
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("size", [2, 3])
def test_ddp_trains_as_with_gloo(tmp_path, size):
    found = {}
    for backend in ("gloo", "crowfly"):
        with Job(tmp_path, TRAINING, size, backend) as job:
            found[backend] = [answer for [answer] in job.answers()]
    ours = found["crowfly"]
    assert all(bits == ours[0][1] for _, bits in ours), "the same model on every rank"
    for (losses, bits), (theirs, their_bits) in zip(ours, found["gloo"]):
        assert losses[-1] < losses[0]
        if size == 2:
            # Two numbers have one sum, in whatever order.
            assert (losses, bits) == (theirs, their_bits)
        else:
            # Sums of three depend on their order, which the two backends choose differently.
            assert losses == pytest.approx(theirs, rel=1e-4)


LOST = """
import signal
data = torch.ones(100_000)
dist.all_reduce(data)
if RANK == 2:
    tell("ready")
    time.sleep(%d)
began = time.monotonic()
try:
    dist.all_reduce(data)
except cd.RanksLost as error:
    waited = time.monotonic() - began
    again = None
    try:
        dist.all_reduce(data)
    except cd.RanksLost as error_again:
        again = error_again.ranks
    rest = dist.group.WORLD.shrink()
    ones = torch.ones(4)
    rest.allreduce([ones]).wait()
    tell([error.code, error.ranks, again, waited, cd.failure().ranks, ones.tolist()])
""" % END_S

LOST_IN_TRAINING = """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
model(torch.ones(2, 64)).sum().backward()
if RANK == 2:
    tell("ready")
    time.sleep(%d)
try:
    model(torch.ones(2, 64)).sum().backward()
except Exception as error:
    tell(["ranks-lost" in str(error) or "was lost" in str(error), cd.failure().code, cd.failure().ranks])
""" % END_S


def killed(job):
    """Kills rank 2 once it says that it is ready."""
    victim = job.processes[2]
    assert json.loads(victim.stdout.readline()) == "ready"
    victim.send_signal(signal.SIGKILL)
    return job.answers([0, 1])


def test_when_a_rank_is_killed_the_others_hear_which_and_go_on_without_it(tmp_path):
    with Job(tmp_path, LOST, 3) as job:
        for [[code, ranks, again, waited, known, ones]] in killed(job):
            assert (code, ranks, again, known) == ("ranks-lost", [2], [2], [2])
            assert waited < LIMIT_S
            assert ones == [2.0] * 4


def test_when_a_rank_of_a_ddp_training_is_killed_backward_fails_and_the_reason_is_known(tmp_path):
    began = time.monotonic()
    with Job(tmp_path, LOST_IN_TRAINING, 3) as job:
        for [[named, code, ranks]] in killed(job):
            assert named
            assert (code, ranks) == ("ranks-lost", [2])
    assert time.monotonic() - began < END_S
