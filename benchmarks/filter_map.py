"""The map of filters: which filter before which step, tuned alike. docs/map-protocol.md says how.

    python benchmarks/filter_map.py --list              # the plans, with their runs
    python benchmarks/filter_map.py --write             # the plans that wait for no result
    python benchmarks/filter_map.py --run --data-dir DIR --minutes 25
    python benchmarks/filter_map.py --record            # runs/map -> results/evidence

A plan is a file of `sgdf sweep` in benchmarks/evidence/map. Those of a column of the map are
written when the rates of its other parameters are known, from its plan "tune". `--run` takes the
plans in the order of `--list`, on the GPU in stacks, and resumes where it was stopped.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PLANS = ROOT / "benchmarks" / "evidence" / "map"
RUNS = ROOT / "runs" / "map"
RESULTS = ROOT / "results" / "evidence"

STEPS = {"short": 600, "long": 1800}
COLUMNS = ("sgd", "adam", "eigen", "orthogonal", "eigen-orthogonal")
IMAGE_COLUMNS = COLUMNS[1:]
CHOICE = {"finalists": 3, "choice_seeds": [101, 102, 103], "seeds": [1, 2, 3, 4, 5, 6]}
#: The rates that an average of 0.9 is tuned over, by column.
RATES = {
    "sgd": (0.03, 30.0),
    "adam": (5e-4, 3e-2),
    "eigen": (5e-4, 3e-2),
    "orthogonal": (1e-3, 6e-2),
    "eigen-orthogonal": (1e-3, 6e-2),
}
DECAYS = {"sgd": (1e-5, 1e-2)}  # the others: (1e-2, 1)
REACH = 5.0  # rates of a cell: from a fifth of those of its column to five times as much

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


def text(model: str = "gpt-mini", corpus: str = "encyclopedia", steps: int = 600) -> dict[str, Any]:
    return {
        "task": "text",
        "model": model,
        "precision": "tf32",
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


def images(model: str, epochs: int = 2) -> dict[str, Any]:
    return {
        "task": "cifar10",
        "model": model,
        "precision": "tf32",
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
        "trials": 16,
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
        "trials": 8,
        **CHOICE,
        **task,
        "set": settings,
        "cells": cells,
        "space": {"pipeline": {"lr": [rounded(lr / REACH), rounded(lr * REACH)]}},
    }


def adamw(steps: int) -> dict[str, Any]:
    return {
        "title": f"Map of filters: AdamW in {steps} steps",
        "trials": 16,
        **CHOICE,
        **text(steps=steps),
        "cells": [{"optimizer": "adamw"}],
        "space": {"adamw": {"lr": [1e-3, 3e-2]}},
    }


def contest(title: str, task: dict[str, Any]) -> dict[str, Any]:
    """All contestants; their rates are searched in the same ranges, the others' too."""
    adam = {"lr": [5e-4, 3e-2]}
    matrix = {"lr": [1e-3, 6e-2], "aux_lr": [1e-3, 3e-2]}
    ours = {**matrix, "gain_scale": [0.03, 0.3]}
    fixed = {"betas": [0.85, 0.95]}
    soap: dict[str, Any] = {"optimizer": "soap"}
    if task["task"] != "text":  # its rule, with the kernels as matrices
        soap = {"optimizer": "filter-soap", "gain_scale": 0.0, "slow_weight": 0.0,
                "turn_moments": False}  # fmt: skip
    of_soap = {**matrix, "precondition_frequency": {"choices": [1, 10]}}
    return {
        "title": f"The contest: {title}",
        "trials": 16,
        "finalists": 4,
        "choice_seeds": [101, 102, 103],
        "seeds": [1, 2, 3, 4, 5, 6, 7, 8],
        **task,
        "cells": [
            {"optimizer": "adamw"},
            {"optimizer": "nadamw"},
            {"optimizer": "filter-adamw", "gain_eps": 0.0},
            {"optimizer": "muon"},
            soap,
            {"optimizer": "filter-muon", **fixed},
            {"optimizer": "filter-muon-eigen", **fixed},
            {"optimizer": "filter-soap", **fixed},
        ],
        "space": {
            "adamw": adam,
            "nadamw": adam,
            "filter-adamw": adam,
            "muon": {"lr": matrix["lr"], "adamw_lr": matrix["aux_lr"]},
            **({"soap": of_soap} if soap["optimizer"] == "soap" else {}),
            "filter-muon": ours,
            "filter-muon-eigen": ours,
            "filter-soap": ours,
        },
    }


def rounded(value: float) -> float:
    return float(f"{value:.3g}")


def plans() -> dict[str, Any]:
    """Every plan by its name, in the order in which they are worth most; None: not known yet."""
    made: dict[str, Any] = {}
    short, long = text(), text(steps=STEPS["long"])

    def of_column(column: str, length: str, task: dict[str, Any], what: str) -> None:
        first = f"map-{length}-{column}-tune"
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
    made["contest-gpt-encyclopedia"] = contest("GPT, 0.8 M, encyclopedia articles", short)
    made["contest-gpt-books"] = contest("GPT, 0.8 M, books", text(corpus="books"))
    made["contest-lstm-encyclopedia"] = contest("LSTM, encyclopedia articles", text("lstm-mini"))
    for column in COLUMNS:
        of_column(column, "long", long, "1800 steps")
    made["contest-vit-cifar10"] = contest("vision transformer, CIFAR-10", images("vit-cifar"))
    made["contest-gpt-encyclopedia-long"] = contest("GPT, 0.8 M, three times the length", long)
    made["contest-cnn-cifar10"] = contest("network with batch norm, CIFAR-10", images("cnn-bn"))
    made["contest-gpt-0.1m"] = contest("GPT, 0.1 M, encyclopedia articles", text("gpt-tiny"))
    made["contest-gpt-3m"] = contest("GPT, 3 M, encyclopedia articles", text("gpt-3m"))
    for column in IMAGE_COLUMNS:
        of_column(column, "images", images("vit-cifar"), "vision transformer")
    return made


