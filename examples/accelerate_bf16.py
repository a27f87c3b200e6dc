"""Accelerate: bf16 mixed precision, gradient accumulation, save_state and load_state.

python examples/accelerate_bf16.py
accelerate launch --cpu examples/accelerate_bf16.py
"""

import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sgdf import SGDF


def train(folder: Path, stop_after: int, resume: bool = False) -> tuple[list[float], nn.Module]:
    """Train up to batch `stop_after`, then save; losses of the batches, and the model."""
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2, cpu=True)
    set_seed(0)
    inputs = torch.randn(320, 16)
    data = TensorDataset(inputs, (inputs[:, :4].sum(1) > 0).long())
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = SGDF(model.parameters(), lr=0.5, weight_decay=1e-4)  # the line that changes
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    batches = DataLoader(data, batch_size=8)
    model, optimizer, schedule, batches = accelerator.prepare(model, optimizer, schedule, batches)

    done = 0
    if resume:
        accelerator.load_state(folder)
        done = int((folder / "batches.txt").read_text())
        batches = accelerator.skip_first_batches(batches, done)
    losses = []
    for x, y in batches:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()  # steps at every second batch
            schedule.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        done += 1
        if done == stop_after:
            break
    accelerator.save_state(folder)
    (folder / "batches.txt").write_text(str(done))
    return losses, accelerator.unwrap_model(model)


def main() -> list[float]:
    with tempfile.TemporaryDirectory() as name:
        first, _ = train(Path(name), stop_after=20)
        rest, _ = train(Path(name), stop_after=40, resume=True)
    print(f"loss {first[0]:.3f} -> {first[-1]:.3f}, resumed -> {rest[-1]:.3f}")
    return first + rest


if __name__ == "__main__":
    main()
