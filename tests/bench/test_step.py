"""`sgdf bench step`: what it counts, what it records, and that it carries on. Never how fast."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch

import sgdf
from sgdf.bench import step
from sgdf.cli.main import main
from sgdf.support import provenance

EAGER = [
    "sgd-fused",
    "sgd-foreach",
    "adamw-fused",
    "sgdf-loop",
    "sgdf-foreach",
    "filteradam-foreach",
]


@pytest.fixture(autouse=True)
def small_copy(monkeypatch):
    monkeypatch.setitem(step.COPY_BYTES, "cpu", 2**16)


@pytest.fixture
def run(tmp_path):
    """The command, in this process; the record it wrote."""

    def command(*arguments, only=EAGER, lists=("tiny",)):
        out = tmp_path / "results" / "bench.json"
        options = ["--device", "cpu", "--repeats", "2", "--seconds", "0.1", "--out", str(out)]
        chosen = ["--only", *only] if only else []
        assert main(["bench", "step", *options, "--lists", *lists, *chosen, *arguments]) == 0
        return json.loads(out.read_text())

    return command


def contestant(optimizer, name="other", path="fused", **settings):
    return step.Contestant(name, optimizer, path, settings, 8)


# --- lists ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tensors", "count"),
    [
        ("one-tensor", 1, 25_000_000),
        ("resnet18", 62, 11_689_512),
        ("resnet50", 161, 25_557_032),
        ("vit-l", 296, 304_326_632),
        ("gpt", 292, 1_315_723_264),
    ],
)
def test_lists_have_the_tensors_of_the_networks(name, tensors, count):
    shapes = step.LISTS[name].shapes()
    assert len(shapes) == tensors
    assert step.elements(shapes) == count


def test_lists_are_in_the_networks_order():
    resnet = step.LISTS["resnet50"].shapes()
    assert resnet[:3] == [(64, 3, 7, 7), (64,), (64,)]
    assert resnet[9:15] == [(256, 64, 1, 1), (256,), (256,), (256, 64, 1, 1), (256,), (256,)]
    assert resnet[-2:] == [(1000, 2048), (1000,)]
    block = torch.nn.TransformerEncoderLayer(1024, 16, 4096)
    ours = step.LISTS["vit-l"].shapes()[4:16]
    assert sorted(ours) == sorted(tuple(p.shape) for p in block.parameters())


# --- what is counted --------------------------------------------------------------------------


def test_bytes_of_state_and_bytes_moved(run):
    rows = {row["name"]: row for row in run()["lists"]["tiny"]["rows"]}
    assert list(rows) == EAGER
    counted = {name: (row["state_bytes"], row["moved_bytes"]) for name, row in rows.items()}
    assert counted == {
        "sgd-fused": (4, 20),
        "sgd-foreach": (4, 20),
        "adamw-fused": (8, 28),
        "sgdf-loop": (8, 28),
        "sgdf-foreach": (8, 28),
        "filteradam-foreach": (12, 36),
    }


def test_eight_bit_state_is_counted_with_its_scales():
    params = step.parameters(step.LISTS["tiny"].shapes(), torch.float32, "cpu")
    optimizer = sgdf.SGDF(params, fused=False, foreach=False, state_dtype=torch.int8)
    optimizer.step()
    # 144 elements a row: one scale each; the short tensors stay in float32.
    codes, scales, short = 32 * 144, 32 * 4, 4 * (5002 - 32 * 144)
    assert step.state_bytes(optimizer) == 2 * (codes + scales + short)


def test_bfloat16_parameters_move_half(monkeypatch):
    effort = step.Effort("cpu", 1, 0.1, math.inf)
    params = step.parameters([(8, 8)], torch.bfloat16, "cpu")
    row, series, _ = step.prepare(contestant(torch.optim.AdamW, foreach=True), params, effort)
    assert (row.state_bytes, row.moved_bytes) == (4, 14)
    series.timings = [step.Timing(2.0, 2.0, 2.0)] * 3
    row.summarize(series, 10**9, copy_rate=14_000.0)
    assert (row.ms, row.ms_iqr, row.gb_per_s, row.of_copy) == (2.0, 0.0, 7000.0, 0.5)


def test_the_parameters_stay_where_they_are(run, monkeypatch):
    made = []
    real = step.parameters
    monkeypatch.setattr(step, "parameters", lambda *a: made.append(real(*a)) or made[-1])
    run()
    again = real(step.LISTS["tiny"].shapes(), torch.float32, "cpu")
    for p, fresh in zip(made[0], again, strict=True):
        torch.testing.assert_close(p, fresh, rtol=0, atol=1e-9)
        assert torch.equal(p.grad, fresh.grad)


# --- the record -------------------------------------------------------------------------------


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


def test_the_commit_is_that_of_the_package(monkeypatch):
    monkeypatch.delenv("SGDF_COMMIT", raising=False)
    assert provenance.commit() is None or len(provenance.commit().removesuffix("-dirty")) == 40


def test_a_record_replaces_the_old_one_whole_or_not_at_all(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("disk full")

    target = tmp_path / "new folder" / "bench.json"
    step.write({"a": [1.5, 2.0], "b": "[1,  2]"}, target)
    assert json.loads(target.read_text()) == {"a": [1.5, 2.0], "b": "[1,  2]"}
    before = target.read_text()
    with pytest.raises(ValueError, match="not JSON compliant"):
        step.write({"a": math.nan}, target)
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        step.write({"a": 2}, target)
    assert target.read_text() == before
    assert os.listdir(target.parent) == ["bench.json"]


# --- carrying on ------------------------------------------------------------------------------


def test_one_that_fails_is_a_row_with_the_reason(run, monkeypatch, capsys):
    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            raise RuntimeError("no kernel [for] this\nand pages of source")

    others = [c for c in step.CONTESTANTS if c.name in EAGER]
    monkeypatch.setattr(step, "CONTESTANTS", (contestant(Broken, "broken"), *others))
    rows = run(only=["broken", *EAGER])["lists"]["tiny"]["rows"]
    assert [row["name"] for row in rows] == ["broken", *EAGER]
    assert rows[0]["error"] == "RuntimeError: no kernel [for] this"
    assert rows[0]["ms"] is None
    assert all(row["ms"] for row in rows[1:])
    shown = capsys.readouterr().out
    assert "failed (1)" in shown
    assert "(1) RuntimeError: no kernel [for] this" in shown


def test_a_list_that_does_not_fit_is_skipped_and_the_next_measured(run, capsys):
    record = run("--memory", "0.01", lists=("gpt", "tiny"))
    assert list(record["lists"]) == ["tiny"]
    assert record["complete"]
    reason = record["skipped"]["gpt"]
    assert reason.startswith("needs about 14.7 GiB")
    assert f"GPT 1.3 B skipped: {reason}" in capsys.readouterr().out


def test_little_memory_parts_the_contestants(monkeypatch):
    shapes = step.LISTS["gpt"].shapes()
    entered = [c for c in step.CONTESTANTS if c.enters("gpt", "cuda")]
    for gibibytes in (12, 40, 128, 1000):
        effort = step.Effort("cuda", 2, 1.0, gibibytes * 2**30)
        groups = step.groups(entered, shapes, effort)
        assert all(step.need(group, shapes, "cuda") <= effort.memory for group in groups)
        placed = {c.name for group in groups for c in group}
        fits = {c.name for c in entered if step.need([c], shapes, "cuda") <= effort.memory}
        assert placed == fits
        assert len(placed) == sum(map(len, groups))
    assert len(groups) == 1
    # A GPU of 139 GiB compares all that the bars compare in one go.
    groups = step.groups(entered, shapes, step.Effort("cuda", 2, 1.0, 127 * 2**30))
    assert {c.name for c in entered if c.fused} <= {c.name for c in groups[0]}


def test_contestants_in_groups_are_all_measured_in_their_order(run):
    entered = {c.name: c for c in step.CONTESTANTS if c.name in EAGER}
    enough_for_one = step.need([entered["filteradam-foreach"]], step.tiny(), "cpu")
    record = run("--memory", str(enough_for_one / 2**30))
    rows = record["lists"]["tiny"]["rows"]
    assert [row["name"] for row in rows] == EAGER
    assert [row["name"] for row in rows if row["error"]] == ["sgdf-loop"]
    assert "needs about" in rows[EAGER.index("sgdf-loop")]["error"]
    assert len({row["together"] for row in rows if row["ms"]}) > 2
    assert len(record["lists"]["tiny"]["copy"]["timings"]["ms"]) > 4


def test_out_of_memory_in_company_is_tried_again_alone(run, monkeypatch):
    built = []

    class Greedy(torch.optim.SGD):
        def __init__(self, *args, **settings):
            built.append(self)
            if len(built) == 1:
                raise torch.OutOfMemoryError("tried to allocate 20 GiB")
            super().__init__(*args, **settings)

    others = [c for c in step.CONTESTANTS if c.name in EAGER]
    monkeypatch.setattr(step, "CONTESTANTS", (contestant(Greedy, "greedy"), *others))
    rows = run(only=["greedy", "sgd-fused"])["lists"]["tiny"]["rows"]
    assert [(row["error"], row["together"]) for row in rows] == [(None, 1), (None, 0)]


def test_slow_steps_are_timed_less_often():
    series = step.Series(lambda: None, batch=1, rounds=3)
    turns = [turn for turn in range(30) if series.takes_part(turn, 30)]
    assert turns == [9, 19, 29]
    slow = step.Effort("cpu", 30, 1e-9, math.inf).series(lambda: None)
    assert (slow.rounds, slow.batch > 1) == (3, True)


# --- bars -------------------------------------------------------------------------------------


def rows_of(**quantities):
    row = step.Row("sgdf-fused", "SGDF", "fused", "fp32", **quantities)
    return [step.asdict(row), step.asdict(step.Row("sgd-fused", "SGD", "fused", "fp32"))]


def test_bars_are_judged_by_what_was_measured():
    bars = {(bar.device, bar.parameters, bar.quantity): bar for bar in step.BARS}
    time = bars["cuda", "resnet50", "times_sgd_fused"]
    assert time.judge(rows_of(times_sgd_fused=0.5))["met"]
    missed = time.judge(rows_of(times_sgd_fused=0.6))
    assert not missed["met"]
    expected = "bar: ResNet-50: SGDF fused <= 0.5 x SGD fused: measured 0.6: missed by 20.0%"
    assert missed["sentence"] == expected
    nothing = time.judge(rows_of())
    assert nothing["met"] is None
    assert nothing["sentence"].endswith("not measured")
    copy = bars["cuda", "gpt", "of_copy"]
    assert copy.judge(rows_of(of_copy=0.96))["met"]
    assert not copy.judge(rows_of(of_copy=0.94))["met"]
    memory = bars["cuda", "gpt", "extra_memory_percent"]
    assert memory.judge(rows_of(extra_memory_percent=0.0))["met"]
    assert not memory.judge(rows_of(extra_memory_percent=1.1))["met"]


def test_a_busy_machine_decides_nothing():
    bar = next(bar for bar in step.BARS if bar.device == "cpu")
    quiet = bar.judge(rows_of(times_adamw_fused=1.0, others_cpus=0.1))
    assert quiet["sentence"].endswith("measured 1: met")
    busy = bar.judge(rows_of(times_adamw_fused=1.0, others_cpus=0.9))
    assert busy["met"] is None
    assert busy["sentence"].endswith("measured 1 on a busy machine, which decides nothing")


def test_bars_name_lists_and_contestants_that_there_are():
    names = {c.name for c in step.CONTESTANTS}
    for bar in step.BARS:
        assert bar.parameters in step.default_lists(bar.device)
        assert bar.contestant is None or bar.contestant in names
        assert hasattr(step.Row("", "", "", ""), bar.quantity)


# --- the command ------------------------------------------------------------------------------


def python(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "sgdf", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, **environment},
    )


def test_without_rich_the_table_is_plain(tmp_path):
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich" / "__init__.py").write_text("raise ModuleNotFoundError(name='rich')")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    out = tmp_path / "bench.json"
    options = ["--device", "cpu", "--lists", "tiny", "--repeats", "2", "--only", "sgd-fused"]
    ran = python("bench", "step", *options, "--out", str(out), PYTHONPATH=paths)
    assert ran.returncode == 0, ran.stderr
    assert "tiny: warming up SGD fused\ntiny: measuring\n" in ran.stderr
    assert "optimizer  path   params  state B/param" in ran.stdout
    assert "SGD        fused  fp32             4.00" in ran.stdout
    assert json.loads(out.read_text())["complete"]


def test_wrong_names_are_answered_with_near_ones(capsys):
    for option, wrong, near in (
        ("--lists", "resnet5", "resnet50"),
        ("--only", "sgdf-fsed", "sgdf-fused"),
    ):
        with pytest.raises(SystemExit):
            main(["bench", "step", option, wrong])
        assert f"did you mean {near}" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_cuda_is_one_sentence(capsys):
    assert main(["bench", "step", "--device", "cuda"]) == 1
    assert "there is no CUDA device here" in capsys.readouterr().err


def test_importing_sgdf_does_not_import_the_bench():
    code = "import sys, sgdf; print([name for name in sys.modules if name.startswith('sgdf.lab')])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert ran.stdout.strip() == "[]"
