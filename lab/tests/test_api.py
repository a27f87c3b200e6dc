"""The commands from Python: the same runs, numbers and pages, by one call each."""

import inspect
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import sgdf_lab
from runs.commands import PLAN
from sgdf_lab import api
from sgdf_lab.cli.main import main, parse
from sgdf_lab.support.errors import UserError

ROOT = Path(__file__).parents[2]


def metrics_in(out: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in out.glob("*/metrics.jsonl")}


def test_train_is_the_command(tmp_path):
    words = ["digits", "--optimizer", "adamw", "--epochs", "1", "--seed", "0", "1"]
    line = ["train", *words, "--set", "lr=0.01", "--device", "cpu", "--out", str(tmp_path / "cli")]
    assert main(line) == 0
    results = api.train(
        "digits",
        optimizer="adamw",
        epochs=1,
        seed=[0, 1],
        settings={"lr": 0.01},
        device="cpu",
        out=tmp_path / "api",
    )
    assert [result["status"] for result in results] == ["finished"] * 2
    assert metrics_in(tmp_path / "api") == metrics_in(tmp_path / "cli")


@pytest.mark.slow
def test_sweep_evidence_and_report_are_the_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("sweep.toml").write_text(PLAN)
    line = ["sweep", "sweep.toml", "--device", "cpu", "--jobs", "1", "--out", "cli"]
    assert main(line) == 0
    best = api.sweep(tomllib.loads(PLAN), device="cpu", jobs=1, out="api", record="api.jsonl")
    assert metrics_in(Path("api")) == metrics_in(Path("cli"))
    assert {(run.config.optimizer, run.config.seed) for run in best} == {
        (optimizer, seed) for optimizer in ("sgdf", "adamw") for seed in (1, 2)
    }
    pages = {path.name for path in Path("cli").glob("*.html")}
    assert pages == {path.name for path in Path("api").glob("*.html")}
    assert pages == {"sweep.html", "sweep-best.html"}

    assert main(["evidence", "sweep.toml", "--runs", "cli", "--out", "cli"]) == 0
    shown = json.loads(Path("cli", "summary.json").read_text())
    rows = [{"file": "sweep", "optimizer": "adamw", "settings": run.config.as_json()["settings"],
             "ms": [7.0]} for run in best]  # fmt: skip
    Path("times.json").write_text(json.dumps({"rows": rows}))
    timed = api.evidence("sweep.toml", "api.jsonl", step_times="times.json")
    assert {c["label"] for c in timed["contestants"]} >= {"AdamW"}
    summary = api.evidence("sweep.toml", "api.jsonl", out="shown")
    (stood,) = api.across(["shown/summary.json"], out="shown")
    assert stood.reference == "AdamW"
    assert Path("shown", "across-adamw.svg").exists()
    for mine, other in zip(summary["contestants"], shown["contestants"], strict=True):
        measured = ("label", "trials", "chosen", "seeds", "final", "expected_best")
        assert [mine[key] for key in measured] == [other[key] for key in measured]
    assert json.loads(Path("shown", "summary.json").read_text()) == summary
    assert {path.name for path in Path("shown").iterdir()} > {"summary.json"}

    comparisons = api.report(["api"], output="all.html", figure="curves")
    compared = [run for c in comparisons for cell in c.cells for run in cell.records]
    assert len(compared) == 8 - 2, "without the trials by which the settings were chosen"
    assert "adamw" in Path("all.html").read_text()
    assert Path("curves.svg").exists()


def test_a_plan_may_be_changed(tmp_path):
    with pytest.raises(UserError, match="there are 9 finalists of 2 trials"):
        api.sweep(tomllib.loads(PLAN), changes={"finalists": 9}, out=tmp_path)
    with pytest.raises(UserError, match="is a grid without trials"):
        api.evidence({"task": "digits", "grid": {"lr": [0.1]}}, tmp_path)
    with pytest.raises(UserError, match="there is no file"):
        api.evidence(tmp_path / "none.toml")
    with pytest.raises(UserError, match="there are no runs of sweep in"):
        api.evidence(tomllib.loads(PLAN), tmp_path)
    with pytest.raises(UserError, match="there are no runs in"):
        api.report(tmp_path, output=tmp_path / "page.html")


def test_every_option_of_a_command_that_trains_has_an_argument():
    """Those that say where a run is, what it keeps and where it is logged."""

    def names(words, function, others):
        given = {name for name in vars(parse(words)) if name not in others}
        renamed = {"no_compile": "compile", "no_checkpoints": "checkpoints", "set": "settings"}
        return {renamed.get(n, n) for n in given} - inspect.signature(function).parameters.keys()

    line = {"debug", "command", "run", "typed"}
    assert not names(["train", "digits"], api.train, line | {"config"})
    plan = {"file", "preset", "trials", "finalists", "task", "model", "epochs", "seeds", "data",
            "set", "precision", "list"}  # fmt: skip
    assert not names(["sweep", "a.toml"], api.sweep, line | plan)
    shown = {"markdown", "across", *plan}
    assert not names(["evidence", "a.toml"], api.evidence, line | shown)
    assert not names(["report", "runs"], api.report, line)


def test_the_names_are_functions_whatever_was_imported_before():
    code = (
        "import sys, sgdf_lab; from sgdf_lab import evidence, report, sweep, train;"
        "assert 'torch' not in sys.modules; import sgdf_lab.training.loop, sgdf_lab.reports.page;"
        "from sgdf_lab import report as again; assert again is report;"
        "assert all(callable(getattr(sgdf_lab, name)) for name in sgdf_lab.__all__)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert set(sgdf_lab.__all__) <= set(dir(sgdf_lab))


@pytest.mark.slow
def test_the_example_of_the_docs(tmp_path, monkeypatch, capsys):
    text = (ROOT / "docs" / "lab.md").read_text()
    _, _, after = text.partition("<!-- run by lab/tests/test_api.py -->\n```python\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    exec(compile(after.partition("```")[0], "lab.md", "exec"), {})
    assert len(list(tmp_path.glob("runs/digits-*"))) == 2
    assert "adamw" in capsys.readouterr().out
    assert (tmp_path / "report.html").exists()
