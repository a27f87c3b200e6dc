"""The measured numbers in the docs are those of `results/`.

Each test finds the table row, bullet or sentence that a number belongs to, and looks there.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from report.markdown import bullet, decimals, section, sentence, table
from sgdf_lab import paper
from sgdf_lab.reports import wording
from sgdf_lab.reports.comparison import compare_runs
from sgdf_lab.reports.numbers import compare, outcome
from sgdf_lab.runs.records import read_runs, run_folders

ROOT = Path(__file__).parents[3]
EVIDENCE = (ROOT / "docs" / "evidence-paper.md").read_text(encoding="utf-8")
SPEED = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
SHORT = table(
    SPEED,
    "| | SGDF | SGD, momentum 0.9 | FilterAdamW, derived | AdamW |",
)
INSTRUMENTS = (ROOT / "docs" / "instruments.md").read_text(encoding="utf-8")


def read_json(path):
    return json.loads((ROOT / "results" / path).read_text(encoding="utf-8"))


def runs_in(name):
    records, complaints = read_runs([ROOT / "results" / name])
    assert not complaints
    return records


# --- 200 epochs of VGG11 --------------------------------------------------------------------------

LABELS = {
    "SGDF, lr 0.5": "sgdf",
    "SGD with momentum, lr 0.05": "sgd, lr 0.05",
    "SGD with momentum, lr 0.1": "sgd, lr 0.1",
    **{name: name.lower() for name in ("AdaBelief", "MSVAG", "RAdam", "AdaBound", "Sophia-G")},
    **{name: name.lower() for name in ("Adam", "AdamW", "Lion")},
}


@pytest.fixture(scope="module")
def vgg11():
    """The rows of the comparison by label."""
    (comparison,) = compare_runs(runs_in("cifar10-vgg11"))
    return {row.label: row for row in comparison.rows}


def test_the_table_of_the_evidence_is_that_of_the_runs(vgg11):
    rows = table(EVIDENCE, "| | seeds | best | final | published best |")
    assert rows.keys() == LABELS.keys()
    assert len(vgg11) == len(LABELS)
    for name, cells in rows.items():
        row = vgg11[LABELS[name]]
        words = [wording.spread(value) for value in (row.best, row.final)]
        published = wording.spread(row.published) if row.published else "not run"
        expected = [str(row.best.n), *words, published]
        assert cells == [word.replace("\xa0", " ") for word in expected], name


def difference_between(rows, label, reference):
    metric = rows[label].cell.task.metric
    own, other = (outcome(rows[name].cell.runs, metric) for name in (label, reference))
    return compare(own, other)


def test_the_interval_at_the_published_rate(vgg11):
    difference = difference_between(vgg11, "sgd, lr 0.1", "sgdf")
    text = sentence(EVIDENCE, "With its published learning rate SGD ends")
    behind = [-difference.mean, -difference.high, -difference.low]
    assert decimals(text) == [f"{x:.2f}" for x in behind]
    assert difference.high < 0  # all of the interval is behind
    assert "three seeds" in text
    assert difference.n == 3


def test_the_interval_at_the_matching_rate(vgg11):
    difference = difference_between(vgg11, "sgd, lr 0.05", "sgdf")
    text = sentence(EVIDENCE, "SGD is level with SGDF")
    behind, furthest_behind, ahead = -difference.mean, -difference.low, difference.high
    assert decimals(text) == [f"{x:.2f}" for x in (behind, furthest_behind, ahead)]
    assert difference.low < 0 < difference.high


def test_the_distance_to_the_published_numbers(vgg11):
    text = sentence(EVIDENCE, "The published numbers can be")
    ours = abs(vgg11["sgdf"].difference)
    rows = [row for label, row in vgg11.items() if label != "sgdf"]
    others = max(abs(row.difference) for row in rows if row.difference is not None)
    assert decimals(text) == [f"{ours:.1f}", f"{others:.1f}"]


def test_the_repeated_runs(vgg11):
    text = bullet(EVIDENCE, "On a GPU two runs of one seed differ")
    kept = vgg11["sgdf"].cell.finished[0].best
    assert f"seed 0 came out as {kept:.2f}" in text
    in_bf16 = " and ".join(f"{run.best:.2f}" for run in runs_in("cifar10-vgg11-bf16"))
    assert f"reached {in_bf16}." in text


def test_the_accuracies_in_short_are_those_of_the_runs(vgg11):
    cells = SHORT["VGG11 on CIFAR-10, best test accuracy"]
    words = [wording.spread(vgg11[name].best) for name in ("sgdf", "sgd, lr 0.05", "adamw")]
    sgdf, sgd, adamw = (word.replace("\xa0", " ") for word in words)
    assert cells == [sgdf, sgd, "not measured", adamw]


@pytest.mark.parametrize(
    ("row", "file", "model"),
    [
        ("step of 1.3 billion parameters, H200", "cuda", "gpt"),
        ("step of ResNet-50, 2 cores of a CPU", "cpu", "resnet50"),
    ],
)
def test_the_times_in_short_are_those_of_the_benchmark(row, file, model):
    measured = {
        (one["optimizer"], one["path"]): one
        for one in read_json(f"bench-step-{file}.json")["lists"][model]["rows"]
        if one["params_dtype"] == "fp32"
    }
    derived = "FilterAdamW", "fused, derived v"
    columns = (("SGDF", "fused"), ("SGD", "fused"), derived, ("AdamW", "fused"))
    assert SHORT[row] == [f"{measured[column]['ms']:.3g} ms" for column in columns]
    state = [f"{measured[column]['state_bytes']:.0f} bytes" for column in columns]
    assert SHORT["state per parameter, float32"] == state
    small = [measured.get((name, f"{path}, int8 state")) for name, path in columns]
    words = [f"{one['state_bytes']:.0f} bytes" if one else "none" for one in small]
    assert SHORT["state per parameter, 8 bits"] == words


# --- other runs -----------------------------------------------------------------------------------


def test_the_learning_rates_of_the_docs_are_those_of_the_runs():
    runs = {
        (run.config.optimizer, run.config.lr, run.config.seed): run
        for run in runs_in("lr-grid-cifar10-vgg11")
    }
    assert len(runs) == 3 * 9 + 2
    text = EVIDENCE.partition("How sensitive each is to its learning rate")[2].partition("\n## ")[0]
    best = sentence(text, "The best are")
    for name, lr in (("SGDF", 0.5), ("SGD", 0.05)):
        final = runs[name.lower(), lr, 0].final
        assert f"{final:.2f} ({name}, {lr})" in best
        rivals = [run for (optimizer, _, _), run in runs.items() if optimizer == name.lower()]
        assert final == max(run.final for run in rivals if run.finished)
    seeds = [f"{runs['adam', 0.001, seed].final:.2f}" for seed in (0, 1, 2)]
    assert decimals(bullet(text, "Adam, with the L2 decay")) == seeds


def test_the_wgans_of_the_docs_are_those_of_the_runs():
    text = (ROOT / "docs" / "wgan-gp.md").read_text(encoding="utf-8")
    lines = section(text, "## Measured here").splitlines()
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines
            if line.startswith("| ")][1:]  # fmt: skip
    expected = {
        (
            {"adam": "Adam", "sgdf": "SGDF"}[run.config.optimizer],
            run.config.options.get("critic_norm", "batch"),
            f"{run.final:.2f}" if run.finished else wording.status(run),
            f"{min(run.seconds.values()):.1f}",
        )
        for run in runs_in("wgan-gp")
    }
    assert len(rows) == 3
    assert set(rows) == expected


def test_the_vit_of_the_docs_is_that_of_the_runs():
    text = (ROOT / "docs" / "imagenet-vit.md").read_text(encoding="utf-8")
    header = (
        "| | seconds of the second epoch, test included | GPU memory | test accuracy after two "
        "epochs |"
    )
    rows = table(text, header)
    runs = {run.config.optimizer.upper(): run for run in runs_in("vit-b32-random")}
    assert rows.keys() == runs.keys()
    for name, (seconds, _, accuracy) in rows.items():
        assert seconds == f"{runs[name].seconds[2]:.1f}"
        assert accuracy == f"{runs[name].final:.2f}"


def test_every_run_says_how_it_was_made():
    names = (
        "cifar10-vgg11", "cifar10-vgg11-bf16", "lr-grid-cifar10-vgg11", "cifar10-resnet18",
        "kept-resnet18", "wgan-gp", "vit-b32-random",
    )  # fmt: skip
    for folder in run_folders([ROOT / "results" / name for name in names]):
        environment = json.loads((folder / "env.json").read_text())
        assert environment["command"].startswith("sgdf "), folder
        assert re.fullmatch("[0-9a-f]{40}", environment["commit"]), folder
        assert "H200" in environment["machine"]["device"], folder


def test_the_docs_have_the_status_of_every_preset():
    text = (ROOT / "docs" / "presets.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall("`([a-z0-9-]+)`", row.split("|")[1])]
    assert sorted(named) == sorted(paper.PRESETS)


# --- gradients ------------------------------------------------------------------------------------

THROUGH_A_TRAINING = section(INSTRUMENTS, "### Errors of the estimates through a run")


def test_the_gradients_of_the_docs_are_those_of_the_record():
    record = read_json("resnet18-gradients/gradients.json")
    assert re.fullmatch("[0-9a-f]{40}", record["commit"])
    before, jump = record["records"]["sgdf"]["rows"][28:30]
    gains = [sum(layer[0] for layer in row["gain"]) / len(row["gain"]) for row in (before, jump)]
    text = sentence(INSTRUMENTS, "in step 30 the raw norm jumps")
    assert decimals(text) == [
        f"{before['raw_norm']:.1f}", f"{jump['raw_norm']:.1f}",
        *(f"{gain:.2f}" for gain in gains),
        f"{before['estimated_norm']:.1f}", f"{jump['estimated_norm']:.1f}",
    ]  # fmt: skip


def sum_of_squares(measurements, name, since):
    """The squared error of an estimator over the steps from `since` on."""
    return sum(sum(m["errors"][name]["squares"]) for m in measurements if m["step"] >= since)


def ratio(measurements, name, since):
    """An estimator's squared error over that of the bias-corrected average."""
    squares = sum_of_squares(measurements, name, since)
    return squares / sum_of_squares(measurements, "ema", since)


