"""WGAN-GP on a GPU: captured steps equal eager ones, and FID equals the CPU's."""

import pytest
import torch

pytest.importorskip("torchmetrics")

from paper.gan_driver import Features
from sgdf_lab import data, optimizers, paper
from sgdf_lab.data import Dataset, Split
from sgdf_lab.paper.gan import trainer as wgan_gp
from sgdf_lab.paper.gan.dcgan import MODELS
from sgdf_lab.paper.gan.fid import Distance
from sgdf_lab.runs import config as configs
from sgdf_lab.training import device as cuda_graphs
from sgdf_lab.training.distributed import ALONE
from sgdf_lab.training.loop import take_turns

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
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
    distance = Distance(Features().to(device), "features", iter([images]), ALONE)
    batches = wgan_gp.GanBatches(dataset, device, seed=seed, size=model.size)
    return wgan_gp.Gan(config, model, batches, distance, device)


def epochs(trainer: wgan_gp.Gan, count: int = EPOCHS) -> list[dict]:
    results = []
    for _ in range(count):
        take_turns([trainer.epoch()])
        results.append(trainer.metrics())
    return results


def same(first: list[dict], second: list[dict], rel: float) -> None:
    for a, b in zip(first, second, strict=True):
        assert a.keys() == b.keys()
        for name, value in b.items():
            assert a[name] == (value and pytest.approx(value, rel=rel, abs=rel)), name


@pytest.mark.parametrize("name", [*paper.TABLES["wgan-gp"].rows])
def test_captured_steps_are_the_same(dataset, name, repeatable, monkeypatch):
    """35 steps, seven of the generator; the first three of each with a full batch are eager."""
    captured = make(dataset, name)
    first = epochs(captured)
    keys = set(captured.graphs.captured)
    if optimizers.find(name).capturable:
        assert {(64, False), (64, True)} <= keys
    else:
        assert {(64,), ("generator", 64)} <= keys
    monkeypatch.setattr(cuda_graphs, "WARM_UP", 10**9)
    plain = make(dataset, name)
    same(first, epochs(plain), rel=2e-3)
    assert not plain.graphs.captured


def test_the_first_epochs_are_the_cpus(dataset):
    same(epochs(make(dataset, "sgdf"), 2), epochs(make(dataset, "sgdf", "cpu"), 2), rel=5e-3)


@pytest.mark.parametrize("name", ["sgdf", "yogi"])
def test_resuming_from_a_checkpoint(dataset, name, repeatable):
    straight = make(dataset, name)
    expected = epochs(straight)
    begun = make(dataset, name)
    epochs(begun, 3)
    loaded = make(dataset, name)
    loaded.load_state_dict(begun.state_dict())
    same(epochs(loaded, 2), expected[3:], rel=2e-3)


def test_two_at_once_are_two_alone(dataset):
    """On streams of their own."""
    alone = [epochs(make(dataset, "adam", seed=seed), 2)[-1] for seed in (0, 1)]
    both = [make(dataset, "adam", seed=seed) for seed in (0, 1)]
    for _ in range(2):
        take_turns([trainer.epoch() for trainer in both])
        together = [trainer.metrics() for trainer in both]
    same(together, alone, rel=2e-3)


def test_bf16_learns_too(dataset):
    rounded = epochs(make(dataset, "adam", precision="bf16"), 2)
    plain = epochs(make(dataset, "adam"), 2)
    same(rounded, plain, rel=0.2)
