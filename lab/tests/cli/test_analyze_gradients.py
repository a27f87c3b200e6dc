"""`sgdf analyze gradients`: tables, files, starts and mistakes."""

import json

import pytest
import torch
from torch import nn

from sgdf_lab.cli.main import main, parse
from sgdf_lab.support.errors import UserError


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """The command on digits, and the folder it wrote."""
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")

    out = tmp_path_factory.mktemp("out")

    def run(*words):
        options = parse(["analyze", "gradients", *words, "--out", str(out), "--device", "cpu"])
        options.typed = "sgdf analyze gradients"
        options.run(options)
        return out

    return run


def test_the_command_draws_figures_and_writes_numbers(command, capsys):
    out = command("digits", "--steps", "4", "--errors", "--replicas", "3", "--images", "200")
    names = {file.name for file in out.iterdir()}
    stems = ("distributions", "norms", "gains", "errors")
    drawn = {f"gradients-{stem}.{ending}" for stem in stems for ending in ("png", "svg")}
    assert names == {*drawn, "gradients.json", "gradients-errors.json"}
    records = json.loads((out / "gradients.json").read_text())["records"]
    assert list(records) == ["sgd", "sgd-ema", "sgd-cm", "sgdf"]
    # The same weights and the same first batch; plain SGD follows the gradient.
    first = {record["rows"][0]["raw_norm"] for record in records.values()}
    assert len(first) == 1
    assert len(records["sgdf"]["rows"][0]["gain"]) == 6
    printed = capsys.readouterr().out
    assert "SGDF (2K)" in printed


def test_the_command_follows_a_run(tmp_path):
    from sgdf_lab.cli.analyze import subjects
    from sgdf_lab.runs import config as configs

    config = configs.make("digits", seed=3, overrides={"batch": 16, "validation": 100})
    (tmp_path / "config.json").write_text(json.dumps(config.as_json()))
    words = ["analyze", "gradients", str(tmp_path), "--optimizers", "adam", "sgd", "--lr", "0.01"]
    found = subjects.make_configs(parse(words))
    assert list(found) == ["adam", "sgd"]
    assert {(c.task, c.seed, c.batch, c.lr) for c in found.values()} == {("digits", 3, 16, 0.01)}
    assert found["sgd"].settings["momentum"] == 0
    assert {c.validation for c in found.values()} == {100}


def test_images_that_a_run_held_out_are_no_part_of_its_gradient():
    from sgdf_lab import data
    from sgdf_lab.cli.analyze import subjects
    from sgdf_lab.runs import config as configs

    digits = data.find("digits").load()
    config = configs.make("digits", overrides={"validation": 100})
    images = len(digits.train.labels) - 100
    first = subjects.FirstSteps(config, digits, torch.device("cpu"))
    seen = sum(len(next(first.batches)[1]) for _ in range(-(-images // config.batch)))
    assert seen == images


def test_errors_are_measured_from_a_checkpoint(command, tmp_path, monkeypatch):
    """With batch norm by its running statistics, and the run's current learning rate."""
    from sgdf_lab.cli.analyze import gradients
    from sgdf_lab.instruments import estimators

    settings = [
        "--model",
        "resnet18",
        "--epochs",
        "2",
        "--set",
        "batch=200",
        "--set",
        "milestones=[1]",
    ]
    assert main(["train", "digits", *settings, "--device", "cpu", "--out", str(tmp_path)]) == 0
    (run,) = tmp_path.iterdir()
    seen = {}
    measure = estimators.estimator_errors

    def observed(model, *arguments, **keywords):
        seen["weights"] = [p.detach().clone() for p in model.parameters()]
        seen["modes"] = {m.training for m in model.modules() if isinstance(m, nn.BatchNorm2d)}
        return measure(model, *arguments, **keywords)

    monkeypatch.setattr(estimators, "estimator_errors", observed)
    monkeypatch.setattr(gradients, "watch", lambda *_: None)  # slow here
    out = command(str(run), "--steps", "1", "--optimizers", "sgdf", "--errors", "--replicas", "3",
                  "--images", "64")  # fmt: skip
    found = json.loads((out / "gradients-errors.json").read_text())
    assert found["settings"]["settings"]["lr"] == pytest.approx(0.05)
    saved = torch.load(run / "last.pt", weights_only=True)["model"]
    kept = [saved[name] for name in saved if not name.endswith(("mean", "var", "tracked"))]
    assert all(torch.equal(a, b) for a, b in zip(seen["weights"], kept, strict=True))
    assert seen["modes"] == {False}


def test_errors_at_several_epochs(command, tmp_path, capsys):
    """With the run's settings and the learning rate of each epoch."""
    changes = ["--epochs", "3", "--set", "milestones=[2]", "--set", "weight_decay=0.01"]
    words = ["train", "digits", *changes, "--keep", "1", "--device", "cpu", "--out", str(tmp_path)]
    assert main(words) == 0
    (run,) = tmp_path.iterdir()
    small = ["--steps", "4", "--errors", "--replicas", "3", "--images", "64"]
    for file in command("digits", "--steps", "1", "--optimizers", "sgd").iterdir():
        file.unlink()
    out = command(str(run), *small, "--epoch", "0", "2", "3")
    names = {f"gradients-errors{moment}.{ending}" for ending in ("png", "svg")
             for moment in ("", "-epoch0", "-epoch2", "-epoch3")}  # fmt: skip
    names |= {f"gradients-errors-epoch{epoch}.json" for epoch in (0, 2, 3)}
    assert {file.name for file in out.iterdir()} == names  # and no first steps
    settings, losses = {}, {}
    for epoch in (0, 2, 3):
        found = json.loads((out / f"gradients-errors-epoch{epoch}.json").read_text())
        settings[epoch] = found["settings"]["settings"]
        losses[epoch] = found["errors"]["measurements"][0]["loss"]
    assert [round(settings[epoch]["lr"], 3) for epoch in (0, 2, 3)] == [0.5, 0.5, 0.05]
    assert {each["weight_decay"] for each in settings.values()} == {0.01}
    assert losses[0] > 2 > losses[2]
    assert "after epoch 2" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(UserError, match="it needs --errors"):
        command(str(run), "--epoch", "2")
    with pytest.raises(
        UserError, match="not kept the weights of epoch 4: it has those of 0, 1, 2, 3"
    ):
        command(str(run), *small, "--epoch", "4")


def test_mistakes_are_named(command):
    with pytest.raises(UserError, match="no task 'digit'"):
        command("digit")
    with pytest.raises(UserError, match="batch norm"):
        command("digits", "--steps", "1", "--model", "resnet18", "--optimizers", "sgd", "--errors",
                "--images", "40")  # fmt: skip
