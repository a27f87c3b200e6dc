"""The numbers of the README and the docs: every generated block, from the records in results/.

    python benchmarks/pages.py            # write them into the pages
    python benchmarks/pages.py --check    # change nothing; exit code 1 if a page would change

A block stands between `<!-- generated: NAME -->` and `<!-- end of NAME -->`. Whatever is in a
record belongs into one; the sentences around it are free.
"""

import argparse
import difflib
import functools
import inspect
import json
import re
import statistics
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

import gpu_blocks  # noqa: E402
import loss_curves  # noqa: E402
import paper_blocks  # noqa: E402
from sgdf_lab.registry.optimizers import OPTIMIZERS  # noqa: E402
from sgdf_lab.runs.records import RunRecord, read_runs  # noqa: E402
from sgdf_lab.support.files import write_atomically  # noqa: E402
from sgdf_lab.support.pages import blocks_of, filled, markdown_table  # noqa: E402
from sgdf_lab.theory.result import OURS  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say what would change")
    check = parser.parse_args().check
    changed = False
    for page in pages():
        now = page.read_text(encoding="utf-8")
        then = regenerated(page, now)
        if now != then:
            changed = True
            lines = difflib.unified_diff(now.splitlines(), then.splitlines(), lineterm="", n=0)
            print("\n".join([f"{page.relative_to(ROOT)}:", *list(lines)[2:]]))
            if not check:
                write_atomically(page, then)
    return int(check and changed)


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def regenerated(page: Path, text: str) -> str:
    """The page with its blocks made anew."""
    contents = {}
    for name, now in blocks_of(text).items():
        if name in KEEPING_WORDS:
            contents[name] = KEEPING_WORDS[name](now)
        elif name in MADE:
            contents[name] = MADE[name]()
        else:
            contents[name] = of_a_group(name, page.relative_to(ROOT).as_posix())
    return filled(text, contents)


def of_a_group(name: str, page: str) -> str:
    """A block that is made together with others."""
    group, _, part = name.partition(": ")
    if group == "why":
        return why()[part]
    if group == "damping":
        return damping()[part]
    return (filter_map() if page.startswith("docs/map") else evidence()[page])[name]


# --- records --------------------------------------------------------------------------------------


@functools.cache
def record(name: str) -> Any:
    return json.loads((ROOT / "results" / name).read_text(encoding="utf-8"))


@functools.cache
def runs_in(name: str) -> list[RunRecord]:
    """The finished runs of a folder, or of a file of runs, by their settings."""
    records, complaints = read_runs([ROOT / "results" / name])
    if complaints:
        raise SystemExit("\n".join(map(str, complaints)))
    return [run for run in records if run.finished]


BESIDE_MUON = {"gpt-tiny-muon": 600, "gpt-tiny-muon-long": 1800}  # steps


def beside_muon() -> str:
    """Each optimizer at the best of its rates, beside Muon at the best of its own settings."""
    rows: dict[str, list[str]] = {}
    done = {name: len(runs_in(f"evidence/{name}/runs.jsonl")) for name in BESIDE_MUON}
    planned = {
        name: runs_of_grid(ROOT / "benchmarks" / "evidence" / "matrix" / f"{name}.toml")
        for name in BESIDE_MUON
    }
    found = [name for name, runs in done.items() if runs == planned[name]]
    for name in found:
        settings: dict[tuple[str, float], dict[int, dict[str, float]]] = defaultdict(dict)
        for run in runs_in(f"evidence/{name}/runs.jsonl"):
            key = muon_title(run), run.config.settings["lr"]
            settings[key][run.config.seed] = run.metrics[-1]
        best: dict[str, tuple[str, float]] = {}
        for key in sorted(settings, key=lambda key: mean_of(settings[key], "val_loss")):
            best.setdefault(key[0], key)
        muon = next(key for key in best.values() if key[0].startswith("Muon"))
        for title, key in best.items():
            values, others = settings[key], settings[muon]
            below = sum(values[seed]["test_loss"] < others[seed]["test_loss"] for seed in values)
            mean = mean_of(values, "test_loss")
            against = f"{mean - mean_of(others, 'test_loss'):+.4f}, {below} of {len(values)}"
            words = "the best Muon" if key == muon else against.replace("-", "−")
            rows.setdefault(title, []).extend([f"{key[1]:g}", f"{mean:.4f}", words])
    parts = ("rate", "test loss", "minus Muon, seeds below it")
    head = [f"{part}, {BESIDE_MUON[name]} steps" for name in found for part in parts]
    table = markdown_table(["", *head], [[title, *cells] for title, cells in rows.items()])
    missing = [f"At {n} steps: {done[name]} of {planned[name]} runs are recorded."
               for name, n in BESIDE_MUON.items() if name not in found]  # fmt: skip
    return "\n\n".join([table, *missing])


