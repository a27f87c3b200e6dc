"""WGAN-GP through the command line, on a CIFAR-10 of 50 images in the published format."""

import hashlib
import io
import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

pytest.importorskip("torchmetrics")

from data import published
from paper import gan_driver
from runs.commands import folder_in
from sgdf_lab import data, models
from sgdf_lab.cli.main import main
from sgdf_lab.paper.gan import dcgan, fid
from sgdf_lab.paper.gan import trainer as wgan_gp
from sgdf_lab.paper.gan.fid import Distance
from sgdf_lab.runs import config as configs
from sgdf_lab.runs.results import published_value
from sgdf_lab.runs.run_folder import read_checkpoint
from sgdf_lab.support.errors import UserError
from sgdf_lab.training.distributed import SINGLE_PROCESS
from tasks.processes import (
    assert_refused,
    assert_resumes,
    assert_same_lines,
    assert_same_steps,
    lines,
    run_epoch,
    two_and_one,
)

pytestmark = pytest.mark.usefixtures("one_thread")

FEATURES = "features=paper.gan_driver:Features"
SMALL = ["--device", "cpu", "--model", "dcgan-tiny", "--set", "batch=8", "--set", "fid_samples=40",
         "--set", "critic_norm=layer", "--set", FEATURES]  # fmt: skip
STEPS = 7  # an epoch: six batches of 8, and one of 2


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    published.cifar10_pickles(folder / "cifar10", published.made_up("cifar10"))
    return folder


@pytest.fixture(autouse=True)
def few_images(monkeypatch: pytest.MonkeyPatch, cifar: Path) -> Iterator[None]:
    published.put(monkeypatch, "cifar10", published.TINY["cifar10"])
    monkeypatch.setenv("SGDF_DATA", str(cifar))
    forget()
    yield
    forget()


def forget() -> None:
    wgan_gp.load_dataset.cache_clear()
    wgan_gp.distance_for.cache_clear()


def train(out: Path, *words: str) -> Path:
    assert main(["train", "wgan-gp", *SMALL, *words, "--out", str(out)]) == 0
    return folder_in(out)


def build(**overrides: Any) -> wgan_gp.Gan:
    optimizer = overrides.pop("optimizer", "adam")
    settings = {"batch": 8, "features": FEATURES.partition("=")[2], "fid_samples": 40, **overrides}
    config = configs.make(
        "wgan-gp", model="dcgan-tiny", optimizer=optimizer, epochs=3, overrides=settings
    )
    trainer = config.task_definition.module.build_trainer(config, torch.device("cpu"))
    assert isinstance(trainer, wgan_gp.Gan)
    return trainer


# --- the computation -----------------------------------------------------------------------------


def test_fid_is_the_distance_of_two_gaussians():
    """Samples with exactly these moments; covariances with the same axes have a closed form."""
    generator = torch.Generator().manual_seed(0)

    def samples(mean: Tensor, deviations: Tensor, count: int) -> Tensor:
        x = torch.randn(count, 3, generator=generator, dtype=torch.float64)
        x = x - x.mean(0)
        x = x @ torch.linalg.inv(torch.linalg.cholesky(x.T.cov(), upper=True))
        return x * deviations @ axes + mean

    axes, _ = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64))
    means = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    deviations = torch.tensor([[1.0, 2.0, 0.5], [3.0, 0.1, 0.5]], dtype=torch.float64)
    real, fake = (samples(means[i], deviations[i], 100 + 20 * i) for i in range(2))
    expected = (means[0] - means[1]).square().sum() + (deviations[0] - deviations[1]).square().sum()
    distance = Distance(nn.Identity(), "given", iter([real[:60], real[60:]]), SINGLE_PROCESS)
    for _ in range(2):  # the real ones are kept, the others are not
        assert distance.to(iter([fake[:7], fake[7:]])) == pytest.approx(float(expected), rel=1e-9)
    assert distance.to(iter([real])) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e200])
