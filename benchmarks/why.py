"""Why the filter helps in front of Adam: estimates of a language model's gradient, measured.

    python benchmarks/why.py [--data FILE] [--optimizer filter-adamw] [--device cuda] [--quick]

A GPT is trained as in the lab (cosine schedule, clipped gradients, bf16 products on a GPU). Before
each measured step, over `--span` steps, `--replicas` independent batches at every point of the
run feed as many copies of the filter, which start from the run's own moments. Then, with
the gradient over `--truth` batches as the truth:

    errors    of m^, of m^ + K (g - m^) and others about the truth, before and after Adam's division
    angles    of the estimates, and of what the filter changes, with the truth
    gains     where K is large, the best constant gain there, and K by layer
    steps     decrease of the loss on held-out windows by steps of equal size along each

All gradients are in the precision of the run. Those of training and replicas are clipped; the
truth is multiplied by the mean factor of the replicas' clipping in that step, so that the clipping
does not count as an error. Losses of the steps are in float32 (no TF32). The text is made by the
lab's grammar unless `--data` names a file; its last 5 % are held out. `--quick` is for a CPU:
`gpt-tiny`, few steps.

Prints a table per point and writes results/why-gpt.json (with --quick results/why-gpt-tiny.json),
after every point, so that a killed run leaves what it has. `--figures FROM.json` draws the figures
of docs/why.md, whose tables `benchmarks/pages.py` fills, and measures nothing.
"""

import argparse
import copy
import json
import math
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import why_directions as directions
from sgdf import FilterAdamW
from sgdf_lab.data.synthetic import make_text
from sgdf_lab.data.tokens import split_of
from sgdf_lab.models.language import build_gpt
from sgdf_lab.registry.models import GPTS
from sgdf_lab.support import provenance
from sgdf_lab.support.files import write_json
from sgdf_lab.support.numerics import full_precision
from sgdf_lab.training.batches import seed_for
from sgdf_lab.training.schedules import Shape, factors
from sgdf_lab.training.tokens import EvaluationWindows, resident, windows
from why_directions import (
    DirectionFilter,
    TriedSteps,
    gains_by_part,
    mean_of,
    parts_of,
    ratio_of,
)

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
EPS, CLIP, DECAY = 1e-8, 1.0, 0.1
SHORT = 0.25  # the shorter steps that are tried, in lengths of the run's own step
IN_SPREADS = (0, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5)  # edges of bins
BY_SNR = (0, 0.1, 0.2, 0.3, 0.5, 1)
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "filter-adamw": lambda params, **shared: FilterAdamW(params, gain_scale=1.0, **shared),
    "adamw": torch.optim.AdamW,
}


class Case(NamedTuple):
    """What is trained and how much is measured."""

    model: str
    batch: int  # windows of the model's context
    lr: float
    steps: int
    points: tuple[int, ...]
    span: int
    replicas: int
    truth: int  # batches
    held_out: int  # windows
    generated: int  # bytes of text, if none is given


FULL = Case("gpt-11m", 64, 1e-3, 1500, (50, 200, 600, 1400), 40, 12, 256, 128, 1 << 22)
QUICK = Case("gpt-tiny", 16, 2e-3, 300, (40, 120, 280), 24, 6, 64, 32, 1 << 19)


def main() -> None:
    options = arguments()
    if options.figures:
        draw_figures(json.loads(options.figures.read_text(encoding="utf-8")))
        return
    case = chosen_case(options)
    device = torch.device(options.device)
    tokens = text_of(options.data, case.generated)
    training = Training(case, options, tokens, device)
    out = options.out or ROOT / "results" / (
        "why-gpt-tiny.json" if options.quick else "why-gpt.json"
    )
    record = {
        "command": command(sys.argv[1:]),
        "commit": provenance.commit(),
        "machine": provenance.machine(device.type),
        "text": options.data.name if options.data else "synthetic",
        "optimizer": options.optimizer,
        **case._asdict(),
        **{"betas": options.betas, "seed": options.seed, "clip": CLIP, "weight_decay": DECAY},
        "parameters": len(training.weights()),
        "precision": "bf16 products" if device.type == "cuda" else "float32",
        "points": [],
    }
    for point in training.run():
        record["points"].append(point)
        record["seconds"] = training.seconds
        show(point)
        write_json(out, for_json(record), indent=1)
    print("seconds:", {name: round(s, 1) for name, s in training.seconds.items()})
    print("wrote", out)


