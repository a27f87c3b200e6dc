"""`sgdf train` and `sgdf reproduce`: correct commands, and mistakes."""

import dataclasses
import json
import re
import time

import pytest

from runs.commands import folder_in
from sgdf_lab.cli.main import main
from sgdf_lab.runs import config as configs
from sgdf_lab.runs.results import outcome, published_value
from sgdf_lab.support.errors import UserError
from sgdf_lab.sweeps import presets

SYNTHETIC = ["--data", "synthetic", "--epochs", "1", "--device", "cpu"]


@pytest.fixture
def sgdf(tmp_path, monkeypatch, capsys):
    """Run a command in an empty folder; returns the exit code and the output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SGDF_DATA", str(tmp_path / "data"))

    def command(*words: str) -> tuple[int, str]:
        try:
            code = main(words)
        except SystemExit as error:
            code = error.code
        output = capsys.readouterr()
        return code, " ".join((output.out + output.err).split())

    return command


def test_train_writes_a_run_and_prints_where(sgdf, tmp_path, monkeypatch):
    monkeypatch.setattr("sgdf_lab.runs.session.WORTH_SAYING", 0.0)
    code, output = sgdf("train", "digits", "--epochs", "2", "--set", "lr=0.2", "--device", "cpu")
    assert code == 0
    folder = folder_in(tmp_path / "runs")
    assert folder.name.startswith("digits-mlp-sgdf-s0-")
    assert folder.name in output
    assert re.match(r"About 0:\d\d on cpu, at the pace of the first steps ", output)
    config = json.loads((folder / "config.json").read_text())
    assert config["settings"]["lr"] == 0.2
    assert config["epochs"] == 2
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == "finished"
    assert result["final_test_accuracy"] == lines[-1]["test_accuracy"]
    assert result["best_test_accuracy"] == max(line["test_accuracy"] for line in lines)
    environment = json.loads((folder / "env.json").read_text())
    assert environment["command"] == "sgdf train digits --epochs 2 --set lr=0.2 --device cpu"
    assert environment["machine"]["torch"]


def test_settings_of_schedule_and_optimizer(sgdf, tmp_path):
    code, _ = sgdf("train", "digits", "--epochs", "4", "--device", "cpu", "--optimizer", "adam",
                   "--set", "schedule=cosine", "--set", "betas=(0.8, 0.99)", "--set", "clip=1",
                   "--set", "accumulate=2", "--set", "batch=64", "--set", "norms=true")  # fmt: skip
    assert code == 0
    config = json.loads((folder_in(tmp_path / "runs") / "config.json").read_text())
    assert config["schedule"] == "cosine"
    assert config["settings"]["betas"] == [0.8, 0.99]
    assert (config["clip"], config["accumulate"], config["batch"]) == (1, 2, 64)


def test_several_seeds(sgdf, tmp_path):
    code, output = sgdf("train", "digits", "--epochs", "1", "--seed", "0", "1", "--device", "cpu")
    assert code == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2
    assert "seed 1: best test accuracy" in output


def test_the_command_line_overrides_a_toml_file(sgdf, tmp_path):
    (tmp_path / "run.toml").write_text(
        'task = "digits"\noptimizer = "sgd"\nepochs = 9\n[set]\nlr = 0.01\nmomentum = 0.5\n'
    )
    code, _ = sgdf("train", "--config", "run.toml", "--epochs", "1", "--set", "lr=0.02")
    assert code == 0
    config = json.loads((folder_in(tmp_path / "runs") / "config.json").read_text())
    assert (config["optimizer"], config["epochs"]) == ("sgd", 1)
    assert config["settings"] == {"lr": 0.02, "momentum": 0.5, "weight_decay": 0.0005}


def test_a_users_own_optimizer_by_its_path(sgdf, tmp_path, monkeypatch):
    (tmp_path / "mypkg.py").write_text(
        "import torch\n"
        "class MyOpt(torch.optim.SGD):\n"
        "    def __init__(self, params, lr, twist=1.0):\n"
        "        super().__init__(params, lr * twist)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = ["train", "digits", "--optimizer", "mypkg.MyOpt", "--epochs", "1", "--device", "cpu"]
    code, output = sgdf(*words)
    assert code == 1
    assert "needs a learning rate: --set lr=..." in output
    code, output = sgdf(*words, "--set", "lr=0.1", "--set", "twist=2.0")
    assert code == 0
    assert folder_in(tmp_path / "runs").name.startswith("digits-mlp-mypkg.MyOpt-s0-")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["cifar11"], "there is no task 'cifar11': did you mean cifar10"),
        (["cifar10", "--model", "vgg12", *SYNTHETIC], "no model 'vgg12': did you mean vgg11"),
        (["digits", "--optimizer", "sgfd"], "no optimizer 'sgfd': did you mean sgd or sgdf"),
        (["text", "--set", "foo=3"], "of text context, corpus, eval_every, eval_tokens, test_"),
        (
            ["digits", "--optimizer", "filter-adam", "--set", "amsgrad=true"],
            "has no amsgrad: leave",
        ),
        (["digits", "--seed", "-1"], "seed is an integer of at least 0"),
        (["digits", "--device", "cuda:77"], "there is no device cuda:77 here"),
        (["digits", "--device", "tpu"], "no device 'tpu'"),
        (["digits", "--model", "vgg11"], "vgg11 takes images from 32x32 pixels"),
        (["cifar10"], "run `sgdf data fetch cifar10"),
        (["--config", "none.toml"], "there is no file none.toml"),
        (["--config", "bad.toml"], "bad.toml is not TOML"),
        (["--config", "odd.toml"], "no setting in odd.toml: 'modl': did you mean model"),
    ],
)
def test_mistakes_are_one_sentence(sgdf, tmp_path, words, answer):
    (tmp_path / "bad.toml").write_text("task = [1,")
    (tmp_path / "odd.toml").write_text('task = "digits"\nmodl = "cnn"')
    code, output = sgdf("train", *words)
    assert code in (1, 2)
    assert answer in output
    assert "Traceback" not in output
    assert not list(tmp_path.glob("runs/*")), "a mistake leaves no folder behind"


@pytest.mark.parametrize(
    ("setting", "answer"),
    [
        ("lr", "--set takes name=value, not 'lr'"),
        ("foo=3", "of the run accumulate, batch, clip, decay, drop, mil"),
        ("weight_deca=1", "did you mean weight_decay"),
        ("schedule=cosin", "did you mean cosine"),
        ("schedule=5", "there is no schedule 5; there are constant"),
        ("lr=fast", "lr is a number, not 'fast'"),
        ("clip=big", "clip is a positive norm, not 'big'"),
        ("milestones=half", "milestones are epochs, whole numbers, not 'h'"),
        ("norms=maybe", "norms is true or false, not 'maybe'"),
        ("accumulate=33", "a batch of 32 cannot be split into 33"),
        ("betas=(2, 0.9)", "sgdf cannot be built with"),
        ("milestones=-1", "milestones are epochs, counted from 1, not -1"),
        ("milestones=0", "milestones are epochs, counted from 1, not 0"),
        ("drop=-1", "drop is a positive number, not -1"),
        ("fused=maybe", "fused is true or false, not 'maybe'"),
        ("foreach=2", "foreach is true or false, not 2"),
        ("correction=perhaps", "correction is true or false, not 'perhaps'"),
        ("rounding_seed=x", "rounding_seed is an integer, not 'x'"),
        ("differentiable=true", "differentiable=True is not supported"),
        ("state_dtype=int9", "state_dtype is one of float64, float32, bfloat16, int8,"),
        ("weight_decay=nan", "weight_decay is a number, not 'nan'"),
        ("eps={1, 2}", "eps is a number, not {1, 2}"),
        ("betas=1", "betas is 2 numbers, not 1"),
        ("betas=(0.9, 'x')", "betas is 2 numbers, not (0.9, 'x')"),
        ("lr=" + "9" * 400, "lr is a number, not 999"),
        ("eps=" + "-" * 20_000 + "1", "eps is nested too deeply"),
        ("batch=0x" + "f" * 5000, "batch has an integer of 20,000 bits"),
    ],
)
def test_mistakes_in_a_setting_are_one_sentence(sgdf, tmp_path, setting, answer):
    code, output = sgdf("train", "digits", *SYNTHETIC, "--set", setting)
    assert code == 1
    assert answer in output
    assert output.count("sgdf: ") == 1
    assert "Traceback" not in output
    assert not list(tmp_path.glob("runs/*")), "a mistake leaves no folder behind"


def test_values_that_are_not_a_config():
    for values in ({}, {"version": "1"}, [], None):
        with pytest.raises(UserError, match="not the settings of a run"):
            configs.Config.from_json(values, "config.json")
    with pytest.raises(UserError, match="newer sgdf"):
        configs.Config.from_json({"version": 2}, "config.json")
    with pytest.raises(UserError, match="'optimzer': did you mean optimizer"):
        configs.Config.from_json({"version": 1, "optimzer": 3}, "config.json")
    with pytest.raises(UserError, match="missing"):
        configs.Config.from_json({"version": 1}, "config.json")


def test_amsgrad_that_is_off_is_no_setting():
    plain = configs.make("digits", optimizer="filter-adamw")
    assert configs.make("digits", optimizer="filter-adamw", overrides={"amsgrad": False}) == plain


def test_a_folder_name_identifies_the_settings():
    first = configs.make("cifar10")
    assert first.name == configs.make("cifar10").name
    assert first.name.startswith("cifar10-vgg11-sgdf-s0-")
    others = [
        configs.make("cifar10", seed=1),
        configs.make("cifar10", epochs=100),
        configs.make("cifar10", precision="bf16"),
        configs.make("cifar10", overrides={"lr": 0.4}),
        configs.make("cifar10", overrides={"clip": 1.0}),
    ]
    assert len({first.name, *(other.name for other in others)}) == 6
    assert configs.Config.from_json(first.as_json(), "x").name == first.name
    assert "/" not in dataclasses.replace(first, optimizer="../../x/y").name


def test_published_settings_are_the_default():
    config = configs.make("cifar10")
    assert (config.epochs, config.batch, config.milestones, config.drop) == (200, 128, (150,), 0.1)
    assert config.settings["lr"] == 0.5
    assert config.settings["weight_decay"] == 5e-4
    assert configs.make("cifar10", epochs=10).milestones == (8,)


def test_reproduce_runs_the_papers_cells_with_its_settings():
    def planned(name: str, **arguments):
        return presets.sweep_from_paper(name, **arguments).configs

    table = planned("cifar10-vgg11")
    assert len(table) == 30
    assert {config.seed for config in table} == {0, 1, 2}
    assert all(published_value(config) for config in table), "each stands beside its number"
    (alone,) = planned("cifar10-vgg11", only=["sgd"], seeds=[1])
    assert alone == configs.make("cifar10", model="vgg11", optimizer="sgd", seed=1)
    (small,) = planned("cifar10-vgg11", only=["sgd"], seeds=[1], overrides={"batch": 64})
    assert small == dataclasses.replace(alone, batch=64)
    assert all(config.norms for config in planned("momentum-factors"))
    ablation = {config.settings["correction"] for config in planned("correction")}
    assert ablation == {True, False}


def test_the_published_number_is_shown_beside_its_own_experiment():
    result = {"status": "finished", "best_test_accuracy": 91.0, "best_epoch": 1,
              "final_test_accuracy": 90.0, "seconds": 1.0}  # fmt: skip
    assert "(published 91.76)" in outcome(configs.make("cifar10"), result)
    assert "published" not in outcome(configs.make("cifar10", model="resnet18"), result)


def test_reproduce_without_a_name_lists_the_presets(sgdf):
    code, output = sgdf("reproduce")
    assert code == 0
    for name in ("cifar10-vgg11", "voc-fasterrcnn", "wgan-gp", "vit-l32-food101"):
        assert name in output


def test_reproduce_suggests_names(sgdf):
    words = ["reproduce", "momentum-factors", "--data", "synthetic", "--epochs", "1"]
    code, output = sgdf(*words, "--only", "sgdd")
    assert code == 1
    assert "did you mean" in output
    code, output = sgdf("reproduce", "cifar10-vgg12")
    assert "no preset 'cifar10-vgg12': did you mean cifar10-vgg11" in output


def records_of(file, kind):
    """The rows and the kinds of other records in a log: each has a checksum, a length, a kind."""
    content, found = file.read_bytes()[7:], []
    while len(content) > 7:
        length = int.from_bytes(content[4:6], "little")
        record, content = kind.FromString(content[7 : 7 + length]), content[7 + length :]
        items = {i.key or "/".join(i.nested_key): i.value_json for i in record.history.item}
        rows = {name: json.loads(value) for name, value in items.items()}
        found.append(rows or record.WhichOneof("record_type"))
    return found


def test_wandb_has_every_epoch_offline(sgdf, tmp_path, monkeypatch):
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    words = ["train", "digits", "--epochs", "3", "--device", "cpu", "--wandb"]
    assert sgdf(*words)[0] == 0
    folder = folder_in(tmp_path / "runs")
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    while (records := records_of(file, Record))[-1:] != ["exit"]:  # another process writes it
        time.sleep(0.1)
    rows = [row for row in records if isinstance(row, dict)]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["test/accuracy"] for row in rows] == [line["test_accuracy"] for line in lines]
    assert [row["_step"] for row in rows] == [1, 2, 3]


def test_tensorboard_has_every_epoch_once(sgdf, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    words = ["train", "digits", "--epochs", "3", "--device", "cpu", "--tensorboard"]
    assert sgdf(*words)[0] == 0
    folder = folder_in(tmp_path / "runs")
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    shown = events.Scalars("test/accuracy")
    assert [event.step for event in shown] == [1, 2, 3]
    assert [event.value for event in shown] == pytest.approx([x["test_accuracy"] for x in lines])