def test_features_that_are_not_finite_are_refused(number):
    """Also if only their squares are not: the eigenvalues would crash the process."""
    good = torch.rand(20, 3, dtype=torch.float64)
    bad = torch.full_like(good, number)
    with pytest.raises(UserError, match=r"features=given .* not finite, .* for real images"):
        Distance(nn.Identity(), "given", iter([good, bad]), SINGLE_PROCESS)
    distance = Distance(nn.Identity(), "given", iter([good]), SINGLE_PROCESS)
    with pytest.raises(UserError, match=r"features=given .* not finite, .* for generated images"):
        distance.to(iter([good, bad]))
    assert distance.to(iter([good])) == pytest.approx(0, abs=1e-9)


def test_the_penalty_is_on_the_gradient_of_every_image():
    trainer = build()
    weight = torch.randn(3 * 16 * 16, generator=torch.Generator().manual_seed(0))
    trainer.model.critic.forward = lambda images: images.flatten(1).square() @ weight / 2
    real, fake = torch.rand(2, 4, 3, 16, 16)
    share = torch.tensor([0.0, 1.0, 0.25, 0.5])
    mixed = share[:, None, None, None] * real + (1 - share[:, None, None, None]) * fake
    slopes = (mixed.flatten(1) * weight).norm(dim=1)
    found = trainer._penalty(real, fake, share).detach()
    assert float(found) == pytest.approx(float(((slopes - 1) ** 2).sum()), rel=1e-5)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_steps_equal_a_plain_loop(accumulate):
    """Fifteen steps over three epochs, the generator's after the 5th, the 10th and so on."""
    # Batch norm is over a micro-batch: several of them need networks without it.
    norm = "batch" if accumulate == 1 else "layer"
    trainer, plain = build(accumulate=accumulate, critic_norm=norm), build(critic_norm=norm)
    for made in (trainer, plain) if accumulate > 1 else ():
        for i, layer in enumerate(made.model.generator.layers):
            if isinstance(layer, nn.BatchNorm2d):
                made.model.generator.layers[i] = nn.Identity()
        made.generator_params = list(made.model.generator.parameters())
        made.optimizers["generator_optimizer"] = made._build_optimizer(made.generator_params)
    generator, critic = plain.model.generator, plain.model.critic
    settings = {"lr": 2e-4, "betas": (0.5, 0.999)}
    for_critic = torch.optim.Adam(critic.parameters(), **settings)
    for_generator = torch.optim.Adam(generator.parameters(), **settings)
    step = 0
    for epoch in range(3):
        plain.batches.begin(epoch)
        losses, generator_losses = [], []
        for size in [8] * 6 + [2]:
            real, noise = plain.batches.take(plain.batches.position, size)
            plain.batches.position += size
            z, share = noise[:, :100], noise[:, 100].view(-1, 1, 1, 1)
            fake = generator(z).detach()
            mixed = (share * real + (1 - share) * fake).requires_grad_()
            (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
            penalty = ((slope.square().sum((1, 2, 3)).sqrt() - 1) ** 2).mean()
            loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
            for_critic.zero_grad()
            loss.backward()
            for_critic.step()
            losses += [loss.item()] * size
            step += 1
            if step % 5 == 0:
                for_generator.zero_grad()
                generator_loss = -critic(generator(z)).mean()
                generator_loss.backward()
                for_generator.step()
                generator_losses += [generator_loss.item()] * size
        metrics = run_epoch(trainer)
        near = {"rel": 1e-3, "abs": 1e-5}
        assert metrics["train_loss"] == pytest.approx(sum(losses) / 50, **near)
        mean = sum(generator_losses) / len(generator_losses)
        assert metrics["generator_loss"] == pytest.approx(mean, **near)
        assert (metrics["fid"] is None) == (epoch < 2)
        balance = 10 * metrics["gradient_penalty"] - metrics["wasserstein"]
        assert metrics["train_loss"] == pytest.approx(balance, **near)
    torch.testing.assert_close(
        dict(trainer.model.named_parameters()), dict(plain.model.named_parameters()),
        rtol=1e-3, atol=1e-5,
    )  # fmt: skip


def test_noise_differs_between_epochs_and_not_between_optimizers():
    first, second = build().batches, build(optimizer="sgdf").batches
    seen = []
    for epoch in range(2):
        first.begin(epoch)
        second.draw(epoch)
        second.begin(epoch)
        assert torch.equal(first.noise, second.noise)
        seen.append(first.noise.clone())
    assert not torch.equal(*seen)
    z, share = seen[0][:, :100], seen[0][:, 100]
    assert abs(float(z.mean())) < 0.1
    assert float(z.std()) == pytest.approx(1, abs=0.05)
    assert 0 <= float(share.min()) < 0.2
    assert 0.8 < float(share.max()) < 1


def test_the_networks_are_dcgans():
    model = dcgan.DCGAN()
    assert model.generator(torch.zeros(2, 100)).shape == (2, 3, 64, 64)
    channels = [m.out_channels for m in model.generator.layers if isinstance(m, nn.ConvTranspose2d)]
    assert channels == [512, 256, 128, 64, 3]
    channels = [m.out_channels for m in model.critic.layers if isinstance(m, nn.Conv2d)]
    assert channels == [64, 128, 256, 512, 1]
    assert model.critic.layers[2].weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert sum(isinstance(layer, nn.BatchNorm2d) for layer in model.critic.layers) == 3
    images = torch.rand(3, 3, 16, 16)
    critic = dcgan.DCGAN(8, 16, norm="layer").critic
    torch.testing.assert_close(critic(images[:1]), critic(images)[:1], rtol=1e-4, atol=1e-5)
    mixing = dcgan.DCGAN(8, 16).critic
    assert not torch.allclose(mixing(images[:2])[0], mixing(images)[0])


# --- a run ----------------------------------------------------------------------------------------


def test_a_run_from_the_command_line(tmp_path, capsys):
    folder = train(tmp_path, "--epochs", "3", "--set", "fid_every=2", "--optimizer", "adam")
    said = capsys.readouterr().out
    found = lines(folder)
    assert [line["fid"] is None for line in found] == [True, False, False]
    result = json.loads((folder / "result.json").read_text())
    assert result["best_fid"] == min(line["fid"] for line in found[1:])
    assert result["final_fid"] == found[-1]["fid"] > 0
    assert f"best FID {result['best_fid']:.2f}" in said
    names = [f"epoch-{epoch:04d}.png" for epoch in (1, 2, 3)]
    assert sorted(path.name for path in (folder / "pictures").iterdir()) == names
    with Image.open(folder / "pictures" / names[0]) as picture:
        assert (picture.size, picture.mode) == ((128, 128), "RGB")
    checkpoint = read_checkpoint(folder / "last.pt", torch.device("cpu"))
    steps = {
        name: {float(moments["step"]) for moments in checkpoint[name]["state"].values()}
        for name in ("optimizer", "generator_optimizer")
    }
    assert steps == {"optimizer": {3.0 * STEPS}, "generator_optimizer": {3.0 * STEPS // 5}}
    settings = [checkpoint[name]["param_groups"][0]["betas"] for name in steps]
    assert settings == [(0.5, 0.999)] * 2


def test_a_sample_does_not_depend_on_the_others():
    trainer = build()
    list(trainer.epoch())
    z = wgan_gp.normal("pictures", 0, 8)
    # One level of 8-bit pixels: a CPU may choose another convolution for another batch size.
    together, alone = trainer._sample(z)[:1].int(), trainer._sample(z[:1]).int()
    assert (together - alone).abs().max() <= 1
    assert trainer.model.training


def test_a_picture_is_a_grid_in_reading_order():
    images = torch.zeros(64, 3, 4, 4, dtype=torch.uint8)
    images[9, 0] = 255  # the second of the second row
    with Image.open(io.BytesIO(wgan_gp.as_png(images))) as picture:
        assert picture.getbbox() == (4, 4, 8, 8)
        assert picture.getpixel((5, 5)) == (255, 0, 0)


def test_a_killed_run_resumes_and_ends_the_same(teams, cifar, tmp_path):
    words = ["train", "wgan-gp", *SMALL, "--epochs", "8", "--optimizer", "adam"]
    words += ["--set", "fid_every=3"]
    request = {"env": {"SGDF_DATA": str(cifar)}, "before": "paper.gan_driver:few_images"}
    assert_resumes(teams, tmp_path, words, 4, forget=forget, **request)


def test_two_processes_take_the_steps_of_one(teams, cifar, tmp_path, monkeypatch):
    """Batches of 9 are shared as 5 and 4; the sizes of the last one and of FID's are odd too."""
    words = ["train", "wgan-gp", *SMALL, "--epochs", "3", "--optimizer", "sgd",
             "--set", "lr=0.02", "--set", "batch=9", "--set", "fid_samples=41",
             "--set", "clip=10.0"]  # fmt: skip
    before = "paper.gan_driver:few_images without_batch_norm"
    request = {"env": {"SGDF_DATA": str(cifar)}, "before": before}
    monkeypatch.setitem(dcgan.MODELS, "dcgan-tiny", dcgan.MODELS["dcgan-tiny"])
    meanwhile = gan_driver.without_batch_norm
    folders = two_and_one(teams, tmp_path, words, "best FID", meanwhile=meanwhile, **request)
    assert_same_lines(*folders, rel=1e-3)
    assert_same_steps(build(optimizer="sgd").model.state_dict(), *folders)


# --- feature networks -----------------------------------------------------------------------------


def run_folder(out: Path, task: str = "cifar10", model: str = "cnn") -> Path:
    """A finished run's settings and weights."""
    config = configs.make(task, model=model, epochs=1)
    folder = out / config.name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config.as_json()))
    facts = data.find(task)
    network = models.build_classifier(model, classes=facts.classes, shape=facts.shape)
    torch.save(
        {"epoch": 1, "metrics": [], "times": [], "model": network.state_dict()}, folder / "last.pt"
    )
    return folder


@pytest.mark.parametrize("model", ["cnn", "vgg11", "resnet18", "mlp"])
def test_a_runs_features_are_the_inputs_of_its_last_layer(tmp_path, model):
    folder = run_folder(tmp_path, model=model)
    facts = data.find("cifar10")
    network = models.build_classifier(model, classes=10, shape=facts.shape).eval()
    network.load_state_dict(torch.load(folder / "last.pt", weights_only=True)["model"])
    seen = []
    last = [module for module in network.modules() if isinstance(module, nn.Linear)][-1]
    last.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (facts.mean, facts.std))
    network((images / 255 - mean) / std)
    found = fid.load(str(folder), torch.device("cpu"))(images)
    torch.testing.assert_close(found, seen[0])
    enlarged = torch.nn.functional.interpolate(images.float(), (64, 64), mode="nearest").byte()
    assert fid.load(str(folder), torch.device("cpu"))(enlarged).shape == found.shape


