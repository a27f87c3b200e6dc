"""CIFAR-10 in few steps: the recipe's parts against plain ones, and its runs, on a CPU."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sgdf_lab.data import Dataset, Split
from sgdf_lab.models import airbench
from sgdf_lab.runs import config as configs
from sgdf_lab.runs.results import outcome, summary_of
from sgdf_lab.tasks import fast
from sgdf_lab.tasks.fast import FastClassifier
from sgdf_lab.training import schedules
from sgdf_lab.training.images import SteppedBatches
from tasks.processes import assert_refused, assert_resumes, run_epoch

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
SMALL = {"batch": 8, "steps": 12, "eval_every": 4, "views": "one"}
TINY = ("cifar10-fast", "--model", "airbench-tiny", "--device", "cpu", "--data", "synthetic")
WORDS = tuple(word for name, v in SMALL.items() for word in ("--set", f"{name}={v}"))


def images(count: int, side: int = 17) -> Dataset:
    random = np.random.default_rng(0)
    pixels = torch.from_numpy(random.integers(0, 256, (count, 3, side, side), dtype=np.uint8))
    split = Split(pixels, torch.arange(count) % 10)
    return Dataset("noise", split, split, 10, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), "")


@pytest.fixture(autouse=True)
def small_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "load_dataset", lambda *_: images(37))


def build(optimizer: str = "sgd-nesterov", **overrides: Any) -> FastClassifier:
    config = configs.make(
        "cifar10-fast",
        model="airbench-tiny",
        optimizer=optimizer,
        data="synthetic",
        overrides={**SMALL, **overrides},
    )
    trainer = config.task_definition.module.build_trainer(config, CPU)
    assert isinstance(trainer, FastClassifier)
    return trainer


# --- the parts ------------------------------------------------------------------------------------


def test_whitened_patches_have_unit_second_moments():
    """Exactly v / (v + eps) along an eigenvector of variance v; both signs are there."""
    blurred = F.avg_pool2d(torch.rand(64, 3, 18, 18, dtype=torch.float64), 2, 1)
    model = airbench.FastNet(10, (3, 17, 17), (8, 8, 8)).double()
    airbench.whiten_(model, blurred)
    half = model.whiten.weight.shape[0] // 2
    assert torch.equal(model.whiten.weight[:half], -model.whiten.weight[half:])
    outputs = model.whiten(blurred)[:, :half].transpose(0, 1).flatten(1)
    moments = outputs @ outputs.T / outputs.shape[1]
    torch.testing.assert_close(moments - moments.diag().diag(), torch.zeros_like(moments))
    assert (moments.diag() <= 1).all()
    assert moments.diag().min() > 0.8
    assert moments.diag().max() > 0.999


def test_the_network_starts_as_published():
    model = airbench.build_fast_net("airbench", classes=10, shape=(3, 32, 32))
    assert sum(p.numel() for p in model.parameters()) == 1_972_792
    first = model.blocks[1][0]
    assert isinstance(first, nn.Conv2d)
    signal_in = torch.randn(2, 64, 5, 5)
    torch.testing.assert_close(first(signal_in)[:, :64], signal_in)
    assert not any(m.weight.requires_grad for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    assert len(model.norm_biases()) == 6
    assert all(p.requires_grad for p in model.norm_biases())
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_images_are_mirrored_in_every_other_pass():
    """Nothing else changes if they do not move; a pass drops what does not fill a batch."""
    dataset = images(20)
    batches = SteppedBatches(dataset.train, dataset, CPU, seed=3, steps=8, batch=6, shift=0)
    assert (batches.steps_per_pass, len(batches)) == (3, 48)
    seen: list[dict[int, Tensor]] = [{}, {}, {}]
    batches.begin(0)
    for step in range(8):
        pixels, _ = batches.take(torch.tensor(6 * step), 6)
        index = batches.plan[0, 6 * step : 6 * step + 6].tolist()
        assert not seen[step // 3].keys() & set(index), "an image is shown once in a pass"
        seen[step // 3] |= dict(zip(index, pixels, strict=True))
    first, second, third = seen
    assert len(first) == 18
    both = first.keys() & second.keys()
    assert len(both) >= 16
    assert all(torch.equal(first[i], second[i].flip(-1)) for i in both)
    assert all(torch.equal(first[i], third[i]) for i in first.keys() & third.keys())
    plain = (dataset.train.images.float() / 255 - 0.5) / 0.25
    mirrored = [torch.equal(plain[i].flip(-1), shown) for i, shown in first.items()]
    assert 0 < sum(mirrored) < len(mirrored)


def test_real_images_are_divided_by_their_own_deviation():
    """The recipe's numbers; the paper's protocol for CIFAR divides by others."""
    config = configs.make("cifar10-fast", model="airbench-tiny", overrides=SMALL)
    trainer = config.task_definition.module.build_trainer(config, CPU)
    test = trainer.evaluation["test"]
    for images in (trainer.batches.images, test):
        assert images.std.tolist() == pytest.approx([0.2470, 0.2435, 0.2616])
    pixels = test.normalised(test.pixels[:1])
    expected = (test.pixels[0, 0, 0].float() / 255 - 0.5) / torch.tensor(fast.STD)
    torch.testing.assert_close(pixels[0, :, 0, 0], expected)


def test_images_move_by_two_pixels_with_reflected_edges():
    dataset = images(8)
    batches = SteppedBatches(dataset.train, dataset, CPU, seed=0, steps=1, batch=8, shift=2)
    batches.begin(0)
    pixels, _ = batches.take(torch.tensor(0), 8)
    normal = (dataset.train.images.float() / 255 - 0.5) / 0.25
    padded = F.pad(normal, (2, 2, 2, 2), mode="reflect")
    for k, (index, y, x, flip) in enumerate(batches.plan.T.tolist()):
        expected = padded[index, :, y : y + 17, x : x + 17]
        assert torch.equal(pixels[k], expected.flip(-1) if flip else expected)
    assert batches.plan[1:3].min() >= 0
    assert batches.plan[1:3].max() <= 4


def test_the_schedule_is_a_triangle():
    def factor(step: int) -> float:
        (value,) = schedules.factors("triangle", schedules.Shape(), first=step, count=1, steps=476)
        return value

    # From 0.2 to 1 at step int(0.23 * 476) = 109, then to 0.07 after step 475.
    points = [0, 50, 109, 300, 475]
    expected = np.interp(points, [0, 109, 476], [0.2, 1, 0.07])
    assert [factor(step) for step in points] == pytest.approx(list(expected))


def test_label_smoothing_equals_a_mixture_with_the_uniform_distribution():
    trainer = build()
    trainer.batches.begin(0)
    loss, _ = trainer._loss(trainer.batches.position, 8)
    pixels, labels = trainer.batches.take(trainer.batches.position, 8)
    logs = trainer.model(pixels).log_softmax(1)
    expected = -(0.8 * logs.gather(1, labels[:, None]).sum() + 0.2 * logs.mean(1).sum())
    torch.testing.assert_close(loss, expected)


def test_views_are_averaged():
    """Six, of which the two that do not move count twice."""
    batch = torch.arange(2 * 3 * 5 * 5.0).view(2, 3, 5, 5)

    class Seen(nn.Module):
        def forward(self, shown: Tensor) -> Tensor:
            return shown

    padded = F.pad(batch, (1, 1, 1, 1), mode="reflect")
    moved = [padded[..., :5, :5], padded[..., 2:7, 2:7]]
    expected = (batch + batch.flip(-1)) / 4 + sum(v + v.flip(-1) for v in moved) / 8
    assert torch.equal(fast.predict(Seen(), batch, "one"), batch)
    torch.testing.assert_close(fast.predict(Seen(), batch, "mirror"), (batch + batch.flip(-1)) / 2)
    torch.testing.assert_close(fast.predict(Seen(), batch, "mirror+shift"), expected)


def test_slow_weights_against_a_plain_loop():
    model = nn.Linear(1, 1, bias=False).double()
    ahead, total, every = fast.Lookahead(model), 7, 3
    slow = fast_weight = model.weight.item()
    decays = fast.lookahead_decays(0, total, total, every)
    for step in range(total):
        with torch.no_grad():
            model.weight += 0.1 * (step + 1)
        fast_weight += 0.1 * (step + 1)
        if fast.moves_slow_weights(step, total, every):
            ahead.update(torch.tensor(decays[step], dtype=torch.float64))
        if (step + 1) % 3 == 0:
            keep = 0.95**3 * ((step + 1) / 7) ** 3
            slow = fast_weight = keep * slow + (1 - keep) * fast_weight
        if step == 6:  # the run ends with the slow weights
            fast_weight = slow
        assert model.weight.item() == pytest.approx(fast_weight, rel=1e-12)
    assert [i for i in range(total) if fast.moves_slow_weights(i, total, every)] == [2, 5, 6]


# --- together -------------------------------------------------------------------------------------


def test_steps_equal_a_plain_loop():
    """Two groups, the schedule, the bias that is fixed after a pass, slow weights every 3 steps."""
    trainer, plain = build(bias_passes=1, lookahead=3), build()
    model, batches = plain.model, plain.batches
    biases = model.norm_biases()
    others = [p for p in model.parameters() if p.requires_grad and not any(p is b for b in biases)]
    wd = 0.0153 / 11.5
    optimizer = torch.optim.SGD(
        [{"params": others, "lr": 1.5, "weight_decay": wd},
         {"params": biases, "lr": 96.0, "weight_decay": wd / 64}],
        momentum=0.85, nesterov=True,
    )  # fmt: skip
    slow = {name: value.clone() for name, value in model.state_dict().items()}
    rates = np.interp(np.arange(12), [0, 2, 12], [0.2, 1, 0.07])
    step = 0
    for epoch in range(3):
        batches.begin(epoch)
        for i in range(4):
            optimizer.param_groups[0]["lr"] = 1.5 * rates[step]
            optimizer.param_groups[1]["lr"] = 96 * rates[step]
            pixels, labels = batches.take(torch.tensor(8 * i), 8)
            loss = F.cross_entropy(model(pixels), labels, label_smoothing=0.2)
            optimizer.zero_grad()
            loss.backward()
            if step >= 4:  # a pass over 37 images has 4 batches of 8
                model.whiten.bias.grad = None
            optimizer.step()
            step += 1
            if step % 3 == 0:
                keep = 0.95**3 * (step / 12) ** 3
                for name, value in model.state_dict().items():
                    if value.is_floating_point():
                        slow[name].copy_(keep * slow[name] + (1 - keep) * value)
                        value.copy_(slow[name])
        run_epoch(trainer)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(
            trainer.model.state_dict()[name],
            value,
            rtol=1e-3,
            atol=1e-3,
            msg=lambda m, n=name: n + m,
        )


@pytest.mark.slow
def test_a_killed_run_resumes_and_ends_the_same(teams, tmp_path, monkeypatch):
    monkeypatch.undo()  # the lab's own stand-in for CIFAR-10, which another process reads
    assert_resumes(teams, tmp_path, ["train", *TINY, *WORDS, "--optimizer", "sgd-nesterov"], 2)


@pytest.mark.parametrize(
    "optimizer",
    ["sgd", "sgd-cm", "sgd-ema", "sgdf", "filter-adamw", "adamw", "muon", "soap", "wiener-sgd",
     "schedule-free-adamw"],
)  # fmt: skip
def test_optimizers_by_name(optimizer):
    """With SGD and its kin the biases of norms have 64 times the rate, with all others the same."""
    trainer = build(optimizer)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    metrics = run_epoch(trainer)
    after = trainer.model.state_dict()
    fixed = before["whiten.weight"]
    assert torch.equal(after["whiten.weight"], fixed) or optimizer.startswith("schedule-free")
    assert not torch.equal(after["head.weight"], before["head.weight"])
    assert (metrics["epoch"], metrics["step"]) == (1, 4)
    of_biases = {id(p) for p in trainer.model.norm_biases()}
    rates = {
        id(p) in of_biases: float(group["lr"])
        for group in trainer.optimizer.param_groups
        for p in group["params"]
    }
    sgd_like = optimizer in ("sgd", "sgd-cm", "sgd-ema", "sgdf", "wiener-sgd")
    assert rates[True] == pytest.approx(rates[False] * (64 if sgd_like else 1))


def test_the_published_settings_are_the_defaults():
    config = configs.make("cifar10-fast", optimizer="sgd-nesterov")
    assert config.length == "476 steps"
    assert (config.batch, config.schedule, config.model) == (1024, "triangle", "airbench")
    lr, momentum, decay = (config.settings[n] for n in ("lr", "momentum", "weight_decay"))
    assert lr * (1 + 1 / (1 - momentum)) == pytest.approx(11.5)
    assert lr * decay * (1 + 1 / (1 - momentum)) == pytest.approx(0.0153)
    # Whole batches of 50,000 images in a pass, and 9.9 passes.
    assert config.epochs * config.interval == -(-99 * (50_000 // 1024) // 10)


def test_the_result_says_when_94_percent_was_reached():
    config = configs.make("cifar10-fast", optimizer="sgd-nesterov")
    metrics = [{"epoch": e, "test_accuracy": a} for e, a in ((1, 90.0), (2, 94.0), (3, 94.2))]
    times = [{"epoch": e, "seconds": s} for e, s in ((1, 2.0), (2, 1.5), (3, 1.0))]
    result = summary_of(config, metrics, times, "finished")
    assert (result["steps_to_target"], result["seconds_to_target"]) == (56, 3.5)
    assert "94 after 56 steps" in outcome(config, result)
    never = summary_of(config, metrics[:1], times[:1], "finished")
    assert never["steps_to_target"] is never["seconds_to_target"] is None
    plain = configs.make("digits")
    assert "target" not in summary_of(plain, metrics, times, "finished")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--set", "views=twelve"], "views is one of one, mirror, mirror+shift, not 'twelve'"),
        (["--set", "smoothing=2"], "smoothing is a number from 0 to 1, not 2"),
        (["--set", "bias_scale=-1"], "bias_scale is a positive factor, or 0, not -1"),
        (["--set", "lookahead=-5"], "lookahead is an integer of at least 0, not -5"),
        (["--set", "shift=17"], "images of 17 pixels cannot move by 17"),
        (["--set", "batch=64"], "a batch of 64 is larger than the 37 images"),
        (["--set", "tokens=64"], "there is no setting 'tokens'"),
        (["--epochs", "2"], "cifar10-fast counts steps, not epochs: --set steps=N"),
        (["--optimizer", "sophia-g"], "sophia-g needs lookahead=0 on cifar10-fast"),
        (["--optimizer", "muon", "--set", "bias_scale=2"], "muon has groups of its own"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, capsys, words, sentence):
    command = [*TINY, *WORDS, "--optimizer", "sgd-nesterov", *words]
    assert_refused(command, sentence, tmp_path / "runs", capsys)


def test_a_checkpoint_without_slow_weights_is_refused():
    trainer = build()
    state = trainer.state_dict()
    trainer.load_state_dict(state)
    del state["lookahead"]["head.weight"]
    with pytest.raises(Exception, match="does not have the slow weights of this model"):
        trainer.load_state_dict(state)
