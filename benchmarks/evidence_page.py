"""Summaries, figures and tables of all comparisons at equal tuning that are complete.

    python benchmarks/evidence_page.py

For every file of benchmarks/evidence and benchmarks/gpu whose runs are in
results/evidence/NAME/runs.jsonl this writes results/evidence/NAME/summary.json and the figures in
docs/figures/evidence, and then fills the tables of docs/comparisons.md and of the pages
docs/evidence*.md. It trains nothing.
"""

import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from sgdf_lab.optimizers import title_of
from sgdf_lab.reports.evidence import Summary, across, figures, tables
from sgdf_lab.reports.evidence.summary import REFERENCES, summarize
from sgdf_lab.reports.labels import contestant_names
from sgdf_lab.reports.numbers import SIGNIFICANCE, holm
from sgdf_lab.reports.tables import as_markdown, escaped
from sgdf_lab.reports.wording import NOTHING
from sgdf_lab.runs.config import Config
from sgdf_lab.runs.records import read_runs
from sgdf_lab.support.figures import write_svg
from sgdf_lab.support.files import write_atomically, write_json
from sgdf_lab.support.pages import filled, markdown_table
from sgdf_lab.sweeps.plan import Grid, Sweep, sweep_from_file

sys.path.insert(0, str(Path(__file__).parent))
import filter_map_page

ROOT = Path(__file__).parents[1]
PLANS = (ROOT / "benchmarks" / "evidence", ROOT / "benchmarks" / "gpu")
RESULTS = ROOT / "results" / "evidence"
FIGURES = ROOT / "docs" / "figures" / "evidence"
STEP_TIMES = ROOT / "results" / "step-times-cuda.json"  # of the tasks for a GPU

PAPER = "FilterAdamW, 2K"  # with Adam's eps in the gain
LEAN = "FilterAdamW, K, gain_eps 0, derived"  # with AdamW's memory
SHOWN = {PAPER: "FilterAdamW, paper's form", LEAN: "FilterAdamW, K, derived"}
LATER = ("-finals", "-again")  # end the name of a task that was done again; the last word first
FILTER_IN_FRONT = "gpt-tiny-in-front"
GAINS = "-gains"  # ends the name of a task with more gains
FORMS = "-form"  # ends the name of a task that decides the default form of FilterAdamW
ASIDE = (FILTER_IN_FRONT, GAINS, FORMS)  # share runs with another task, and are never added to it
RIVALS = "filteradamw-and-sgdf-against-their-rivals"  # begins the name of the section
IN_FRONT = {"adabelief": "wiener-adabelief", "lion": "wiener-lion", "muon": "wiener-muon"}
ACROSS = ("adamw", "nadamw", PAPER, "sgd-nesterov")  # the tables over all tasks

COUNTED = {
    "filter-adamw": ("adamw", "nadamw"),
    "sgdf": ("sgd", "sgd-nesterov"),
    "muon": ("adamw", PAPER),
}

# Of the tables with the last word: two rivals, then forms of the filter.
FAMILIES = {
    "users of AdamW": ("AdamW", "NAdamW", PAPER, LEAN),
    "users of SGD": ("SGD", "SGD, Nesterov", "SGDF, 2K"),
}


def main() -> None:
    summaries = [summary for plan in plans() if (summary := summary_of(plan))]
    for summary in summaries:
        write_json(RESULTS / summary["name"] / "summary.json", summary, indent=1)
        shown = {name for name, _ in drawings(summary)}
        for name, figure in figures.figures(summary):
            if name in shown:
                say(write_svg(figure, FIGURES / f"{summary['name']}-{name}"))
    found, _ = dense(across.across(first_time(summaries), "adamw"))
    say(write_svg(across.figure(found), FIGURES / "across-adamw"))
    say(write_svg(decided_figure(last_word(summaries)), FIGURES / "decided-adamw"))
    for page, blocks in pages(summaries).items():
        path = ROOT / page
        write_atomically(path, filled(path.read_text(encoding="utf-8"), blocks))
        say(path)


def say(path: Path) -> None:
    print("wrote", path.relative_to(ROOT))


# --- summaries -----------------------------------------------------------------------------------