def runs_of_grid(plan: Path) -> int:
    table = tomllib.loads(plan.read_text(encoding="utf-8"))
    return len(table["cells"]) * len(table["seeds"])


def muon_title(run: RunRecord) -> str:
    momentum = run.config.settings.get("momentum")
    title = OPTIMIZERS[run.config.optimizer].title
    return f"Muon, momentum {momentum:g}" if momentum else title


def mean_of(lines: Mapping[int, Mapping[str, float]], key: str) -> float:
    return statistics.fmean(line[key] for line in lines.values())


@functools.cache
def evidence() -> Mapping[str, Mapping[str, str]]:
    """The comparisons at equal tuning: by page and name."""
    import evidence_page

    found = (evidence_page.summary_of(plan) for plan in evidence_page.plans())
    made: Mapping[str, Mapping[str, str]] = evidence_page.pages([s for s in found if s])
    return made


@functools.cache
def filter_map() -> dict[str, str]:
    """The map of filters and its contest."""
    import filter_map_page

    return filter_map_page.blocks(*filter_map_page.summaries())


@functools.cache
def why() -> dict[str, str]:
    from why_page import blocks

    names = ("why-gpt.json", "why-gpt-tiny.json")  # a GPU's, once there is one
    return blocks(record(next(n for n in names if (ROOT / "results" / n).exists())))


@functools.cache
def damping() -> dict[str, str]:
    import damping_page

    return damping_page.blocks(record("damping.json"))


def spread(values: list[float]) -> str:
    """Mean and standard deviation."""
    more = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{more}"


# --- times of steps: docs/speed.md and the README -------------------------------------------------

Steps = dict[str, dict[str, Any]]
SLOW = ("SGDF loop", "SGD foreach", "FilterAdam foreach")
NOT_SHOWN = {"cpu": SLOW, "cuda": (*SLOW, "SGDF foreach")}


def steps(device: str, shapes: str, dtype: str = "fp32") -> Steps:
    """By optimizer and path."""
    rows = record(f"bench-step-{device}.json")["lists"][shapes]["rows"]
    return {f"{r['optimizer']} {r['path']}": r for r in rows if r["params_dtype"] == dtype}


def step_table(device: str, titles: Mapping[str, str]) -> str:
    """A line for each optimizer and path that was measured on every list."""
    lists = {name: steps(device, name) for name in titles}
    *_, last = lists.values()
    names = [
        name
        for name in last
        if name not in NOT_SHOWN[device]
        and all(name in rows and rows[name]["ms"] for rows in lists.values())
    ]

    def cell(row: dict[str, Any]) -> str:
        share = f" ({100 * row['of_copy']:.0f} %)" if device == "cuda" else ""
        return f"{row['ms']:.3g}{share}"

    rows = [
        [name, f"{last[name]['state_bytes']:.1f}", *(cell(r[name]) for r in lists.values())]
        for name in names
    ]
    return markdown_table(["", "state, bytes per parameter", *titles.values()], rows)


EIGHT_BITS = ROOT / "results" / "bench-step-8bit-cpu.json"


def eight_bit_table(file: Path = EIGHT_BITS) -> str:
    """One tensor on a CPU, 8-bit state, beside the packages that have it."""
    if not file.exists():
        return "On a CPU their steps have not been measured."
    found = json.loads(file.read_text(encoding="utf-8"))["lists"]["one-tensor"]["rows"]
    rows = [
        [f"{row['optimizer']} {row['path']}", f"{row['state_bytes']:.1f}", f"{row['ms']:.3g}"]
        for row in found
        if row["ms"]
    ]
    table = markdown_table(["", "state, bytes per parameter", "one tensor of 25 M"], rows)
    return (
        "Milliseconds per step of one tensor on a CPU, in one run (`sgdf bench step --device cpu "
        f"--lists one-tensor`):\n\n{table}"
    )


def ratio(name: str, rival: str, shapes: str = "gpt", dtype: str = "fp32") -> str:
    found = steps("cuda", shapes, dtype)
    return f"{found[name]['ms'] / found[rival]['ms']:.2f}"


def milliseconds(name: str, shapes: str = "gpt", dtype: str = "fp32", device: str = "cuda") -> str:
    return f"{steps(device, shapes, dtype)[name]['ms']:.3g}"


