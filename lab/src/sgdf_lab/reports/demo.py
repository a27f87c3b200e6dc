"""What `sgdf demo` shows: a table, and a page with loss curves and a sample of every model."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from rich.console import Console

from sgdf_lab import optimizers
from sgdf_lab.models.language import build_gpt
from sgdf_lab.reports import page, tables
from sgdf_lab.reports.tables import Table
from sgdf_lab.runs.config import Config
from sgdf_lab.runs.records import RunRecord, read_planned
from sgdf_lab.support.document import html_table, text
from sgdf_lab.support.figures import STYLE, inline_svg
from sgdf_lab.support.tables import say
from sgdf_lab.sweeps.plan import Grid

REFERENCE = "adamw"
PROMPT = "def "
LENGTH = 400  # bytes of a sample
TEMPERATURE = 0.7
WIDTH = 76  # of a line of a sample on the terminal
COLUMNS = ("validation loss", "range of the seeds", "steps to AdamW's last loss", "steps saved",
           "seconds per run", "state per parameter")  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """The finished runs of one optimizer."""

    name: str
    steps: Sequence[int]
    losses: Sequence[Sequence[float]]  # by seed, after each of the steps
    seconds: float  # of a run, the mean
    state_bytes: float  # per parameter
    sample: str

    @property
    def title(self) -> str:
        return optimizers.title_of(self.name)

    @property
    def means(self) -> list[float]:
        return [statistics.fmean(values) for values in zip(*self.losses, strict=True)]


def steps_to(steps: Sequence[float], losses: Sequence[float], target: float) -> float | None:
    """Where the line through the losses first is at the target; None: nowhere.

    >>> steps_to([10, 20, 30], [3.0, 2.0, 1.5], 2.5)
    15.0
    """
    for i in range(1, len(losses)):
        if losses[i] <= target < losses[i - 1]:
            share = (losses[i - 1] - target) / (losses[i - 1] - losses[i])
            return steps[i - 1] + share * (steps[i] - steps[i - 1])
    return None


# --- from the runs -------------------------------------------------------------------------------


def outcomes(sweep: Grid, out: Path) -> tuple[list[Outcome], list[str]]:
    """What became of every optimizer with a finished run, and what could not be read."""
    records, complaints = read_planned(sweep.configs, out)
    finished = comparable([run for run in records if run.finished])
    return [outcome(name, runs) for name, runs in finished.items()], complaints


def comparable(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """By optimizer, the runs of the seeds that all of them have.

    A demo that was stopped has more seeds of one optimizer than of another, and seeds differ more
    than some optimizers do.
    """
    by_name: dict[str, dict[int, RunRecord]] = {}
    for run in runs:
        by_name.setdefault(run.config.optimizer, {})[run.config.seed] = run
    shared = sorted(set.intersection(*map(set, by_name.values()))) if by_name else []
    return {name: [of[seed] for seed in shared] for name, of in by_name.items() if shared}


def outcome(name: str, runs: Sequence[RunRecord]) -> Outcome:
    saved = torch.load(runs[0].folder / "last.pt", map_location="cpu", weights_only=True)
    parameters = sum(weight.numel() for weight in saved["model"].values())
    return Outcome(
        name,
        [line["step"] for line in runs[0].metrics],
        [[line["val_loss"] for line in run.metrics] for run in runs],
        statistics.fmean(sum(run.seconds.values()) for run in runs),
        state_bytes(saved["optimizer"]) / parameters,
        sample(runs[0].config, saved["model"]),
    )


def state_bytes(state: Any) -> int:
    """The size of all tensors with elements for parameters; step counters are none."""
    if isinstance(state, torch.Tensor):
        return state.nbytes if state.dim() else 0
    if isinstance(state, dict):
        return sum(map(state_bytes, state.values()))
    return sum(map(state_bytes, state)) if isinstance(state, list | tuple) else 0


@torch.no_grad()
def sample(config: Config, weights: dict[str, Any]) -> str:
    """What the model writes after the prompt."""
    context = config.option("context")
    model = build_gpt(config.model, vocabulary=256, context=context).eval()
    model.load_state_dict(weights)
    draw = torch.Generator().manual_seed(0)
    written = list(PROMPT.encode())
    while len(written) < LENGTH:
        logits = model(torch.tensor([written[-context:]]))[0, -1].float()
        shares = torch.softmax(logits / TEMPERATURE, dim=0)
        written.append(int(torch.multinomial(shares, 1, generator=draw)))
    return bytes(written).decode(errors="replace")


# --- the table -----------------------------------------------------------------------------------


def rows(found: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """The cells of the table, the best loss first."""
    references = [o for o in found if o.name == REFERENCE]
    made: list[tuple[str, ...]] = []
    for o in sorted(found, key=lambda o: o.means[-1]):
        ends = [losses[-1] for losses in o.losses]
        reached = saved = "–"
        if references:
            target, last = references[0].means[-1], o.steps[-1]
            at = last if o.name == REFERENCE else steps_to(o.steps, o.means, target)
            reached = "not reached" if at is None else f"{at:.0f} of {last}"
            saved = "–" if at is None or o.name == REFERENCE else f"{1 - at / last:.0%}"
        made.append((o.title, f"{o.means[-1]:.3f}", f"{min(ends):.3f} to {max(ends):.3f}",
                     reached, saved, f"{o.seconds:.1f}", f"{o.state_bytes:.1f} bytes"))  # fmt: skip
    return made


def show(sweep: Grid, out: Path, console: Console) -> None:
    """Print the table and a line of every sample, and write the page beside the runs."""
    found, complaints = outcomes(sweep, out)
    for complaint in complaints:
        console.print(f"skipped: {complaint}", markup=False)
    if not found:
        return
    tables.show(console, [Table("demo", sweep.title, COLUMNS, tuple(rows(found)))])
    console.print(f"What they write after {PROMPT!r}:\n", markup=False)
    for o in found:
        # A model that indents too far would fill a terminal with blanks.
        lines = [cut for line in o.sample.splitlines() if (cut := line[:WIDTH].rstrip())][:3]
        console.print(f"{o.title}:", style="bold", markup=False)
        console.print("\n".join(f"    {line}" for line in lines), markup=False, soft_wrap=True)
    file = page.page_of(sweep, out)
    write(file, sweep, found)
    say(console, f"\n{sweep.note}\nThe page is in {file}")


# --- the page ------------------------------------------------------------------------------------


def figure(found: Sequence[Outcome]) -> Figure:
    """The loss by step: means, and ranges of the seeds."""
    with rc_context(STYLE):
        drawn = Figure(figsize=(6.4, 3.8), layout="constrained")  # letters to read on a phone
        axes = drawn.subplots()
    for o in found:
        look = optimizers.style(o.name)
        low, high = zip(*((min(v), max(v)) for v in zip(*o.losses, strict=True)), strict=True)
        axes.fill_between(o.steps, low, high, color=look.colour, alpha=0.15, linewidth=0)
        axes.plot(o.steps, o.means, color=look.colour, linewidth=2, label=o.title)
    axes.set(xlabel="step", ylabel="validation loss (nats per byte)")
    start = max(max(o.means[1:2] or o.means) for o in found)
    axes.set_ylim(top=start * 1.03)
    axes.legend(frameon=False)
    return drawn


def write(file: Path, sweep: Grid, found: Sequence[Outcome]) -> None:
    config, shown = sweep.configs[0], rows(found)
    seeds = max(len(o.losses) for o in found)
    written = ("\n".join(map(text, o.sample.split("\n"))) for o in found)  # their lines stay
    samples = "".join(
        f"<h3>{text(o.title)}</h3><pre>{sample}</pre>"
        for o, sample in zip(found, written, strict=True)
    )
    body = f"""<p>{text(config.model)} learns Python's standard library byte by byte,
{found[0].steps[-1]} steps of {config.batch} windows of {config.option("context")} bytes, seeds:
{seeds}.</p>
<section><figure><div class="chart">{inline_svg(figure(found))}</div>
<figcaption>Lines are means, bands the range of the seeds.</figcaption></figure></section>
<h2>In numbers</h2>
{html_table(COLUMNS, shown)}
<p class="protocol">{text(sweep.note)}
Times are of this machine, with the runs side by side.</p>
<h2>What they write</h2>
<p class="protocol">After {PROMPT!r}, drawn at a temperature of {TEMPERATURE}, by the first
seed.</p>
{samples}"""
    page.write_document(file, sweep.title, body, runs=sum(len(o.losses) for o in found))