def plans() -> list[Path]:
    """All but those of the map of filters, which has a page of its own."""
    found = (path for folder in PLANS for path in folder.rglob("*.toml"))
    return sorted((path for path in found if path.parent.name != "map"), key=lambda path: path.stem)


def summary_of(plan: Path) -> Summary | None:
    """The summary of a task; None of a grid, which has no trials, and while runs are missing."""
    runs = RESULTS / plan.stem / "runs.jsonl"
    if not runs.exists():
        return None
    sweep = sweep_from_file(plan)
    if isinstance(sweep, Grid):
        return None
    references = references_of(sweep)
    command = [
        "sgdf",
        "evidence",
        str(plan.relative_to(ROOT)),
        "--runs",
        str(runs.relative_to(ROOT)),
    ]
    if references:
        command += ["--reference", *references]
    rows = json.loads(STEP_TIMES.read_text(encoding="utf-8"))["rows"]
    times = [row for row in rows if row["file"] == plan.stem]
    if times:
        command += ["--step-times", str(STEP_TIMES.relative_to(ROOT))]
    records, complaints = read_runs([runs])
    if complaints:
        raise SystemExit("\n".join(map(str, complaints)))
    summary = summarize(sweep, records, references, shlex.join(command), times)
    return summary if across.is_complete(summary) else None


def references_of(sweep: Sweep) -> list[str]:
    """The usual ones, the paper's form, and whoever has the filter in front."""
    names = {config.optimizer for config in sweep.configs}
    found = [name for name in REFERENCES if name in names]
    forms = [
        c for c in sweep.configs if c.optimizer == "filter-adamw" and "gain_eps" not in c.settings
    ]
    if sweep.name.endswith(FORMS) or any(c.settings.get("gain_scale") == 2.0 for c in forms):
        found.append(PAPER)
    return found + [name for name, filtered in IN_FRONT.items() if filtered in names]


def first_time(summaries: Sequence[Summary]) -> list[Summary]:
    """The tasks that may be counted together: all but those that were done again."""
    return [s for s in summaries if not s["name"].endswith((*LATER, *ASIDE))]


def last_word(summaries: Sequence[Summary]) -> list[Summary]:
    """Every task once: as it was done last."""
    found: dict[str, Summary] = {}
    for ending in (*LATER, ""):
        for summary in summaries:
            if summary["name"].endswith(ending) and not summary["name"].endswith(ASIDE):
                found.setdefault(task_name(summary), summary)
    return [found[name] for name in sorted(found)]


def task_name(summary: Summary) -> str:
    """Without how often it was done.

    >>> task_name({"name": "gpt-tiny-books-again"}), task_name({"name": "cnn-cifar10"})
    ('gpt-tiny-books', 'cnn-cifar10')
    """
    name = str(summary["name"])
    return next((name.removesuffix(end) for end in LATER if name.endswith(end)), name)


# --- pages ---------------------------------------------------------------------------------------


def pages(summaries: Sequence[Summary]) -> dict[str, Mapping[str, str]]:
    """By page, what stands between its comments."""
    first, last = first_time(summaries), last_word(summaries)
    over_all = {f"against {reference}": across_table(first, reference) for reference in ACROSS}
    return {
        "docs/comparisons.md": {"tasks": "\n\n".join(map(task_block, summaries)) + "\n"},
        "docs/evidence.md": {
            "evidence in short": f"\n{in_short(summaries)}\n",
            **{name: f"\n{decision_table(last, f)}\n" for name, f in FAMILIES.items()},
            "same settings": f"\n{same_settings_table(last, FAMILIES['users of AdamW'])}\n",
            "both rivals": f"\n{both_rivals(last)}\n",
        },
        "docs/evidence-forms.md": {
            "counts": f"\n{counts(first)}\n",
            **{name: f"\n{text}\n" for name, text in over_all.items()},
            "in front": f"\n{in_front_table(summaries)}\n",
            "larger gains": f"\n{gains_table(summaries)}\n",
            "default form": f"\n{forms_table(summaries)}\n",
            "at 11 million": f"\n{larger_network_table()}\n",
        },
        "docs/evidence-protocol.md": {"two rules": f"\n{two_rules(summaries)}\n"},
    }


