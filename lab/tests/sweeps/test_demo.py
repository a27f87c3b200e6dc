"""The demo: a fair search, real runs, a table and a page, and nothing done twice."""

import pytest

from sgdf_lab.cli.main import main
from sgdf_lab.sweeps import demo


def test_every_optimizer_gets_the_same_search():
    configs = demo.demo_sweep().configs
    assert len(configs) == len({config.name for config in configs})
    by_optimizer = {}
    for config in configs:
        by_optimizer.setdefault(config.optimizer, set()).add((config.lr, config.seed))
    assert set(by_optimizer) == set(demo.LEARNING_RATES)
    assert {len(cells) for cells in by_optimizer.values()} == {12}
    assert all(config.validation == demo.VALIDATION for config in configs)


@pytest.mark.slow
def test_the_demo_ends_by_naming_its_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(demo, "SEEDS", (0, 1))
    monkeypatch.setattr(demo, "LEARNING_RATES", {"sgdf": (0.05, 0.5), "adam": (0.001, 0.003)})
    assert main(["demo", "--epochs", "2", "--jobs", "1", "--device", "cpu"]) == 0
    output = capsys.readouterr().out
    assert output.rstrip().endswith("The page is in runs/demo/demo.html")
    assert "sgdf, lr 0.5 \u2713" in output
    assert "adam, lr 0.003 \u2713" in output or "adam, lr 0.001 \u2713" in output
    page = (tmp_path / "runs" / "demo" / "demo.html").read_text(encoding="utf-8")
    assert "four ways to descend" in page

    before = {p: p.read_bytes() for p in tmp_path.glob("runs/demo/*/metrics.jsonl")}
    assert len(before) == 8
    assert main(["demo", "--epochs", "2", "--jobs", "1", "--device", "cpu"]) == 0
    assert {p: p.read_bytes() for p in before} == before
    starts = [p.read_text() for p in tmp_path.glob("runs/demo/*/env.json")]
    assert all('"earlier": []' in text for text in starts), "nothing was run again"
