"""Errors of gradient estimates: closed forms, standard errors, and what is refused."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from sgdf import SGDF
from sgdf_lab.instruments.estimators import decompose, estimator_errors


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))


class Mean(nn.Module):
    """Estimates a mean by least squares: the gradient is w - x, with only the noise of x."""

    def __init__(self, size):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def forward(self, x):
        return self.w - x


def half_square(outputs, _):
    return 0.5 * outputs.square().sum(1).mean()


class Drift(torch.optim.SGD):
    """Moves by the same distance in every step, whatever the gradient."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(group["lr"])


def still(params):
    return torch.optim.SGD(params, lr=0.0)


@pytest.fixture(scope="module")
def points():
    return torch.randn(300, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def measured(points, **settings):
    defaults = {"optimizer_factory": still, "replicas": 24, "batch": 10, "progress": False}
    data = [(points[:100], points[:100]), (points[100:], points[100:])]
    return estimator_errors(Mean(points.shape[1]), half_square, data, **(defaults | settings))


def within(value, expected, errors=4.0):
    return abs(value.value - expected) <= errors * value.error


def test_variances_at_rest_are_the_closed_forms(points):
    found = measured(points, steps=40, every=40)
    errors = found.measurements[-1].errors
    noise = points.var(0, correction=0).mean().item() / 10
    factor = 0.1 / 1.9 * (1 - 0.9**80)
    for name, expected in (
        ("g", noise),
        ("sgd-ema", factor * noise),
        ("sgd-cm", 100 * factor * noise),
        ("ema", factor / (1 - 0.9**40) ** 2 * noise),
    ):
        variance = errors[name].variance
        assert within(variance, expected), name
        assert variance.error < 0.15 * expected
        assert errors[name].mse.value == pytest.approx(variance.value + errors[name].bias2.value)
    for name in ("g", "ema"):
        assert within(errors[name].bias2, 0.0)
    assert errors["ema"].mse.value < errors["sgdf-k"].mse.value < errors["sgdf"].mse.value
    truth = points.mean(0).square().mean().item()
    assert found.measurements[-1].signal == pytest.approx(truth)
    assert found.measurements[-1].drift == 0
    # A sum of all gradients with these weights, less one of them.
    assert within(errors["sgd-cm"].bias2, (10 * (1 - 0.9**40) - 1) ** 2 * truth)


def test_the_bias_of_an_average_under_drift(points):
    speed = 0.2
    found = measured(
        points, steps=60, every=20, optimizer_factory=lambda p: Drift(p, lr=speed), replicas=8
    )
    last = found.measurements[-1]
    lag = speed * 0.9 / 0.1  # of the average behind a gradient that grows by `speed`
    start = -points.mean(0)  # the gradient at the first step
    weights = 0.1 * 0.9 ** torch.arange(60, dtype=torch.float64)
    mean = (weights[:, None] * (start + speed * torch.arange(59, -1, -1)[:, None])).sum(0)
    expected = (mean - start - 59 * speed).square().mean().item()
    assert last.errors["sgd-ema"].bias2.value == pytest.approx(expected, rel=0.02)
    assert expected == pytest.approx(lag**2, rel=0.2)
    assert within(last.errors["g"].bias2, 0.0)
    noise = last.noise
    assert last.drift == pytest.approx(math.sqrt(20) * speed / math.sqrt(noise))
    # Where the gradient runs away, the filter is nearer than the average it corrects.
    ratio = found.ratio("sgdf", since=20)
    assert ratio.value + 3 * ratio.error < 1
    relative = found.relative("ema", since=60)
    assert relative.value == pytest.approx(last.errors["ema"].mse.value / last.signal)


def test_classical_momentum_scaled_is_the_average(points):
    found = measured(points, steps=5, every=5, replicas=3, estimators=("sgd-ema", "sgd-cm"))
    errors = found.measurements[-1].errors
    assert errors["sgd-ema"].variance.value == pytest.approx(0.01 * errors["sgd-cm"].variance.value)


def test_standard_errors_match_the_spread():
    draws = torch.randn(200, 8, 50, generator=torch.Generator().manual_seed(0)).double()
    weights = torch.full((50,), 1 / 50, dtype=torch.float64)
    found = [decompose(d + 0.5, weights) for d in draws]
    for part, expected in (("bias2", 0.25), ("variance", 1.0), ("mse", 1.25)):
        values = np.array([getattr(error, part).value for error in found])
        claimed = np.mean([getattr(error, part).error for error in found])
        assert abs(values.mean() - expected) < 4 * values.std() / math.sqrt(200), part
        assert claimed == pytest.approx(values.std(), rel=0.25), part


def test_the_same_seed_gives_the_same_numbers_and_leaves_the_model(tmp_path):
    model = network()
    x = torch.randn(40, 8)
    y = torch.randint(3, (40,))
    state = torch.get_rng_state()
    runs = [
        estimator_errors(
            model, nn.functional.cross_entropy, [(x, y)], steps=3, every=2, replicas=3, batch=8,
            coordinates=30, optimizer_factory=lambda p: SGDF(p, lr=0.1), progress=False,
        )
        for _ in range(2)
    ]  # fmt: skip
    assert runs[0] == runs[1]
    assert torch.equal(torch.get_rng_state(), state)
    pairs = zip(model.parameters(), network().parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert [m.step for m in runs[0].measurements] == [1, 2]
    runs[0].save(tmp_path / "errors.json")
    assert json.loads((tmp_path / "errors.json").read_text())["replicas"] == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"replicas": 1}, "replicas must be at least 3"),
        ({"steps": 0}, "must be at least 1"),
        ({"batch": 301}, "batch must be from 1 to 300"),
        ({"estimators": ["kalman"]}, "there is no estimator 'kalman'"),
    ],
)
def test_bad_settings_are_refused(points, settings, message):
    with pytest.raises(ValueError, match=message):
        measured(points, **settings)