def test_inception_from_its_file(tmp_path, monkeypatch, capsys):
    """Random weights instead of the published ones, which the test does not have."""
    fidelity = pytest.importorskip("torch_fidelity.feature_extractor_inceptionv3")
    extractor = fidelity.FeatureExtractorInceptionV3
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    path = tmp_path / "hub" / "checkpoints" / fid.INCEPTION
    path.parent.mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(fidelity, "load_state_dict_from_url", lambda *_, **__: {})
        patch.setattr(extractor, "load_state_dict", lambda *_: None)
        torch.save(extractor("random", ["2048"]).state_dict(), path)
    words = ["train", "wgan-gp", *SMALL[:-2], "--epochs", "1", "--out", str(tmp_path / "out")]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert f"{path} is damaged" in said
    content = path.read_bytes()
    monkeypatch.setattr(fid, "INCEPTION_SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(extractor, "INPUT_IMAGE_SIZE", 80)  # a tenth of the time
    assert main(words) == 0
    assert lines(folder_in(tmp_path / "out"))[0]["fid"] > 0


def test_inception_weights_run_no_code(tmp_path, monkeypatch):
    """Even if their hash were the known one; and what was checked is what is loaded."""
    pytest.importorskip("torch_fidelity")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    path = tmp_path / "hub" / "checkpoints" / fid.INCEPTION
    path.parent.mkdir(parents=True)
    torch.save({"x": Touch(tmp_path / "touched")}, path)
    known = hashlib.sha256(path.read_bytes()).hexdigest()
    almost = known[:-1] + ("0" if known[-1] != "0" else "1")  # all digits count
    for other in (fid.INCEPTION_SHA256, almost):
        monkeypatch.setattr(fid, "INCEPTION_SHA256", other)
        with pytest.raises(UserError, match="is damaged"):
            fid.inception()
    monkeypatch.setattr(fid, "INCEPTION_SHA256", known)
    with pytest.raises(pickle.UnpicklingError):
        fid.inception()
    assert not (tmp_path / "touched").exists()


class Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


# --- mistakes of a user -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("features=inception", "weights-inception-2015-12-05-6726825d.pth, or name another"),
        ("features=nothing", "there is no folder features=nothing: it is inception, a run's"),
        ("features=3", "features is inception, a run's folder"),
        ("features=paper.gan_driver:Feature", "no network of features in paper.gan_driver"),
        ("features=no.such:thing", "No module named 'no'"),
        ("features=paper.gan_driver:no_network", "is a int, not a torch.nn.Module"),
        ("features=paper.gan_driver:OneNumber", "gives () for 50 images"),
        ("features=paper.gan_driver:Fails", "cannot take bytes of (50, 3, 16, 16): not today"),
        ("features=paper.gan_driver:NotFinite", "features that are not finite"),
        ("fid_samples=1", "fid_samples is an integer of at least 2, not 1"),
        ("fid_samples=10000000000", "fid_samples is at most 1,000,000, not 10,000,000,000"),
        ("fid_every=-1", "fid_every is an integer of at least 0, not -1"),
        ("fid_sample=3", "fid_sample"),
        ("critic_norm=bach", "did you mean batch?"),
        ("critic_norm=['batch']", "there is no critic_norm \"['batch']\""),
        ("validation=5", "wgan-gp holds out no images"),
    ],
)
def test_a_wrong_setting_is_one_sentence(setting, sentence, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "hub"))
    refused(["--set", setting], sentence, tmp_path, capsys)


