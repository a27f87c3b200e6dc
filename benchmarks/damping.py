"""Does a constant gain train better because it damps? The experiment of docs/damping.md.

    python benchmarks/damping.py --data encyclopedia.txt
    python benchmarks/damping.py --figures          # draw the figures, measure nothing

The protocol is on that page: rates; results with innovations and errors; steep directions; the
projection; the other gains, larger rates, Muon; more seeds of the projection. Writes
results/damping.json after every run, and goes on where it stopped if the command is given again.
`--minutes` of processor time at most. `--tiny` is for a test: a text of the lab's grammar and a few
steps, written to --out.
"""

import argparse
import json
import math
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import damping_run as runs
from damping_run import Run, Setting, Text
from sgdf_lab.data.synthetic import make_text
from sgdf_lab.data.tokens import split_of
from sgdf_lab.support import provenance
from sgdf_lab.support.files import write_json

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "results" / "damping.json"
KICK = 1e-3  # nats that it costs at the first moment


class Case(NamedTuple):
    """The protocol's numbers."""

    setting: Setting
    gains: tuple[float, ...]
    compared: float  # the gain that is followed beside none
    searched: tuple[float, ...]  # rates
    larger: tuple[float, ...]  # rates that are run last; only the Muon step chooses from them
    choice_seed: int
    seeds: tuple[int, ...]
    added_seeds: tuple[int, ...]  # of the lead and the projection
    window: int  # steps of a correlation
    every: int  # steps between two errors
    truth: int  # batches
    points: tuple[int, ...]
    span: int
    directions: int
    kicked: int
    curvature: int  # windows at a point
    refresh: int  # steps between two searches of the projected directions
    projected: int  # windows of a search


FULL = Case(
    Setting("gpt-tiny", 16, 300, 512), (0.0, 0.05, 0.1, 0.2, 0.3), 0.1,
    (0.003, 0.006, 0.012), (0.024, 0.048), 0, (1, 2, 3),
    (4, 5, 6, 7, 8), 50, 20, 32, (60, 150, 240), 50, 10, 2, 64,
    30, 32,
)  # fmt: skip
TINY = Case(
    Setting("gpt-tiny", 2, 14, 4), (0.0, 0.1), 0.1, (0.003, 0.006), (0.012,), 0, (1, 2), (3,), 7,
    5, 2, (6,), 6, 3, 2, 2, 5, 2,
)  # fmt: skip

Row = dict[str, Any]