def across_table(summaries: Sequence[Summary], reference: str) -> str:
    found, left_out = dense(across.across(summaries, reference))
    words = (
        f"\n\nLeft out, since the table would have gaps: {'; '.join(left_out)}." if left_out else ""
    )
    return as_markdown(across.table(found)) + words


def dense(found: across.Across) -> tuple[across.Across, list[str]]:
    """Without contestants of at most half of the tasks, then tasks of less than half of these."""
    kept = [s for s in found.standings if 2 * s.tasks > len(found.summaries)]
    places = [
        i for i in range(len(found.summaries))
        if 2 * sum(s.differences[i] is not None for s in kept) >= len(kept)
    ]  # fmt: skip
    left_out = [s.label for s in found.standings if s not in kept]
    left_out += [s["name"] for i, s in enumerate(found.summaries) if i not in places]
    shown = (replace(s, differences=tuple(s.differences[i] for i in places)) for s in kept)
    tasks = tuple(found.summaries[i] for i in places)
    return replace(found, summaries=tasks, standings=tuple(shown)), left_out


def in_short(summaries: Sequence[Summary]) -> str:
    """The first screen: what was found, with the numbers of all tasks."""
    last = last_word(summaries)
    same = [
        found
        for summary in last
        if summary["task"] == "text" or summary["model"].startswith("vit")
        if {PAPER, "AdamW"} <= labels_of(summary)
        if (found := row_of(summary, PAPER, "AdamW")["same_settings"])
    ]
    better, worse = (sum(row[word] for row in same) for word in ("better", "worse"))
    tuned = {rival: standing_words(last, PAPER, rival) for rival in ("AdamW", "NAdamW")}
    others = {rival: standing_words(last, "SGDF, 2K", rival) for rival in ("SGD", "SGD, Nesterov")}
    contests = [json.loads((RESULTS / name / "summary.json").read_text(encoding="utf-8"))
                for name in filter_map_page.COUNTED]  # fmt: skip
    ahead = [filter_map_page.title_of(contest) for contest in contests
             if filter_map_page.ahead_of_all(contest, filter_map_page.EIGENBASIS)]  # fmt: skip
    kept, before, total = verdict_counts(summaries)
    return "\n".join([
        "- **`FilterMuon(eigenbasis=True)` is clearly ahead of AdamW, NAdamW, Muon and SOAP on "
        f"{len(ahead)} of {len(contests)} small tasks**, all tuned alike: {'; '.join(ahead)} "
        "([the map of filters](map.md)).",
        "- **At the same settings FilterAdamW trains small transformers better than AdamW**: with "
        f"the same learning rate, betas and weight decay, {better} of {better + worse} trials "
        "ended with a better validation value ([below](#at-the-same-settings)).",
        "- **With both tuned, the lead is small.** Against AdamW, FilterAdamW is "
        f"{tuned['AdamW']}; against NAdamW {tuned['NAdamW']} ([below](#{RIVALS}-latest-results)).",
        f"- Against SGD, SGDF is {others['SGD']}; against SGD with Nesterov's momentum "
        f"{others['SGD, Nesterov']}. Over 200 epochs of VGG11 no difference to well-tuned SGD was "
        "found ([the paper's tables](evidence-paper.md)).",
        "- **A verdict knows about the tuning.** By the seeds of the chosen settings only, "
        f"{before} of {total} comparisons would have one; with the luck of the choice, {kept} "
        "have ([the rule](evidence-protocol.md#the-verdict-since-then)).",
    ])  # fmt: skip


def standing_words(summaries: Sequence[Summary], label: str, rival: str) -> str:
    """On how many tasks the mean is better, and where the difference is clear."""
    own = [summary for summary in summaries if {label, rival} <= labels_of(summary)]
    rows = {task_name(s): (row_of(s, label, rival), s) for s in own}
    better = sum(across.lead(row, s)["mean"] > 0 for row, s in rows.values())
    parts = [f"better in the mean on {better} of {len(rows)} tasks"]
    for word in ("ahead", "behind"):
        names = [name for name, (row, _) in rows.items() if row["verdict"] == word]
        parts += [f"clearly {word} on {', '.join(names)}"] if names else []
    return ", ".join(parts) + ", not clearly" * (len(parts) == 1)


