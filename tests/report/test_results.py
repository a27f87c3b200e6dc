"""What the README and the docs state as measured is what `results/` has."""

import json
import re
from pathlib import Path

import numpy as np
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
        "kept-resnet18", "wgan-gp", "vit-b32-random",
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


def instruments(heading):
    """The cells of the first table of a section of docs/instruments.md, and all of the section."""
    text = (ROOT / "docs" / "instruments.md").read_text(encoding="utf-8")
    section = text.partition(f"### {heading}\n")[2].partition("\n### ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    assert lines, heading
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]], section


KINDS = ("sgdf-root", "sgdf-k")


def sums(measurements, name, since):
    """The squared error of an estimator over the steps from `since` on."""
    return sum(sum(m["errors"][name]["squares"]) for m in measurements if m["step"] >= since)


@pytest.mark.parametrize(
    ("name", "since", "said"),
    [("sgdf", 0, "0.93 of"), ("sgdf", 30, "2.9 ±"), ("sgdf-k", 30, "1.09 ±"),
     ("sgdf-k", 0, "0.95 over all"), ("sgdf-root", 30, "1.4 and"), ("sgdf-root", 0, "0.86.")],
)  # fmt: skip
def test_the_errors_of_the_docs_are_those_of_the_record(name, since, said):
    record = json.loads((ROOT / "results/resnet18-errors/gradients-errors.json").read_text())
    found = record["errors"]["measurements"]
    number = said.split()[0].rstrip(".")
    ratio = sums(found, name, since) / sums(found, "ema", since)
    assert f"{ratio:.{len(number) - 2}f}" == number
    assert said in instruments("Errors of the estimates through a training")[1]


def test_the_errors_through_a_training_are_those_of_the_records():
    rows, text = instruments("Errors of the estimates through a training")
    assert [row[0] for row in rows] == ["2", "8", "16", "22", "24", "30"]
    over_all, second_half, others = [], [], []
    for epoch, *cells in rows:
        path = ROOT / f"results/resnet18-errors/gradients-errors-epoch{epoch}.json"
        record = json.loads(path.read_text())
        assert "H200" in record["machine"]["device"]
        assert record["settings"]["settings"]["lr"] == 0.05
        errors = record["errors"]
        later = errors["measurements"][1:]
        signal = errors["replicas"] * sum(m["signal"] for m in later)
        noise = errors["replicas"] * sum(m["noise"] for m in later)
        average, ours, plain, root = (
            sums(later, name, 0) for name in ("ema", "sgdf", "sgdf-k", "sgdf-root")
        )
        late = sums(later, "sgdf", 55) / sums(later, "ema", 55)
        assert cells == [
            *(f"{x / signal:.2f}" for x in (noise, average, ours)),
            *(f"{x / average:.3f}" for x in (ours, plain, root)),
            f"{late:.2f}",
        ], epoch
        assert root < min(ours, plain)
        over_all.append(ours / average)
        second_half.append(late)
        late = {name: sums(later, name, 55) / sums(later, "ema", 55) for name in KINDS}
        others.append((root / average, late["sgdf-root"], late["sgdf-k"]))
    assert 0.845 < min(over_all) <= max(over_all) < 0.955
    assert "by 5 to 15 %" in text
    assert "0.85 to 0.95 of the bias-corrected average's" in README
    assert min(second_half[3:]) == pytest.approx(1.08, abs=0.005)
    assert max(second_half) == pytest.approx(1.65, abs=0.005)
    assert "by 8 to 65 %" in text
    roots, late_roots, late_plain = zip(*others, strict=True)
    assert f"{min(roots):.2f} to {max(roots):.2f}" in README
    assert (
        f"by {100 * min(late_roots[3:]) - 100:.0f} to {100 * max(late_roots) - 100:.0f} %" in text
    )
    assert max(abs(x - 1) for x in late_plain[3:]) < 0.03


def test_the_six_networks_of_the_docs_are_those_of_the_records():
    rows, text = instruments("Six trained ResNet18")
    runs, _ = records.read([ROOT / "results" / "cifar10-resnet18"])
    assert len(rows) == len(runs) == 6
    by_accuracy = {f"{run.final:.2f}": run for run in runs}
    assert len(by_accuracy) == 6
    shares, found = [], {}
    for label, accuracy, *cells in rows:
        run = by_accuracy[accuracy].config
        assert f"lr {run.lr:g}" in label
        assert label.lower().startswith(run.optimizer)
        hessian = json.loads(
            (ROOT / f"results/resnet18-hessian/hessian-{run.name}.json").read_text()
        )
        assert "H200" in hessian["machine"]["device"]
        values = hessian["eigenvalues"]
        assert (len(values), hessian["images"]) == (50, 500)
        folder = ROOT / "results" / "resnet18-landscape"
        for kind, points in (("landscape", (25, 25)), ("line", (101,))):
            about = json.loads((folder / f"{kind}-{run.name}.json").read_text())
            assert about["command"].startswith("sgdf analyze landscape")
            with np.load(folder / f"{kind}-{run.name}.npz") as saved:
                assert saved["done"].all()
                surface = saved["values"]
            assert surface.shape == points
            assert surface[tuple(n // 2 for n in points)] == pytest.approx(about["loss"], rel=1e-5)
            if kind == "landscape":
                below = 100 * (surface < 1).mean()
        trace, error = hessian["trace"], hessian["trace_standard_error"]
        words = [f"{values[0]:.1f}", f"{values[-1]:.2f}", f"{trace:.0f} ± {error:.0f}"]
        assert cells == [*words, f"{below:.0f} %"], label
        shares.append(sum(values) / trace)
        found[label] = (values[0], trace, -below)
    assert f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %" in text
    ours = found.pop("SGDF, lr 0.5")
    sharpest = found.pop("Adam, lr 0.001")
    for others in zip(*found.values(), strict=True):
        assert max(others) < ours[0] < sharpest[0]
        ours, sharpest = ours[1:], sharpest[1:]


def test_the_readme_has_the_curvature_of_the_six():
    section = README.partition("Does SGDF end in a flatter place?")[2].partition("\n\n")[0]
    rows, _ = instruments("Six trained ResNet18")
    cells = {row[0]: (row[2], row[4].split()[0]) for row in rows}
    largest, trace = cells.pop("SGDF, lr 0.5")
    assert f"trace of {trace} and a largest eigenvalue\n  of {largest}" in section
    largest, trace = cells.pop("Adam, lr 0.001")
    assert f"Adam {trace} and {largest}" in section
    traces = sorted(int(trace) for _, trace in cells.values())
    values = sorted(float(value) for value, _ in cells.values())
    assert f"{traces[0]} to {traces[-1]} and {values[0]} to {values[-1]}" in section
