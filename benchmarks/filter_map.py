"""The map of filters: which filter before which step, tuned alike. docs/map-protocol.md says how.

    python benchmarks/filter_map.py --list   # the plans, their runs, what is done
    python benchmarks/filter_map.py --write  # the plans that wait for no result
    python benchmarks/filter_map.py --run --device cuda --data-dir DIR --minutes 25
    python benchmarks/filter_map.py --run --device cpu --engine local --at-once 1 --data-dir DIR

A plan is a file of `sgdf sweep` in benchmarks/evidence/map; its runs are recorded as they end, in
results/evidence/NAME/runs.jsonl. The plan of a column is written when the rates of its other
parameters are known, from its plan "tune". `--run` takes the plans in the order of `--list`,
several at once, each as soon as its data and what it waits for are there. It stops at the time that
it was given, and continues where it was stopped.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
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
CHOICE = {"finalists": 2, "choice_seeds": [101, 102], "seeds": [1, 2, 3, 4, 5, 6]}
MAP = {"trials": 8, **CHOICE}
CONTEST = {"trials": 12, "finalists": 3, "choice_seeds": [101, 102], "seeds": [*range(1, 9)]}
CONTROL = {**CONTEST, "trials": 8, "seeds": [1, 2, 3, 4, 5, 6]}
#: What two CPU cores can do, of the plans that had no time on the GPU: the protocol says which.
ON_CPU: dict[str, Any] = {"trials": 3, "seeds": [1, 2, 3, 4]}
#: The rate of all other parameters, and the rates of matrix steps and of Adam's in the contest.
AUX_RATE = [3e-3, 0.1]
MATRIX_RATE, SOAP_RATE, ADAM_RATE = [2e-3, 6e-2], [2e-3, 6e-2], [5e-4, 3e-2]
#: The rates that an average of 0.9 is tuned over, by column.
RATES = {
    "sgd": (0.1, 30.0),
    "adam": (5e-4, 3e-2),
    "eigen": (2e-3, 6e-2),
    "orthogonal": (2e-3, 6e-2),
    "eigen-orthogonal": (2e-3, 6e-2),
}
DECAYS = {"sgd": (1e-5, 1e-2)}  # the others: (1e-2, 1)
REACH = 4.0  # rates of a cell: from a quarter of that of its column to four times as much
REACH_ON_CPU = 2.0
#: The contest of 3 million parameters: only the rate is searched, by these.
RATES_ON_CPU = {**ON_CPU, "seeds": [1, 2, 3]}
OF_RATES = ("adamw", "muon", "filter-muon-eigen")

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
ON_IMAGES_ON_CPU = ("EMA", "constant 0.1", "two averages, constant 0.1")

# --- tasks ----------------------------------------------------------------------------------------

#: Seconds of a run of 600 steps in a stack on one H200, from a first look: for the budget only.
SECONDS = {"gpt-tiny": 0.06, "gpt-mini": 0.26, "gpt-3m": 1.0, "lstm-mini": 0.3, "vit-mini": 0.15,
           "cnn-bn": 0.5}  # fmt: skip
PASS = 352  # steps through 45,000 images


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
        "aux_lr": AUX_RATE,
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
    column: str,
    task: dict[str, Any],
    what: str,
    tuned: dict[str, Any],
    rows: tuple[str, ...],
    reach: float = REACH,
    **changes: Any,
) -> dict[str, Any]:
    cells = [{"optimizer": "pipeline", **FILTERS[row]} for row in rows]
    lr = tuned["lr"]
    settings = {**task["set"], "step": column}
    settings |= {name: tuned[name] for name in ("aux_lr", "weight_decay")}
    return {
        "title": f"Map of filters, {what}: before {column}",
        **(changes or MAP),
        **task,
        "set": settings,
        "cells": cells,
        "space": {"pipeline": {"lr": [rounded(lr / reach), rounded(lr * reach)]}},
    }


def adamw(steps: int) -> dict[str, Any]:
    return {
        "title": f"Map of filters: AdamW in {steps} steps",
        "trials": 12,
        **CHOICE,
        **text(steps=steps),
        "cells": [{"optimizer": "adamw"}],
        "space": {"adamw": {"lr": ADAM_RATE}},
    }


def contest(title: str, task: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """All contestants; their rates are searched in the same ranges, the others' too."""
    fixed = {"betas": [0.85, 0.95]}
    ours = {"lr": MATRIX_RATE, "aux_lr": AUX_RATE, "gain_scale": [0.03, 0.3]}
    soap: dict[str, Any] = {"optimizer": "soap"}
    if task["task"] != "text":  # its rule, with the kernels as matrices
        soap = {"optimizer": "filter-soap", "gain_scale": 0.0, "slow_weight": 0.0,
                "turn_moments": False}  # fmt: skip
    plan = {
        "title": f"The contest: {title}",
        **CONTEST,
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
            "adamw": {"lr": ADAM_RATE},
            "nadamw": {"lr": ADAM_RATE},
            "filter-adamw": {"lr": ADAM_RATE},
            "muon": {"lr": MATRIX_RATE, "adamw_lr": AUX_RATE},
            "soap": {
                "lr": SOAP_RATE,
                "aux_lr": AUX_RATE,
                "precondition_frequency": {"choices": [1, 10]},
            },
            "filter-muon": ours,
            "filter-muon-eigen": ours,
            "filter-soap": {**ours, "lr": SOAP_RATE},
        },
        **changes,
    }
    names = {cell["optimizer"] for cell in plan["cells"]}
    plan["space"] = {name: space for name, space in plan["space"].items() if name in names}
    return plan


