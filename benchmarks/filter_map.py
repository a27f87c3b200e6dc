"""The map of filters: which filter before which step, tuned alike. docs/map-protocol.md says how.

    python benchmarks/filter_map.py --list   # the plans, their runs, what is done
    python benchmarks/filter_map.py --write  # the plans that wait for no result
    python benchmarks/filter_map.py --run --data-dir DIR --minutes 60

A plan is a file of `sgdf sweep` in benchmarks/evidence/map; its runs are recorded as they end, in
results/evidence/NAME/runs.jsonl. The plan of a column is written when the rates of its other
parameters are known, from its plan "tune". `--run` takes the plans in the order of `--list`, stops
at the time that it was given, and continues where it was stopped.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PLANS = ROOT / "benchmarks" / "evidence" / "map"
RUNS = ROOT / "runs" / "map"
RESULTS = ROOT / "results" / "evidence"

STEPS = {"short": 600, "long": 1800}
COLUMNS = ("sgd", "adam", "eigen", "orthogonal", "eigen-orthogonal")
IMAGE_COLUMNS = COLUMNS[1:]
CHOICE = {"finalists": 2, "choice_seeds": [101, 102], "seeds": [1, 2, 3, 4, 5, 6]}
#: The rates that an average of 0.9 is tuned over, by column.
RATES = {
    "sgd": (0.03, 30.0),
    "adam": (5e-4, 3e-2),
    "eigen": (5e-4, 3e-2),
    "orthogonal": (1e-3, 6e-2),
    "eigen-orthogonal": (1e-3, 6e-2),
}
DECAYS = {"sgd": (1e-5, 1e-2)}  # the others: (1e-2, 1)
REACH = 4.0  # rates of a cell: from a quarter of that of its column to four times as much

#: The rows: what stands before the step. A constant gain has the exponent 0.
ONE = {"betas": [0.9, 0.95]}
TWO = {"betas": [0.85, 0.95], "slow_beta": 0.98, "slow_weight": 0.56}
FILTERS: dict[str, dict[str, Any]] = {
    "none": {"betas": [0.0, 0.95]},
    "EMA": ONE,
    "constant 0.05": {**ONE, "gain_scale": 0.05},
    "constant 0.1": {**ONE, "gain_scale": 0.1},
    "constant 0.2": {**ONE, "gain_scale": 0.2},
    "K": {**ONE, "gain_scale": 1.0, "gain_power": 1.0},
    "2K": {**ONE, "gain_scale": 2.0, "gain_power": 1.0},
    "√K": {**ONE, "gain_scale": 1.0, "gain_power": 0.5},
    "two averages": TWO,
    "two averages, constant 0.1": {**TWO, "gain_scale": 0.1},
    "two averages, 2K": {**TWO, "gain_scale": 2.0, "gain_power": 1.0},
}
ON_IMAGES = ("EMA", "constant 0.1", "2K", "two averages, constant 0.1")

# --- tasks ----------------------------------------------------------------------------------------

#: Seconds of a step on one core, evaluations included, from a first look: for the budget only.
SECONDS = {"gpt-tiny": 0.019, "gpt-mini": 0.09, "gpt-3m": 0.4, "lstm-mini": 0.08, "vit-mini": 0.04,
           "cnn-bn": 0.13}  # fmt: skip
PASS = 352  # steps through 45,000 images


def text(model: str = "gpt-tiny", corpus: str = "encyclopedia", steps: int = 600) -> dict[str, Any]:
    return {
        "task": "text",
        "model": model,
        "precision": "fp32",
        "set": {
            "corpus": f"{corpus}.txt",
            "batch": 16,
            "context": 64,
            "steps": steps,
            "eval_every": steps // 6,
            "eval_tokens": 32768,
            "test_tokens": 131072,
            "schedule": "cosine",
            "warmup": 0.05,
            "clip": 1.0,
        },
    }


def images(model: str, epochs: int) -> dict[str, Any]:
    return {
        "task": "cifar10",
        "model": model,
        "precision": "fp32",
        "epochs": epochs,
        "set": {
            "batch": 128,
            "validation": 5000,
            "schedule": "cosine",
            "warmup": 0.05,
            **({"clip": 1.0} if model.startswith("vit") else {}),
        },
    }


# --- plans ----------------------------------------------------------------------------------------


def tune(column: str, task: dict[str, Any], what: str) -> dict[str, Any]:
    """The rates and the decay of a column, with a plain average."""
    cell = {"optimizer": "pipeline", "step": column, **FILTERS["EMA"]}
    space = {
        "lr": list(RATES[column]),
        "aux_lr": [1e-3, 3e-2],
        "weight_decay": list(DECAYS.get(column, (1e-2, 1.0))),
    }
    return {
        "title": f"Map of filters, {what}: rates and decay before {column}",
        "trials": 12,
        **CHOICE,
        "seeds": [1],
        **task,
        "cells": [cell],
        "space": {"pipeline": space},
    }


def column_plan(
    column: str, task: dict[str, Any], what: str, tuned: dict[str, Any], rows: tuple[str, ...]
) -> dict[str, Any]:
    cells = [{"optimizer": "pipeline", **FILTERS[row]} for row in rows]
    lr = tuned["lr"]
    settings = {**task["set"], "step": column}
    settings |= {name: tuned[name] for name in ("aux_lr", "weight_decay")}
    return {
        "title": f"Map of filters, {what}: before {column}",
        "trials": 6,
        **CHOICE,
        **task,
        "set": settings,
        "cells": cells,
        "space": {"pipeline": {"lr": [rounded(lr / REACH), rounded(lr * REACH)]}},
    }


def adamw(steps: int) -> dict[str, Any]:
    return {
        "title": f"Map of filters: AdamW in {steps} steps",
        "trials": 8,
        **CHOICE,
        **text(steps=steps),
        "cells": [{"optimizer": "adamw"}],
        "space": {"adamw": {"lr": [1e-3, 3e-2]}},
    }


def contest(title: str, task: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """All contestants; their rates are searched in the same ranges, the others' too."""
    adam = {"lr": [5e-4, 3e-2]}
    matrix = {"lr": [1e-3, 6e-2], "aux_lr": [1e-3, 3e-2]}
    ours = {**matrix, "gain_scale": [0.03, 0.3]}
    fixed = {"betas": [0.85, 0.95]}
    of_soap: dict[str, Any] = {**matrix, "precondition_frequency": {"choices": [1, 10]}}
    plan = {
        "title": f"The contest: {title}",
        "trials": 8,
        "finalists": 3,
        "choice_seeds": [101, 102],
        "seeds": [1, 2, 3, 4, 5, 6],
        **task,
        "cells": [
            {"optimizer": "adamw"},
            {"optimizer": "nadamw"},
            {"optimizer": "filter-adamw", "gain_eps": 0.0},
            {"optimizer": "muon"},
            {"optimizer": "soap"},
            {"optimizer": "filter-muon", **fixed},
            {"optimizer": "filter-muon-eigen", **fixed},
            {"optimizer": "filter-soap", **fixed},
        ],
        "space": {
            "adamw": adam,
            "nadamw": adam,
            "filter-adamw": adam,
            "muon": {"lr": matrix["lr"], "adamw_lr": matrix["aux_lr"]},
            "soap": of_soap,
            "filter-muon": ours,
            "filter-muon-eigen": ours,
            "filter-soap": ours,
        },
        **changes,
    }
    names = {cell["optimizer"] for cell in plan["cells"]}
    plan["space"] = {name: space for name, space in plan["space"].items() if name in names}
    return plan