def test_the_errors_of_the_docs_are_those_of_the_record():
    measurements = read_json("resnet18-errors/gradients-errors.json")["errors"]["measurements"]

    def stated(name, since, digits):
        return f"{ratio(measurements, name, since):.{digits}f}"

    (over_all,) = decimals(sentence(THROUGH_A_TRAINING, "Over all 40 steps"))
    assert over_all == stated("sgdf", 0, 2)
    still, _standard_error = decimals(sentence(THROUGH_A_TRAINING, "From step 30 on"))
    assert still == stated("sgdf", 30, 1)
    plain_still, _standard_error, plain, root_still, root = decimals(
        sentence(THROUGH_A_TRAINING, "The plain Wiener gain K")
    )
    assert (plain_still, plain) == (stated("sgdf-k", 30, 2), stated("sgdf-k", 0, 2))
    assert (root_still, root) == (stated("sgdf-root", 30, 1), stated("sgdf-root", 0, 2))
    assert decimals(bullet(EVIDENCE, "Is the filter nearer"))[4:] == [still, root_still]


@pytest.fixture(scope="module")
def later_steps():
    """The measurements of each epoch after the first step."""
    by_epoch = {}
    for epoch in (2, 8, 16, 22, 24, 30):
        record = read_json(f"resnet18-errors/gradients-errors-epoch{epoch}.json")
        assert "H200" in record["machine"]["device"]
        assert record["settings"]["settings"]["lr"] == 0.05
        by_epoch[epoch] = record["errors"] | {"measurements": record["errors"]["measurements"][1:]}
    return by_epoch