# --- what earlier plans found ---------------------------------------------------------------------


def contestants(name: str, plan: dict[str, Any]) -> list[Any]:
    """The contestants of a plan with the runs that there are, here or in its record."""
    from sgdf_lab.runs.records import read_runs
    from sgdf_lab.sweeps.contestants import contestants_of
    from sgdf_lab.sweeps.plan import sweep_from_table

    sweep = sweep_from_table(name, plan)
    record = RESULTS / name / "runs.jsonl"
    places = [record] if record.exists() else [f for f in (RUNS / name).glob("*") if f.is_dir()]
    records, _ = read_runs(places)
    return contestants_of(sweep, records)


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
    found = contestants(name, plan)
    return all(c.chosen and c.seeds and all(run.has_ended for run in c.seeds) for c in found)


# --- files ----------------------------------------------------------------------------------------


def as_toml(name: str, plan: dict[str, Any]) -> str:
    command = f"sgdf sweep benchmarks/evidence/map/{name}.toml --engine stack --out runs/map/{name}"
    lines = [
        f"# {command}",
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
    from sgdf_lab.cli.main import main as sgdf

    end = time.monotonic() + 60 * options.minutes
    tried: set[str] = set()
    while time.monotonic() < end:
        made = plans()
        write(made)
        name = next((n for n, p in made.items() if wanted(n, p, options) and n not in tried), None)
        if name is None:
            waiting = [n for n, p in made.items() if p is not None and not is_done(n)]
            if not options.wait or not waiting:
                break
            time.sleep(2)
            tried.clear()
            continue
        tried.add(name)
        start = time.monotonic()
        words = ["sweep", str(PLANS / f"{name}.toml"), "--out", str(RUNS / name)]
        words += ["--engine", "stack", "--together", str(options.together), "--no-checkpoints"]
        words += ["--data-dir", str(options.data_dir)] if options.data_dir else []
        words += ["--device", options.device]
        if made[name]["task"] == "text" and options.data_dir:
            corpus = Path(options.data_dir) / "text" / made[name]["set"]["corpus"]
            words += ["--set", f"corpus={corpus}"]
            words = [w for w in words if w not in ("--data-dir", str(options.data_dir))]
        code = sgdf(words)
        print(f"== {name}: exit code {code}, {time.monotonic() - start:.0f} s", flush=True)
        if code == 0:
            (RUNS / name / "done").touch()


def is_done(name: str) -> bool:
    return (RUNS / name / "done").exists()


def wanted(name: str, plan: Any, options: argparse.Namespace) -> bool:
    if plan is None or is_done(name):
        return False
    if options.only and not any(part in name for part in options.only):
        return False
    corpus = plan.get("set", {}).get("corpus")
    folder = Path(options.data_dir or ".")
    if plan["task"] == "cifar10":
        return (folder / "cifar10" / "ready").exists()
    return corpus is None or (folder / "text" / corpus).exists()


def record() -> None:
    """Put the runs of every plan that has ended into its record."""
    from sgdf_lab.runs import packed

    for folder in sorted(RUNS.iterdir()):
        file = RESULTS / folder.name / "runs.jsonl"
        runs = [f for f in sorted(folder.iterdir()) if (f / "result.json").exists()]
        if runs:
            file.parent.mkdir(parents=True, exist_ok=True)
            packed.pack(runs, file)
            print(f"{file.relative_to(ROOT)}: {len(runs)} runs")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--list", action="store_true", help="the plans, with their numbers of runs")
    add("--write", action="store_true", help="write the plans")
    add("--run", action="store_true", help="run them")
    add("--record", action="store_true", help="pack their runs")
    add("--only", nargs="+", metavar="PART", help="plans with one of these in their names")
    add("--minutes", type=float, default=25.0)
    add("--data-dir", metavar="DIR", default=os.environ.get("SGDF_DATA"))
    add("--device", default="cuda")
    add("--together", type=int, default=64)
    add("--wait", action="store_true", help="wait for data that is not here yet")
    options = parser.parse_args()
    if options.list:
        for name, plan in plans().items():
            print(f"{name:34}{'waits' if plan is None else count(plan)}")
    if options.write:
        write(plans())
    if options.run:
        run(options)
    if options.record:
        record()
    return 0


def count(plan: dict[str, Any]) -> str:
    cells = len(plan["cells"])
    runs = plan["trials"] + plan["finalists"] * len(plan["choice_seeds"]) + len(plan["seeds"])
    return f"{cells} x {runs} = {cells * runs} runs"


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "lab" / "src"), str(ROOT / "src")]
    sys.exit(main())