DERIVED, INT8 = "FilterAdamW fused, derived v", "FilterAdamW fused, derived v, int8 state"
BF16 = f"{INT8}, random rounding"


def codes_table() -> str:
    found = record("codes.json")
    shown = ("m linear", "m fourth power", "m 4 + 3 bits", "s linear", "s eighth power",
             "s 5 + 3 bits", "both, powers 4 and 8",
             "both, 4 + 3 and 5 + 3 bits (in use)")  # fmt: skip
    errors = found["error of the estimate, in units of the noise"]
    rows = [[name, *(f"{error:.3g}" for error in errors[name])] for name in shown]
    return markdown_table(["code", *(f"spread {s}" for s in found["spreads"])], rows)


def in_backward_table() -> str:
    rows = record("step-in-backward-cuda.json")["rows"]
    found = {(row["optimizer"], row["state"], row["in_backward"]): row for row in rows}
    lines = []
    for (optimizer, state, inside), row in found.items():
        if not inside:
            pair = (row, found[optimizer, state, True])
            peaks = [f"{one['peak_bytes'] / 2**20:.0f} MiB" for one in pair]
            times = [f"{statistics.median(one['iteration_ms']):.0f}" for one in pair]
            name = "float32" if state == "default" else state
            lines.append([optimizer, name, *peaks, *times])
    head = ["", "state", "peak, step()", "peak, in backward", "ms, step()", "ms, in backward"]
    return markdown_table(head, lines)


def trainer_table() -> str:
    measured = record("bench-trainer-cuda.json")["rows"]
    lines = []
    for title, model in {"VGG11": "vgg11", "ResNet18": "resnet18"}.items():
        cells = []
        for precision in ("tf32", "bf16"):
            (row,) = (r for r in measured if (r["model"], r["precision"]) == (model, precision))
            over = statistics.median(row["trainer_ms"]) / statistics.median(row["bare_ms"]) - 1
            cells += [f"{row['epoch_s']:.3g} s", f"{100 * over:.1f} %"]
        lines.append([title, *cells])
    over = "over the bare step"
    return markdown_table(["", "TF32", over, "bf16", over], lines)


TEXTS = {"gpt-11m": "bytes", "gpt-124m": "50,304 tokens"}


def language_table() -> str:
    lines = [
        [
            f"`{row['model']}`, {TEXTS[row['model']]}",
            f"{row['batch']} × {row['context']}",
            f"{row['all_in_ms']:#.3g} ms",
            f"{100 * row['overhead']:.1f} %",
            f"{100 * row['share_of_peak']:.1f} %",
        ]
        for row in record("bench-language-cuda.json")["rows"]
    ]
    head = ["", "tokens per step", "step, all in", "over the bare step",
            "of the dense bf16 peak (6ND)"]  # fmt: skip
    return markdown_table(head, lines)


# --- runs: docs/settings.md, docs/evidence.md and the README --------------------------------------


def rates_table() -> str:
    """SGD's rates beside SGDF's at ten times the rate."""
    final = {(run.config.optimizer, f"{run.config.lr:g}"): f"{run.final:.2f}"
             for run in runs_in("lr-grid-cifar10-vgg11") if run.config.seed == 0}  # fmt: skip
    pairs = (("0.005", "0.05"), ("0.01", "0.1"), ("0.05", "0.5"), ("0.1", "1"), ("0.5", "5"))
    rows = [[sgd, final["sgd", sgd], sgdf, final["sgdf", sgdf]] for sgd, sgdf in pairs]
    return markdown_table(["SGD with momentum 0.9, lr", "SGD", "SGDF, lr", "SGDF"], rows)


FIRST_STEPS = {  # optimizer, warm-up, no bias correction, clipping
    "SGDF, lr 0.5": ("sgdf", False, False, False),
    "with a warm-up over 5 % of the run": ("sgdf", True, False, False),
    r"without bias correction, a ramp by $1-\beta_1^t$": ("sgdf", False, True, False),
    "gradients clipped to norm 1": ("sgdf", False, False, True),
    "warm-up and clipping": ("sgdf", True, False, True),
    "SGD-Nesterov, lr 0.05": ("sgd-nesterov", False, False, False),
    "SGD-Nesterov with a warm-up": ("sgd-nesterov", True, False, False),
    "SGD-Nesterov, gradients clipped to norm 1": ("sgd-nesterov", False, False, True),
    "SGD-EMA, lr 0.5: no filter": ("sgd-ema", False, False, False),
}


