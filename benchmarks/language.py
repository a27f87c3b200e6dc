"""The time of a language model's step in the lab, beside forward, backward and step alone.

    python benchmarks/language.py [--device cuda] [--optimizer adamw] [--rounds 5] [--quick]

`bare` is forward, backward and the optimizer's step on one fixed batch, captured and compiled as in
the trainer. `trainer` is a step as the lab runs it (windows, clipping, learning rates, sums for the
metrics); `all in` has its share of an evaluation every 100 steps too. Both are measured in turns,
and the medians are compared. The share of the peak counts 6 N D operations: N parameters, all of
which take part in products, and D tokens. The text is random tokens.

`--quick` is for a CPU: `gpt-tiny`, few steps. Prints a table and writes
results/bench-language-DEVICE.json.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from sgdf_lab.data.tokens import Tokens
from sgdf_lab.models.language import build_gpt
from sgdf_lab.registry.models import GPTS
from sgdf_lab.runs import config as configs
from sgdf_lab.support.files import write_json
from sgdf_lab.tasks.language import LanguageModel
from sgdf_lab.training.tokens import EvaluationWindows, TokenBatches
from timing import Bare, epoch, made_by, timed

PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}  # dense bf16 operations per second


class Case(NamedTuple):
    model: str
    batch: int  # windows of the model's context
    vocabulary: int
    steps: int  # between two evaluations


CASES = (Case("gpt-11m", 64, 256, 100), Case("gpt-124m", 32, 50304, 100))
QUICK = (Case("gpt-tiny", 2, 256, 4),)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--models", nargs="+", help="default: all")
    parser.add_argument("--rounds", type=int, default=5, help="measured evaluations of each")
    parser.add_argument("--quick", action="store_true", help="a tiny model and few steps")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    cases = [
        case
        for case in (QUICK if options.quick else CASES)
        if not options.models or case.model in options.models
    ]
    rows = []
    for case in cases:
        rows.append(
            measured(case, options.optimizer, device, 2 if options.quick else options.rounds)
        )
        print(rows[-1], flush=True)
    show(rows)
    out = options.out or Path(f"results/bench-language-{device.type}.json")
    record = {
        **made_by(device),
        "optimizer": options.optimizer,
        "peak_flops": peak_of(device),
        "rows": rows,
    }
    write_json(out, record, indent=1)
    print("wrote", out)


def peak_of(device: torch.device) -> float | None:
    """The dense bf16 peak of a GPU that is known."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((peak for words, peak in PEAKS.items() if words in name), None)


def build(case: Case, optimizer: str, device: torch.device) -> LanguageModel:
    context = GPTS[case.model].context
    config = configs.make(
        "text",
        model=case.model,
        optimizer=optimizer,
        precision="bf16",
        data="synthetic",
        overrides={"batch": case.batch, "eval_every": case.steps, "steps": 1000 * case.steps},
    )
    random = np.random.default_rng(0)
    dtype = np.uint8 if case.vocabulary <= 256 else np.uint16
    length = 1 << (14 if case in QUICK else 20)
    text = random.integers(0, case.vocabulary, length, dtype=dtype)
    cut = len(text) - len(text) // 20
    tokens = Tokens(text[:cut], text[cut:], case.vocabulary, len(text) - cut, "", "random tokens")
    torch.manual_seed(0)
    model = build_gpt(case.model, vocabulary=case.vocabulary).to(device)
    batches = TokenBatches(
        tokens, device, seed=0, steps=case.steps, batch=case.batch, context=context
    )
    most = config.option("eval_tokens")
    evaluation = EvaluationWindows(tokens.validation, device, context=context, most=most)
    trainer = LanguageModel(config, model, batches, device)
    trainer.evaluation = evaluation
    return trainer


def measured(case: Case, optimizer: str, device: torch.device, rounds: int) -> dict:
    lab = build(case, optimizer, device)
    for _ in range(4 if lab.graphs else 1):  # until every graph is captured
        epoch(lab)
        lab.metrics()
    bare = Bare(other := build(case, optimizer, device), loss_of_a_batch(other))
    bare(max(case.steps // 4, 4))
    bare_ms, trainer_ms, evaluation_ms = [], [], []
    for _ in range(rounds):
        bare_ms.append(1000 * timed(lambda: bare(case.steps), device) / case.steps)
        trainer_ms.append(1000 * timed(lambda: epoch(lab), device) / case.steps)
        evaluation_ms.append(1000 * timed(lab.metrics, device))
    parameters = sum(p.numel() for p in lab.model.parameters())
    tokens = case.batch * GPTS[case.model].context
    all_in = median(trainer_ms) + median(evaluation_ms) / case.steps
    peak = peak_of(device)
    rate = 6 * parameters * tokens / (median(trainer_ms) / 1000)
    return {
        **case._asdict(),
        "context": GPTS[case.model].context,
        "parameters": parameters,
        "clip": lab.config.clip,
        "bare_ms": bare_ms,
        "trainer_ms": trainer_ms,
        "evaluation_ms": evaluation_ms,
        "all_in_ms": all_in,
        "overhead": median(trainer_ms) / median(bare_ms) - 1,
        "tokens_per_s": tokens / (all_in / 1000),
        "flops": rate,
        "share_of_peak": rate / peak if peak else None,
    }


def loss_of_a_batch(lab: LanguageModel) -> Callable[[], torch.Tensor]:
    lab.batches.begin(0)
    tokens, following = lab.batches.take(lab.batches.position, lab.config.batch)
    count = tokens.numel()
    return lambda: lab._token_losses(tokens, following) / count


def show(rows: list[dict]) -> None:
    table = Table(title="A language model's step in the trainer and alone (medians)")
    table.add_column("model")
    for name in (
        "tokens", "bare ms", "trainer ms", "overhead", "all in ms", "TFLOP/s", "of the peak"
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for row in rows:
        share = row["share_of_peak"]
        table.add_row(
            row["model"],
            f"{row['batch']} x {row['context']}",
            f"{median(row['bare_ms']):.3f}",
            f"{median(row['trainer_ms']):.3f}",
            f"{100 * row['overhead']:+.1f} %",
            f"{row['all_in_ms']:.3f}",
            f"{row['flops'] / 1e12:.1f}",
            f"{100 * share:.1f} %" if share else "",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