def verdict_counts(summaries: Sequence[Summary]) -> tuple[int, int, int]:
    """Verdicts, those that there would be by the seeds only, and all comparisons."""
    rows = [row for s in summaries for c in s["comparisons"] for row in c["rows"]]
    by_seeds = [row for row in rows if row["p_holm"] is not None and row["p_holm"] < SIGNIFICANCE]
    return sum(bool(row["verdict"]) for row in rows), len(by_seeds), len(rows)


def two_rules(summaries: Sequence[Summary]) -> str:
    """What became of the verdicts of each task."""
    lines = []
    for summary in summaries:
        kept, before, total = verdict_counts([summary])
        name = summary["name"]
        lines.append([f"[{name}](comparisons.md#{name})", *map(str, (total, before, kept))])
    head = ["", "comparisons", "a verdict by the seeds only", "with the luck of the choice"]
    return markdown_table(head, lines)


def task_block(summary: Summary) -> str:
    """The results and the differences; everything else folded."""
    name = summary["name"]
    first, *rest = tables.markdown_parts(summary)
    shown, *drawn = (
        f"![{words}](figures/evidence/{name}-{figure}.svg)" for figure, words in drawings(summary)
    )
    made = (
        f"{summary['runs']} runs, {summary['run_hours']:.1f} hours in all; "
        f"commit {', '.join(commit[:7] for commit in summary['commits'])}; "
        f"{', '.join(summary['machines'])}. Made by `{summary['command']}`."
    )
    folded = "\n\n".join([*rest, *drawn, made])
    return (
        f"## {name}\n\n{first}\n\n{shown}\n\n"
        '<details markdown="1"><summary>How soon, at the same settings, how much tuning, all '
        f"trials, where from</summary>\n\n{folded}\n\n</details>"
    )


def drawings(summary: Summary) -> Iterable[tuple[str, str]]:
    """The figures to show: of the differences, those to the first reference."""
    words = {
        "best-of-k": "The expected best of k trials",
        "rates": "All trials by learning rate",
    }
    found = [name for name, _ in figures.figures(summary)]
    first = next(name for name in found if name.startswith("differences"))
    yield first, f"Differences to {summary['comparisons'][0]['reference']}"
    yield from ((name, words[name]) for name in found if name in words)


def counts(summaries: Sequence[Summary]) -> str:
    """How often one kind of optimizer is ahead of a rival, over all its forms and tasks."""
    head = ["", "against", "comparisons", "ahead", "behind", "better mean"]
    lines = []
    for optimizer, references in COUNTED.items():
        for reference in references:
            found = across.across(summaries, reference)
            own = [standing for standing in found.standings if standing.optimizer == optimizer]
            better = [
                across.lead(row, summary)["mean"] > 0
                for standing in own
                for row, summary in zip(standing.differences, found.summaries, strict=True)
                if row is not None
            ]
            ahead, behind = (sum(s.count(verdict) for s in own) for verdict in ("ahead", "behind"))
            numbers = map(str, (len(better), ahead, behind, sum(better)))
            lines.append([title_of(optimizer), found.reference, *numbers])
    return markdown_table(head, lines)


def row_of(summary: Summary, label: str, rival: str) -> Mapping[str, Any]:
    rows = next(c["rows"] for c in summary["comparisons"] if c["reference"] == rival)
    return next(row for row in rows if row["contestant"] == label)


def decision_table(summaries: Sequence[Summary], labels: Sequence[str]) -> str:
    """A line for each task and form of the filter: its differences to the two rivals."""
    first, second, *forms = labels
    lines = [
        [
            link_to(summary),
            SHOWN.get(form, form),
            planned_words(summary),
            *(in_one_cell(*against(summary, form, rival)) for rival in (first, second)),
        ]
        for summary in of_family(summaries, labels)
        for form in forms
    ]
    head = ["", "", "trials, finalists, seeds", f"minus {first}", f"minus {second}"]
    return markdown_table(head, lines)


