"""The trainer on a GPU: captured, compiled, several at once, with the numbers of the CPU."""

import pytest
import torch

from sgdf_lab import data, optimizers
from sgdf_lab.data import Dataset, Split
from sgdf_lab.runs import config as configs
from sgdf_lab.tasks.classify import resident_classifier
from sgdf_lab.training import device as cuda_graphs
from sgdf_lab.training.loop import Trainer, take_turns

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    whole = data.load("cifar10", synthetic=True)

    def first(split: Split, count: int) -> Split:
        return Split(split.images[:count], split.labels[:count])

    return Dataset(
        whole.name,
        first(whole.train, 300),
        first(whole.test, 100),
        whole.classes,
        whole.mean,
        whole.std,
        whole.source,
    )


def make(
    dataset, device="cuda", model="cnn", optimizer="sgdf", seed=0, precision="fp32", compile=False,
    **overrides,
):  # fmt: skip
    config = configs.make(
        "cifar10",
        model=model,
        optimizer=optimizer,
        seed=seed,
        precision=precision,
        epochs=6,
        overrides={"batch": 64, **overrides},
    )
    return resident_classifier(config, dataset, torch.device(device), compile=compile)


def epochs(trainer: Trainer, count: int) -> list[dict]:
    return [last(trainer) for _ in range(count)]


def last(trainer: Trainer) -> dict:
    for _ in trainer.epoch():
        pass
    return trainer.metrics()


def same(first: list[dict], second: list[dict], rel: float = 2e-3) -> None:
    for a, b in zip(first, second, strict=True):
        assert a.keys() == b.keys()
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=rel)
        assert a["test_loss"] == pytest.approx(b["test_loss"], rel=rel)
        assert a["lr"] == b["lr"]


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_the_numbers_are_the_cpus(dataset, name):
    """Most steps of four epochs are captured: those of full batches after three."""
    # Sophia draws labels on the device; its numbers differ from the CPU's from step 10 on.
    count = 1 if name == "sophia-g" else 4
    same(
        epochs(make(dataset, optimizer=name), count),
        epochs(make(dataset, "cpu", optimizer=name), count),
        # RMSprop's first steps follow the sign of a gradient however small, so rounding counts.
        rel=1e-2 if name == "rmsprop" else 2e-3,
    )


def test_captured_equals_not_captured(dataset, monkeypatch):
    captured = make(dataset, norms=True, clip=0.5, accumulate=2, schedule="cosine")
    results = epochs(captured, 6)
    assert len(captured.graphs.captured) == 3  # full batches, the last one, the test
    monkeypatch.setattr(cuda_graphs, "WARM_UP", 10**9)
    eager = make(dataset, norms=True, clip=0.5, accumulate=2, schedule="cosine")
    same(results, epochs(eager, 6))
    assert not eager.graphs.captured
    assert results[-1]["gradient_norm"] > 0


def test_captured_steps_read_the_rate_of_every_group(dataset, tmp_path):
    """Half of the run's, none, and the run's, through a drop; also after a resume."""
    settings = {"optimizer": "own_optimizers.HalfRateAdam", "lr": 1e-3, "milestones": (3,)}
    captured = make(dataset, **settings)
    frozen = list(captured.model.parameters())[1].detach().clone()
    results = epochs(captured, 4)
    assert captured.captures_step
    rates = [float(group["lr"]) for group in captured.optimizer.param_groups]
    assert rates == pytest.approx([0.5e-4, 0, 1e-4])
    assert torch.equal(list(captured.model.parameters())[1], frozen)
    torch.save(captured.state_dict(), tmp_path / "last.pt")
    again = make(dataset, **settings)
    again.load_state_dict(torch.load(tmp_path / "last.pt", weights_only=True))
    same(results + epochs(again, 2), epochs(make(dataset, "cpu", **settings), 6))


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_compiled_is_near(dataset, precision):
    plain = epochs(make(dataset, precision="fp32"), 3)
    same(plain, epochs(make(dataset, precision=precision, compile=True), 3), rel=0.03)


@pytest.mark.parametrize("model", ["vgg11", "resnet18"])
def test_trainers_that_take_turns_do_not_disturb_each_other(dataset, model, repeatable):
    """With dropout and batch norm: each has random numbers and buffers of its own."""
    settings = {"model": model, "lr": 0.02}
    alone = [epochs(make(dataset, seed=seed, **settings), 4) for seed in (0, 1)]
    trainers = [make(dataset, seed=seed, **settings) for seed in (0, 1)]
    together = [[], []]
    for _ in range(4):
        take_turns([trainer.epoch() for trainer in trainers])
        for trainer, results in zip(trainers, together, strict=True):
            results.append(trainer.metrics())
    for first, second in zip(alone, together, strict=True):
        same(first, second, rel=1e-5)
    assert alone[0][-1]["train_loss"] != alone[1][-1]["train_loss"]


def test_dropout_differs_from_step_to_step_and_repeats_with_the_seed(dataset):
    """Losses of one repeated batch at lr 0 differ by dropout alone."""
    one = Split(dataset.train.images[:64], dataset.train.labels[:64])
    single = Dataset("x", one, dataset.test, 10, dataset.mean, dataset.std, "")
    settings = {"model": "vgg11", "lr": 1e-12, "weight_decay": 0.0}
    first, again = (epochs(make(single, **settings), 6) for _ in range(2))
    losses = [line["train_loss"] for line in first]
    assert len(set(losses)) == 6
    same(first, again, rel=1e-5)


@pytest.mark.parametrize("name", ["sgdf", "adam", "adabelief", "sophia-g"])
def test_resuming_from_a_checkpoint(dataset, name, tmp_path):
    straight = epochs(make(dataset, optimizer=name), 6)
    broken = make(dataset, optimizer=name)
    epochs(broken, 4)
    torch.save(broken.state_dict(), tmp_path / "last.pt")
    again = make(dataset, optimizer=name)
    again.load_state_dict(torch.load(tmp_path / "last.pt", weights_only=True, map_location="cuda"))
    same(straight[4:], epochs(again, 2))


def test_a_run_moves_from_gpu_to_cpu_and_back(dataset, tmp_path):
    for name in ("sgdf", "adam", "sgd"):
        straight = epochs(make(dataset, "cpu", optimizer=name), 6)
        trainer = make(dataset, optimizer=name)
        results = epochs(trainer, 2)
        for device in ("cpu", "cuda"):
            torch.save(trainer.state_dict(), tmp_path / "last.pt")
            trainer = make(dataset, device, optimizer=name)
            trainer.load_state_dict(
                torch.load(tmp_path / "last.pt", weights_only=True, map_location=device)
            )
            results += epochs(trainer, 2)
        same(straight, results)


def test_the_host_never_waits_inside_an_epoch(dataset):
    trainer = make(dataset)
    epochs(trainer, 4)
    torch.cuda.synchronize()
    steps = trainer.epoch()
    next(steps)  # copies the epoch's plan from memory that is not pinned, which waits
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in steps:
            pass
    finally:
        torch.cuda.set_sync_debug_mode("default")
    trainer.metrics()
