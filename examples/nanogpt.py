"""A small GPT on bytes, in plain torch: warm-up, cosine, clipping, accumulation, resume.

python examples/nanogpt.py                          # FilterAdamW on this script's own text
python examples/nanogpt.py --optimizer adamw        # AdamW with the same settings
python examples/nanogpt.py --checkpoint gpt.pt      # run it again with more --steps to resume
python examples/nanogpt.py --text input.txt --width 384 --layers 6 --context 256 --steps 5000
"""

import argparse
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sgdf import FilterAdamW, param_groups

OPTIMIZERS = {"filteradamw": FilterAdamW, "adamw": torch.optim.AdamW}


class GPT(nn.Module):
    """A causal transformer from torch's own layers, with learned positions."""

    def __init__(self, width: int, layers: int, context: int) -> None:
        super().__init__()
        self.token = nn.Embedding(256, width)
        self.position = nn.Embedding(context, width)
        block = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.token(tokens) + self.position.weight[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        return self.head(self.blocks(x, mask=mask, is_causal=True))


def rate(step: int, warmup: int, steps: int) -> float:
    """Factor on the learning rate: linear warm-up, then cosine down to a tenth."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.55 + 0.45 * math.cos(math.pi * (step - warmup) / max(1, steps - warmup))


def loss_of(model: nn.Module, data: Tensor, context: int, generator: torch.Generator) -> Tensor:
    starts = torch.randint(len(data) - context, (8,), generator=generator).tolist()
    windows = torch.stack([data[i : i + context + 1] for i in starts])
    logits = model(windows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def main(args: argparse.Namespace) -> list[float]:
    """Train to step `args.until`, from the checkpoint if there is one; return the losses."""
    data = torch.tensor(list(Path(args.text).read_bytes()))
    torch.manual_seed(0)
    model = GPT(args.width, args.layers, args.context)
    groups = param_groups(model, weight_decay=0.1)  # none on norms, biases and embeddings
    optimizer = OPTIMIZERS[args.optimizer](groups, lr=args.lr, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: rate(step, args.warmup, args.steps)
    )
    draw = torch.Generator().manual_seed(1)
    losses: list[float] = []
    file = Path(args.checkpoint) if args.checkpoint else None
    if file and file.exists():
        saved = torch.load(file, weights_only=True)
        for part, state in zip((model, optimizer, schedule), saved["states"], strict=True):
            part.load_state_dict(state)
        draw.set_state(saved["draw"])
        losses = saved["losses"]

    for step in range(len(losses), args.until or args.steps):
        total = 0.0
        for _ in range(args.accumulate):
            loss = loss_of(model, data, args.context, draw) / args.accumulate
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(total)
        if step % 20 == 0:
            print(f"step {step:4}  loss {total:.3f}  lr {schedule.get_last_lr()[0]:.2e}")
    print(f"{args.optimizer}: loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    if file:
        states = [part.state_dict() for part in (model, optimizer, schedule)]
        torch.save({"states": states, "draw": draw.get_state(), "losses": losses}, file)
    return losses


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="filteradamw")
    parser.add_argument("--text", default=__file__, help="any file: it is read as bytes")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--steps", type=int, default=60, help="steps of the whole schedule")
    parser.add_argument("--until", type=int, help="stop after this step, to resume later")
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--checkpoint")
    return parser.parse_args(given)


if __name__ == "__main__":
    main(arguments())
