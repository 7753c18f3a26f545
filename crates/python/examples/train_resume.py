"""Trains a small model and saves a checkpoint every few steps, so that it can be killed and started again.

    python examples/train_resume.py checkpoints --steps 300

Kill it whenever you like and start it again: the weights at the end are the same, bit by bit, as those of a run
that nobody killed. Training waits only while its tensors are copied; the line of each step says how long.
"""

import argparse
import hashlib
from typing import Any

import torch

from crowfly.checkpoint import Checkpointer


def model_and_optimizer() -> "tuple[torch.nn.Module, torch.optim.Optimizer]":
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1)
    )
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_one_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
    inputs = torch.randn(32, 16)
    loss = (model(inputs).squeeze(1) - inputs.sum(1).sin()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss)


def digest(model: torch.nn.Module) -> str:
    """A name for the weights: equal only when every bit is."""
    found = hashlib.sha256()
    for _, tensor in sorted(model.state_dict().items()):
        found.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="where checkpoints are kept")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    options = parser.parse_args()

    # Sums in another order are other sums.
    torch.set_num_threads(1)
    torch.manual_seed(11)
    model, optimizer = model_and_optimizer()
    done = 0

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}

    with Checkpointer(options.folder, keep=2) as saver:
        restored = saver.restore_latest()
        if restored is not None:
            model.load_state_dict(restored.state["model"])
            optimizer.load_state_dict(restored.state["optimizer"])
            torch.set_rng_state(restored.state["rng"])
            done = restored.step
            print(f"resumed at step {done}", flush=True)
        for step in range(done + 1, options.steps + 1):
            loss = train_one_step(model, optimizer)
            if step == done + 1:
                # From the first step on the optimizer has a state. While the next ones train, memory for a copy of it
                # all is made ready.
                saver.prepare(state())
            if step % options.every == 0:
                pending = saver.save_async(step, state())
                print(f"step {step}: loss {loss:.4f}, stall {pending.stall_seconds * 1e3:.2f} ms", flush=True)
    print(f"weights {digest(model)}")


if __name__ == "__main__":
    main()
