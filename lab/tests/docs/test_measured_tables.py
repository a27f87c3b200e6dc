"""Tables of the pages that no other test holds: they have the numbers of their records."""

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
SPEED = (ROOT / "docs" / "speed.md").read_text()
SETTINGS = (ROOT / "docs" / "settings.md").read_text()


def record(name: str) -> Any:
    return json.loads((ROOT / "results" / name).read_text())


def steps(device: str, shape: str, dtype: str = "fp32") -> dict[str, float]:
    """Milliseconds by optimizer and path."""
    rows = record(f"bench-step-{device}.json")["lists"][shape]["rows"]
    return {
        f"{row['optimizer']} {row['path']}": row["ms"]
        for row in rows
        if row["params_dtype"] == dtype
    }


def test_bfloat16_parameters():
    ms = steps("cuda", "gpt", "bf16")
    ours = ms["FilterAdamW fused, derived v, int8 state, random rounding"]
    assert f"**{ours:.3g} ms**" in SPEED
    assert f"AdamW fused {ms['AdamW fused']:.3g} ms" in SPEED
    assert f"{ours / ms['AdamW fused']:.2f} times AdamW" in SPEED
    assert f"random rounding {ms['SGDF fused, random rounding']:.3g} ms" in SPEED


def test_ratios_of_the_new_forms():
    gpt, resnet = steps("cuda", "gpt"), steps("cuda", "resnet50")
    derived, int8 = "FilterAdamW fused, derived v", "FilterAdamW fused, derived v, int8 state"
    assert f"{gpt[derived] / gpt['AdamW fused']:.2f} times its\ntime" in SPEED
    assert f"2.03 bytes and {gpt[int8] / gpt['AdamW fused']:.2f} times" in SPEED
    constant = gpt["SGDF fused, constant gain"] / gpt["SGD fused"]
    assert f"bytes in {constant:.2f} times its time" in SPEED
    assert f"{resnet[derived] / resnet['AdamW fused']:.2f} times as\nlong as AdamW" in SPEED


def test_a_step_inside_backward():
    rows = record("step-in-backward-cuda.json")["rows"]
    found = {(row["optimizer"], row["state"], row["in_backward"]): row for row in rows}
    for (optimizer, state, inside), row in found.items():
        if inside:
            continue
        other = found[optimizer, state, True]
        name = "float32" if state == "default" else state
        peaks = " | ".join(f"{r['peak_bytes'] / 2**20:.0f} MiB" for r in (row, other))
        times = " | ".join(f"{statistics.median(r['iteration_ms']):.0f}" for r in (row, other))
        assert f"| {optimizer} | {name} | {peaks} | {times} |" in SPEED


def test_language_models():
    for row in record("bench-language-cuda.json")["rows"]:
        (line,) = [line for line in SPEED.splitlines() if line.startswith(f"| `{row['model']}`")]
        cells = [
            f"{row['batch']} × {row['context']}",
            f"{row['all_in_ms']:#.3g} ms",
            f"{100 * row['overhead']:.1f} %",
            f"{100 * row['share_of_peak']:.1f} %",
        ]
        assert line.strip("| ").split(" | ")[1:] == cells


def first_steps(network: str) -> dict[tuple[Any, ...], list[float]]:
    """Final accuracies by optimizer, warm-up, bias correction and clipping."""
    found = defaultdict(list)
    for line in (ROOT / f"results/first-steps-{network}/runs.jsonl").read_text().splitlines():
        run = json.loads(line)
        config, settings = run["config"], run["config"]["settings"]
        warms, ramps = bool(config["warmup"]), settings.get("bias_correction") is False
        key = config["optimizer"], warms, ramps, bool(config["clip"])
        found[key].append(run["metrics"][-1]["test_accuracy"])
    return found


def test_the_readme_on_the_first_steps():
    (plain,), (warm,) = (first_steps("resnet18")["sgdf", w, False, False] for w in (False, True))
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"{warm:.2f} with a warm-up, {plain:.2f} without; one seed" in readme


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("SGDF, lr 0.5", ("sgdf", False, False, False)),
        ("with a warm-up over 5 % of the run", ("sgdf", True, False, False)),
        ("without bias correction, a ramp by 1-b1^t", ("sgdf", False, True, False)),
        ("gradients clipped to norm 1", ("sgdf", False, False, True)),
        ("warm-up and clipping", ("sgdf", True, False, True)),
        ("SGD-Nesterov, lr 0.05", ("sgd-nesterov", False, False, False)),
        ("SGD-Nesterov with a warm-up", ("sgd-nesterov", True, False, False)),
        ("SGD-Nesterov, gradients clipped to norm 1", ("sgd-nesterov", False, False, True)),
        ("SGD-EMA, lr 0.5: no filter", ("sgd-ema", False, False, False)),
    ],
)
def test_the_first_steps(words, key):
    cells = []
    for network in ("vgg11", "resnet18"):
        values = first_steps(network).get(key, [])
        if not values:
            cells.append("not measured")
            continue
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        cells.append(f"{statistics.mean(values):.2f}{spread} ({len(values)})")
    assert f"| {words} | {' | '.join(cells)} |" in SETTINGS


def test_the_fast_recipe():
    lines = (ROOT / "results/cifar10-fast/runs.jsonl").read_text().splitlines()
    runs = [run for run in map(json.loads, lines) if run["config"]["optimizer"] == "sgd-nesterov"]
    values = [run["metrics"][-1]["test_accuracy"] for run in runs]
    shown = f"ten seeds | {statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}, below"
    assert len(values) == 10
    assert shown in (ROOT / "docs" / "evidence-paper.md").read_text()