def rounded(value: float) -> float:
    return float(f"{value:.3g}")


def plans() -> dict[str, Any]:
    """Every plan by its name, in the order in which they are run; None: not known yet."""
    made: dict[str, Any] = {}
    short, long = text(), text(steps=STEPS["long"])

    def of_column(column: str, length: str, task: dict[str, Any], what: str) -> None:
        first = "map-images-{}-tune" if length == "images" else "map-short-{}-tune"
        first = first.format(column)
        if length != "long":
            made[first] = tune(column, task, what)
        tuned = chosen_in(first, made[first])
        rows = tuple(FILTERS)
        if length == "images":
            rows = ON_IMAGES
        elif length == "long":
            best = best_rows(f"map-short-{column}", made.get(f"map-short-{column}"))
            rows = () if best is None else ("EMA", *best)
        known = tuned is not None and rows
        made[f"map-{length}-{column}"] = (
            column_plan(column, task, what, tuned, rows) if known else None
        )

    for column in COLUMNS:
        of_column(column, "short", short, "600 steps")
    for part in (0.5, 1.0, 1.5, 2.0, 3.0):
        steps = round(STEPS["short"] * part)
        made[f"map-adamw-{steps}"] = adamw(steps)
    made["contest-gpt-0.1m"] = contest("GPT, 0.1 M, encyclopedia articles", short)
    vit, cnn = images("vit-mini", 2), images("cnn-bn", 1)
    made["contest-vit-cifar10"] = contest("vision transformer, CIFAR-10", vit)
    mini = text("gpt-mini")
    made["contest-gpt-encyclopedia"] = contest("GPT, 0.8 M, encyclopedia articles", mini)
    for column in COLUMNS:
        of_column(column, "long", long, "1800 steps")
    made["contest-gpt-books"] = contest("GPT, 0.8 M, books", text("gpt-mini", "books"))
    made["contest-lstm-encyclopedia"] = contest("LSTM, encyclopedia articles", text("lstm-mini"))
    made["contest-cnn-cifar10"] = contest("network with batch norm, CIFAR-10", cnn)
    made["contest-gpt-0.1m-long"] = contest("GPT, 0.1 M, three times the length", long)
    for column in IMAGE_COLUMNS:
        of_column(column, "images", vit, "vision transformer")
    made["contest-gpt-3m"] = contest(
        "GPT, 3 M, encyclopedia articles",
        text("gpt-3m"),
        trials=4,
        finalists=2,
        seeds=[1, 2, 3],
        cells=[{"optimizer": "adamw"}, {"optimizer": "muon"},
               {"optimizer": "filter-muon", "betas": [0.85, 0.95]},
               {"optimizer": "filter-muon-eigen", "betas": [0.85, 0.95]}],
    )  # fmt: skip
    return made