def test_the_errors_through_a_training_are_those_of_the_records(later_steps):
    header = (
        "| epoch | noise / signal | error / signal: EMA | SGDF | filter / EMA | with K | with √K "
        "| steps 55 to 100 alone |"
    )
    rows = table(THROUGH_A_TRAINING, header)
    assert rows.keys() == {str(epoch) for epoch in later_steps}
    for epoch, errors in later_steps.items():
        later = errors["measurements"]
        signal = errors["replicas"] * sum(m["signal"] for m in later)
        noise = errors["replicas"] * sum(m["noise"] for m in later)
        average, filtered = (sum_of_squares(later, name, 0) for name in ("ema", "sgdf"))
        assert rows[str(epoch)] == [
            *(f"{x / signal:.2f}" for x in (noise, average, filtered)),
            *(f"{ratio(later, name, 0):.3f}" for name in ("sgdf", "sgdf-k", "sgdf-root")),
            f"{ratio(later, 'sgdf', 55):.2f}",
        ], epoch


def test_what_the_docs_conclude_from_the_errors(later_steps):
    def ratios(name, since, epochs):
        return [ratio(later_steps[epoch]["measurements"], name, since) for epoch in epochs]

    late = (22, 24, 30)
    filtered, roots = (ratios(name, 0, later_steps) for name in ("sgdf", "sgdf-root"))
    below = f"by {100 - 100 * max(filtered):.0f} to {100 - 100 * min(filtered):.0f} %"
    assert below in bullet(THROUGH_A_TRAINING, "nearer to the true gradient than")
    stated = decimals(bullet(EVIDENCE, "Is the filter nearer"))[:4]
    assert stated == [f"{of(x):.2f}" for x in (filtered, roots) for of in (min, max)]

    second_half = ratios("sgdf", 55, late)
    above = f"by {100 * min(second_half) - 100:.0f} to {100 * max(second_half) - 100:.0f} %"
    assert above in bullet(THROUGH_A_TRAINING, "It holds because large errors count most")
    assert max(ratios("sgdf", 55, later_steps)) == max(second_half)

    text = bullet(THROUGH_A_TRAINING, "The square root of the gain")
    assert all(
        root < min(two_k, k)
        for root, two_k, k in zip(roots, filtered, ratios("sgdf-k", 0, later_steps), strict=True)
    )
    second_half = ratios("sgdf-root", 55, late)
    above = f"by {100 * min(second_half) - 100:.0f} to {100 * max(second_half) - 100:.0f} %"
    assert above in text
    assert "the plain K stays within 3 % of it" in text
    assert max(abs(x - 1) for x in ratios("sgdf-k", 55, late)) < 0.03


