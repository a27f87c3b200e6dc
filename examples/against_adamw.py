"""The first row of the README's table without the lab: FilterMuon against AdamW on a small GPT.

python examples/against_adamw.py                        # Python's standard library: a few minutes
python examples/against_adamw.py --text encyclopedia.txt --seeds 1 2 3

The row is "GPT, encyclopedia": 600 steps of 16 windows of 64 bytes. The settings were tuned there,
in 12 trials each; elsewhere they are a guess. For a seed both have the same start and batches.
"""

import argparse
import math
import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sgdf import FilterMuon, param_groups

WIDTH, LAYERS, HEADS, CONTEXT, BATCH = 128, 4, 4, 64, 16


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    groups = param_groups(model, weight_decay=0.1683)
    return torch.optim.AdamW(groups, lr=0.0044, betas=(0.92548, 0.95822))


def filter_muon(model: nn.Module) -> torch.optim.Optimizer:
    settings = {"aux_lr": 0.01343, "weight_decay": 0.2535, "gain_scale": 0.089}
    return FilterMuon(param_groups(model), lr=0.01091, eigenbasis=True, **settings)


OURS = "FilterMuon*"  # as the README calls FilterMuon with an eigenbasis
OPTIMIZERS = {"AdamW": adamw, OURS: filter_muon}


class Block(nn.Module):
    """Causal attention with rotary positions, then two layers; both beside the residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        for name, i, o in (("qkv", 1, 3), ("out", 1, 1), ("into", 1, 4), ("back", 4, 1)):
            self.add_module(name, nn.Linear(i * WIDTH, o * WIDTH, bias=False))

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        parts = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = rotated(parts[0], angles), rotated(parts[1], angles), parts[2]
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.back(F.gelu(self.into(self.norms[1](x))))


class GPT(nn.Module):
    """Logits of the next byte. The head shares its weights with the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 256, bias=False)
        self.head.weight = self.embedding.weight
        for name, p in self.named_parameters():
            if p.dim() == 2:  # smaller where it is added to the residual stream
                added = name.endswith(("out.weight", "back.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * LAYERS if added else 1))
        frequencies = 10_000.0 ** -torch.linspace(0, 1, WIDTH // HEADS // 2 + 1)[:-1]
        self.register_buffer("angles", torch.outer(torch.arange(CONTEXT), frequencies))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.angles)
        return self.head(self.norm(x))


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    one, other, cosine, sine = *x.chunk(2, dim=-1), angles.cos(), angles.sin()
    return torch.cat((one * cosine - other * sine, other * cosine + one * sine), dim=-1)


def loss_of(model: GPT, data: Tensor, starts: Tensor) -> Tensor:
    taken = data[starts[:, None] + torch.arange(CONTEXT + 1)].long()
    return F.cross_entropy(model(taken[:, :-1]).flatten(0, 1), taken[:, 1:].flatten())


def rate(step: int, steps: int) -> float:
    """The factor on the learning rate: warm-up over 5 %, then a cosine to zero."""
    warmup = max(1, round(0.05 * steps))
    cosine = 0.5 + 0.5 * math.cos(math.pi * (step - warmup) / (steps - warmup))
    return (step + 1) / warmup if step < warmup else cosine


@torch.no_grad()
def held_out_loss(model: GPT, data: Tensor) -> float:
    """Of up to 1,024 windows, evenly spread."""
    possible = (len(data) - 1) // CONTEXT
    count = min(1024, possible)
    return loss_of(model, data, torch.arange(count) * possible // count * CONTEXT).item()


def train(name: str, text: Tensor, seed: int, args: argparse.Namespace) -> dict[int, float]:
    """The loss on the last 2.5 % of the text, by step. The 2.5 % before chose the settings."""
    cut, test = int(0.95 * len(text)), text[int(0.975 * len(text)) :]
    torch.manual_seed(seed)
    model = GPT()
    optimizer = OPTIMIZERS[name](model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, args.steps))
    draw = torch.Generator().manual_seed(seed)
    losses = {}
    for step in range(1, args.steps + 1):
        optimizer.zero_grad()
        loss_of(model, text, torch.randint(cut - CONTEXT, (BATCH,), generator=draw)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % max(1, args.steps // 6) == 0 or step == args.steps:
            losses[step] = held_out_loss(model, test)
            print(f"seed {seed}, {name:11s} step {step:4d}: {losses[step]:.3f}", flush=True)
    return losses


def main(args: argparse.Namespace) -> list[dict[str, dict[int, float]]]:
    paths = [Path(args.text)] if args.text else Path(sysconfig.get_path("stdlib")).glob("*.py")
    text = b"\n".join(path.read_bytes() for path in sorted(paths))
    if len(text) < 2000:
        raise SystemExit(f"{args.text} is too short: 2,000 bytes are the least, a million better")
    text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    found = [{name: train(name, text, seed, args) for name in OPTIMIZERS} for seed in args.seeds]
    theirs, ours = ({step: sum(run[name][step] for run in found) / len(found)
                     for step in found[0][name]} for name in OPTIMIZERS)  # fmt: skip
    last = theirs[args.steps]
    reached = next((f"reached at step {n}" for n in ours if ours[n] <= last), "not reached")
    print(f"\nheld-out loss in nats: AdamW {last:.3f}, {OURS} {ours[args.steps]:.3f}")
    print(f"difference {ours[args.steps] - last:+.3f}; AdamW's last loss is {reached}")
    return found


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", help="any file, read as bytes; default: the standard library")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    return parser.parse_args(given)


if __name__ == "__main__":
    main(arguments())