# --- what earlier plans found ---------------------------------------------------------------------


def contestants(name: str, plan: dict[str, Any]) -> list[Any]:
    """The contestants of a plan with the runs that are recorded."""
    from sgdf_lab.runs.records import read_runs
    from sgdf_lab.sweeps.contestants import contestants_of
    from sgdf_lab.sweeps.plan import sweep_from_table

    sweep = sweep_from_table(name, plan)
    records, _ = read_runs([record_of(name)] if record_of(name).exists() else [])
    return contestants_of(sweep, records)


def record_of(name: str) -> Path:
    return RESULTS / name / "runs.jsonl"


def chosen_in(name: str, plan: dict[str, Any]) -> dict[str, Any] | None:
    """The setting that a plan of one contestant chose; None if it has not ended."""
    if not has_ended(name, plan):
        return None
    (contestant,) = contestants(name, plan)
    return dict(contestant.chosen.config.settings)


def best_rows(name: str, plan: dict[str, Any] | None, count: int = 3) -> list[str] | None:
    """The rows of a column with the best validation at their chosen rates, EMA left out."""
    if plan is None or not has_ended(name, plan):
        return None
    means = {}
    for row, contestant in zip(FILTERS, contestants(name, plan), strict=True):
        values = [run.validation for run in contestant.seeds]
        if row != "EMA" and values and None not in values:
            means[row] = statistics.fmean(values)
    return sorted(means, key=means.__getitem__)[:count]


def has_ended(name: str, plan: dict[str, Any]) -> bool:
    if not record_of(name).exists():
        return False
    found = contestants(name, plan)
    return all(c.chosen and c.seeds and all(run.has_ended for run in c.seeds) for c in found)


# --- files ----------------------------------------------------------------------------------------