# --- six trained networks -------------------------------------------------------------------------

SIX = section(INSTRUMENTS, "### Six trained ResNet18")
SIX_ROWS = table(SIX, "| | final test accuracy | λ max | 50th | trace | loss below 1 in |")


def check_landscapes(run):
    """Both are complete and have the loss in their middle; the share of the plane below 1."""
    folder = ROOT / "results" / "resnet18-landscape"
    for kind, points in (("line", (101,)), ("landscape", (25, 25))):
        about = json.loads((folder / f"{kind}-{run.name}.json").read_text())
        assert about["command"].startswith("sgdf analyze landscape")
        with np.load(folder / f"{kind}-{run.name}.npz") as saved:
            assert saved["done"].all()
            surface = saved["values"]
        assert surface.shape == points
        assert surface[tuple(n // 2 for n in points)] == pytest.approx(about["loss"], rel=1e-5)
    return 100 * (surface < 1).mean()


def test_the_six_networks_of_the_docs_are_those_of_the_records():
    runs = runs_in("cifar10-resnet18")
    assert len(SIX_ROWS) == len(runs) == 6
    by_accuracy = {f"{run.final:.2f}": run for run in runs}
    assert len(by_accuracy) == 6
    shares, measured = [], {}
    for label, (accuracy, *cells) in SIX_ROWS.items():
        run = by_accuracy[accuracy].config
        assert f"lr {run.lr:g}" in label
        assert label.lower().startswith(run.optimizer)
        hessian = read_json(f"resnet18-hessian/hessian-{run.name}.json")
        assert "H200" in hessian["machine"]["device"]
        values = hessian["eigenvalues"]
        assert (len(values), hessian["images"]) == (50, 500)
        below = check_landscapes(run)
        trace, error = hessian["trace"], hessian["trace_standard_error"]
        words = [f"{values[0]:.1f}", f"{values[-1]:.2f}", f"{trace:.0f} ± {error:.0f}"]
        assert cells == [*words, f"{below:.0f} %"], label
        shares.append(sum(values) / trace)
        measured[label] = (values[0], trace, -below)
    text = bullet(SIX, "The 50 eigenvalues make up")
    assert f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %" in text
    ours, sharpest = measured.pop("SGDF, lr 0.5"), measured.pop("Adam, lr 0.001")
    for number, others in enumerate(zip(*measured.values(), strict=True)):
        assert max(others) < ours[number] < sharpest[number]


def test_the_evidence_has_the_curvature_of_the_six():
    cells = {label: (row[1], row[3].split()[0]) for label, row in SIX_ROWS.items()}
    largest, trace = cells.pop("SGDF, lr 0.5")
    text = bullet(EVIDENCE, "Does SGDF end in a flatter place")
    assert f"trace of {trace} and a largest eigenvalue of {largest}" in text
    largest, trace = cells.pop("Adam, lr 0.001")
    assert f"Adam {trace} and {largest}" in text
    traces = sorted(int(trace) for _, trace in cells.values())
    values = sorted(float(value) for value, _ in cells.values())
    assert f"{traces[0]} to {traces[-1]} and {values[0]} to {values[-1]}" in text
