"""Ended runs in one file: packed, merged, unpacked, and a sweep that resumes from it."""

import json
import os
from pathlib import Path

import pytest

from report import made
from runs.commands import PLAN
from sgdf_lab.cli.main import main
from sgdf_lab.runs import packed, results, run_folder
from sgdf_lab.runs.packed import pack, unpack
from sgdf_lab.runs.records import read_runs
from sgdf_lab.support.errors import UserError


def ended(out: Path, seed: int = 0, status: str | None = "finished", final: float = 70.0) -> Path:
    return made.run(out, made.config("sgdf", seed), [50.0, 60.0, final], status=status)


def failed(out: Path, seed: int = 0) -> Path:
    folder = ended(out, seed, status=None)
    made.write(folder / "failure.json", [{"error": "no memory", "when": "today"}])
    return folder


def contents(folder: Path) -> dict[str, object]:
    """What is in the files, whatever their spaces."""
    return {
        path.name: results.read_lines(path)
        if path.suffix == ".jsonl"
        else json.loads(path.read_text())
        for path in folder.iterdir()
    }


def test_what_comes_out_is_what_went_in(tmp_path):
    folders = [
        ended(tmp_path / "a", 0),
        ended(tmp_path / "a", 1, "diverged"),
        failed(tmp_path / "a", 2),
    ]
    pack(folders, tmp_path / "x" / "runs.jsonl")
    assert unpack(tmp_path / "x" / "runs.jsonl", tmp_path / "b") == 3
    for folder in folders:
        copy = tmp_path / "b" / folder.name
        assert contents(copy) == contents(folder)
        config = results.read_config(folder)
        assert results.read_end(copy, config) == results.read_end(folder, config)
    assert sorted(os.listdir(tmp_path / "b")) == sorted(folder.name for folder in folders)


def test_the_same_runs_are_the_same_bytes_in_any_order(tmp_path):
    folders = [ended(tmp_path / "a", seed) for seed in (2, 0, 1)]
    pack(folders, tmp_path / "one")
    for folder in reversed(folders):
        pack([folder], tmp_path / "two")
    unpack(tmp_path / "one", tmp_path / "b")
    pack((tmp_path / "b").iterdir(), tmp_path / "three")
    one, two, three = ((tmp_path / name).read_bytes() for name in ("one", "two", "three"))
    assert one == two == three
    names = [json.loads(line)["name"] for line in one.splitlines()]
    assert names == sorted(folder.name for folder in folders)
    before = (tmp_path / "one").stat().st_mtime_ns
    pack(folders, tmp_path / "one")
    assert (tmp_path / "one").stat().st_mtime_ns == before, "nothing new, nothing written"