@functools.cache
def first_steps(network: str) -> Mapping[tuple[Any, ...], list[float]]:
    found: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for run in runs_in(f"first-steps-{network}/runs.jsonl"):
        config = run.config
        ramps = config.settings.get("bias_correction") is False
        key = config.optimizer, bool(config.warmup), ramps, bool(config.clip)
        found[key].append(run.final)
    return found


def first_steps_table() -> str:
    found = first_steps("vgg11")
    rows = [[words, spread(found[key])] for words, key in FIRST_STEPS.items()]
    return markdown_table(["", "VGG11, 15 epochs"], rows)


def warmup_words() -> str:
    ways = {"as it is": (0, 0), "with a warm-up": (1, 0), "with the ramp": (0, 1)}
    found = first_steps("resnet18")
    return ", ".join(f"{spread(found['sgdf', *key, 0])} {way}" for way, key in ways.items())


def defaults_table(optimizer: str, now: str) -> str:
    """The defaults of its signature; settings and what is said about them stay as they are."""
    import sgdf

    signature = inspect.signature(getattr(sgdf, optimizer)).parameters
    lines = []
    for line in now.strip().splitlines()[2:]:
        names, _, words = (cell.strip() for cell in line.strip("|").split("|"))
        defaults = [signature[name].default for name in re.findall(r"`(\w+)`", names)]
        lines.append([names, ", ".join(f"{d!r}".replace("'", '"') for d in defaults), words])
    return markdown_table(["setting", "default", "what it does, and when to change it"], lines)


GAINS = {  # what a row of the map is called in its records
    "the average": "betas (0.9, 0.95)",
    "constant 0.1": "0.1K, betas (0.9, 0.95)",
    "constant 0.2": "0.2K, betas (0.9, 0.95)",
    "K": "K, betas (0.9, 0.95)",
    "2K": "2K, betas (0.9, 0.95)",
    "two averages": "betas (0.85, 0.95), slow_beta 0.98, slow_weight 0.56",
    "two averages, constant 0.1": "0.1K, betas (0.85, 0.95), slow_beta 0.98, slow_weight 0.56",
}
STEPS_AFTER = {
    "map-short-adam": "Adam's division",
    "map-short-orthogonal": "orthogonalisation (Muon)",
    "map-short-eigen-orthogonal": "eigenbasis, then orthogonalisation",
}


def gains_table() -> str:
    """A few rows of the map: the test loss; bold and italic: clearly better and worse."""
    columns = []
    for name in STEPS_AFTER:
        summary = record(f"evidence/{name}/summary.json")
        means = {c["label"]: f"{c['final']['mean']:.3f}" for c in summary["contestants"]}
        average = f"Pipeline, {GAINS['the average']}"
        (comparison,) = (c for c in summary["comparisons"] if c["reference"] == average)
        marks = {"ahead": "**", "behind": "*"}
        verdicts = {row["contestant"]: marks.get(row["verdict"], "") for row in comparison["rows"]}
        columns.append({label: (verdicts.get(label, ""), mean) for label, mean in means.items()})
    rows = []
    for words, label in GAINS.items():
        cells = [column[f"Pipeline, {label}"] for column in columns]
        rows.append([words, *(f"{mark}{mean}{mark}" for mark, mean in cells)])
    return markdown_table(["gain", *STEPS_AFTER.values()], rows)


def same_settings() -> str:
    """At how many settings of the small transformers FilterAdamW was better than AdamW."""
    import evidence_page

    found = (evidence_page.summary_of(plan) for plan in evidence_page.plans())
    rows = [
        evidence_page.row_of(summary, evidence_page.PAPER, "AdamW")["same_settings"]
        for summary in evidence_page.last_word([s for s in found if s])
        if summary["model"] in ("gpt-tiny", "gpt-mini", "vit-mini")
        and {evidence_page.PAPER, "AdamW"} <= evidence_page.labels_of(summary)
    ]
    better, worse = (sum(row[word] for row in rows) for word in ("better", "worse"))
    return f"{better} of {better + worse}"


def fast_recipe() -> str:
    runs = [r.final for r in runs_in("cifar10-fast/runs.jsonl")
            if r.config.optimizer == "sgd-nesterov"]  # fmt: skip
    return spread(runs)


# --- signals with a known truth: docs/filter.md ---------------------------------------------------


