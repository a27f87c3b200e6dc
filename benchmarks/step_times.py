"""The time of a step of every contestant of the evidence, alone on the device.

    python benchmarks/step_times.py [FILE.toml ...] [--device cuda] [--rounds 3] [--quick]

Sweeps train several runs side by side, so their own times say little. Here each contestant of a
file (default: all in benchmarks/evidence) trains by itself, as the file says, on synthetic data,
which takes as long as real data. Measured are all steps between two evaluations, without these.

`--quick` is for a CPU: tiny models, few steps. Prints a table and writes
results/step-times-DEVICE.json.
"""

import argparse
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from sgdf_lab.runs.config import Config
from sgdf_lab.support.files import write_json
from sgdf_lab.sweeps.plan import Tuned, sweep_from_file
from timing import epoch, made_by, timed

EVIDENCE = Path(__file__).parent / "evidence"
TINY = {"text": "gpt-tiny", "cifar10": "mlp", "cifar10-fast": "airbench-tiny"}
FEW = {"batch": 2, "steps": 20, "eval_every": 2}  # of text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, default=sorted(EVIDENCE.glob("*.toml")))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of each")
    parser.add_argument("--quick", action="store_true", help="tiny models and few steps")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    rows = []
    for file in options.files:
        for config in contestants(file, quick=options.quick):
            rows.append({"file": file.stem, **measured(config, device, options.rounds)})
            print(rows[-1]["file"], rows[-1]["optimizer"], rows[-1]["ms"], flush=True)
    show(rows)
    out = options.out or Path(f"results/step-times-{device.type}.json")
    record = {
        **made_by(device),
        "rows": rows,
    }
    write_json(out, record, indent=1)
    print("wrote", out)


def contestants(file: Path, *, quick: bool) -> list[Config]:
    """The first trial of each, on synthetic data, of which little is held out."""
    first = sweep_from_file(file).configs[0]
    is_text = first.task == "text"
    settings = {"test_tokens": 0} if is_text else {"validation": 100}
    given: dict[str, Any] = {"data": "synthetic", "set": settings}
    if quick:
        given |= {"model": TINY.get(first.task, "mlp"), "set": settings | (FEW if is_text else {})}
    sweep = sweep_from_file(file, given)
    assert isinstance(sweep, Tuned)
    return [first for first, *_ in sweep.trials]


def measured(config: Config, device: torch.device, rounds: int) -> dict[str, Any]:
    lab = config.task_definition.module.build_trainer(config, device)
    per_epoch = len(lab.sizes)
    for _ in range(max(2, -(-8 // per_epoch))):  # until every graph is captured
        epoch(lab)
    times = [1000 * timed(lambda: epoch(lab), device) / per_epoch for _ in range(rounds)]
    lab.close()
    return {
        "optimizer": config.optimizer,
        "batch": config.batch,
        "settings": dict(config.settings),
        "captured": lab.captures_step,
        "ms": [round(time, 4) for time in times],
    }


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(title="Time of a step, alone (median)")
    for name in ("file", "optimizer", "form"):
        table.add_column(name)
    table.add_column("ms", justify="right")
    for row in rows:
        form = ", ".join(
            f"{name} {value}"
            for name, value in row["settings"].items()
            if name.removeprefix("filter_") in ("gain_scale", "gain_power", "second_moment")
        )
        table.add_row(row["file"], row["optimizer"], form, f"{median(row['ms']):.3f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
