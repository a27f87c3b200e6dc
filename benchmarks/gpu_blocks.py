"""Blocks of the pages that the records of `gpu_queue.py` fill, and the one that says what is there.

`pages.py` writes them. Until its record is there, a block says that it was not measured.
"""

import functools
import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_entries import ROOT, Entry, entries
from sgdf_lab.reports import wording
from sgdf_lab.reports.comparison import compare_runs
from sgdf_lab.reports.numbers import spread
from sgdf_lab.reports.tables import escaped
from sgdf_lab.runs.records import RunRecord, read_runs
from sgdf_lab.support.pages import markdown_table

RESULTS = ROOT / "results"
MISSING = "not measured yet"


# --- what was measured: docs/measure.md -----------------------------------------------------------


def queue_table() -> str:
    """A line for each entry, in the order of the queue."""
    head = ["entry", "measures", "minutes", "data", "measured"]
    return markdown_table(head, [line_of(entry) for entry in entries()])


def line_of(entry: Entry) -> list[str]:
    data = ", ".join(entry.data) or "none"
    return [f"`{entry.name}`", entry.about, f"{entry.minutes:g}", data, measured_words(entry)]


def measured_words(entry: Entry) -> str:
    """How much of it, on what, when and with which commit."""
    file = RESULTS / "gpu" / f"{entry.name}.json"
    done = json.loads(file.read_text("utf-8"))["commands"] if file.exists() else []
    if not done:
        return "no"
    devices = dict.fromkeys(one["machine"]["device"] for one in done)
    last = max(one["date"] for one in done)[:10]
    share = "" if len(done) == len(entry.commands) else f"{len(done)} of {len(entry.commands)}, "
    return escaped(f"{share}{', '.join(devices)}, {last}, {done[-1]['commit'][:7]}")


# --- the paper's tables, and other grids: docs/evidence-paper.md ----------------------------------

GRIDS = {  # records of grids, which are shown as they are
    "cifar100-vgg11": "VGG11 on CIFAR-100",
    "cifar10-resnet34": "ResNet34 on CIFAR-10",
    "cifar100-resnet34": "ResNet34 on CIFAR-100",
    "cifar100-densenet121": "DenseNet121 on CIFAR-100",
    "cifar10-densenet121": "DenseNet121 on CIFAR-10",
    "wiener-adam": "The filter in front of Adam, on CIFAR-100",
    "correction": "With and without the correction factor",
    "resnet18-cifar100": "ResNet18 on CIFAR-100, 100 epochs",
    "voc-fasterrcnn": "Faster R-CNN on PASCAL VOC",
    "fine-tuning": "ViT-B/32 trained here on CIFAR-100, fine-tuned to CIFAR-10",
    "wgan-gp-rates": "WGAN-GP on CIFAR-10, layer norm in the critic, FID by a network trained here",
}


def grid_tables() -> str:
    """A table for each grid that was measured, then the names of the others."""
    found = {title: runs_of(f"{name}/runs.jsonl") for name, title in GRIDS.items()}
    parts = [part for title, runs in found.items() for part in tables_of(title, runs) if runs]
    missing = [title for title, runs in found.items() if not runs]
    if missing:
        parts.append(f"{MISSING.capitalize()}: {'; '.join(missing)}.")
    return "\n\n".join(parts)


def tables_of(title: str, runs: Sequence[RunRecord]) -> list[str]:
    parts = []
    for comparison in compare_runs(runs):
        columns, rows = wording.cells_of(comparison, comparison.rows)
        lines = [[*map(escaped, row)] for row in rows]
        table = markdown_table(["", *map(escaped, columns)], lines)
        parts.append(f"**{title}**: {wording.title(comparison)}.\n\n{table}")
    return parts


@functools.cache
def runs_of(name: str) -> list[RunRecord]:
    if not (RESULTS / name).exists():
        return []
    records, complaints = read_runs([RESULTS / name])
    if complaints:
        raise SystemExit("\n".join(map(str, complaints)))
    return list(records)


def fast_recipe(optimizer: str) -> str:
    """Mean, deviation and number of seeds, since the deviations of the pixels were corrected."""
    runs = runs_of("cifar10-fast-again/runs.jsonl")
    own = [run.final for run in runs if run.finished and run.config.optimizer == optimizer]
    return escaped(wording.counted(spread(own))) if own else MISSING


# --- Hessians: docs/evidence-paper.md -------------------------------------------------------------


def hessian_table() -> str:
    folder = RESULTS / "resnet18-cifar100-hessian"
    rows = []
    for file in sorted(folder.glob("hessian-*.json")):
        found = json.loads(file.read_text(encoding="utf-8"))
        name = file.stem.removeprefix("hessian-cifar100-resnet18-").partition("-s0-")[0]
        rows.append([f"`{name}`", f"{max(found['eigenvalues']):.3g}", trace_words(found)])
    if not rows:
        return f"ResNet18 on CIFAR-100: {MISSING}."
    return markdown_table(["ResNet18 on CIFAR-100", "largest eigenvalue", "trace"], rows)


def trace_words(found: Mapping[str, Any]) -> str:
    return f"{found['trace']:.4g} ± {found['trace_standard_error']:.2g}"


# --- steps of matrices: docs/matrices.md ----------------------------------------------------------

MATRICES = {
    "resnet18-matrices": "ResNet-18",
    "gpt-11m-matrices": "GPT, 11 M",
    "gpt-124m-matrices": "GPT, 124 M",
}


def matrix_steps_table(device: str) -> str:
    """All forms beside torch's Muon and SOAP on each list that the record has.

    Means: a median would leave out the steps in which SOAP refreshes its bases.
    """
    file = RESULTS / f"bench-step-matrices-{device}.json"
    if not file.exists():
        return f"On a {'GPU' if device == 'cuda' else 'CPU'}: {MISSING}."
    record = json.loads(file.read_text("utf-8"))
    machine = record["machine"]
    where = machine["device"] + (f", {machine['cpus']} cores" if device == "cpu" else "")
    about = f"{escaped(where)}, {record['date'][:10]}, commit {record['commit'][:7]}."
    head = ["matrices of", "step", "state, bytes per parameter", "ms, mean", "longest",
            "times torch's Muon", "allocated, MB"]  # fmt: skip
    rows = [
        [title, *matrix_step_cells(row)]
        for name, title in MATRICES.items()
        for row in record["lists"].get(name, {"rows": []})["rows"]
        if row["ms"]
    ]
    missing = [title for name, title in MATRICES.items() if name not in record["lists"]]
    parts = [about, markdown_table(head, rows)]
    if missing:
        parts.append(f"{'; '.join(missing)}: {MISSING}.")
    if record["bars"]:
        lines = (escaped(bar["sentence"]).removeprefix("target: ") for bar in record["bars"])
        parts.append("\n".join(["What was aimed at:", "", *(f"- {line}" for line in lines)]))
    return "\n\n".join(parts)


def matrix_step_cells(row: Mapping[str, Any]) -> list[str]:
    """One step in words; a timing on a GPU is the mean of several steps."""
    timings, allocated = row["timings"]["ms"], row["extra_memory_bytes_in_all"]
    ratio = row["times_muon"]
    return [
        f"{row['optimizer']} {row['path']}",
        f"{row['state_bytes']:.1f}",
        *(
            f"{ms:,.0f}" if ms >= 1000 else f"{ms:.3g}"
            for ms in (statistics.fmean(timings), max(timings))
        ),
        MISSING if ratio is None else f"{ratio:.2f}",
        MISSING if allocated is None else f"{allocated / 1e6:.3g}",
    ]