def tracking_table(title: str) -> str:
    """Mean squared errors by estimator, the least of a row in bold."""
    rows = record("tracking.json")["mean squared error"][title]
    lines = []
    for name, errors in rows.items():
        least = min(errors.values())
        words = (f"{e:.3g}" if e > least else f"**{e:.3g}**" for e in errors.values())
        lines.append([name, *words])
    return markdown_table([title, *next(iter(rows.values()))], lines)


# --- optimizers of the lab: docs/optimizers.md, docs/lab.md ---------------------------------------


def phrases_table() -> str:
    return markdown_table(
        ["optimizer", ""], [[f"`{name}`", row.about] for name, row in OPTIMIZERS.items()]
    )


def memory_table() -> str:
    """What each keeps per parameter of a square matrix, single numbers left out."""
    import torch

    from sgdf_lab.optimizers import build_optimizer

    def kept(value: Any) -> int:
        if isinstance(value, torch.Tensor):
            return value.numel() if value.numel() > 1 else 0
        return sum(map(kept, value)) if isinstance(value, list | tuple) else 0

    lines = []
    for name, row in OPTIMIZERS.items():
        p = torch.nn.Parameter(torch.ones(64, 64))
        optimizer = build_optimizer(name, [p], row.settings, device=torch.device("cpu"))
        p.grad = torch.ones_like(p)
        optimizer.step()
        package = type(optimizer).__module__.partition(".")[0].removesuffix("_lab")
        count = sum(map(kept, optimizer.state[p].values())) / p.numel()
        lines.append([f"`{name}`", package, f"{count:.3g}"])
    return markdown_table(["optimizer", "class from", "numbers per parameter"], lines)


# --- the torture matrix: docs/reliability.md ------------------------------------------------------

GOOD = ("same bytes", "within rounding", "one sentence")


def torture_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each row of the matrix, and a sum."""

    def line(kind: str, what: str, counted: Sequence[Mapping[str, Any]]) -> list[str]:
        outcomes: Counter[str] = Counter()
        for row in counted:
            outcomes.update(row["outcomes"])
        good = [outcomes[word] for word in GOOD]
        counts = [sum(row[name] for row in counted) for name in ("cases", "faults")]
        return [kind, what, *(f"{n:,}" for n in (*counts, *good, outcomes.total() - sum(good)))]

    lines = [*(line(row["kind"], row["what"], [row]) for row in rows), line("all", "", rows)]
    return markdown_table(["kind", "what", "cases", "faults", *GOOD, "bugs"], lines, right=2)


def torture_kinds_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each kind: how many of its cases there are, were tried, and tried again."""

    def line(kind: str, counted: Sequence[Mapping[str, Any]]) -> list[str]:
        names = ("planned", "tried", "cases")
        planned, tried, cases = (sum(row[name] for row in counted) for name in names)
        minutes = sum(row["seconds"] for row in counted) / 60
        numbers = (len(counted), planned, tried, cases - tried)
        return [kind, *(f"{n:,}" for n in numbers), f"{minutes:.1f}"]

    kinds = dict.fromkeys(row["kind"] for row in rows)
    lines = [line(kind, [row for row in rows if row["kind"] == kind]) for kind in kinds]
    head = ["kind", "rows", "cases", "tried", "tried again, with other random numbers", "minutes"]
    return markdown_table(head, [*lines, line("all", rows)], right=1)


def gradients_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Generated gradients: steps, elements, the largest distance, and non-finite ones."""
    lines = [
        [
            row["what"],
            f"{row['numbers']['steps']:,}",
            f"{row['numbers']['elements']:,}",
            f"{row['numbers']['largest distance']:.1f}",
            f"{row['numbers']['not finite']:,}",
        ]
        for row in rows
        if row["kind"] == "gradients" and row["numbers"]
    ]
    head = ["path", "steps", "elements", "largest distance (eps)", "not finite, float64 is"]
    return markdown_table(head, lines, right=1)


# --- checked statements: docs/theory.md -----------------------------------------------------------


def theory_table(now: str) -> str:
    """A line for each statement; the second column is prose, and stays."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in now.splitlines()]
    words = {line[0].strip("`"): line[1] for line in lines[2:]}
    rows = []
    for entry in record("theory.json")["statements"]:
        key = next(check for check in entry["checks"] if check["what"] == entry["headline"])
        relation = {"<=": "≤", ">=": "≥", "=": "="}[key["relation"]]
        numbers = [f"{relation} {key['printed']:.3g}", f"{key['measured']:.3g}"]
        name = entry["name"]
        rows.append([f"`{name}`", words.get(name, ""), *numbers, entry["verdict"]])
    return markdown_table(["statement", "in a line", "printed", "measured", "verdict"], rows)