def muon_grid(title: str, task: dict[str, Any]) -> dict[str, Any]:
    """FilterMuon beside torch's Muon: every rate with every seed, nothing chosen."""
    fixed = {"seeds": [1, 2, 3, 4], **task}
    forms = (
        {"optimizer": "muon"},
        {"optimizer": "filter-muon"},
        {"optimizer": "filter-muon-eigen"},
    )
    cells = [
        {**form, "lr": lr, "adamw_lr" if form["optimizer"] == "muon" else "aux_lr": 0.02}
        for lr in (0.004, 0.008, 0.016, 0.032)
        for form in forms
    ]
    settings = {**task["set"], "weight_decay": 0.1}
    return {"title": f"Muon and FilterMuon, {title}", **fixed, "set": settings, "cells": cells}


def muon_of_kernels(title: str, task: dict[str, Any]) -> dict[str, Any]:
    """Muon's rule (one average, a gain of 0.1) with kernels as matrices: torch's leaves them out.

    Tuned as a contestant. Added after the contest: it says how much of a lead on images is that.
    """
    cell = {"optimizer": "filter-muon", "betas": [0.9, 0.95], "gain_scale": 0.1, "slow_weight": 0.0}
    return {
        "title": f"Muon with kernels as matrices: {title}",
        **CONTEST,
        **task,
        "cells": [cell],
        "space": {"filter-muon": {"lr": MATRIX_RATE, "aux_lr": AUX_RATE}},
    }


def contest_of_rates(
    title: str, task: dict[str, Any], of: str, plan: dict[str, Any]
) -> dict[str, Any] | None:
    """A contest whose settings are those that another one chose, but the learning rate."""
    if not has_ended(of, plan):
        return None
    cells, space = [], {}
    for contestant in contestants(of, plan):
        settings = dict(contestant.chosen.config.settings)
        lr = settings.pop("lr")
        del settings["param_groups"]  # as every run has them
        optimizer = contestant.chosen.config.optimizer
        if optimizer in OF_RATES:
            cells.append({"optimizer": optimizer, **settings})
            space[optimizer] = {"lr": [rounded(lr / REACH_ON_CPU), rounded(lr * REACH_ON_CPU)]}
    head = {"title": f"The contest: {title}", **RATES_ON_CPU}
    return {**head, **task, "cells": cells, "space": space}


def rounded(value: float) -> float:
    return float(f"{value:.3g}")