def draw_figures(record: dict[str, Any]) -> None:
    """Draw the figures of docs/why.md; `benchmarks/pages.py` fills its tables."""
    from sgdf_lab.support.figures import write_svg
    from why_page import all_figures

    for name, figure in all_figures(record).items():
        print("wrote", write_svg(figure, DOCS / "figures" / name))


def command(words: list[str]) -> str:
    """As it was given, without the folders of files, which differ from machine to machine."""
    return shlex.join(["python", "benchmarks/why.py", *(word.split("/")[-1] for word in words)])


def for_json(value: Any) -> Any:
    """Replace NaN and infinity by None: JSON has neither."""
    if isinstance(value, dict):
        return {key: for_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [for_json(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a text; default: generated")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="filter-adamw")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="a tiny model and few steps")
    parser.add_argument("--lr", type=float)
    parser.add_argument("--betas", nargs=2, type=float, default=(0.9, 0.999))
    parser.add_argument("--steps", type=int, help="of the schedule")
    parser.add_argument("--points", nargs="+", type=int, help="measured steps")
    parser.add_argument("--span", type=int, help="steps of the replicas before a measured step")
    parser.add_argument("--replicas", type=int, help="at least 3")
    parser.add_argument("--truth", type=int, help="batches of a true gradient")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figures", type=Path, metavar="FROM.json", help="draw, measure nothing")
    return parser.parse_args()


def chosen_case(options: argparse.Namespace) -> Case:
    case = QUICK if options.quick else FULL
    names = ("lr", "steps", "points", "span", "replicas", "truth")
    own = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    case = case._replace(**own)
    first, last = min(case.points), max(case.points)
    if not case.span <= first <= last <= case.steps:
        raise SystemExit(f"points lie between span ({case.span}) and steps ({case.steps})")
    return case


class Text(NamedTuple):
    train: np.ndarray
    held_out: np.ndarray


def text_of(path: Path | None, size: int) -> Text:
    """Bytes of a file or of the grammar: what is trained on, and the rest."""
    text = np.fromfile(path, dtype=np.uint8) if path else make_text(size).copy()
    cut = split_of(text)
    return Text(text[:cut], text[cut:])


# --- the run --------------------------------------------------------------------------------------


class Training:
    """A GPT in training; its gradients, as vectors of all parameters."""

    def __init__(
        self, case: Case, options: argparse.Namespace, text: Text, device: torch.device
    ) -> None:
        self.case, self.device, self.seed = case, device, options.seed
        self.context = GPTS[case.model].context
        torch.manual_seed(seed_for("weights", self.seed))
        self.model = build_gpt(case.model, vocabulary=256).to(device)
        self.twin = copy.deepcopy(self.model)  # takes the steps that are only tried
        self.parameters = list(self.model.parameters())
        self.betas = tuple(options.betas)
        self.optimizer = OPTIMIZERS[options.optimizer](
            self.parameters, lr=case.lr, betas=self.betas, eps=EPS, weight_decay=DECAY
        )
        self.tokens = resident(text.train, device)
        most = case.held_out * self.context
        self.held_out = EvaluationWindows(text.held_out, device, context=self.context, most=most)
        self.filter = DirectionFilter(self.betas, torch.float32)
        self.seconds: dict[str, float] = {}

    def run(self) -> Iterator[dict[str, Any]]:
        """Train; give what was measured at each point, before its step."""
        case, replicas, clipped = self.case, None, []
        shape = Shape(warmup=0.05)
        rates = factors("cosine", shape, first=0, count=case.steps, steps=case.steps)
        for step in range(1, max(case.points) + 1):
            lr = case.lr * rates[step - 1]
            point = next(p for p in sorted(case.points) if p >= step)
            if step == point - case.span + 1:
                replicas, clipped = self.filter.repeated(case.replicas), []
            if replicas is not None:
                with self.timed("replicas"):
                    pairs = [self.clipped(f"replica {r}", step) for r in range(case.replicas)]
                    g = torch.stack([vector for vector, _ in pairs])
                    factor = float(np.mean([factor for _, factor in pairs]))
                    clipped += [factor < 1 for _, factor in pairs]
                    replicas(g)
                if step == point:
                    with self.timed("measurement"):
                        found = Measurement(self, replicas, g, lr, factor).everything()
                    share = float(np.mean(clipped))
                    yield {"step": step, "lr": lr, "clipped": share, "factor": factor, **found}
                    replicas = None
            with self.timed("training"):
                self.step(lr, self.clipped("training", step)[0])

    def step(self, lr: float, g: Tensor) -> None:
        self.filter(g)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        sizes = [p.numel() for p in self.parameters]
        for p, part in zip(self.parameters, g.split(sizes), strict=True):
            p.grad = part.view_as(p)
        self.optimizer.step()

    # --- gradients ---

    def clipped(self, stream: str, step: int) -> tuple[Tensor, float]:
        """The gradient of a batch as an optimizer gets it, and the factor of its clipping."""
        g, _ = self.gradient(stream, step)
        norm = g.norm().item()
        if not math.isfinite(norm):
            raise SystemExit(f"the gradient is not finite at step {step}: lower the learning rate")
        factor = min(1.0, CLIP / norm) if norm else 1.0
        return g * factor, factor

    def gradient(self, stream: str, step: int) -> tuple[Tensor, Tensor]:
        """The gradient over the windows of a stream's step, and the loss."""
        random = np.random.default_rng(seed_for(stream, self.seed, step))
        last = len(self.tokens) - self.context
        starts = torch.from_numpy(random.integers(0, last, self.case.batch)).to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.tokens.is_cuda):
            loss = self.loss(self.model, *windows(self.tokens, starts, self.context))
        grads = torch.autograd.grad(loss, self.parameters)
        return torch.cat([g.flatten() for g in grads]), loss.detach()

    @staticmethod
    def loss(model: torch.nn.Module, tokens: Tensor, following: Tensor) -> Tensor:
        return F.cross_entropy(model(tokens).float().flatten(0, 1), following.flatten())

    # --- losses ---

    def weights(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.parameters])

    @torch.no_grad()
    def held_out_loss(self, weights: Tensor) -> float:
        """The loss of the twin with these weights, in full precision."""
        place = 0
        for p in self.twin.parameters():
            p.copy_(weights[place : place + p.numel()].view_as(p))
            place += p.numel()
        with full_precision():
            batches = self.held_out.batches(0, len(self.held_out))
            losses = [self.loss(self.twin, *batch).double() * len(batch[0]) for batch in batches]
        return (torch.stack(losses).sum() / len(self.held_out)).item()

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        if what == "measurement" and self.tokens.is_cuda:
            torch.cuda.synchronize()
        self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - start


# --- the measurement ------------------------------------------------------------------------------


class Measurement:
    """What is measured at one point, from rows of replicas: g, their moments and the truth."""

    def __init__(
        self, training: Training, rows: DirectionFilter, g: Tensor, lr: float, factor: float
    ) -> None:
        self.training, self.rows, self.g, self.lr = training, rows, g, lr
        with training.timed("truth, part of the measurement"):
            first, second, mean_square, self.loss = self.truth()
        self.first, self.second = factor * first, factor * second
        self.mean_square = factor**2 * mean_square
        self.estimates = rows.estimates()
        self.denominator = rows.second.sqrt() + EPS
        self.noise = (self.mean_square - ((self.first + self.second) / 2).square()).clamp(min=0)

    def truth(self) -> tuple[Tensor, Tensor, Tensor, float]:
        """Means of two halves of the batches, the mean square of a batch's gradient, the loss."""
        count = self.training.case.truth // 2
        halves, square, losses = [], 0.0, []
        for half in range(2):
            total = torch.zeros_like(self.g[0])
            for i in range(count):
                g, loss = self.training.gradient("truth", half * count + i)
                total += g / count
                square = square + g.square() / (2 * count)
                losses.append(loss)
            halves.append(total)
        return halves[0], halves[1], torch.as_tensor(square), torch.stack(losses).mean().item()

    def everything(self) -> dict[str, Any]:
        return {
            "loss": self.loss,
            "held_out_loss": self.training.held_out_loss(self.training.weights()),
            "signal": directions.squared_length(self.first, self.second) / len(self.first),
            "noise": self.noise.double().mean().item(),
            "plain": self.angles(1.0, 1.0),
            "adam": self.angles(self.denominator, self.mean_square.sqrt() + EPS),
            "changes": self.changes(),
            "gain_by": self.gain_profiles(),
            "gains": [asdict(part) for part in self.gains()],
            "steps": self.steps(),
        }

    def angles(self, denominator: Any, of_truth: Any) -> dict[str, Any]:
        """Errors, cosines and sizes of the estimates over a denominator, and the truth over its."""
        first, second = self.first / of_truth, self.second / of_truth
        errors = {
            name: directions.errors_about(rows / denominator, first, second)
            for name, rows in self.estimates.items()
        }
        found = {}
        for name, parts in errors.items():
            rows = self.estimates[name] / denominator
            found[name] = {
                **{part: asdict(getattr(parts, part)) for part in ("bias2", "variance", "mse")},
                "ratio": asdict(ratio_of(parts.squares, errors["average"].squares)),
                "cosine": asdict(mean_of(self.downhill(rows))),
                "sign_cosine": asdict(
                    mean_of(directions.sign_cosines(rows, self.first + self.second))
                ),
                "size": asdict(mean_of(directions.sizes(rows))),
            }
        return found

    def downhill(self, rows: Tensor) -> list[float]:
        return directions.cosines(rows, self.first, self.second)

    def changes(self) -> dict[str, Any]:
        """Whether what an estimate changes about m^ points downhill: its cosine with the truth.

        A constant gain of any size changes m^ along the plain residual.
        """
        names = {"K": "K", "K-eps": "K-eps", "residual": "gradient"}
        average, found = self.estimates["average"], {}
        for name, estimate in names.items():
            change = self.estimates[estimate] - average
            found[name] = {
                "plain": asdict(mean_of(self.downhill(change))),
                "adam": asdict(mean_of(self.downhill(change / self.denominator))),
            }
        return found

    # --- gains ---

    def gain_profiles(self) -> dict[str, Any]:
        """K and the best gain by what a coordinate is like, in both metrics."""
        average = self.estimates["average"]
        residual, gain = self.g - average, self.rows.gain
        mean = (self.first + self.second) / 2
        tiny = torch.finfo(gain.dtype).tiny
        spread = self.rows.spread().clamp(min=tiny)
        # The bins of the signal come from one half of the truth, the best gain from the other.
        signal = (self.first.abs() / self.noise.sqrt().clamp(min=tiny)).expand_as(self.g)
        kinds = {
            "all": (torch.zeros_like(self.g), (0,), mean),
            "residual": (residual.abs() / spread, IN_SPREADS, mean),
            "gradient": (self.g.abs() / self.denominator, IN_SPREADS, mean),
            "signal": (signal, BY_SNR, self.second),
        }
        weights = {"plain": None, "adam": self.denominator.double() ** -2}
        return {
            kind: {
                metric: [
                    asdict(found)
                    for found in directions.best_gains(
                        size, edges, residual, truth - average, gain, weight
                    )
                ]
                for metric, weight in weights.items()
            }
            for kind, (size, edges, truth) in kinds.items()
        }

    def gains(self) -> list[Any]:
        parts = parts_of(self.training.model)
        return gains_by_part(self.rows.gain, parts, self.training.seed)

    # --- steps ---

    def steps(self) -> dict[str, Any]:
        """Decrease of the held-out loss by steps of equal size, beside those along m^."""
        own = self.lr * float(
            np.mean(directions.sizes(self.estimates["average"] / self.denominator))
        )
        weights, loss_at = self.training.weights(), self.training.held_out_loss
        found: dict[str, Any] = {"size": own}
        for metric, denominator in (("plain", 1.0), ("adam", self.denominator)):
            tried = {}
            for name, rows in self.estimates.items():
                short, full = (
                    directions.decreases(loss_at, weights, rows / denominator, own * part)
                    for part in (SHORT, 1.0)
                )
                tried[name] = TriedSteps(SHORT, short, full)
            found[metric] = {
                name: summary_of(steps, tried["average"]) for name, steps in tried.items()
            }
        return found


def summary_of(steps: TriedSteps, average: TriedSteps) -> dict[str, Any]:
    return {
        "decrease": asdict(mean_of(steps.full)),
        "lead": asdict(mean_of(np.subtract(steps.full, average.full))),
        "short decrease": asdict(mean_of(steps.short)),
        "short lead": asdict(mean_of(np.subtract(steps.short, average.short))),
        **steps.summary(),
        "over average": {name: asdict(ratio) for name, ratio in steps.over(average).items()},
        "tried": asdict(steps),
    }


# --- the screen -----------------------------------------------------------------------------------


def show(point: dict[str, Any]) -> None:
    print(
        f"\nstep {point['step']}: loss {point['loss']:.3f}, held out {point['held_out_loss']:.3f}, "
        f"lr {point['lr']:.2e}, clipped {point['clipped']:.0%}, noise / signal per coordinate "
        f"{point['noise'] / point['signal']:.3g}"
    )
    header = (
        "error / m^'s", "bias^2 / m^'s error", "cosine", "size / m^'s", "lead, short", "lead",
        "slope / m^'s", "cost / m^'s",
    )  # fmt: skip
    for metric in ("plain", "adam"):
        print(f"\n{metric:9s}" + "".join(f"{word:>20s}" for word in header))
        average = point[metric]["average"]
        for name, row in point[metric].items():
            step = point["steps"][metric][name]
            over = step["over average"]
            cells = (
                with_error(row["ratio"]), f"{row['bias2']['value'] / average['mse']['value']:.3f}",
                with_error(row["cosine"]), f"{row['size']['value'] / average['size']['value']:.3f}",
                with_error(step["short lead"], 3), with_error(step["lead"], 3),
                with_error(over["slope"]), with_error(over["cost"]),
            )  # fmt: skip
            print(f"{name:9s}" + "".join(f"{cell:>20s}" for cell in cells))
    for metric in ("plain", "adam"):
        (found,) = point["gain_by"]["all"][metric]
        print(f"{metric}: K {found['gain']:.4f}, best constant gain {with_error(found['best'])}")
    print("downhill:", {n: {m: with_error(v) for m, v in c.items()} for n, c in
                        point["changes"].items()}, flush=True)  # fmt: skip


def with_error(number: dict[str, float], exponent: int = 0) -> str:
    scale = 10.0**exponent
    return f"{scale * number['value']:.3f} ± {scale * number['error']:.3f}" + (
        f"e-{exponent}" if exponent else ""
    )


if __name__ == "__main__":
    main()
