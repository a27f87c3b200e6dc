"""The trainer against a plain loop, and its parts against the protocol."""

import copy
import dataclasses
import math

import pytest
import torch
from torch.nn import functional as F

from own_optimizers import half_rate
from sgdf_lab import data, optimizers
from sgdf_lab.data import Dataset, Split
from sgdf_lab.runs import config as configs
from sgdf_lab.support.errors import UserError
from sgdf_lab.tasks.classify import Classifier, resident_classifier
from sgdf_lab.training.batches import batch_sizes, micro_batch_sizes, seed_for
from sgdf_lab.training.device import GroupRates
from sgdf_lab.training.images import (
    PADDING,
    ResidentBatches,
    ResidentImages,
    hold_out,
)
from sgdf_lab.training.loop import Trainer, take_turns
from tasks.processes import run_epoch

CPU = torch.device("cpu")


def small(dataset: Dataset, train: int = 150, test: int = 50) -> Dataset:
    def first(split: Split, count: int) -> Split:
        return Split(split.images[:count], split.labels[:count])

    return Dataset(
        dataset.name,
        first(dataset.train, train),
        first(dataset.test, test),
        dataset.classes,
        dataset.mean,
        dataset.std,
        dataset.source,
    )


@pytest.fixture(scope="module")
def cifar() -> Dataset:
    return small(data.load("cifar10", synthetic=True))


def trainer_for(
    dataset: Dataset, optimizer: str = "sgd", epochs: int = 2, model: str = "cnn", **overrides
) -> Trainer:
    overrides.setdefault("batch", 32)
    config = configs.make(
        "cifar10", model=model, optimizer=optimizer, epochs=epochs, overrides=overrides
    )
    return resident_classifier(config, dataset, CPU)


# --- training against a plain loop ---------------------------------------------------------------


def plain_batch(dataset: Dataset, order, ys, xs, flips):
    """Pad, crop, flip, then normalise: image by image, as the protocol says it."""
    images = []
    for i, y, x, flip in zip(order, ys, xs, flips, strict=True):
        padded = F.pad(dataset.train.images[i], (PADDING,) * 4)
        crop = padded[:, y : y + 32, x : x + 32]
        images.append(crop.flip(-1) if flip else crop)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (dataset.mean, dataset.std))
    return (torch.stack(images).float() / 255 - mean) / std, dataset.train.labels[order]


def plain_epoch(dataset: Dataset, plan, model, optimizer) -> tuple[float, int]:
    """Step by step: the sum of the losses, and the number of right answers."""
    loss_sum, right = 0.0, 0
    for columns in plan.long().split(32, dim=1):
        images, labels = plain_batch(dataset, *columns)
        logits = model(images)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_sum += loss.item() * len(labels)
        right += (logits.argmax(1) == labels).sum().item()
    return loss_sum, right


