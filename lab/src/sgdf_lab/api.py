"""What the command line does, from Python: one function for each of its main commands."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

# What needs torch is imported when it is used: `evidence` and `report` only read files.
if TYPE_CHECKING:
    import torch

    from sgdf_lab.reports.comparison import Comparison
    from sgdf_lab.runs.config import Config
    from sgdf_lab.runs.records import RunRecord
    from sgdf_lab.sweeps.plan import Grid, Sweep

Plan = str | Path | Mapping[str, Any]


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
) -> list[dict[str, Any]]:
    """Train planned runs to their end, or resume them.

    Args:
        configs: of `make_config`.
        out: as for `train`.
        data_dir: where the data is.
        device: default: cuda if available.
        keep: of which epochs to keep the weights.
        compile: on a GPU.
        checkpoints: whether to save the state.
        tensorboard: whether to write event files.

    Returns:
        The content of `result.json` of each run.

    Examples:
        >>> from sgdf_lab import make_config, train_runs
        >>> config = make_config("digits", epochs=2)
        >>> results = train_runs([config], out="runs", device="cpu")  # doctest: +SKIP
    """
    from sgdf_lab.runs.session import RunContext, train_in_turn
    from sgdf_lab.support.numerics import find_device

    context = RunContext(
        out=Path(out),
        device=find_device(device),
        data_dir=as_path(data_dir),
        compile=compile,
        keep=keep,
        checkpoints=checkpoints,
        tensorboard=tensorboard,
    )
    return train_in_turn(configs, context)


def sweep(
    plan: Plan,
    *,
    changes: Mapping[str, Any] | None = None,
    out: str | Path = "runs",
    data_dir: str | Path | None = None,
    device: "str | torch.device | None" = None,
    compile: bool = True,
    checkpoints: bool = True,
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
        data_dir: where the data is.
        device: default: cuda if available.
        compile: on a GPU; without, a run starts at once, but trains slower.
        checkpoints: whether to save the state, from which a stopped run resumes.
        record: a file that keeps every ended run as well; none is trained again that is in it.
        retry: whether to train runs again that failed before.
        jobs: worker processes; default: 1 on a GPU, one per core on a CPU.
        together: with one job, runs side by side in it; default: 3 on a GPU.
        engine: "local", or "ray" for a cluster.
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
    from sgdf_lab.support.numerics import find_device
    from sgdf_lab.sweeps.execute import Engine, run_sweep

    context = RunContext(
        out=Path(out),
        device=find_device(device),
        data_dir=as_path(data_dir),
        compile=compile,
        checkpoints=checkpoints,
    )
    last: list[RunRecord] = []

    def show(stage: "Grid") -> None:
        last[:], _, skipped = page.write_stage(stage, context.out)
        warn_of(skipped)

    run_sweep(
        planned(plan, changes),
        context,
        Engine(engine, jobs, together, address, cpus_per_run, gpus_per_run),
        retry=retry,
        record=as_path(record),
        show=show,
    )
    return last


def evidence(
    plan: Plan,
    runs: str | Path | Iterable[str | Path] = "runs",
    *,
    changes: Mapping[str, Any] | None = None,
    reference: Sequence[str] = (),
    data_dir: str | Path | None = None,
    out: str | Path | None = None,
) -> dict[str, Any]:
    """What a sweep with trials shows, in numbers: what `sgdf evidence` prints.

    Args:
        plan: of the sweep: a TOML file, the name of a preset, or a mapping with its keys.
        runs: where the runs are: folders, or files of `sweep(record=...)`.
        changes: keys that override those of the plan, as in `sweep`.
        reference: optimizers or contestants to compare with; default: the usual ones, if there.
        data_dir: of the data that the runs are of, if there are several sets.
        out: a folder for summary.json and the figures; default: nothing is written.

    Returns:
        The content of summary.json.

    Examples:
        >>> from sgdf_lab import evidence
        >>> summary = evidence("digits.toml", "results/digits/runs.jsonl")  # doctest: +SKIP
        >>> [c["label"] for c in summary["contestants"]]  # doctest: +SKIP
        ['SGD', 'SGDF']
    """
    from sgdf_lab.reports import read_records
    from sgdf_lab.reports.evidence import figures
    from sgdf_lab.reports.evidence.summary import summarize
    from sgdf_lab.support.files import write_json
    from sgdf_lab.sweeps.plan import with_trials

    sweep = with_trials(planned(plan, changes))
    if data_dir is not None:
        sweep = sweep.with_data(Path(data_dir))
    summary = summarize(sweep, read_records(*paths_of(runs)), reference)
    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)
        write_json(Path(out) / "summary.json", summary, indent=1)
        figures.write_all(summary, Path(out))
    return summary


def report(
    runs: str | Path | Iterable[str | Path] = "runs",
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
    from sgdf_lab.reports import figures, page, read_records
    from sgdf_lab.reports.comparison import compare_runs
    from sgdf_lab.runs.records import read_plans

    places = paths_of(runs)
    records = read_records(*places)
    comparisons = compare_runs(records, read_plans(places)[0], target)
    page.write(Path(output), records, comparisons, title=title)
    if figure is not None:
        figures.write_all(comparisons, Path(figure))
    return comparisons


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


def paths_of(runs: str | Path | Iterable[str | Path]) -> list[Path]:
    return [Path(runs)] if isinstance(runs, str | Path) else [Path(each) for each in runs]


def as_path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)