def refused(words: list[str], sentence: str, tmp_path: Path, capsys: Any) -> None:
    assert_refused(["wgan-gp", *SMALL, *words], sentence, tmp_path / "out", capsys)


def test_a_missing_package_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_fidelity", None)
    refused(["--set", "features=inception"], 'pip install "sgdf-lab[vision]"', tmp_path, capsys)
    monkeypatch.delitem(sys.modules, "sgdf_lab.paper.gan.trainer")
    monkeypatch.delitem(sys.modules, "sgdf_lab.paper.gan.fid")
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    monkeypatch.setitem(sys.modules, "torchmetrics.image.fid", None)
    refused([], "wgan-gp needs torchmetrics", tmp_path, capsys)


def cut(folder: Path) -> None:
    path = folder / "last.pt"
    path.write_bytes(path.read_bytes()[:1000])


def other_model(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"cnn"', '"mlp"'))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (cut, "last.pt is damaged"),
        (other_model, "last.pt does not fit mlp"),
        (lambda folder: (folder / "last.pt").unlink(), "has no last.pt"),
        (lambda folder: (folder / "config.json").unlink(), "it has no config.json"),
    ],
)
def test_a_run_that_cannot_give_features(spoil, sentence, tmp_path, capsys):
    folder = run_folder(tmp_path / "runs")
    spoil(folder)
    refused(["--set", f"features={folder}"], sentence, tmp_path, capsys)


def test_a_run_without_colours_cannot_give_features(tmp_path, capsys):
    folder = run_folder(tmp_path / "runs", "digits", "mlp")
    refused(["--set", f"features={folder}"], "is a run of digits", tmp_path, capsys)


# --- published numbers ---------------------------------------------------------------------------


def test_the_published_fid_is_shown_for_the_published_experiment_only():
    config = configs.make("wgan-gp", optimizer="adam")
    value = published_value(config)
    assert (value.mean, value.std) == (78.6, 4.8)
    for change in (
        {"features": "runs/x"}, {"fid_samples": 1000}, {"fid_every": 10}, {"critic_norm": "layer"},
        {"batch": 32}, {"lr": 1e-3},
    ):  # fmt: skip
        changed = configs.make("wgan-gp", optimizer="adam", overrides=change)
        assert published_value(changed) is None, change
    assert published_value(configs.make("wgan-gp", optimizer="adam", epochs=5)) is None
    assert published_value(configs.make("wgan-gp", model="dcgan-tiny")) is None