def same_settings_table(summaries: Sequence[Summary], labels: Sequence[str]) -> str:
    """A line for each task: at how many settings of the trials a form is better than a rival."""
    first, second, *forms = labels
    pairs = [(form, rival) for form in forms for rival in (first, second)]
    lines = [
        [
            link_to(summary),
            *(
                tables.same_words(row_of(summary, form, rival), summary["metric"]["digits"])
                for form, rival in pairs
            ),
        ]
        for summary in of_family(summaries, labels)
    ]
    head = [f"{SHOWN[form]}: than {rival}" for form, rival in pairs]
    return markdown_table(["better", *head], lines)


def decided_figure(summaries: Sequence[Summary]) -> Figure:
    """What is said last of AdamW's rivals, a panel for each task."""
    _, second, *forms = family = FAMILIES["users of AdamW"]
    named = [{**s, "name": task_name(s)} for s in of_family(summaries, family)]
    found = across.across(named, "adamw")
    standings = {standing.label: standing for standing in found.standings}
    shown = [replace(standings[n], label=SHOWN.get(n, n)) for n in (*forms, second)]
    return across.figure(replace(found, standings=tuple(shown)))


def of_family(summaries: Sequence[Summary], labels: Sequence[str]) -> list[Summary]:
    """The tasks on which all of them were."""
    return [summary for summary in summaries if set(labels) <= labels_of(summary)]


def labels_of(summary: Summary) -> set[str]:
    return {contestant["label"] for contestant in summary["contestants"]}


def both_rivals(summaries: Sequence[Summary]) -> str:
    """On which tasks each form of FilterAdamW is ahead of both rivals, and where behind one."""
    first, second, *forms = family = FAMILIES["users of AdamW"]
    own = of_family(summaries, family)
    lines = []
    for form in forms:
        verdicts = {
            task_name(s): [row_of(s, form, rival)["verdict"] for rival in (first, second)]
            for s in own
        }
        ahead = [name for name, found in verdicts.items() if found == ["ahead", "ahead"]]
        behind = [name for name, found in verdicts.items() if "behind" in found]
        lines.append(
            f"- {SHOWN[form]}: clearly ahead of both {first} and {second} on {len(ahead)} of "
            f"{len(own)} tasks ({', '.join(ahead) or 'none'}), clearly behind one of them on "
            f"{len(behind)} ({', '.join(behind) or 'none'})."
        )
    return "\n".join(lines)


def planned_words(summary: Summary) -> str:
    planned = summary["planned"]
    return f"{planned['trials']}, {planned['finalists'] or NOTHING}, {len(planned['seeds'])}"


def gains_table(summaries: Sequence[Summary]) -> str:
    """A line for each task and contestant of those with more gains."""
    lines = []
    for summary in (s for s in summaries if s["name"].endswith(GAINS)):
        digits, seeds = summary["metric"]["digits"], len(summary["planned"]["seeds"])
        for contestant in tables.ranked(summary):
            label = contestant["label"]
            cells = [escaped(tables.final_words(contestant, digits, seeds))]
            rivals = ("AdamW", "NAdamW", PAPER)
            cells += [in_one_cell(*against(summary, label, rival)) for rival in rivals]
            lines.append([link_to(summary), label, *cells])
    head = ["", "", "final", "minus AdamW", "minus NAdamW", "minus 2K"]
    return markdown_table(head, lines) if lines else "Planned; not complete yet."


def forms_table(summaries: Sequence[Summary]) -> str:
    """The tasks that decide the default form, each beside 2K: p by seeds, Holm over the tasks."""
    tasks = [summary for summary in summaries if summary["name"].endswith(FORMS)]
    labels = dict.fromkeys(c["label"] for summary in tasks for c in summary["contestants"])
    lines = []
    for label in labels:
        rows = [row_of(s, label, PAPER) if label != PAPER else {"p": None} for s in tasks]
        corrected = holm([row["p"] for row in rows])
        cells = [form_words(s, label, r, p) for s, r, p in zip(tasks, rows, corrected, strict=True)]
        lines.append([label, *cells])
    return markdown_table(["", *map(link_to, tasks)], lines)


def form_words(summary: Summary, label: str, row: Mapping[str, Any], p: float | None) -> str:
    digits, seeds = summary["metric"]["digits"], len(summary["planned"]["seeds"])
    contestant = next(c for c in summary["contestants"] if c["label"] == label)
    words = tables.final_words(contestant, digits, seeds)
    if p is None:
        return words
    mean = f"{row['mean']:+.{digits}f}".replace("-", "−")
    return f"{words}; minus 2K {mean}, p {tables.p_words(p)}"


