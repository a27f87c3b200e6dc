"""`sgdf analyze` on runs of the lab: numbers, files and mistakes."""

import json
import shutil

import numpy as np
import pytest
import torch

from report import made
from sgdf_lab import models
from sgdf_lab.cli.main import parse
from sgdf_lab.instruments import hessian
from sgdf_lab.support.errors import UserError

pytest.importorskip("curvlinops")
pytest.importorskip("matplotlib")


def trained(out, optimizer, **settings):
    """A run with a checkpoint as the lab writes it, but of untrained weights."""
    config = made.config(optimizer, data="synthetic", **settings)
    folder = made.run(out, config, [50.0])
    torch.manual_seed(config.seed)
    model = models.build_classifier(config.model, classes=10, shape=(1, 8, 8))
    checkpoint = {"epoch": 1, "metrics": [], "times": [], "model": model.state_dict()}
    torch.save(checkpoint, folder / "last.pt")
    return folder


def kept(out, optimizer, epochs):
    """The same, and the weights of earlier epochs."""
    folder = trained(out, optimizer)
    (folder / "kept").mkdir()
    last = torch.load(folder / "last.pt", weights_only=True)
    for epoch in epochs:
        torch.manual_seed(100 + epoch)
        away = {name: w + torch.randn_like(w) / 10 for name, w in last["model"].items()}
        torch.save({**last, "epoch": epoch, "model": away}, folder / "kept" / f"{epoch}.pt")
    return folder


def call(*words):
    options = parse(["analyze", *map(str, words), "--device", "cpu", "--images", "40"])
    options.typed = "sgdf analyze it"
    options.run(options)


def test_the_hessian_of_a_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(hessian, "LANCZOS_STEPS", 10)
    folder = trained(tmp_path, "sgdf")
    call("hessian", folder, "--k", 3, "--out", tmp_path / "out")
    printed = capsys.readouterr().out
    (file,) = (tmp_path / "out").glob("hessian-*.json")
    found = json.loads(file.read_text())
    assert len(found["eigenvalues"]) == 3
    assert found["images"] == 40
    assert found["command"] == "sgdf analyze it"
    assert f"largest eigenvalue {found['eigenvalues'][0]:.5g}" in printed
    assert f"trace {found['trace']:.5g} ±" in printed
    assert "eval mode" in printed
    endings = {".json", ".png", ".svg"}
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == endings
    assert len(list((tmp_path / "out").iterdir())) == 5


def test_less_work_on_a_hessian(tmp_path, monkeypatch):
    monkeypatch.setattr(hessian, "LANCZOS_STEPS", 10)
    folder, out = trained(tmp_path, "sgdf"), tmp_path / "out"
    found = []
    for options in ([], ["--no-density", "--trace-samples", 3, "--batch", 7]):
        call("hessian", folder, "--k", 3, "--out", out, *options)
        (file,) = out.glob("hessian-*.json")
        found.append(json.loads(file.read_text()))
        shutil.rmtree(out)
    whole, part = found
    assert part["density"] is None
    assert whole["density"] is not None
    assert part["products"] <= whole["products"] - 40 - 97
    np.testing.assert_allclose(part["eigenvalues"], whole["eigenvalues"], rtol=1e-4)


def test_the_landscape_of_several_runs(tmp_path, capsys):
    folders = [trained(tmp_path, "sgdf"), trained(tmp_path, "sgdf", seed=1)]
    out = tmp_path / "out"
    call("landscape", *folders, "--size", 3, "--out", out)
    printed = capsys.readouterr().out
    assert "sgdf, seed 0: loss" in printed
    assert "sgdf, seed 1: loss" in printed
    for name in ("landscape.png", "landscape.svg", "landscape-3d.png", "landscape-3d.svg"):
        assert (out / name).stat().st_size > 10_000
    for folder in folders:
        assert np.load(out / f"landscape-{folder.name}.npz")["done"].all()
        about = json.loads((out / f"landscape-{folder.name}.json").read_text())
        assert about["axes"] == [[-1, 0, 1]] * 2
        assert (about["images"], about["command"]) == (40, "sgdf analyze it")
    with pytest.raises(UserError, match=r"other settings \(axes\)"):
        call("landscape", *folders, "--size", 3, "--span", 2, "--out", out)
    call("landscape", *folders, "--size", 3, "--dimensions", 1, "--out", out)
    assert (out / "line.png").exists()