def test_unfinished_and_foreign_folders_are_left_out(tmp_path):
    unfinished, foreign = ended(tmp_path, 0, status=None), tmp_path / "notes"
    foreign.mkdir()
    torn = ended(tmp_path, 1)
    (torn / "result.json").write_text('{"status": "fini')
    pack([unfinished, foreign, torn, tmp_path / "nothing"], tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_a_new_end_replaces_an_old_one_but_a_failure_only_a_failure(tmp_path):
    def status(file: Path) -> tuple[str, list[float]]:
        (record,), _ = read_runs([file])
        return record.status, [line["test_accuracy"] for line in record.metrics]

    file = tmp_path / "runs.jsonl"
    pack([failed(tmp_path / "a")], file)
    assert status(file)[0] == "failed"
    pack([ended(tmp_path / "b", final=71.0)], file)
    assert status(file) == ("finished", [50, 60, 71])
    pack([failed(tmp_path / "c")], file)
    assert status(file) == ("finished", [50, 60, 71])
    pack([ended(tmp_path / "d", final=72.0)], file)
    assert status(file) == ("finished", [50, 60, 72])


def test_a_run_that_exists_is_not_overwritten_and_only_the_named_are_unpacked(tmp_path):
    folders = [ended(tmp_path / "a", seed) for seed in (0, 1, 2)]
    pack(folders, tmp_path / "file")
    mine = ended(tmp_path / "b", 0, status=None, final=1.0)
    before = contents(mine)
    link = tmp_path / "b" / folders[1].name
    link.symlink_to(tmp_path / "elsewhere")
    assert unpack(tmp_path / "file", tmp_path / "b") == 1
    assert contents(mine) == before
    assert not (tmp_path / "elsewhere").exists()
    assert unpack(tmp_path / "file", tmp_path / "c", {folders[2].name}) == 1
    assert os.listdir(tmp_path / "c") == [folders[2].name]


def test_a_run_that_ended_elsewhere_gets_its_end_here(tmp_path):
    """Interrupted or failed here, finished in the file: nothing is left to train."""
    pack([ended(tmp_path / "a", seed) for seed in (0, 1, 2)], tmp_path / "file")
    here = tmp_path / "b"
    folders = [ended(here, 0, status=None, final=1.0), failed(here, 1), ended(here, 2, final=5.0)]
    names = {folder.name for folder in folders}
    assert packed.complete(tmp_path / "file", here, names - {folders[0].name}) == 1
    assert packed.complete(tmp_path / "file", here, names) == 1
    records = {record.config.seed: record for record in read_runs([here])[0]}
    assert {record.status for record in records.values()} == {"finished"}
    assert [records[s].metrics[-1]["test_accuracy"] for s in (0, 1, 2)] == [70, 70, 5]
    assert not (folders[1] / "failure.json").exists()


def test_a_run_that_is_being_trained_here_is_left_alone(tmp_path):
    pack([ended(tmp_path / "a")], tmp_path / "file")
    mine = ended(tmp_path / "b", status=None, final=1.0)
    with run_folder.RunFolder(tmp_path / "b", made.config("sgdf", 0)).open():
        assert packed.complete(tmp_path / "file", tmp_path / "b", {mine.name}) == 0
    assert not (mine / "result.json").exists()


def test_two_processes_unpack_at_once(tmp_path, monkeypatch):
    folder = ended(tmp_path / "a")
    pack([folder], tmp_path / "file")
    write = packed.write_folder

    def slower(run, room):
        write(run, room)
        ended(tmp_path / "b")  # the other process is faster

    monkeypatch.setattr(packed, "write_folder", slower)
    unpack(tmp_path / "file", tmp_path / "b")
    assert len(read_runs([tmp_path / "b"])[0]) == 1


def test_a_killed_unpacking_leaves_nothing_that_a_report_complains_of(tmp_path):
    ended(tmp_path / "a")
    (tmp_path / "a" / ".unpacking-x").mkdir()
    records, complaints = read_runs([tmp_path / "a"])
    assert (len(records), complaints) == (1, [])


def line_with(tmp_path: Path, **values: object) -> str:
    run = packed.packed(ended(tmp_path / "good"))
    assert run is not None
    return json.dumps({**run, **values}) + "\n"


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "..", "", "a/b", "other", 3])
def test_a_name_never_leads_out_of_the_folder(tmp_path, name):
    (tmp_path / "file").write_text(line_with(tmp_path, name=name))
    with pytest.raises(UserError, match=r"file, line 1.* is not (that|a packed run)"):
        unpack(tmp_path / "file", tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


DAMAGE = ["{", "[]", "3", "<<<<<<< ours", '{"name": "a"}', "[" * 100_000]


@pytest.mark.parametrize("line", DAMAGE, ids=range(len(DAMAGE)))
def test_a_damaged_line_is_named_and_never_lost(tmp_path, line):
    file = tmp_path / "runs.jsonl"
    file.write_text(line_with(tmp_path) + line + "\n")
    before = file.read_bytes()
    for attempt in (lambda: unpack(file, tmp_path / "b"), lambda: pack([tmp_path / "good"], file)):
        with pytest.raises(UserError, match="line 2"):
            attempt()
    assert file.read_bytes() == before
    records, complaints = read_runs([file])
    assert len(records) == 1
    assert len(complaints) == 1
    assert "line 2" in complaints[0]


def test_a_report_reads_a_packed_file_and_a_folder_that_has_one(tmp_path, capsys):
    folders = [ended(tmp_path / "a", seed) for seed in (0, 1)]
    pack([*folders, failed(tmp_path / "a", 2)], tmp_path / "a" / "runs.jsonl")
    pack([*folders, tmp_path / "a"], tmp_path / "b" / "runs.jsonl")
    for path in (tmp_path / "b", tmp_path / "b" / "runs.jsonl"):
        records, complaints = read_runs([path])
        assert complaints == []
        assert [(r.config.seed, r.final, r.seconds_to(3)) for r in records] == [
            (0, 70, 6), (1, 70, 6),
        ]  # fmt: skip
        assert records[0].environment["commit"] == "abc"
    records, complaints = read_runs([tmp_path / "a"])
    assert (len(records), complaints) == (3, []), "a packed copy is no second run"
    assert {r.error for r in records if not r.finished} == {"no memory"}
    assert main(["report", str(tmp_path / "b"), "-o", str(tmp_path / "page.html")]) == 0
    assert "Comparing 2 runs" in capsys.readouterr().out


def test_a_sweep_resumes_from_its_record_and_trains_nothing_again(tmp_path, capsys):
    (tmp_path / "s.toml").write_text(PLAN)
    words = ["sweep", str(tmp_path / "s.toml"), "--device", "cpu", "--jobs", "1"]
    file = tmp_path / "results" / "runs.jsonl"
    record = ["--record", str(file)]
    assert main([*words, *record, "--out", str(tmp_path / "a")]) == 0
    first = file.read_bytes()
    assert len(first.splitlines()) == 2 * 2 + 2 * 2
    capsys.readouterr()
    assert main([*words, *record, "--out", str(tmp_path / "b")]) == 0
    assert "4 of 4 runs were in" in capsys.readouterr().out
    assert not list((tmp_path / "b").glob("*/last.pt")), "nothing was trained"
    assert file.read_bytes() == first


def test_runs_are_recorded_as_they_end(tmp_path, monkeypatch):
    """A machine that vanishes loses no run that has ended."""
    (tmp_path / "s.toml").write_text(PLAN)
    file, counts = tmp_path / "runs.jsonl", []
    from sgdf_lab.sweeps import execute

    attempt = execute.attempt

    def watched(configs, *rest):
        counts.append(len(file.read_text().splitlines()) if file.exists() else 0)
        if len(counts) == 4:
            raise KeyboardInterrupt
        return attempt(configs, *rest)

    monkeypatch.setattr(execute, "attempt", watched)
    words = ["sweep", str(tmp_path / "s.toml"), "--device", "cpu", "--jobs", "1"]
    assert main([*words, "--record", str(file), "--out", str(tmp_path / "a")]) == 130
    assert counts == [0, 1, 2, 3]