def plans() -> dict[str, Any]:
    """Every plan by its name, in the order in which they are run; None: not known yet."""
    made: dict[str, Any] = {}
    short, long = text(), text(steps=STEPS["long"])

    def tune_column(column: str, length: str, task: dict[str, Any], what: str) -> None:
        made[f"map-{length}-{column}-tune"] = tune(column, task, what)

    def of_column(column: str, length: str, task: dict[str, Any], what: str) -> None:
        first = f"map-{'images' if length == 'images' else 'short'}-{column}-tune"
        tuned = chosen_in(first, made[first])
        rows = tuple(FILTERS)
        changes: dict[str, Any] = {}
        if length == "images" and column == "adam":  # begun before the time was up
            rows, changes = ON_IMAGES, {**MAP, "seeds": ON_CPU["seeds"]}
        elif length == "images":
            rows, changes = ON_IMAGES_ON_CPU, {"reach": REACH_ON_CPU, **ON_CPU}
        elif length == "long":
            best = best_rows(f"map-short-{column}", made.get(f"map-short-{column}"))
            rows = () if best is None else ("EMA", *best)
        known = tuned is not None and rows
        made[f"map-{length}-{column}"] = (
            column_plan(column, task, what, tuned, rows, **changes) if known else None
        )

    for column in COLUMNS:
        tune_column(column, "short", short, "600 steps")
    made["contest-gpt-encyclopedia"] = contest("GPT, 0.8 M, encyclopedia articles", short)
    made["contest-gpt-books"] = contest("GPT, 0.8 M, books", text(corpus="books"))
    for column in COLUMNS:
        of_column(column, "short", short, "600 steps")
    made["contest-lstm-encyclopedia"] = contest("LSTM, encyclopedia articles", text("lstm-mini"))
    vit = images("vit-mini")
    made["contest-vit-cifar10"] = contest("vision transformer, CIFAR-10", vit)
    made["contest-cnn-cifar10"] = contest("network with batch norm, CIFAR-10", images("cnn-bn"))
    made["contest-gpt-encyclopedia-long"] = contest(
        "GPT, 0.8 M, three times the length", long, **CONTROL
    )
    for part in (0.5, 1.0, 1.5, 2.0, 3.0):
        steps = round(STEPS["short"] * part)
        made[f"map-adamw-{steps}"] = adamw(steps)
    for column in COLUMNS:
        of_column(column, "long", long, "1800 steps")
    for size, model in (("0.1", "gpt-tiny"), ("0.8", "gpt-mini")):
        for steps in STEPS.values():
            made[f"muon-gpt-{size}m-{steps}"] = muon_grid(
                f"GPT of {size} million parameters, {steps} steps", text(model, steps=steps)
            )
    tiny = text("gpt-tiny")
    made["contest-gpt-0.1m"] = contest("GPT, 0.1 M, encyclopedia articles", tiny, **CONTROL)
    for column in IMAGE_COLUMNS:
        tune_column(column, "images", vit, "vision transformer")
    for column in IMAGE_COLUMNS:
        of_column(column, "images", vit, "vision transformer")
    first = "contest-gpt-encyclopedia"
    made["contest-gpt-3m"] = contest_of_rates(
        "GPT, 3 M, encyclopedia articles", text("gpt-3m"), first, made[first]
    )
    made["check-vit-muon"] = muon_of_kernels("vision transformer, CIFAR-10", vit)
    made["check-cnn-muon"] = muon_of_kernels("network with batch norm, CIFAR-10", images("cnn-bn"))
    return made


# --- what earlier plans found ---------------------------------------------------------------------


ENDED: set[str] = set()  # plans that were seen complete: their records change no more


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
    if name in ENDED:
        return True
    if not record_of(name).exists():
        return False
    if "trials" not in plan:
        with record_of(name).open(encoding="utf-8") as lines:
            done = sum(1 for _ in lines) >= len(plan["cells"]) * len(plan["seeds"])
    else:
        found = contestants(name, plan)
        done = all(c.chosen and c.seeds and all(run.has_ended for run in c.seeds) for c in found)
    if done:
        ENDED.add(name)
    return done


# --- files ----------------------------------------------------------------------------------------


