"""The trainer on a GPU: captured, compiled, several at once, with the numbers of the CPU."""

from dataclasses import replace

import pytest
import torch

from gpu.trainers import NEEDS_GPU, assert_resumes, assert_undisturbed, epochs, same
from sgdf_lab import data, optimizers
from sgdf_lab.data import Dataset, Split
from sgdf_lab.runs import config as configs
from sgdf_lab.tasks.classify import resident_classifier
from sgdf_lab.training import device as cuda_graphs

pytestmark = NEEDS_GPU


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    whole = data.load("cifar10", synthetic=True)
    parts = [Split(s.images[:n], s.labels[:n]) for s, n in ((whole.train, 300), (whole.test, 100))]
    return replace(whole, train=parts[0], test=parts[1])


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

    def trainer(seed):
        return make(dataset, seed=seed, model=model, lr=0.02)

    first, second = assert_undisturbed(trainer, 4, rel=1e-5)
    assert first["train_loss"] != second["train_loss"]


def test_dropout_differs_from_step_to_step_and_repeats_with_the_seed(dataset):
    """Losses of one repeated batch at lr 0 differ only by dropout."""
    one = Split(dataset.train.images[:64], dataset.train.labels[:64])
    single = Dataset("x", one, dataset.test, 10, dataset.mean, dataset.std, "")
    settings = {"model": "vgg11", "lr": 1e-12, "weight_decay": 0.0}
    first, again = (epochs(make(single, **settings), 6) for _ in range(2))
    losses = [line["train_loss"] for line in first]
    assert len(set(losses)) == 6
    same(first, again, rel=1e-5)


@pytest.mark.parametrize("name", ["sgdf", "adam", "adabelief", "sophia-g"])
def test_resuming_from_a_checkpoint(dataset, name, tmp_path):
    assert_resumes(lambda: make(dataset, optimizer=name), tmp_path / "last.pt", 4, 6)


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
