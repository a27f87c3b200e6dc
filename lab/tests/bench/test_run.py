"""The record of a run: its content, its keys, and that it is written atomically."""

import json
import math
import os
from pathlib import Path

import pytest
import torch

from sgdf_lab import bench
from sgdf_lab.bench.run import write_record
from sgdf_lab.support import provenance
from sgdf_lab.support.errors import UserError

RESULTS = Path(__file__).parents[3] / "results"


def test_the_record_holds_the_run(run, monkeypatch):
    monkeypatch.setenv("SGDF_COMMIT", "abc123")
    record = run()
    assert record["command"].startswith("sgdf bench step --device cpu --repeats 2")
    assert record["commit"] == "abc123"
    assert record["complete"]
    assert record["machine"]["torch"] == torch.__version__
    assert record["machine"]["cpus"] == os.cpu_count()
    tiny = record["lists"]["tiny"]
    assert (tiny["tensors"], tiny["parameters"]) == (5, 5002)
    assert len(tiny["copy"]["timings"]["ms"]) == 2
    assert record["copy"]["gb_per_s"] == tiny["copy"]["gb_per_s"] > 0
    rows = {row["name"]: row for row in tiny["rows"]}
    for row in rows.values():
        assert row["error"] is None
        assert [len(times) for times in row["timings"].values()] == [2, 2, 2]
        assert row["ms"] == pytest.approx(sum(row["timings"]["ms"]) / 2, rel=1e-4)
        assert row["times_sgd_fused"] == row["ms"] / rows["sgd-fused"]["ms"]
        assert row["times_adamw_fused"] == row["ms"] / rows["adamw-fused"]["ms"]
        assert row["of_copy"] == pytest.approx(row["gb_per_s"] / tiny["copy"]["gb_per_s"])
        assert row["together"] == 0
    assert rows["sgdf-foreach"]["implementation"] == "foreach"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_new_record_has_the_keys_of_the_published_ones(run, device):
    published = json.loads((RESULTS / f"bench-step-{device}.json").read_text())
    record = run()
    assert set(published) <= set(record)
    (old, *_), new = published["lists"].values(), record["lists"]["tiny"]
    assert set(old) == set(new)
    assert set(old["copy"]) == set(new["copy"])
    assert set(old["rows"][0]) <= set(new["rows"][0])
    assert set(published["copy"]) == set(record["copy"])


def test_from_python_with_the_names_of_the_options(tmp_path, capsys):
    out = tmp_path / "bench.json"
    record = bench.step(
        device="cpu", lists=["tiny"], only=["sgd-fused"], repeats=2, seconds=0.1, memory=4, out=out
    )
    assert json.loads(out.read_text()) == record
    assert f"wrote {out}" in capsys.readouterr().out.replace("\n", "")


def test_in_a_clone_the_published_records_stay(tmp_path, monkeypatch):
    """Unless it is told to, no run writes into `results`."""
    published = sorted(RESULTS.glob("*.json"))
    assert published
    for path in published:
        copy = tmp_path / "results" / path.relative_to(RESULTS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text("published")
    monkeypatch.chdir(tmp_path)
    options = {"only": ["sgd-fused"], "repeats": 1, "seconds": 0.01}
    bench.step(device="cpu", lists=["tiny"], **options)
    assert (tmp_path / "bench" / "step-cpu.json").is_file()
    assert all(path.read_text() == "published" for path in (tmp_path / "results").rglob("*.json"))


@pytest.mark.parametrize(
    ("options", "near"),
    [({"lists": ["resnet5"]}, "resnet50"), ({"only": ["sgdf-fsed"]}, "sgdf-fused")],
)
def test_unknown_names_from_python(options, near):
    with pytest.raises(UserError, match=f"did you mean .*{near}"):
        bench.step(device="cpu", **options)


def test_the_commit_is_that_of_the_package(monkeypatch):
    monkeypatch.delenv("SGDF_COMMIT", raising=False)
    assert provenance.commit() is None or len(provenance.commit().removesuffix("-dirty")) == 40


def test_a_record_replaces_the_old_one_completely_or_not_at_all(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("disk full")

    target = tmp_path / "new folder" / "bench.json"
    write_record({"a": [1.5, 2.0], "b": "[1,  2]"}, target)
    assert json.loads(target.read_text()) == {"a": [1.5, 2.0], "b": "[1,  2]"}
    before = target.read_text()
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_record({"a": math.nan}, target)
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        write_record({"a": 2}, target)
    assert target.read_text() == before
    assert os.listdir(target.parent) == ["bench.json"]