def as_toml(name: str, plan: dict[str, Any]) -> str:
    command = f"sgdf sweep benchmarks/evidence/map/{name}.toml --engine stack"
    lines = [
        f"# {command} --no-checkpoints --out runs/map/{name}",
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
    for optimizer, space in plan.get("space", {}).items():
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
    """Several sweeps at a time until the time is up; what one of them finds may make the next."""
    end = time.monotonic() + 60 * options.minutes
    running: dict[str, subprocess.Popen[bytes]] = {}
    tried: set[str] = set()
    made = plans()
    write(made)
    try:
        while True:
            waiting = [n for n in made if n not in tried and wanted(n, made[n], options)]
            for name in waiting[: options.at_once - len(running)]:
                tried.add(name)
                running[name] = sweep(name, made[name], options)
                say(f"{name}: started")
            ended = [name for name, process in running.items() if process.poll() is not None]
            for name in ended:
                say(f"{name}: exit code {running.pop(name).returncode}")
            if ended:
                made = plans()
                write(made)
            more = any(n not in tried and named(n, options) for n in made)
            if time.monotonic() > end or not (running or ended or (more and options.wait)):
                return
            time.sleep(0.5)
    finally:
        for process in running.values():
            process.send_signal(signal.SIGINT)
        for name, process in running.items():
            say(f"{name}: stopped, exit code {process.wait()}")


def say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", flush=True)


def named(name: str, options: argparse.Namespace) -> bool:
    return not options.only or any(part in name for part in options.only)


def wanted(name: str, plan: Any, options: argparse.Namespace) -> bool:
    """Whether it can be run now, and has not been."""
    if plan is None or not named(name, options) or has_ended(name, plan):
        return False
    from sgdf_lab import data

    ready, words = data.find(dataset_of(plan)).availability(options.data_dir)
    if ready != "yes" and not options.wait:
        raise SystemExit(f"{name}: {dataset_of(plan)} is not here: {words}")
    return ready == "yes"


def dataset_of(plan: dict[str, Any]) -> str:
    return Path(plan["set"]["corpus"]).stem if plan["task"] == "text" else str(plan["task"])


def sweep(name: str, plan: dict[str, Any], options: argparse.Namespace) -> subprocess.Popen[bytes]:
    record_of(name).parent.mkdir(parents=True, exist_ok=True)
    plan_file, out, record = (  # as seen from the root: records name the command
        os.path.relpath(path, ROOT)
        for path in (PLANS / f"{name}.toml", RUNS / name, record_of(name))
    )
    words = [sys.executable, "-m", "sgdf_lab", "sweep", plan_file]
    words += ["--no-checkpoints", "--out", out, "--record", record]
    words += ["--engine", options.engine, "--device", options.device]
    if options.engine == "stack":
        words += ["--together", str(options.together)]
    if plan["task"] == "text":
        words += ["--set", f"corpus={corpus_of(plan, options.data_dir)}"]
    elif options.data_dir:
        words += ["--data-dir", options.data_dir]
    RUNS.mkdir(parents=True, exist_ok=True)
    with (RUNS / f"{name}.log").open("ab") as log:
        return subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)


def corpus_of(plan: dict[str, Any], folder: str | None) -> Path:
    """Where `sgdf data fetch` puts the text of a plan."""
    from sgdf_lab import data

    (path,) = data.find(Path(plan["set"]["corpus"]).stem).find(folder)  # type: ignore[attr-defined]
    return Path(path)


def runs_of(plan: dict[str, Any]) -> int:
    if "trials" not in plan:
        return len(plan["cells"]) * len(plan["seeds"])
    of_choice = plan.get("finalists", 0) * len(plan.get("choice_seeds", ()))
    each = plan["trials"] + of_choice + len(plan["seeds"])
    return len(plan["cells"]) * int(each)


def minutes_of(plan: dict[str, Any]) -> float:
    """On one H200, from the first look."""
    steps = plan["set"].get("steps") or plan["epochs"] * PASS
    return runs_of(plan) * steps / 600 * SECONDS[plan["model"]] / 60


def show() -> None:
    total = 0.0
    for name, plan in plans().items():
        if plan is None:
            print(f"{name:32}waits for an earlier one")
            continue
        total += minutes_of(plan)
        state = "done" if has_ended(name, plan) else ""
        print(f"{name:32}{runs_of(plan):6} runs  {minutes_of(plan):5.1f} min  {state}")
    print(f"{total:.0f} minutes of one H200, without those that wait")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--list", action="store_true", help="the plans, with their numbers of runs")
    add("--write", action="store_true", help="write the plans")
    add("--run", action="store_true", help="run them")
    add("--only", nargs="+", metavar="PART", help="plans with one of these in their names")
    add("--minutes", type=float, default=60.0)
    add("--data-dir", metavar="DIR", default=os.environ.get("SGDF_DATA"))
    add("--device", default="cuda")
    add("--engine", choices=("stack", "local"), default="stack", help="local: a run on each core")
    add("--together", type=int, default=96, help="runs in a stack")
    add("--at-once", type=int, default=5, metavar="N", help="sweeps at a time")
    add("--wait", action="store_true", help="wait for data that is not here yet")
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