def test_kept_weights_are_analysed(tmp_path, monkeypatch):
    monkeypatch.setattr(hessian, "LANCZOS_STEPS", 10)
    folder, out = kept(tmp_path, "sgdf", (4, 8)), tmp_path / "out"
    quick = ["--k", 3, "--no-density", "--trace-samples", 3, "--out", out]
    call("hessian", folder, *quick, "--epoch", 8, 4)
    (out / "hessian.png").stat()
    found = {}
    for epoch in (4, 8):
        file = out / f"hessian-{folder.name}-epoch{epoch}.json"
        found[epoch] = json.loads(file.read_text())["eigenvalues"]
    assert found[4] != found[8]
    shutil.copy(folder / "kept" / "8.pt", folder / "last.pt")
    call("hessian", folder, *quick)
    as_last = json.loads((out / f"hessian-{folder.name}.json").read_text())["eigenvalues"]
    np.testing.assert_allclose(as_last, found[8], rtol=1e-6)
    call("landscape", folder, "--size", 3, "--epoch", 4, "--out", out)
    assert np.load(out / f"landscape-{folder.name}-epoch4.npz")["done"].all()
    with pytest.raises(
        UserError, match="has not kept the weights of epoch 5: it has those of 4, 8"
    ):
        call("hessian", folder, "--epoch", 5, "--out", out)


def test_the_path_of_a_run(tmp_path, capsys):
    folder, out = kept(tmp_path, "sgdf", (0, 2, 10)), tmp_path / "out"
    call("path", folder, "--size", 5, "--out", out)
    about = json.loads((out / f"path-{folder.name}.json").read_text())
    assert about["epochs"] == [0, 2, 10]  # by number, not by name
    saved = [
        torch.load(folder / "kept" / f"{e}.pt", weights_only=True)["model"] for e in (0, 2, 10)
    ]
    end = torch.load(folder / "last.pt", weights_only=True)["model"]
    away = torch.stack(
        [torch.cat([(s[n] - end[n]).flatten() for n in end]) for s in saved]
    ).double()
    squares = torch.linalg.eigvalsh(away @ away.T).flip(0)
    np.testing.assert_allclose(about["explained"], squares[:2] / squares.sum(), rtol=1e-4)
    points = np.array(about["points"])
    np.testing.assert_allclose((points**2).sum(0), squares[:2], rtol=1e-4)
    assert f"{100 * about['explained'][0]:.0f} and" in capsys.readouterr().out
    assert (out / f"path-{folder.name}.png").stat().st_size > 10_000
    shutil.rmtree(folder / "kept")
    with pytest.raises(UserError, match="weights of 0 epochs, a plane needs two"):
        call("path", folder, "--out", out)


def test_mistakes(tmp_path, monkeypatch):
    monkeypatch.setattr(hessian, "LANCZOS_STEPS", 10)
    folder = trained(tmp_path, "sgdf")
    out = tmp_path / "out"
    with pytest.raises(UserError, match=r"no config\.json"):
        call("hessian", tmp_path, "--out", out)
    with pytest.raises(UserError, match="named twice"):
        call("hessian", folder, folder, "--out", out)
    with pytest.raises(UserError, match="k must be from 1 to"):
        call("hessian", folder, "--k", 0, "--out", out)
    with pytest.raises(UserError, match="size must be a number"):
        call("landscape", folder, "--size", 0, "--out", out)
    out.write_text("in the way")
    for command in ("hessian", "landscape"):
        with pytest.raises(UserError, match="cannot be written"):
            call(command, folder, "--out", out, *(["--size", 1] if command == "landscape" else []))
    (folder / "last.pt").write_bytes(b"nothing")
    with pytest.raises(UserError, match="is damaged"):
        call("hessian", folder, "--out", out)
    (folder / "last.pt").unlink()
    with pytest.raises(UserError, match="has no checkpoint"):
        call("landscape", folder, "--out", out)
    with pytest.raises(SystemExit):
        call("hessian", folder, "--images", "none")
