"""What `sgdf demo` shows: a table, and a page with loss curves and a sample of every model."""

import html
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
from sgdf_lab.reports.labels import optimizer_name
from sgdf_lab.runs.config import Config
from sgdf_lab.runs.records import RunRecord, read_runs
from sgdf_lab.support.figures import STYLE, dark_rules, inline_svg
from sgdf_lab.support.files import explained, write_atomically
from sgdf_lab.support.tables import Column, as_rich, say
from sgdf_lab.sweeps.plan import Grid

REFERENCE = "adamw"
PROMPT = "def "
LENGTH = 400  # bytes of a sample
TEMPERATURE = 0.7
WIDTH = 76  # of a line of a sample on the terminal
COLUMNS = ("optimizer", "validation loss", "range of the seeds", "steps to AdamW's last loss",
           "steps saved", "seconds per run", "state per parameter")  # fmt: skip


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
        return optimizer_name(self.name)

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
    """Of every optimizer with a finished run, and what could not be read."""
    folders = [out / config.name for config in sweep.configs]
    records, complaints = read_runs(folder for folder in folders if folder.is_dir())
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
    """Of all tensors with elements for parameters; step counters are none."""
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
    first, *others = COLUMNS
    columns = [Column(first, "label"), *map(Column, others)]
    console.print()
    console.print(as_rich(columns, rows(found), console.width, title=sweep.title))
    console.print(f"\nWhat they write after {PROMPT!r}:\n", markup=False)
    for o in found:
        lines = [line for line in written_lines(o.sample) if line][:3]
        console.print(f"{o.title}:", style="bold", markup=False)
        console.print("\n".join(f"    {line}" for line in lines), markup=False, soft_wrap=True)
    file = out / f"{sweep.name}.html"
    write(file, sweep, found)
    say(console, f"\n{sweep.note}\nThe page is in {file}")


def written_lines(sample: str) -> list[str]:
    """Each no wider than a terminal: a model that indents too far would fill it with blanks."""
    return [line[:WIDTH].rstrip() for line in sample.splitlines()]


# --- the page ------------------------------------------------------------------------------------

LOOK = """
:root { color-scheme: light dark; --paper: #fff; --ink: #222; --quiet: #555; --line: #e2e2e2; }
@media screen and (prefers-color-scheme: dark) {
  :root { --paper: #16181d; --ink: #e4e4e4; --quiet: #a9b0ba; --line: #33373e; }
}
body { margin: 0 auto; max-width: 1100px; padding: 0 20px 3rem; color: var(--ink);
  background: var(--paper); font: 16px/1.5 system-ui, "Segoe UI", Roboto, Arial, sans-serif; }
h1 { margin: 1.5rem 0 .5rem; } h2 { margin: 2rem 0 .5rem; } h3 { margin: 0 0 .4rem; }
p { max-width: 46em; } .quiet { color: var(--quiet); font-size: .9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .4rem .8rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
thead th { white-space: normal; vertical-align: bottom; }
th:first-child { text-align: left; padding-left: 0; }
svg { width: 100%; min-width: 34rem; height: auto; }
.samples { display: grid; gap: 1.2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); }
pre { margin: 0; padding: .8rem; border: 1px solid var(--line); overflow-x: auto; font-size: .8rem;
  white-space: pre-wrap; overflow-wrap: anywhere; }
"""


def figure(found: Sequence[Outcome]) -> Figure:
    """The loss by step: means, and ranges of the seeds."""
    with rc_context(STYLE):
        drawn = Figure(figsize=(9, 4.2), layout="constrained")
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
    titles = "".join(f"<th>{html.escape(title)}</th>" for title in COLUMNS)
    body = "".join(
        "<tr>" + f"<th>{html.escape(first)}</th>"
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"
        for first, *cells in rows(found)
    )  # fmt: skip
    samples = "".join(
        f"<div><h3>{html.escape(o.title)}</h3><pre>{html.escape(o.sample)}</pre></div>"
        for o in found
    )
    config = sweep.configs[0]
    seeds = max(len(o.losses) for o in found)
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">
<title>{html.escape(sweep.title)}</title><style>{LOOK}{dark_rules()}</style></head><body>
<h1>{html.escape(sweep.title)}</h1>
<p>{html.escape(config.model)} learns Python's standard library byte by byte, {found[0].steps[-1]}
steps of {config.batch} windows of {config.option("context")} bytes, seeds: {seeds}.</p>
<div class="scroll">{inline_svg(figure(found))}</div>
<p class="quiet">Lines are means, bands the range of the seeds.</p>
<h2>In numbers</h2>
<div class="scroll"><table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>
<p class="quiet">{html.escape(sweep.note)}
Times are of this machine, with the runs side by side.</p>
<h2>What they write</h2>
<p class="quiet">After {PROMPT!r}, drawn at a temperature of {TEMPERATURE}, by the first seed.</p>
<div class="samples">{samples}</div>
</body></html>
"""
    with explained(file):
        write_atomically(file, page)