def cell_of(config: Config) -> str:
    """Without the text, which a record knows by its content."""
    return json.dumps([config.optimizer, config.settings], sort_keys=True)


def larger_network_table() -> str:
    """One seed of 300 steps of a GPT of 11 million parameters."""
    file = RESULTS / "gpt-11m-form" / "runs.jsonl"
    records, _ = read_runs([file] if file.exists() else [])
    configs = sweep_from_file(PLANS[0] / "form" / "gpt-11m-form.toml").configs
    found = {cell_of(record.config): record for record in records}
    if any(cell_of(config) not in found for config in configs):
        return "Planned; not complete yet."
    names = contestant_names([(config,) for config in configs])
    lines = []
    for name, config in zip(names, configs, strict=True):
        by_step = {line["step"]: line for line in found[cell_of(config)].metrics}
        values = [f"{by_step[step]['val_loss']:.4f}" for step in sorted(by_step)]
        lines.append([name, *values, f"{by_step[max(by_step)]['test_loss']:.4f}"])
    head = [f"validation loss, step {step}" for step in sorted(by_step)]
    return markdown_table(["", *head, "test loss"], lines)


def in_one_cell(difference: str, p: str, p_choice: str) -> str:
    """
    >>> in_one_cell("−0.02 [−0.03, −0.01]", "0.004", "0.009, ahead")
    '−0.02 [−0.03, −0.01], p 0.004, with the choice 0.009, **ahead**'
    >>> in_one_cell("reference", "", "")
    'reference'
    """
    value, comma, verdict = p_choice.partition(", ")
    parts = [difference, f"p {p}" * bool(p), f"with the choice {value}" * bool(value)]
    return ", ".join(filter(None, parts)) + (f"{comma}**{verdict}**" if verdict else "")


def in_front_table(summaries: Sequence[Summary]) -> str:
    """A line for each optimizer without the filter, and below it one for each form with it."""
    found = [summary for summary in summaries if summary["name"] == FILTER_IN_FRONT]
    p = ["p of the seeds", "p with the choice"]
    head = ["", "the filter", "test loss", "minus AdamW", *p, "minus no filter", *p]
    return markdown_table(head, [line for summary in found for line in in_front_lines(summary)])


def in_front_lines(summary: Summary) -> Iterable[list[str]]:
    digits, seeds = summary["metric"]["digits"], len(summary["planned"]["seeds"])
    for alone in summary["contestants"]:
        if alone["optimizer"] in IN_FRONT.values():
            continue
        filtered = IN_FRONT.get(alone["optimizer"])
        forms = [c for c in summary["contestants"] if c["optimizer"] == filtered]
        for contestant in (alone, *forms):
            cells = [place_of_filter(contestant), tables.final_words(contestant, digits, seeds)]
            cells += against(summary, contestant["label"], "AdamW")
            cells += (
                [""] * 3
                if contestant is alone
                else against(summary, contestant["label"], alone["label"])
            )
            yield [alone["label"], *map(escaped, cells)]


def place_of_filter(contestant: Mapping[str, Any]) -> str:
    """Where the filter is: a form without momentum of its own has it instead."""
    if contestant["optimizer"] not in IN_FRONT.values():
        return "none"
    settings = contestant["trials"][0]["settings"]
    own = [*settings.get("betas", ()), settings.get("momentum", 0.0)]
    return "before the momentum" if any(own) else "instead of the momentum"


def against(summary: Summary, label: str, *references: str) -> list[str]:
    """Difference and p values for each reference."""
    found = {comparison["reference"]: comparison for comparison in summary["comparisons"]}
    digits = summary["metric"]["digits"]
    cells = (tables.difference_words(found[name], label, digits) for name in references)
    return [escaped(cell) for of_one in cells for cell in of_one]


def link_to(summary: Summary) -> str:
    name = task_name(summary).removesuffix(GAINS)
    return f"[{name}](comparisons.md#{summary['name']})"


if __name__ == "__main__":
    main()