def theory_counts() -> str:
    """How many of the paper's statements hold; our own do not count."""
    entries = record("theory.json")["statements"]
    counts = Counter(entry["verdict"] for entry in entries if entry["label"] != OURS)
    holds, condition, fails = (
        sum(n for word, n in counts.items() if start in word)
        for start in ("holds", "under a condition", "does not hold")
    )
    return (
        f"{sum(counts.values())} statements {holds - condition} hold, {condition} hold under a "
        f"condition left out, {fails} do not hold"
    )


WITH_DEFAULTS = ("FilterAdamW", "FilterMuon", "FilterSOAP", "FilterAdam", "SGDF", "WienerFilter")
KEEPING_WORDS: dict[str, Callable[[str], str]] = {
    "theory": theory_table,
    **{f"defaults of {name}": functools.partial(defaults_table, name) for name in WITH_DEFAULTS},
}
MADE: dict[str, Callable[[], str]] = {
    **paper_blocks.BLOCKS,
    "what it brings": loss_curves.table,
    "FilterAdamW beside AdamW": loss_curves.wins_of_filter_adamw,
    "steps on a GPU": lambda: step_table(
        "cuda", {"resnet50": "ResNet-50 (26 M)", "vit-l": "ViT-L (304 M)", "gpt": "GPT (1.3 B)"}
    ),
    "steps on a CPU": lambda: step_table(
        "cpu", {"one-tensor": "one tensor of 25 M", "resnet18": "ResNet-18",
                "resnet50": "ResNet-50"}
    ),
    "8-bit steps on a CPU": eight_bit_table,
    "derived over AdamW": lambda: ratio(DERIVED, "AdamW fused"),
    "8 bits over AdamW": lambda: ratio(INT8, "AdamW fused"),
    "constant over SGD": lambda: ratio("SGDF fused, constant gain", "SGD fused"),
    "derived over AdamW, ResNet-50": lambda: ratio(DERIVED, "AdamW fused", "resnet50"),
    "bf16 AdamW": lambda: milliseconds("AdamW fused", dtype="bf16"),
    "bf16 SGDF": lambda: milliseconds("SGDF fused, random rounding", dtype="bf16"),
    "bf16 FilterAdamW": lambda: milliseconds(BF16, dtype="bf16"),
    "bf16 over AdamW": lambda: ratio(BF16, "AdamW fused", dtype="bf16"),
    "SGDF over SGD, ResNet-50": lambda: ratio("SGDF fused", "SGD fused", "resnet50"),
    "SGDF over AdamW, ViT-L": lambda: ratio("SGDF fused", "AdamW fused", "vit-l"),
    "SGDF over AdamW, GPT": lambda: ratio("SGDF fused", "AdamW fused"),
    "FilterAdam on a GPU": lambda: milliseconds("FilterAdam fused"),
    "FilterAdam on a CPU": lambda: milliseconds("FilterAdam fused", "resnet50", device="cpu"),
    "codes": codes_table,
    "in backward": in_backward_table,
    "trainer": trainer_table,
    "language": language_table,
    "rates": rates_table,
    "first steps": first_steps_table,
    "warm-up": warmup_words,
    "gains by step": gains_table,
    "better at the same settings": same_settings,
    "fast recipe": fast_recipe,
    "fast recipe, SGD-Nesterov again": lambda: gpu_blocks.fast_recipe("sgd-nesterov"),
    "fast recipe, SGDF again": lambda: gpu_blocks.fast_recipe("sgdf"),
    "grids": gpu_blocks.grid_tables,
    "Hessian on CIFAR-100": gpu_blocks.hessian_table,
    "steps of matrices on a CPU": lambda: gpu_blocks.matrix_steps_table("cpu"),
    "steps of matrices on a GPU": lambda: gpu_blocks.matrix_steps_table("cuda"),
    "beside Muon": beside_muon,
    "queue": gpu_blocks.queue_table,
    "theory counts": theory_counts,
    "walking signal": lambda: tracking_table("walking signal"),
    "noisy quadratic": lambda: tracking_table("noisy quadratic"),
    "optimizers": phrases_table,
    "optimizers, memory": memory_table,
    "torture, kinds": lambda: torture_kinds_table(record("torture.json")["rows"]),
    "torture": lambda: torture_table(record("torture.json")["rows"]),
    "torture, gradients": lambda: gradients_table(record("torture.json")["rows"]),
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
