"""What the README and the docs state as measured is what `results/` has."""

import json
import re
from pathlib import Path

import pytest

from sgdf.lab import paper
from sgdf.report import records, tables

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NAMES = {
    "SGDF, lr 0.5": "sgdf",
    "SGD with momentum, lr 0.05": "sgd, lr 0.05",
    "SGD with momentum, lr 0.1": "sgd, lr 0.1",
    **{name: name.lower() for name in ("AdaBelief", "MSVAG", "RAdam", "AdaBound", "Sophia-G")},
    **{name: name.lower() for name in ("Adam", "AdamW", "Lion")},
}


def test_the_readmes_table_is_that_of_the_runs():
    found, complaints = records.read([ROOT / "results" / "cifar10-vgg11"])
    assert not complaints
    (comparison,) = tables.build(found)
    by_label = {row.label: row for row in comparison.rows}
    section = README.partition("| | seeds | best | final | published best |")[2]
    lines = re.findall(r"^\| (.+?) \| (\d) \| (.+?) \| (.+?) \| (.+?) \|$", section, re.MULTILINE)
    assert {name for name, *_ in lines} == NAMES.keys()
    assert len(by_label) == len(NAMES)
    for name, seeds, best, final, published in lines:
        row = by_label[NAMES[name]]
        assert row.best.n == int(seeds), name
        words = [tables.spread_words(value).replace("\xa0", " ") for value in (row.best, row.final)]
        assert words == [best, final], name
        beside = tables.spread_words(row.published).replace("\xa0", " ") if row.published else ""
        assert (beside or "not run") == published, name


@pytest.mark.parametrize(
    ("rival", "behind", "low", "high"), [("sgd, lr 0.05", 0.04, -0.26, 0.34),
                                         ("sgd, lr 0.1", 1.14, 0.49, 1.78)]
)  # fmt: skip
def test_the_readmes_intervals_are_those_of_the_runs(rival, behind, low, high):
    found, _ = records.read([ROOT / "results" / "cifar10-vgg11"])
    (comparison,) = tables.build(found)
    paired = next(row.paired for row in comparison.rows if row.label == rival)
    assert [round(-x, 2) for x in (paired.mean, paired.high, paired.low)] == [behind, low, high]
    for number in (behind, abs(low), high):
        assert str(number) in README


def test_the_readmes_epochs_are_those_of_the_benchmark():
    record = json.loads((ROOT / "results" / "bench-trainer-cuda.json").read_text())
    section = README.partition("| | TF32 | over the bare step |")[2].partition("\n\n")[0]
    for row in record["rows"]:
        epoch = float(f"{row['epoch_s']:.3g}")
        assert f"{epoch:g} s" in section, row["model"]


def results_of(name):
    found, complaints = records.read([ROOT / "results" / name])
    assert not complaints
    return {(run.config.optimizer, run.config.lr, run.config.seed): run for run in found}


def test_the_learning_rates_of_the_readme_are_those_of_the_runs():
    runs = results_of("lr-grid-cifar10-vgg11")
    assert len(runs) == 3 * 9 + 2
    for key in (("sgdf", 0.5, 0), ("sgd", 0.05, 0), *(("adam", 0.001, seed) for seed in (0, 1, 2))):
        assert f"{runs[key].final:.2f}" in README.partition("How sensitive")[2], key
    for optimizer in ("sgdf", "sgd"):
        rivals = [run for (name, _, _), run in runs.items() if name == optimizer]
        best = max(run.final for run in rivals if run.finished)
        assert best == runs[optimizer, 0.5 if optimizer == "sgdf" else 0.05, 0].final


@pytest.mark.parametrize(
    ("page", "name"), [("wgan-gp", "wgan-gp"), ("imagenet-vit", "vit-b32-random")]
)
def test_the_short_runs_of_the_docs_are_those_of_the_runs(page, name):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    section = text.partition("Measured here")[2]
    found, _ = records.read([ROOT / "results" / name])
    for run in found:
        if run.finished:
            seconds = min(run.seconds.values())
            rows = [line for line in section.splitlines() if f"| {run.final:.2f} |" in line]
            assert len(rows) == 1, run.config.name
            assert rows[0].lower().startswith(f"| {run.config.optimizer} |")
            assert f" {seconds:.1f} |" in rows[0], run.config.name


def test_every_run_says_how_it_was_made():
    for folder in records.folders([ROOT / "results" / name for name in (
        "cifar10-vgg11", "cifar10-vgg11-bf16", "lr-grid-cifar10-vgg11", "cifar10-resnet18",
        "wgan-gp", "vit-b32-random",
    )]):  # fmt: skip
        made = json.loads((folder / "env.json").read_text())
        assert made["command"].startswith("sgdf "), folder
        assert re.fullmatch("[0-9a-f]{40}", made["commit"]), folder
        assert "H200" in made["machine"]["device"], folder


def test_the_docs_have_the_status_of_every_preset():
    text = (ROOT / "docs" / "presets.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall("`([a-z0-9-]+)`", row.split("|")[1])]
    assert sorted(named) == sorted(paper.PRESETS)


def test_the_gradients_of_the_docs_are_those_of_the_record():
    record = json.loads((ROOT / "results" / "resnet18-gradients" / "gradients.json").read_text())
    assert re.fullmatch("[0-9a-f]{40}", record["commit"])
    text = (ROOT / "docs" / "instruments.md").read_text(encoding="utf-8")
    before, jump = record["records"]["sgdf"]["rows"][28:30]
    assert f"from {before['raw_norm']:.1f} to {jump['raw_norm']:.1f}" in text
    gains = [sum(layer[0] for layer in row["gain"]) / len(row["gain"]) for row in (before, jump)]
    assert "the mean gain from\n{:.2f} to {:.2f}".format(*gains) in text
    assert f"goes from {before['estimated_norm']:.1f} to {jump['estimated_norm']:.1f}" in text


@pytest.mark.parametrize(
    ("name", "since", "said"),
    [("sgdf", 0, "0.93 of"), ("sgdf", 30, "2.9 ±"), ("sgdf-k", 30, "1.09 ±"),
     ("sgdf-k", 0, "0.95 over all")],
)  # fmt: skip
def test_the_errors_of_the_docs_are_those_of_the_record(name, since, said):
    record = json.loads((ROOT / "results/resnet18-errors/gradients-errors.json").read_text())
    text = (ROOT / "docs" / "instruments.md").read_text(encoding="utf-8")
    found = [m["errors"] for m in record["errors"]["measurements"] if m["step"] >= since]
    ours, averages = (sum(sum(e[key]["squares"]) for e in found) for key in (name, "ema"))
    number = said.split()[0]
    assert f"{ours / averages:.{len(number) - 2}f}" == number
    assert said in text.partition("Errors of the estimates")[2]


def test_the_accuracies_of_the_six_networks_are_those_of_the_runs():
    text = (ROOT / "docs" / "instruments.md").read_text(encoding="utf-8")
    runs, _ = records.read([ROOT / "results" / "cifar10-resnet18"])
    assert len(runs) == 6
    for run in runs:
        assert f"{run.final:.2f}" in text.partition("six trained")[2], run.config.name