def as_toml(name: str, plan: dict[str, Any]) -> str:
    lines = [
        f"# sgdf sweep benchmarks/evidence/map/{name}.toml --no-checkpoints --out runs/map/{name}",
        "# Written by benchmarks/filter_map.py; docs/map-protocol.md is the protocol.",
    ]
    tables = ("set", "cells", "space")
    lines += [f"{key} = {value_of(v)}" for key, v in plan.items() if key not in tables]
    lines += (
        ["", "[set]", *(f"{key} = {value_of(v)}" for key, v in plan["set"].items())]
        if "set" in plan
        else []
    )
    for cell in plan["cells"]:
        lines += ["", "[[cells]]", *(f"{key} = {value_of(v)}" for key, v in cell.items())]
    for optimizer, space in plan["space"].items():
        lines += ["", f"[space.{optimizer}]"]
        lines += [f"{key} = {value_of(v)}" for key, v in space.items()]
    return "\n".join(lines) + "\n"


def value_of(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {value_of(v)}" for k, v in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


def write(made: dict[str, Any]) -> None:
    PLANS.mkdir(parents=True, exist_ok=True)
    for name, plan in made.items():
        if plan is not None:
            (PLANS / f"{name}.toml").write_text(as_toml(name, plan), encoding="utf-8")


# --- running --------------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> None:
    """Sweep after sweep until the time is up; what one of them finds may make the next."""
    left, tried = 60 * options.minutes, set()
    while left > 0:
        made = plans()
        write(made)
        name = next((n for n, p in made.items() if wanted(n, p, options) and n not in tried), None)
        if name is None:
            return
        tried.add(name)
        start = os.times().elapsed
        code = sweep(name, made[name], options, left)
        left -= os.times().elapsed - start
        print(f"== {name}: {'stopped' if code is None else f'exit code {code}'}", flush=True)


def wanted(name: str, plan: Any, options: argparse.Namespace) -> bool:
    named = not options.only or any(part in name for part in options.only)
    return plan is not None and named and not has_ended(name, plan)


def sweep(name: str, plan: dict[str, Any], options: argparse.Namespace, most: float) -> int | None:
    """The exit code of `sgdf sweep`; None if it was stopped since the time was up."""
    record_of(name).parent.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "sgdf", "sweep", str(PLANS / f"{name}.toml"), "--no-checkpoints"]
    words += ["--out", str(RUNS / name), "--record", str(record_of(name))]
    words += ["--jobs", str(options.jobs), "--device", options.device]
    if plan["task"] == "text":
        words += ["--set", f"corpus={corpus_of(plan, options.data_dir)}"]
    elif options.data_dir:
        words += ["--data-dir", options.data_dir]
    with subprocess.Popen(words) as process:
        try:
            return process.wait(most)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            return None


def corpus_of(plan: dict[str, Any], folder: str | None) -> Path:
    """Where `sgdf data fetch` puts the text of a plan."""
    from sgdf_lab import data

    (path,) = data.find(Path(plan["set"]["corpus"]).stem).find(folder)  # type: ignore[attr-defined]
    return Path(path)


def runs_of(plan: dict[str, Any]) -> int:
    each = plan["trials"] + plan["finalists"] * len(plan["choice_seeds"]) + len(plan["seeds"])
    return len(plan["cells"]) * int(each)


def hours_of(plan: dict[str, Any]) -> float:
    """On one core, from the first look."""
    steps = plan["set"].get("steps") or plan["epochs"] * PASS
    return runs_of(plan) * steps * SECONDS[plan["model"]] / 3600


def show() -> None:
    total = 0.0
    for name, plan in plans().items():
        if plan is None:
            print(f"{name:30}waits for an earlier one")
            continue
        total += hours_of(plan)
        state = "done" if has_ended(name, plan) else ""
        print(f"{name:30}{runs_of(plan):6} runs  {hours_of(plan):5.1f} core-hours  {state}")
    print(f"{total:.1f} core-hours, without those that wait")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--list", action="store_true", help="the plans, with their numbers of runs")
    add("--write", action="store_true", help="write the plans")
    add("--run", action="store_true", help="run them")
    add("--only", nargs="+", metavar="PART", help="plans with one of these in their names")
    add("--minutes", type=float, default=60.0)
    add("--data-dir", metavar="DIR", default=os.environ.get("SGDF_DATA"))
    add("--device", default="cpu")
    add("--jobs", type=int, default=2)
    options = parser.parse_args()
    if options.list:
        show()
    if options.write:
        write(plans())
    if options.run:
        run(options)
    return 0


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "lab" / "src"), str(ROOT / "src")]
    sys.exit(main())