class Experiment:
    """The protocol's runs in its order; each is a row of the record, found by its key."""

    def __init__(self, case: Case, text: Text, record: dict[str, Any]) -> None:
        self.case, self.text, self.record = case, text, record
        self.rows: dict[str, Row] = record["rows"]

    def plan(self) -> Iterator[tuple[str, Callable[[], Row]]]:
        """Keys and what makes their rows; later ones read the rows of earlier ones."""
        case, compared = self.case, self.case.compared
        pair = (0.0, compared)
        others = tuple(gain for gain in case.gains if gain not in pair)
        yield from self.choices("adamw", pair, case.searched, self.loss)
        for seed in case.seeds:
            yield from self.results(pair, seed)
        first, *later = case.seeds
        yield from self.all_directions([first])
        yield from self.projections(case.seeds)
        yield from self.all_directions(later)
        yield from self.choices("adamw", others, case.searched, self.loss)
        for seed in case.seeds:
            yield from self.results(others, seed)
        point = case.points[len(case.points) // 2]
        for seed in case.seeds:
            key = f"directions on gain {compared:g}, step {point}, seed {seed}"
            yield key, lambda p=point, s=seed: self.directions(compared, p, s)
        yield from self.choices("adamw", case.gains, case.larger, self.loss)
        yield from self.choices("muon", case.gains, rates_of(case, "muon"), self.muon)
        for gain in case.gains:
            for seed in case.seeds:
                key = f"result muon, gain {gain:g}, seed {seed}"
                yield key, lambda g=gain, s=seed: self.muon(g, self.rate(g, "muon"), s)
        for seed in case.added_seeds:
            for gain in pair:
                key = f"result adamw, gain {gain:g}, seed {seed}"
                yield key, lambda g=gain, s=seed: self.loss(g, self.rate(g), s)
        yield from self.projections(case.added_seeds)

    def projections(self, seeds: tuple[int, ...]) -> Iterator[tuple[str, Callable[[], Row]]]:
        for seed in seeds:
            for kept in ("without", "only"):
                key = f"projection {kept}, seed {seed}"
                yield key, lambda s=seed, k=kept: self.projection(s, k)

    def all_directions(self, seeds: list[int]) -> Iterator[tuple[str, Callable[[], Row]]]:
        for seed in seeds:
            for point in self.case.points:
                key = f"directions on gain 0, step {point}, seed {seed}"
                yield key, lambda p=point, s=seed: self.directions(0.0, p, s)

    def results(
        self, gains: tuple[float, ...], seed: int
    ) -> Iterator[tuple[str, Callable[[], Row]]]:
        for gain in gains:
            yield f"result adamw, gain {gain:g}, seed {seed}", lambda g=gain: self.result(g, seed)

    def choices(
        self,
        step: str,
        gains: tuple[float, ...],
        rates: tuple[float, ...],
        loss: Callable[[float, float, int], Row],
    ) -> Iterator[tuple[str, Callable[[], Row]]]:
        for gain in gains:
            for lr in rates:
                key = f"rate {step}, gain {gain:g}, lr {lr:g}"
                yield key, lambda g=gain, r=lr: loss(g, r, self.case.choice_seed)

    def rate(self, gain: float, step: str = "adamw") -> float:
        """The chosen one: the lowest loss with the seed of the choice."""
        return chosen_rate(self.rows, rates_of(self.case, step), gain, step)

    # --- losses ---

    def run(self, seed: int, gain: float) -> Run:
        return Run(self.case.setting, self.text, seed, gain)

    def loss(self, gain: float, lr: float, seed: int) -> Row:
        run = self.run(seed, gain)
        for _ in run.through(lr, run.setting.steps):
            pass
        return {"lr": lr, "loss": run.held_out_loss()}

    def muon(self, gain: float, lr: float, seed: int) -> Row:
        return {"lr": lr, "loss": runs.muon_loss(self.case.setting, self.text, seed, gain, lr)}

    def result(self, gain: float, seed: int) -> Row:
        """The loss; with no gain and with the compared one, innovations and errors on the way."""
        lr = self.rate(gain)
        if gain not in (0.0, self.case.compared):
            return self.loss(gain, lr, seed)
        run = self.run(seed, gain)
        innovations, correlations, errors = runs.Innovations(run), [], []
        expected = None
        for step, factor in run.through(lr, run.setting.steps):
            if expected is not None:
                innovations.add(run.filter.g - expected, run.denominator())
            expected = run.filter.m_hat
            if step % self.case.window == 0:
                correlations.append({"step": step, **innovations.take()})
            if step % self.case.every == 0:
                halves = [factor * half for half in self.truth(run, step)]
                errors.append({"step": step, **runs.error_terms(run, halves)})
        return {
            "lr": lr, "loss": run.held_out_loss(), "layers": run.layers(),
            "correlations": correlations, "errors": errors,
        }  # fmt: skip

    def truth(self, run: Run, step: int) -> list[torch.Tensor]:
        """The mean gradients of two halves of other batches."""
        count = self.case.truth // 2
        return [
            sum(run.gradient(f"truth {half} {i}", step) for i in range(count)) / count
            for half in range(2)
        ]

    # --- steep directions ---

    def directions(self, gain: float, point: int, seed: int) -> Row:
        """x along the steepest ones; from runs without a gain, the swings and the kicks too."""
        case, lr = self.case, self.rate(gain)
        run = self.run(seed, gain)
        next(step for step, _ in run.through(lr, point) if step == point)
        now = lr * run.rates[point - 1]
        state = run.state()
        steep = runs.steepest(run, point, case.curvature, case.directions, 1e-3)
        row: Row = {"lr": now, "eigenvalues": steep.values.tolist()}
        if gain:
            return row
        row["branches"] = {}
        for branch in (0.0, case.compared):
            base = self.positions(run, state, steep, now, branch, point)
            kicks = []
            for i in range(min(case.kicked, len(steep.values))):
                size = math.sqrt(2 * KICK / steep.values[i])
                kick = size * steep.vectors[:, i] / steep.root
                moved = self.positions(run, state, steep, now, branch, point, kick)
                kicks.append(((moved[:, i] - base[:, i]) / size).tolist())
            row["branches"][f"{branch:g}"] = {
                "swing": (steep.values / 2 * runs.swing(base)).tolist(), "kicks": kicks
            }  # fmt: skip
        return row

    def positions(
        self, run: Run, state: Any, steep: runs.Steep, lr: float, gain: float, point: int,
        kick: torch.Tensor | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Steps x directions: where the run is, relative to the point it started from."""
        path = run.branch(state, lr, gain, point + 1, self.case.span, kick)
        return np.array([steep.along(weights - state[0]).tolist() for weights in path])

    # --- the projection ---

    def projection(self, seed: int, kept: str) -> Row:
        """A run whose correction loses, or keeps nothing but, its part along steep directions."""
        case, lr = self.case, self.rate(self.case.compared)
        run = self.run(seed, case.compared)
        steep, shares, overlaps, found = None, [], [], []
        for step in range(1, run.setting.steps + 1):
            run.observe(step)
            if step == 2 or (step > 2 and step % case.refresh == 1):
                start = steep.vectors if steep else None
                new = runs.steepest(run, step, case.projected, case.directions, 0.1, start)
                if steep:
                    overlaps.append(float((new.vectors.T @ steep.vectors).square().sum())
                                    / case.directions)  # fmt: skip
                steep = new
                found.append(len(new.values))
            correction = run.correction()
            if steep:
                part = steep.part(correction)
                whole, inside = ((v / steep.root).square().sum() for v in (correction, part))
                shares.append(float(inside / whole))
                correction = part if kept == "only" else correction - part
            run.move(lr * run.rates[step - 1], correction)
        return {
            "lr": lr, "loss": run.held_out_loss(), "share": float(np.mean(shares)),
            "overlap": float(np.mean(overlaps)), "found": float(np.mean(found)),
        }  # fmt: skip


def rates_of(case: Case, step: str) -> tuple[float, ...]:
    """The rates that are chosen from."""
    return case.searched if step == "adamw" else (*case.searched, *case.larger)


def chosen_rate(
    rows: dict[str, Row], rates: tuple[float, ...], gain: float, step: str = "adamw"
) -> float:
    losses = {lr: rows[f"rate {step}, gain {gain:g}, lr {lr:g}"]["loss"] for lr in rates}
    return min(losses, key=lambda lr: math.inf if losses[lr] is None else losses[lr])


def main() -> None:
    options = arguments()
    if options.figures:
        from damping_page import draw_figures

        draw_figures(json.loads(RECORD.read_text(encoding="utf-8")))
        return
    torch.set_num_threads(1)
    case = TINY if options.tiny else FULL
    text = np.fromfile(options.data, dtype=np.uint8) if options.data else make_text(1 << 16).copy()
    cut = split_of(text)
    record = earlier(options.out, case) or {
        "command": command(sys.argv[1:]),
        "commits": [],
        "machine": provenance.machine("cpu") | {"numpy": np.__version__},
        "text": options.data.name if options.data else "synthetic",
        "case": case_of(case),
        "betas": list(runs.BETAS),
        "clip": runs.CLIP,
        "weight_decay": runs.DECAY,
        "warmup": runs.WARMUP,
        "rows": {},
    }
    if (commit := provenance.commit()) not in record["commits"]:
        record["commits"].append(commit)
    measure(Experiment(case, Text(text[:cut], text[cut:]), record), options.out, options.minutes)
    print("wrote", options.out)


def measure(experiment: Experiment, out: Path, minutes: float) -> None:
    """Fill the record, row by row, up to so many minutes of processor time in all its runs."""
    record = experiment.record
    for key, make in experiment.plan():
        if key in experiment.rows:
            continue
        spent = sum(row["seconds"] for row in experiment.rows.values())
        if spent > 60 * minutes:
            print(f"stopped before {key!r}: the {minutes:g} minutes are used up")
            return
        start = time.process_time()
        row = for_json(make())
        experiment.rows[key] = {**row, "seconds": round(time.process_time() - start, 2)}
        write_json(out, record, indent=None)
        print(f"{key}: {row.get('loss', '')} ({experiment.rows[key]['seconds']} s)", flush=True)


def earlier(out: Path, case: Case) -> dict[str, Any] | None:
    """What a run that was stopped has left, if it was of the same case."""
    if not out.exists():
        return None
    record: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    if record["case"] != case_of(case):
        raise SystemExit(f"{out} is of another case: name another file with --out")
    return record


def case_of(case: Case) -> dict[str, Any]:
    """As it comes back from JSON."""
    words = {**case._asdict(), "setting": case.setting._asdict()}
    return dict(json.loads(json.dumps(words)))


def for_json(value: Any) -> Any:
    """Six digits; None for the infinite loss of a run that broke, which JSON does not have."""
    if isinstance(value, dict):
        return {key: for_json(part) for key, part in value.items()}
    if isinstance(value, list):
        return [for_json(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def command(words: list[str]) -> str:
    """As it was given, without the folders of files, which differ from machine to machine."""
    return shlex.join(["python", "benchmarks/damping.py", *(w.split("/")[-1] for w in words)])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a text; default: generated")
    parser.add_argument("--minutes", type=float, default=25, help="of processor time")
    parser.add_argument("--tiny", action="store_true", help="a few steps, for a test")
    parser.add_argument("--figures", action="store_true", help="draw, measure nothing")
    parser.add_argument("--out", type=Path, default=RECORD)
    options = parser.parse_args()
    if options.tiny and options.out == RECORD:
        parser.error("--tiny needs --out: the record is of the full case")
    return options


if __name__ == "__main__":
    main()