def test_bad_models_data_and_losses_are_refused(points):
    def attempt(model, data, loss=half_square, **settings):
        estimator_errors(
            model, loss, data, steps=4, replicas=3, batch=8, progress=False,
            **{"optimizer_factory": still, **settings},
        )  # fmt: skip

    data = [(points, points)]
    with pytest.raises(ValueError, match="no parameters that require gradients"):
        attempt(nn.ReLU(), data)
    with pytest.raises(ValueError, match="no batches"):
        attempt(Mean(40), [])
    with pytest.raises(ValueError, match="cannot be joined"):
        attempt(Mean(40), [*data, (points[:, :3], points)])
    with pytest.raises(ValueError, match="is nan at step 1"):
        attempt(Mean(40), [(points * math.nan, points)])
    with pytest.raises(ValueError, match="must average"):
        attempt(Mean(40), data, lambda outputs, _: half_square(outputs, _) * len(outputs))
    with pytest.raises(ValueError, match="lower the learning rate"):
        attempt(Mean(40), data, optimizer_factory=lambda p: torch.optim.SGD(p, lr=1e200))
    normed = nn.Sequential(nn.BatchNorm1d(40).double(), nn.Linear(40, 2).double())
    with pytest.raises(ValueError, match="0 is batch norm in train mode"):
        attempt(normed, data)
    normed[0].eval()
    attempt(normed, data)


def test_the_figure_of_errors_by_epoch(points):
    pytest.importorskip("matplotlib")
    from sgdf_lab.instruments import figures

    found = {epoch: measured(points, steps=12, every=4, replicas=4, seed=epoch) for epoch in (3, 0)}
    panels = figures.errors_by_epoch(found).axes
    assert [ax.get_title() for ax in panels[:3]] == [
        "squared bias", "variance", "mean squared error"
    ]  # fmt: skip
    (line,) = [line for line in panels[2].lines if line.get_label() == "SGDF (2K)"]
    assert line.get_xdata().tolist() == [0, 3]
    for epoch, height in zip((0, 3), line.get_ydata(), strict=True):
        later = found[epoch].measurements[1:]
        signal = sum(m.signal for m in later)
        assert height == pytest.approx(sum(m.errors["sgdf"].mse.value for m in later) / signal)
    few = measured(points, steps=4, every=4, replicas=3, estimators=("g", "sgdf"))
    assert len(figures.errors_by_epoch({1: few}).axes) == 3  # no average to compare with
    low, high = panels[0].get_ylim()
    for ax in panels[:3]:  # nothing is cut off
        for line in ax.lines:
            inside = np.array(line.get_ydata(), dtype=float)
            assert np.nanmin(inside, initial=np.inf) >= low
            assert np.nanmax(inside, initial=0) <= high
