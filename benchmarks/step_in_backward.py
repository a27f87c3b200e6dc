"""Peak memory and time of an iteration with and without `sgdf.step_in_backward`.

    python benchmarks/step_in_backward.py [--optimizers SGDF FilterAdamW] [--states default int8]

Trains a small GPT (tied embeddings, causal attention) on random tokens: about 350 M bfloat16
parameters on a GPU, a tiny float32 one on a CPU. The gradients exist beside the activations in
backward and without them at the step, so what is saved of the *peak* depends on the activations:
`after forward` is the memory in use when backward starts, below which no optimizer can bring the
peak; `--batch`, `--length` and `--checkpoint` change it. `gradients alive` is the largest size of
gradients that exist at once. Memory is torch's count of allocated bytes, only on a GPU. Both
variants run in turns; times are medians. Prints a table and writes
results/step-in-backward-DEVICE.json.
"""

import argparse
import gc
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

import sgdf
from sgdf_lab.bench.measure import state_bytes
from sgdf_lab.support.files import write_json
from timing import made_by, timed

STATES = {
    "default": None,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
}
MIB = 2**20
WARM_UP = 3


def main() -> None:
    options = arguments()
    rows: dict[tuple[str, str, bool], dict] = {}
    for _ in range(options.rounds):
        for name in options.optimizers:
            for state in options.states:
                for in_backward in (False, True):
                    row = measure(options, name, state, in_backward)
                    before = rows.setdefault((name, state, in_backward), row)
                    if before is not row:
                        before["iteration_ms"] += row["iteration_ms"]
                    print(row, flush=True)
    show(list(rows.values()))
    record = {
        **made_by(torch.device(options.device)),
        "settings": {key: value for key, value in vars(options).items() if key != "out"},
        "rows": list(rows.values()),
    }
    write_json(options.out, record, indent=1)
    print("wrote", options.out)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    gpu = parser.parse_known_args()[0].device == "cuda"
    parser.add_argument("--optimizers", nargs="+", default=["SGDF", "FilterAdamW"])
    parser.add_argument("--states", nargs="+", choices=STATES, default=["default", "int8"])
    parser.add_argument("--dtype", default="bfloat16" if gpu else "float32")
    parser.add_argument("--width", type=int, default=1024 if gpu else 128)
    parser.add_argument("--depth", type=int, default=24 if gpu else 4)
    parser.add_argument("--vocabulary", type=int, default=50_304 if gpu else 256)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=512 if gpu else 32)
    parser.add_argument("--checkpoint", action="store_true", help="recompute blocks in backward")
    parser.add_argument("--iterations", type=int, default=10, help="measured ones of each round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.out = options.out or Path(f"results/step-in-backward-{options.device}.json")
    return options


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 64
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class Transformer(nn.Module):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.checkpoint = options.checkpoint
        self.tokens = nn.Embedding(options.vocabulary, options.width)
        self.places = nn.Parameter(torch.zeros(options.length, options.width))
        self.blocks = nn.ModuleList([Block(options.width) for _ in range(options.depth)])
        self.norm = nn.LayerNorm(options.width)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """The loss of predicting each next token."""
        x = self.tokens(tokens) + self.places
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoint else block(x)
        logits = self.norm(x) @ self.tokens.weight.T
        return cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


class Gradients:
    """The largest size of the gradients that exist at once, counted while `counting`."""

    def __init__(self, model: nn.Module) -> None:
        self.params = list(model.parameters())
        self.counting, self.peak = False, 0
        # Before step_in_backward, so that they are called before the update.
        self.hooks = [p.register_post_accumulate_grad_hook(self.count) for p in self.params]

    def remove(self) -> None:
        """Break the cycle of parameters and hooks, which Python cannot collect."""
        for hook in self.hooks:
            hook.remove()

    def count(self, _: Tensor) -> None:
        if self.counting:
            alive = [p.grad for p in self.params if p.grad is not None]
            self.peak = max(self.peak, sum(bytes_of(g) for g in alive))


def measure(options: argparse.Namespace, name: str, state: str, in_backward: bool) -> dict:
    """One variant, alone in memory."""
    device = torch.device(options.device)
    release(device)
    torch.manual_seed(0)
    model = Transformer(options).to(device, getattr(torch, options.dtype))
    gradients = Gradients(model)
    optimizer = getattr(sgdf, name)(model.parameters(), lr=1e-3, state_dtype=STATES[state])
    if in_backward:
        sgdf.step_in_backward(optimizer)
    shape = (options.batch, options.length)
    tokens = torch.randint(options.vocabulary, shape, device=device)

    after_forward, losses = [], []

    def iteration() -> None:
        optimizer.zero_grad()
        loss = model(tokens)
        after_forward.append(allocated(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

    for i in range(WARM_UP):
        gradients.counting = i == WARM_UP - 1
        iteration()
    gradients.counting = False
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = [1000 * timed(iteration, device) for _ in range(options.iterations)]
    gradients.remove()
    return {
        "optimizer": name,
        "state": state,
        "in_backward": in_backward,
        "parameters": sum(p.numel() for p in model.parameters()),
        "parameter_bytes": sum(map(bytes_of, model.parameters())),
        "state_bytes": state_bytes(optimizer),
        "gradient_bytes_alive": gradients.peak,
        "after_forward_bytes": after_forward[-1],
        "peak_bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
        "iteration_ms": times,
        "last_loss": losses[-1].item(),
    }


def bytes_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def allocated(device: torch.device) -> int | None:
    return torch.cuda.memory_allocated() if device.type == "cuda" else None


def release(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def show(rows: list[dict]) -> None:
    count = rows[0]["parameters"] / 1e6
    table = Table(title=f"MiB of a transformer with {count:.1f} M parameters, and ms per iteration")
    for name in ("optimizer", "state", "step in"):
        table.add_column(name)
    numbers = ("parameters", "state", "gradients alive", "after forward", "peak", "saved", "ms")
    for name in numbers:
        table.add_column(name, justify="right")
    for row in rows:
        sizes = [row[f"{key}_bytes"] for key in ("parameter", "state", "after_forward", "peak")]
        sizes.insert(2, row["gradient_bytes_alive"])
        ordinary = next(
            other
            for other in rows
            if (other["optimizer"], other["state"]) == (row["optimizer"], row["state"])
        )
        saved = (
            ""
            if ordinary is row or row["peak_bytes"] is None
            else (f"{100 * (1 - row['peak_bytes'] / ordinary['peak_bytes']):.1f} %")
        )
        table.add_row(
            row["optimizer"],
            row["state"],
            "backward" if row["in_backward"] else "step()",
            *("" if size is None else f"{size / MIB:.1f}" for size in sizes),
            saved,
            f"{median(row['iteration_ms']):.1f}",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
