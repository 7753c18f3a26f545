"""Streams token shards in batches while the next shards are already on their way.

    python examples/stream_tokens.py make shards --shards 8 --tokens 4000000
    python examples/stream_tokens.py read shards --rank 0 --ranks 2

Shards are safetensors files with one tensor `tokens` of type U16. Each rank takes every n-th of them. While one
is being read by the training loop, the next `--ahead` are loaded by the engine without Python's lock.
"""

import argparse
import os
import time
from collections import deque
from typing import Deque, Iterator, List, Tuple

import numpy as np

import crowfly


def make(folder: str, shards: int, tokens: int) -> None:
    """Writes shards of made-up tokens."""
    os.makedirs(folder, exist_ok=True)
    for shard in range(shards):
        numbers = np.random.default_rng(shard).integers(0, 50_000, tokens, dtype=np.uint16)
        crowfly.save_file({"tokens": numbers}, os.path.join(folder, f"shard-{shard:05}.safetensors"))


def shards_of(folder: str, rank: int, ranks: int) -> List[str]:
    """This rank's shards, in order."""
    names = sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))
    return [os.path.join(folder, name) for name in names[rank::ranks]]


def streamed(paths: List[str], ahead: int) -> Iterator[np.ndarray]:
    """The tokens of each shard; the next ones are loaded meanwhile."""
    waiting: Deque[crowfly.Transfer] = deque()
    following = iter(paths)
    while True:
        while len(waiting) <= ahead:
            path = next(following, None)
            if path is None:
                break
            waiting.append(crowfly.start_load(path))
        if not waiting:
            return
        yield crowfly.finish_load(waiting.popleft())["tokens"].numpy()


def batches(shards: Iterator[np.ndarray], rows: int, columns: int) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
    """Inputs and targets, each `[rows, columns]`. What is left of a shard begins the next one's first batch."""
    size = rows * columns
    rest = np.empty(0, dtype=np.uint16)
    for tokens in shards:
        if len(rest):
            tokens = np.concatenate([rest, tokens])
        at = 0
        while len(tokens) - at > size:
            window = tokens[at : at + size + 1]
            yield window[:-1].reshape(rows, columns), window[1:].reshape(rows, columns)
            at += size
        rest = tokens[at:]


def read(folder: str, rank: int, ranks: int, ahead: int, rows: int, columns: int) -> None:
    began, count, total, first = time.perf_counter(), 0, 0, 0.0
    for inputs, targets in batches(streamed(shards_of(folder, rank, ranks), ahead), rows, columns):
        if not count:
            first = time.perf_counter() - began
        count += 1
        total += int(inputs.sum()) + int(targets[-1, -1])
    seconds = time.perf_counter() - began
    size = count * rows * columns * 2
    print(f"{count} batches, sum {total}, first after {first:.3f} s, {size / seconds / 1e9:.2f} GB/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    making.add_argument("folder")
    making.add_argument("--shards", type=int, default=8)
    making.add_argument("--tokens", type=int, default=4_000_000)
    reading = commands.add_parser("read")
    reading.add_argument("folder")
    reading.add_argument("--rank", type=int, default=0)
    reading.add_argument("--ranks", type=int, default=1)
    reading.add_argument("--ahead", type=int, default=2, help="shards on their way beyond the current one")
    reading.add_argument("--rows", type=int, default=8)
    reading.add_argument("--columns", type=int, default=2048)
    options = vars(parser.parse_args())
    {"make": make, "read": read}[options.pop("command")](**options)


if __name__ == "__main__":
    main()
