"""What the command line does, from Python: one function for each of its main commands."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgdf_lab.support.errors import UserError, describe, message_of, visible
from sgdf_lab.support.files import read_text

# What needs torch is imported when it is used: `evidence` and `report` only read files.
if TYPE_CHECKING:
    import torch

    from sgdf_lab.reports.comparison import Comparison
    from sgdf_lab.reports.evidence import Summary
    from sgdf_lab.reports.evidence.across import Across
    from sgdf_lab.runs.config import Config
    from sgdf_lab.runs.records import RunRecord
    from sgdf_lab.sweeps.plan import Grid, Sweep, Tuned

Plan = str | Path | Mapping[str, Any]
Places = str | Path | Iterable[str | Path]  # of runs


def train(
    task: str,
    *,
    model: str | None = None,
    optimizer: str = "sgdf",
    seed: int | Sequence[int] = 0,
    epochs: int | None = None,
    precision: str = "tf32",
    data: str = "real",
    settings: Mapping[str, Any] | None = None,
    out: str | Path = "runs",
    data_dir: str | Path | None = None,
    device: "str | torch.device | None" = None,
    keep: int | None = None,
    compile: bool = True,
    checkpoints: bool = True,
    tensorboard: bool = False,
    wandb: bool = False,
    shard: bool = False,
) -> list[dict[str, Any]]:
    """Train a model on a task, or resume it: what `sgdf train` does.

    Args:
        task: name of what is trained, for example "cifar10".
        model: name of the network; default: the task's.
        optimizer: name of a row of the lab, or the import path of a class.
        seed: of weights, order and augmentation; a run for each of several.
        epochs: default: the task's.
        precision: "tf32", "bf16" or "fp32", on a GPU.
        data: "real", or "synthetic" for a generated stand-in.
        settings: of the optimizer, the task or the run, as `--set` takes them.
        out: a folder; every run has its own in it.
        data_dir: where the data is.
        device: default: cuda if available.
        keep: keep the weights of every Nth epoch.
        compile: on a GPU; without, a run starts at once, but trains slower.
        checkpoints: whether to save the state, from which a stopped run resumes.
        tensorboard: whether to write event files for TensorBoard into the runs.
        wandb: whether to log to Weights & Biases, offline unless WANDB_MODE says otherwise.
        shard: under torchrun, split the weights among the processes (FSDP2).

    Returns:
        The content of `result.json` of each run.

    Examples:
        >>> from sgdf_lab import train
        >>> (result,) = train("digits", optimizer="adamw", epochs=2)  # doctest: +SKIP
        >>> result["status"]  # doctest: +SKIP
        'finished'
    """
    from sgdf_lab.runs import config as configs

    planned = [
        configs.make(
            task,
            model=model,
            optimizer=optimizer,
            seed=one,
            epochs=epochs,
            precision=precision,
            data=data,
            overrides=settings,
        )
        for one in (seed if isinstance(seed, Sequence) else [seed])
    ]
    return train_runs(
        [configs.with_data(config, as_path(data_dir)) for config in planned],
        out=out,
        data_dir=data_dir,
        device=device,
        keep=keep,
        compile=compile,
        checkpoints=checkpoints,
        tensorboard=tensorboard,
        wandb=wandb,
        shard=shard,
    )


def train_runs(
    configs: "Sequence[Config]",
    *,
    out: str | Path = "runs",
    data_dir: str | Path | None = None,
    device: "str | torch.device | None" = None,
    keep: int | None = None,
    compile: bool = True,
    checkpoints: bool = True,
    tensorboard: bool = False,
    wandb: bool = False,
    shard: bool = False,
) -> list[dict[str, Any]]:
    """Train planned runs to their end, or resume them.

    Args:
        configs: of `make_config`.
        out: as for `train`.
        data_dir: as for `train`.
        device: as for `train`.
        keep: as for `train`.
        compile: as for `train`.
        checkpoints: as for `train`.
        tensorboard: as for `train`.
        wandb: as for `train`.
        shard: as for `train`.

    Returns:
        The content of `result.json` of each run.

    Examples:
        >>> from sgdf_lab import make_config, train_runs
        >>> config = make_config("digits", epochs=2)
        >>> results = train_runs([config], out="runs", device="cpu")  # doctest: +SKIP
    """
    from sgdf_lab.runs.session import RunContext, train_in_turn
    from sgdf_lab.support.numerics import find_device
    from sgdf_lab.training.distributed import process_group

    with process_group(find_device(device), shard=shard) as (team, own):
        context = RunContext(
            out=Path(out),
            device=own,
            data_dir=as_path(data_dir),
            compile=compile,
            keep=keep,
            checkpoints=checkpoints,
            tensorboard=tensorboard,
            wandb=wandb,
        )
        return train_in_turn(configs, context, team)


def sweep(
    plan: Plan,
    *,
    changes: Mapping[str, Any] | None = None,
    out: str | Path = "runs",
    data_dir: str | Path | None = None,
    device: "str | torch.device | None" = None,
    compile: bool = True,
    keep: int | None = None,
    checkpoints: bool = True,
    tensorboard: bool = False,
    wandb: bool = False,
    record: str | Path | None = None,
    retry: bool = False,
    jobs: int | None = None,
    together: int | None = None,
    engine: str = "local",
    address: str | None = None,
    cpus_per_run: float = 1,
    gpus_per_run: float | None = None,
) -> "list[RunRecord]":
    """Train the runs of a plan, stage by stage, and write a page for each: what `sgdf sweep` does.

    Args:
        plan: a TOML file, the name of a preset, or a mapping with the keys of such a file.
        changes: keys that override those of the plan, such as {"trials": 8, "seeds": [1, 2, 3]}.
        out: a folder; every run has its own in it, and the pages are beside them.
        data_dir: as for `train`.
        device: as for `train`.
        compile: as for `train`.
        keep: as for `train`.
        checkpoints: as for `train`.
        tensorboard: as for `train`.
        wandb: as for `train`.
        record: a file that keeps every ended run as well; none is trained again that is in it.
        retry: whether to train runs again that failed before.
        jobs: worker processes; default: 1 on a GPU, one per core on a CPU.
        together: with one job, runs side by side in it; default: 3 on a GPU.
        engine: "local" for this machine, "stack" for many small runs as one, on it, or "ray" for a
            cluster.
        address: of the cluster, HOST:PORT; default: the one on this machine.
        cpus_per_run: what Ray reserves for a run.
        gpus_per_run: the same; default: 1 on a GPU.

    Returns:
        The runs of the last stage: all of a grid; of a plan with trials, the chosen settings with
        every seed. A run that failed is among them.

    Examples:
        >>> from sgdf_lab import sweep
        >>> grid = {"optimizer": ["sgdf", "adamw"], "lr": [0.01, 0.1]}
        >>> runs = sweep({"task": "digits", "grid": grid, "seeds": [0, 1]})  # doctest: +SKIP
    """
    from sgdf_lab.reports import page, warn_of
    from sgdf_lab.runs.session import RunContext
    from sgdf_lab.sweeps.execute import Engine, run_sweep

    where = Engine(engine, jobs, together, address, cpus_per_run, gpus_per_run)
    context = RunContext(
        out=Path(out),
        device=where.device(device),
        data_dir=as_path(data_dir),
        compile=compile,
        keep=keep,
        checkpoints=checkpoints,
        tensorboard=tensorboard,
        wandb=wandb,
    )
    last: list[RunRecord] = []

    def show(stage: "Grid") -> None:
        last[:], _, skipped = page.write_stage(stage, context.out)
        warn_of(skipped)

    run_sweep(
        planned(plan, changes),
        context,
        where,
        retry=retry,
        record=as_path(record),
        show=show,
    )
    return last


def evidence(
    plan: Plan,
    runs: Places = "runs",
    *,
    changes: Mapping[str, Any] | None = None,
    reference: Sequence[str] = (),
    data_dir: str | Path | None = None,
    step_times: str | Path | None = None,
    out: str | Path | None = None,
) -> dict[str, Any]:
    """What a sweep with trials shows, in numbers: what `sgdf evidence` prints.

    Args:
        plan: of the sweep: a TOML file, the name of a preset, or a mapping with its keys.
        runs: where the runs are: folders, or files of `sweep(record=...)`.
        changes: keys that override those of the plan, as in `sweep`.
        reference: optimizers or contestants to compare with; default: the usual ones, if there.
        data_dir: of the data that the runs are of, if there are several sets.
        step_times: a file of `benchmarks/step_times.py`, whose times of steps on an idle device are
            used instead of those of the runs.
        out: a folder for summary.json and the figures; default: nothing is written.

    Returns:
        The content of summary.json.

    Examples:
        >>> from sgdf_lab import evidence
        >>> summary = evidence("digits.toml", "results/digits/runs.jsonl")  # doctest: +SKIP
        >>> [c["label"] for c in summary["contestants"]]  # doctest: +SKIP
        ['SGD', 'SGDF']
    """
    from sgdf_lab.reports import warn_of

    sweep, places = tuned(planned(plan, changes), data_dir), paths_of(runs)
    found, _, complaints = summarized(
        sweep, places, reference, as_path(step_times), out=as_path(out)
    )
    warn_of(complaints)
    if not found["runs"]:
        raise no_runs(places, f" of {sweep.name}")
    return found


def across(
    summaries: Iterable[str | Path], *, reference: Sequence[str] = (), out: str | Path | None = None
) -> "list[Across]":
    """Several tasks side by side, everybody against one: what `sgdf evidence --across` prints.

    Args:
        summaries: files summary.json, as `evidence(out=...)` writes them.
        reference: optimizers or contestants to compare with; default: the usual ones, if there.
        out: a folder for a figure of each; default: nothing is drawn.

    Returns:
        For each reference, how all others stand to it on the tasks that it took part in.

    Examples:
        >>> from sgdf_lab import across
        >>> (found,) = across(["a/summary.json", "b/summary.json"])  # doctest: +SKIP
        >>> [(s.label, s.count("ahead")) for s in found.standings]  # doctest: +SKIP
        [('SGDF', 2), ('SGD-CM', 0)]
    """
    return stood_across(paths_of(summaries), reference, as_path(out))[0]


def report(
    runs: Places = "runs",
    *,
    output: str | Path = "report.html",
    title: str = "Comparison of optimizers",
    target: float | None = None,
    figure: str | Path | None = None,
) -> "list[Comparison]":
    """Compare the runs there are, and write one page of tables and curves: what `sgdf report` does.

    Args:
        runs: run folders, folders that hold them, or files of `sweep(record=...)`.
        output: the page.
        title: of the page.
        target: of the metric, for the time-to-target column; default: one that all reach.
        figure: also draw the curves, into files whose names begin so.

    Returns:
        A comparison for each task and length that the runs have.

    Examples:
        >>> from sgdf_lab import report
        >>> comparisons = report("runs", output="report.html")  # doctest: +SKIP
    """
    from sgdf_lab.reports import warn_of

    places = paths_of(runs)
    records, comparisons, _, complaints = compared(
        places, Path(output), title, target, as_path(figure)
    )
    warn_of(complaints)
    if not records:
        raise no_runs(places)
    return comparisons


# --- behind both the functions and the commands ---------------------------------------------------


def compared(
    places: Sequence[Path], output: Path, title: str, target: float | None, stem: Path | None
) -> "tuple[list[RunRecord], list[Comparison], list[Path], list[str]]":
    """Write the page, and the figures if they have the beginning of a name; not without runs."""
    from sgdf_lab.reports import figures, page
    from sgdf_lab.reports.comparison import compare_runs
    from sgdf_lab.runs.records import read_plans, read_runs

    records, complaints = read_runs(places)
    missing, unreadable = read_plans(places)
    complaints += unreadable
    comparisons = compare_runs(records, missing, target)
    if records:
        page.write(output, records, comparisons, title=title, skipped=complaints)
    files = figures.write_all(comparisons, stem) if stem and records else []
    return records, comparisons, files, complaints


def summarized(
    sweep: "Tuned",
    places: Sequence[Path],
    reference: Sequence[str],
    step_times: Path | None,
    *,
    command: str = "",
    out: Path | None,
) -> "tuple[Summary, list[Path], list[str]]":
    """Write the summary and its figures, if there are runs and a folder is given."""
    from sgdf_lab.reports.evidence import figures
    from sgdf_lab.reports.evidence.summary import summarize
    from sgdf_lab.runs.records import read_runs
    from sgdf_lab.support.files import explained, write_json

    records, complaints = read_runs(places)
    summary = summarize(sweep, records, reference, command, step_times_in(step_times))
    if out is None or not summary["runs"]:
        return summary, [], complaints
    with explained(out):
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "summary.json", summary, indent=1)
        files = [out / "summary.json", *figures.write_all(summary, out)]
    return summary, files, complaints


def stood_across(
    files: Sequence[Path], references: Sequence[str], out: Path | None
) -> "tuple[list[Across], list[Path]]":
    """A comparison over all tasks with each reference, and their figures if a folder is given."""
    from sgdf_lab.reports.evidence.across import across, figure, references_of
    from sgdf_lab.support.figures import write_svg
    from sgdf_lab.support.files import explained

    summaries = [read_summary(file) for file in files]
    found, drawn = [], []
    try:
        for reference in references or references_of(summaries):
            found.append(across(summaries, reference))
            if out is not None:
                name = re.sub(r"[^\w.-]", "_", reference)
                with explained(out):
                    drawn.append(write_svg(figure(found[-1]), out / f"across-{name}"))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"one of {', '.join(map(str, files))} is not as sgdf evidence wrote it "
            f"({describe(error)}): make it again"
        ) from error
    if not found:
        raise UserError("no summary has a usual reference: name one with --reference")
    return found, drawn


def read_summary(file: Path) -> "Summary":
    """A summary.json of this version."""
    from sgdf_lab.reports.evidence import checked

    try:
        return checked(json.loads(read_text(file)))
    except (OSError, ValueError, RecursionError, LookupError, TypeError) as error:
        raise UserError(f"{file} is not a summary of sgdf evidence: {message_of(error)}") from None


def step_times_in(file: Path | None) -> list[Any]:
    """The rows of a file of benchmarks/step_times.py."""
    if file is None:
        return []
    try:
        rows = json.loads(read_text(file))["rows"]
        names = {"file", "optimizer", "settings", "ms"}
        if not all(names <= row.keys() for row in rows):
            raise ValueError("a row is incomplete")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{file} is not of benchmarks/step_times.py: {error}") from None
    return list(rows)


def no_runs(places: Sequence[Path], of: str = "") -> UserError:
    makes = "sweep" if of else "train"
    where = ", ".join(map(visible, places))
    return UserError(f"there are no runs{of} in {where}: `sgdf {makes}` makes some")


# --- what they share ------------------------------------------------------------------------------


def planned(plan: Plan, changes: Mapping[str, Any] | None) -> "Sweep":
    from sgdf_lab.sweeps.plan import sweep_from_file, sweep_from_table
    from sgdf_lab.sweeps.presets import PRESET_NAMES, sweep_from_preset

    changes = changes or {}
    if isinstance(plan, Mapping):
        settings = {**plan.get("set", {}), **changes.get("set", {})}
        return sweep_from_table("sweep", {**plan, **changes, "set": settings})
    if plan in PRESET_NAMES:
        return sweep_from_preset(str(plan), changes)
    return sweep_from_file(Path(plan), changes)


def tuned(sweep: "Sweep", data_dir: str | Path | None) -> "Tuned":
    """The sweep, which has to be one with trials; with a folder, only of the data in there."""
    from sgdf_lab.sweeps.plan import with_trials

    found = with_trials(sweep)
    return found if data_dir is None else found.with_data(Path(data_dir))


def paths_of(runs: Places) -> list[Path]:
    return [Path(runs)] if isinstance(runs, str | Path) else [Path(each) for each in runs]


def as_path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)
