"""WGAN-GP on a GPU: captured steps equal eager ones, and FID equals the CPU's."""

import pytest
import torch

pytest.importorskip("torchmetrics")

from gpu.trainers import NEEDS_GPU, assert_resumes, assert_undisturbed, epochs, same
from paper.gan_driver import Features
from sgdf_lab import data, optimizers, paper
from sgdf_lab.data import Dataset, Split
from sgdf_lab.paper.gan import trainer as wgan_gp
from sgdf_lab.paper.gan.dcgan import MODELS
from sgdf_lab.paper.gan.fid import Distance
from sgdf_lab.runs import config as configs
from sgdf_lab.training import device as cuda_graphs
from sgdf_lab.training.distributed import SINGLE_PROCESS

pytestmark = NEEDS_GPU
EPOCHS = 5


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    """400 images: an epoch has six batches of 64 and one of 16."""
    whole = data.load("cifar10", synthetic=True)
    few = Split(whole.train.images[:400], whole.train.labels[:400])
    return Dataset(whole.name, few, few, whole.classes, whole.mean, whole.std, whole.source)


def make(
    dataset: Dataset, optimizer: str, name: str = "cuda", seed: int = 0, **settings
) -> wgan_gp.Gan:
    device = torch.device(name)
    config = configs.make(
        "wgan-gp",
        model="dcgan-tiny",
        optimizer=optimizer,
        seed=seed,
        epochs=EPOCHS,
        precision=settings.pop("precision", "fp32"),
        overrides={"fid_samples": 300, "fid_every": 2, **settings},
    )
    torch.manual_seed(seed)
    model = MODELS[config.model]("layer").to(device)
    images = wgan_gp.as_bytes(wgan_gp.resized(dataset.train.images.to(device), model.size))
    distance = Distance(Features().to(device), "features", iter([images]), SINGLE_PROCESS)
    batches = wgan_gp.GanBatches(dataset, device, seed=seed, size=model.size)
    return wgan_gp.Gan(config, model, batches, distance, device)


@pytest.mark.parametrize("name", [*paper.TABLES["wgan-gp"].rows])
def test_captured_steps_are_the_same(dataset, name, repeatable, monkeypatch):
    """35 steps, seven of the generator; the first three of each with a full batch are eager."""
    captured = make(dataset, name)
    first = epochs(captured, EPOCHS)
    keys = set(captured.graphs.captured)
    if optimizers.find(name).capturable:
        assert {(64, False), (64, True)} <= keys
    else:
        assert {(64,), ("generator", 64)} <= keys
    monkeypatch.setattr(cuda_graphs, "WARM_UP", 10**9)
    plain = make(dataset, name)
    same(first, epochs(plain, EPOCHS), abs=2e-3)
    assert not plain.graphs.captured


def test_the_first_epochs_are_the_cpus(dataset):
    same(
        epochs(make(dataset, "sgdf"), 2),
        epochs(make(dataset, "sgdf", "cpu"), 2),
        rel=5e-3,
        abs=5e-3,
    )


@pytest.mark.parametrize("name", ["sgdf", "yogi"])
def test_resuming_from_a_checkpoint(dataset, name, repeatable, tmp_path):
    assert_resumes(lambda: make(dataset, name), tmp_path / "last.pt", 3, EPOCHS)


def test_two_at_once_are_two_alone(dataset):
    assert_undisturbed(lambda seed: make(dataset, "adam", seed=seed), 2)


def test_bf16_learns_too(dataset):
    rounded = epochs(make(dataset, "adam", precision="bf16"), 2)
    plain = epochs(make(dataset, "adam"), 2)
    same(rounded, plain, rel=0.2, abs=0.2)