def test_equals_a_plain_loop(cifar):
    trainer = trainer_for(cifar, epochs=4, lr=0.05, milestones=(2,))
    twin = trainer_for(cifar, epochs=4, lr=0.05, milestones=(2,)).model
    sgd = torch.optim.SGD(twin.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(sgd, [2], 0.1)
    for epoch in range(4):
        metrics = run_epoch(trainer)
        loss_sum, right = plain_epoch(cifar, trainer.batches.plan, twin, sgd)
        assert metrics["epoch"] == epoch + 1
        assert metrics["lr"] == scheduler.get_last_lr()[0]
        assert metrics["train_loss"] == pytest.approx(loss_sum / 150, rel=1e-4)
        assert metrics["train_accuracy"] == pytest.approx(100 * right / 150, abs=1)
        scheduler.step()
        with torch.no_grad():
            mean, std = (torch.tensor(v).view(3, 1, 1) for v in (cifar.mean, cifar.std))
            logits = twin((cifar.test.images.float() / 255 - mean) / std)
            loss = F.cross_entropy(logits, cifar.test.labels)
        assert metrics["test_loss"] == pytest.approx(loss.item(), rel=1e-3)
    for mine, plain in zip(trainer.model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-3, atol=1e-5)


def test_micro_batches_add_up(cifar):
    plain, accumulating = trainer_for(cifar), trainer_for(cifar, accumulate=5)
    for _ in range(2):
        first, second = run_epoch(plain), run_epoch(accumulating)
        assert first["train_loss"] == pytest.approx(second["train_loss"], rel=1e-4)
    for a, b in zip(plain.model.parameters(), accumulating.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_clipping_bounds_the_gradient(cifar):
    settings = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "norms": True}
    free = run_epoch(trainer_for(cifar, **settings))
    clipped = run_epoch(trainer_for(cifar, clip=0.01, **settings))
    # Without momentum and decay the direction of a step is the gradient.
    assert free["direction_norm"] == pytest.approx(free["gradient_norm"], rel=1e-3)
    assert free["gradient_norm"] > 0.05
    assert clipped["direction_norm"] == pytest.approx(0.01, rel=1e-2)


def test_recorded_norms_of_a_large_model_are_right(cifar):
    """12 million weights, where torch's float32 norm on a CPU is wrong in the fourth digit."""
    config = configs.make("cifar10", model="cnn", optimizer="sgd", epochs=1,
                          overrides={"lr": 0.1, "batch": 8, "norms": True})  # fmt: skip
    few = small(cifar, 8, 8)
    batches = ResidentBatches(few.train, few, CPU, seed=0, augmented=False)
    layers = torch.nn.Linear(3072, 4000), torch.nn.Tanh(), torch.nn.Linear(4000, 10)
    model = torch.nn.Sequential(torch.nn.Flatten(), *layers)
    before = [p.detach().double() for p in model.parameters()]
    trainer = Classifier(config, model, batches, {}, CPU)
    metrics = run_epoch(trainer)  # one step

    def norm(tensors) -> float:
        return math.sqrt(sum(t.double().square().sum().item() for t in tensors))

    grads = [p.grad for p in model.parameters()]
    change = [a - b.detach() for a, b in zip(before, model.parameters(), strict=True)]
    assert metrics["gradient_norm"] == pytest.approx(norm(grads), rel=1e-12)
    # The change itself is a difference of float32 numbers.
    assert metrics["direction_norm"] == pytest.approx(norm(change) / 0.1, rel=1e-6)
    float32 = torch.stack(torch._foreach_norm(grads)).norm().item()
    assert abs(float32 / norm(grads) - 1) > 1e-5, "or this test tests nothing"


def test_trainers_that_take_turns_have_their_own_random_numbers(cifar):
    """For dropout, without graphs: as on a GPU with images that are decoded."""

    def make(seed: int) -> Trainer:
        config = configs.make("cifar10", seed=seed, overrides={"lr": 0.02, "batch": 10})
        return resident_classifier(config, small(cifar, 20, 10), CPU)

    before = torch.get_rng_state()
    alone = [run_epoch(make(seed)) for seed in (0, 1)]
    trainers = [make(seed) for seed in (0, 1)]
    take_turns([trainer.epoch() for trainer in trainers])
    assert [trainer.metrics() for trainer in trainers] == alone
    assert torch.equal(torch.get_rng_state(), before), "torch's own are left alone"


FILTERED = {
    f"wiener-{name}": {"filter_state_dtype": "int8"} if name == "sgd" else {}
    for name in ("sgd", "muon", "prodigy", "schedule-free-sgd")
}


@pytest.mark.parametrize("name", [*optimizers.OPTIMIZERS, *FILTERED])
def test_every_optimizer_trains_and_resumes_bit_for_bit(cifar, name, tmp_path):
    settings = FILTERED.get(name, {})
    straight = trainer_for(cifar, name, epochs=3, **settings)
    run_epoch(straight)
    torch.save(straight.state_dict(), tmp_path / "last.pt")
    for _ in range(2):
        expected = run_epoch(straight)
    assert math.isfinite(expected["train_loss"])

    again = trainer_for(cifar, name, epochs=3, **settings)
    again.load_state_dict(torch.load(tmp_path / "last.pt", weights_only=True))
    torch.manual_seed(123)  # whatever else drew random numbers
    run_epoch(again)
    assert run_epoch(again) == expected
    for a, b in zip(straight.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


def training_weights(optimizer):
    """What the averaged weights x and the steps z say: 0.1 z + 0.9 x."""
    return [0.1 * optimizer.state[p]["z"] + 0.9 * p for p in optimizer.param_groups[0]["params"]]


def test_the_trainer_evaluates_and_saves_the_averaged_weights(cifar):
    trainer = trainer_for(cifar, "schedule-free-sgd", lr=0.1)
    modes = [trainer.optimizer.param_groups[0]["train_mode"] for _ in trainer.epoch()]
    trained = [p.detach().clone() for p in trainer.model.parameters()]
    evaluated = trainer.metrics()["test_loss"]
    assert modes == [True] * 5
    assert not trainer.optimizer.param_groups[0]["train_mode"]
    for p, y in zip(trained, training_weights(trainer.optimizer), strict=True):
        torch.testing.assert_close(p, y)
    saved = trainer.state_dict()["model"]
    assert not any(torch.equal(p, s) for p, s in zip(trained, saved.values(), strict=True))
    images = trainer.evaluation["test"]
    loss = sum(
        F.cross_entropy(trainer.model.eval()(x), y, reduction="sum").item()
        for x, y in images.batches(0, len(images))
    )
    assert evaluated == pytest.approx(loss / len(images), rel=1e-5)
    assert all(trainer.optimizer.param_groups[0]["train_mode"] for _ in trainer.epoch())


def test_the_trainer_tells_muon_where_the_head_is(cifar):
    trainer = trainer_for(cifar, "muon", model="mlp")
    matrices = [p for p in trainer.model.parameters() if p.ndim == 2]
    (group,) = [g for g in trainer.optimizer.param_groups if g["use_muon"]]
    assert [id(p) for p in group["params"]] == [id(p) for p in matrices[:-1]]


def test_sophia_gets_a_hessian_estimate_every_tenth_step(cifar):
    trainer = trainer_for(cifar, "sophia-g", epochs=5)
    counted = []
    update = trainer.optimizer.update_hessian
    trainer.optimizer.update_hessian = lambda size: (counted.append(size), update(size))
    for _ in range(5):  # 25 steps of 5 an epoch
        run_epoch(trainer)
    assert counted == [22, 22]  # steps 10 and 20 are last batches


def test_sophias_estimate_is_accumulated(cifar):
    """Over the micro-batches of the same step's batch."""
    trainer = trainer_for(cifar, "sophia-g", hessian_every=5, accumulate=4)  # after the last of 5
    taken = []
    take = trainer.batches.take
    trainer.batches.take = lambda position, size: (
        taken.append((int(position), size)),
        take(position, size),
    )[1]
    run_epoch(trainer)
    assert taken[-4:] == taken[-8:-4] == [(128, 6), (134, 6), (140, 5), (145, 5)]


# --- learning rates by group ----------------------------------------------------------------------


def test_every_group_is_scaled_from_its_own_rate(cifar):
    """As a scheduler of torch does, through a drop of the rate."""
    name = "own_optimizers.HalfRate"
    trainer = trainer_for(cifar, name, epochs=4, lr=0.05, milestones=(2,))
    twin = trainer_for(cifar, name, epochs=4, lr=0.05, milestones=(2,)).model
    sgd = torch.optim.SGD(half_rate(twin.parameters(), 0.05), 0.05)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(sgd, [2], 0.1)
    frozen = list(twin.parameters())[1].clone()
    for _ in range(4):
        metrics = run_epoch(trainer)
        plain_epoch(cifar, trainer.batches.plan, twin, sgd)
        rates = scheduler.get_last_lr()
        assert [group["lr"] for group in trainer.optimizer.param_groups] == pytest.approx(rates)
        assert metrics["lr"] == pytest.approx(rates[-1]), "of the run"
        scheduler.step()
    assert rates == pytest.approx([0.0025, 0, 0.005])
    for mine, plain in zip(trainer.model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-3, atol=1e-5)
    assert torch.equal(list(trainer.model.parameters())[1], frozen)


def test_norms_are_over_the_rate_of_the_run(cifar):
    """The first group has half of it, and the second none."""
    trainer = trainer_for(cifar, "own_optimizers.HalfRate", lr=0.05, norms=True, batch=150)
    metrics = run_epoch(trainer)  # one step
    first, _, *others = (p.grad.double() for p in trainer.model.parameters())
    expected = math.sqrt(sum(g.square().sum().item() for g in (first / 2, *others)))
    assert metrics["direction_norm"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("lr", [0.3, 0.0])
def test_one_rate_is_not_multiplied(lr):
    params = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": [p]} for p in params], lr)
    rates = GroupRates([optimizer], lr)
    new = 0.1 * 0.7
    rates.set(new)
    assert all(group["lr"] is new for group in optimizer.param_groups)


def test_a_rate_that_the_optimizer_has_as_a_tensor_stays_one():
    """A compiled step has it as an input; a number would be a constant of its graph."""
    rate = torch.tensor(0.1)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=rate)
    rates = GroupRates([optimizer], 0.1)
    rates.set(0.05)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(0.05)


def test_rates_that_are_tensors_change_in_place():
    """Captured steps read them; the run's own is shared."""
    lr = torch.tensor(0.3)
    params = [torch.nn.Parameter(torch.zeros(2)) for _ in range(4)]
    optimizer = torch.optim.Adam(half_rate(params[:3], lr), lr)
    rates = GroupRates([optimizer], lr)
    own = [group["lr"] for group in optimizer.param_groups]
    assert own[2] is lr
    lr.fill_(0.05)
    rates.set(lr)
    optimizer.add_param_group({"params": [params[3]], "lr": lr})
    rates.set(lr)
    assert [group["lr"] for group in optimizer.param_groups[:3]] == own
    assert [float(rate) for rate in own] == pytest.approx([0.025, 0, 0.05])


class OwnSophia(torch.optim.SGD):
    """A user's optimizer that wants Hessian estimates; not one of the lab's classes."""

    hessian_every = 2
    sizes: tuple[int, ...] = ()

    def update_hessian(self, batch_size: int) -> None:
        self.sizes += (batch_size,)


def test_any_optimizer_can_ask_for_hessian_estimates(cifar, monkeypatch):
    row = dataclasses.replace(
        optimizers.OPTIMIZERS["sgd"],
        builder=lambda params, **_: OwnSophia(params, 0.1),
        needs_hessian=True,
        any_setting=True,
    )
    monkeypatch.setitem(optimizers.OPTIMIZERS, "sgd", row)
    trainer = trainer_for(cifar)
    run_epoch(trainer)
    assert trainer.optimizer.sizes == (32, 32)
    with pytest.raises(UserError, match="sgd needs a task with classes"):
        Trainer(trainer.config, trainer.model, trainer.batches, CPU)


class TwoOptimizers(Classifier):
    """As WGAN-GP uses the hooks: a second list of parameters, trained every third step."""

    def _trained_parameters(self):
        *first, last = self.model.parameters()
        return {"optimizer": first, "last_optimizer": [last]}

    def _extra_every(self):
        return 3

    def _extra_step(self, size):
        optimizer = self.optimizers["last_optimizer"]
        optimizer.zero_grad()
        loss, _ = self._loss(self.batches.position - size, size)
        loss.backward(inputs=optimizer.param_groups[0]["params"])
        optimizer.step()


def test_a_task_may_train_with_several_optimizers(cifar, monkeypatch):
    """One is built for each list of parameters and no other; all are saved and restored."""
    built = []
    build = optimizers.build_optimizer

    def counted(name, params, settings, **others):
        built.append(len(params))
        return build(name, params, settings, **others)

    monkeypatch.setattr(optimizers, "build_optimizer", counted)
    config = configs.make("cifar10", model="cnn", optimizer="adam", epochs=2,
                          overrides={"batch": 32})  # fmt: skip

    def make():
        plain = trainer_for(cifar)
        built.clear()
        return TwoOptimizers(config, plain.model, plain.batches, {}, CPU)

    trainer = make()
    params = len(list(trainer.model.parameters()))
    assert built == [params - 1, 1]
    run_epoch(trainer)  # 5 steps
    state = trainer.state_dict()
    assert list(state) == ["epoch", "model", "optimizer", "last_optimizer"]
    assert {float(s["step"]) for s in state["optimizer"]["state"].values()} == {5}
    assert {float(s["step"]) for s in state["last_optimizer"]["state"].values()} == {1}
    resumed = make()
    resumed.load_state_dict(copy.deepcopy(state))
    assert run_epoch(resumed) == run_epoch(trainer)
    (moments,) = resumed.optimizers["last_optimizer"].state.values()
    assert float(moments["step"]) == 3, "steps are counted through the run: 3, 6 and 9"


def test_same_seed_same_start_for_every_optimizer(cifar):
    first, second = trainer_for(cifar, "sgd"), trainer_for(cifar, "adam")
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
    for trainer in (first, second):
        run_epoch(trainer)
    assert torch.equal(first.batches.plan, second.batches.plan)


def test_building_a_trainer_leaves_torchs_random_numbers_alone(cifar):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    trainer_for(cifar)
    assert torch.equal(torch.rand(3), expected)


def test_validation_is_held_out(cifar):
    trainer = trainer_for(cifar, validation=50)
    metrics = run_epoch(trainer)
    assert len(trainer.batches.images) == 100
    assert 0 <= metrics["validation_accuracy"] <= 100
    with pytest.raises(UserError, match="all 150"):
        trainer_for(cifar, validation=150)


# --- the parts ------------------------------------------------------------------------------------


def test_the_last_batch_is_kept():
    sizes = batch_sizes(50_000, 128)
    assert len(sizes) == 391
    assert sizes[-1] == 80
    assert sum(sizes) == 50_000
    assert batch_sizes(256, 128) == [128, 128]
    assert batch_sizes(5, 128) == [5]


def test_micro_batch_sizes():
    assert micro_batch_sizes(128, 1) == [128]
    assert micro_batch_sizes(10, 4) == [3, 3, 2, 2]
    assert micro_batch_sizes(2, 4) == [1, 1]


def test_every_image_once_an_epoch_and_another_order_in_each(cifar):
    epochs = ResidentBatches(cifar.train, cifar, CPU, seed=0, augmented=True)
    plans = []
    for epoch in (0, 1, 0):
        epochs.begin(epoch)
        plans.append(epochs.plan.clone())
        assert sorted(epochs.plan[0].tolist()) == list(range(150))
    assert torch.equal(plans[0], plans[2])
    assert not torch.equal(plans[0], plans[1])
    other = ResidentBatches(cifar.train, cifar, CPU, seed=1, augmented=True)
    other.begin(0)
    assert not torch.equal(plans[0], other.plan)
    assert plans[0][1:3].unique().tolist() == list(range(9))  # all offsets of a padding of 4
    assert 0.3 < plans[0][3].float().mean() < 0.7


def test_without_augmentation_pixels_are_unchanged(cifar):
    epochs = ResidentBatches(cifar.train, cifar, CPU, seed=0, augmented=False)
    epochs.begin(0)
    images, labels = epochs.take(torch.tensor(10), 7)
    index = epochs.plan[0, 10:17].long()
    assert torch.equal(images, ResidentImages(cifar.train, cifar, CPU).normalised(
        cifar.train.images[index].permute(0, 2, 3, 1)))  # fmt: skip
    assert torch.equal(labels, cifar.train.labels[index])
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_hold_out_splits_and_never_changes(cifar):
    kept, held = hold_out(cifar.train, 40)
    assert len(kept.labels) == 110
    assert len(held.labels) == 40
    pairs = {image.numpy().tobytes() for image in cifar.train.images}
    parts = [{image.numpy().tobytes() for image in part.images} for part in (kept, held)]
    assert parts[0] | parts[1] == pairs
    assert not parts[0] & parts[1]
    assert torch.equal(held.labels, hold_out(cifar.train, 40)[1].labels)


def test_seeds_for_purposes_differ():
    seeds = {
        seed_for(purpose, seed, epoch)
        for purpose in ("data", "dropout", "weights")
        for seed in range(4)
        for epoch in range(4)
    }
    assert len(seeds) == 48
    assert all(0 <= seed < 2**63 for seed in seeds)
