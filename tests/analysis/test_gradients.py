"""The probe changes nothing and counts right; the errors of estimators are those of theory."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from sgdf import SGDF, FilterAdam, Momentum, WienerFilter
from sgdf.analysis import estimators, gradients
from sgdf.analysis.estimators import estimator_errors
from sgdf.analysis.gradients import Histogram, Probe, Record, overhead
from sgdf.cli.main import parse
from sgdf.filter import bias_corrections, wiener_filter

OPTIMIZERS = {
    "sgdf, fused": lambda p: SGDF(p, lr=0.1, weight_decay=0.01, fused=True),
    "sgdf, foreach": lambda p: SGDF(p, lr=0.1, weight_decay=0.01, foreach=True),
    "filter-adam": lambda p: FilterAdam(p, lr=0.01),
    "momentum": lambda p: Momentum(p, lr=0.1, beta=0.9, mu=0.1),
    "torch sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))


def train(build, steps, watch=None, closure=False):
    """The weights after some steps with dropout, whose masks would show any use of the RNG."""
    model = network()
    optimizer = build(model.parameters())
    probe = watch(optimizer) if watch else None
    x, y = torch.randn(32, 8), torch.randint(3, (32,))

    def compute():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(steps):
        if closure:
            optimizer.step(compute)
        else:
            compute()
            optimizer.step()
    return [p.detach().clone() for p in model.parameters()], probe


@pytest.mark.parametrize("closure", [False, True], ids=["plain", "closure"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_watched_training_is_the_same_bit_for_bit(name, closure):
    plain, _ = train(OPTIMIZERS[name], 7, closure=closure)
    watched, probe = train(
        OPTIMIZERS[name], 7, lambda o: Probe(o, every=2, coordinates=50), closure=closure
    )
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    record = probe.record()
    assert [row.step for row in record.rows] == [0, 2, 4, 6]
    assert all(row.raw_norm > 0 and row.estimated_norm > 0 for row in record.rows)


# --- what it reads -------------------------------------------------------------------------------


def fed(optimizer, p, gradients_, **settings):
    """A probe that saw these gradients of p."""
    with Probe(optimizer, every=1, **settings) as probe:
        for g in gradients_:
            p.grad = g.to(p.dtype)
            optimizer.step()
    return probe.record()


def seen_by(monkeypatch):
    """All raw and estimated values that probes count."""
    seen = []
    monkeypatch.setattr(Probe, "_fill", lambda self, raw, est: seen.append((raw, est)))
    return seen


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"weight_decay": 0.1},
        {"weight_decay": 0.1, "decoupled_weight_decay": True},
        {"gain_scale": 1.0, "gain_power": 0.5, "maximize": True},
        {"correction": False, "betas": (0.5, 0.9), "eps": 0.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [SGDF, FilterAdam])
def test_the_estimate_is_the_filters_statement(kind, settings, monkeypatch):
    seen = seen_by(monkeypatch)
    torch.manual_seed(0)
    p = nn.Parameter(torch.randn(40, 5, dtype=torch.float64))
    optimizer = kind([p], lr=0.1, **settings)
    gs = torch.randn(4, 40, 5, dtype=torch.float64)
    gs[:, 0] = 0
    (beta1, beta2), m, s = optimizer.defaults["betas"], 0.0, 0.0
    group = optimizer.param_groups[0]
    sign = -1 if group["maximize"] else 1
    with Probe(optimizer, every=1, coordinates=200, first=9) as probe:
        for t, g in enumerate(gs, start=1):
            before = p.detach().clone()
            p.grad = g.clone()
            optimizer.step()
            coupled = group["weight_decay"] and not group["decoupled_weight_decay"]
            used = sign * g + (group["weight_decay"] * before if coupled else 0)
            expected, m, s = wiener_filter(
                used, m, s, bias_corrections(t, beta1, beta2, group["correction"]),
                beta1=beta1, beta2=beta2, eps=max(group["eps"], 2.3e-308),
                gain_scale=group["gain_scale"], gain_power=group["gain_power"],
            )  # fmt: skip
            raw, estimate = seen[-1]
            np.testing.assert_array_equal(raw, g.flatten().numpy())
            np.testing.assert_allclose(estimate, sign * expected.flatten().numpy(), rtol=1e-12)
    assert probe.record().estimate == "filter"


def test_the_estimate_of_float32_sgdf_is_where_it_goes(monkeypatch):
    seen = seen_by(monkeypatch)
    torch.manual_seed(0)
    p = nn.Parameter(torch.zeros(500))
    optimizer = SGDF([p], lr=1.0)
    gs = torch.randn(5, 500)
    with Probe(optimizer, every=1, coordinates=500):
        for g in gs:
            before = p.detach().clone()
            p.grad = g
            optimizer.step()
            moved = (before - p.detach()).numpy()
            np.testing.assert_allclose(seen[-1][1], moved, rtol=1e-4, atol=1e-5)


def test_eight_bit_state_is_read_before_it_is_rounded(monkeypatch):
    seen = seen_by(monkeypatch)
    torch.manual_seed(0)
    p = nn.Parameter(torch.zeros(32, 256))
    optimizer = SGDF([p], lr=1.0, state_dtype=torch.int8)
    with Probe(optimizer, every=1, coordinates=32 * 256):
        for _ in range(3):
            before = p.detach().clone()
            p.grad = torch.randn_like(p)
            optimizer.step()
            moved = (before - p.detach()).flatten().numpy()
            np.testing.assert_allclose(seen[-1][1], moved, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("build", "kind", "estimate"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.5), "momentum", lambda g, h: h),
        (
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, maximize=True),
            "momentum",
            lambda g, h: 0.9 * g + h,
        ),
        (
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
            "momentum",
            lambda g, h: h + 0.9 * (0.9 * g + h),
        ),
        (lambda p: Momentum(p, lr=0.1, mu=0.1), "momentum", lambda g, h: 0.09 * g + 0.1 * h),
        (lambda p: torch.optim.RMSprop(p, lr=1e-3, alpha=0, eps=0), "direction", np.sign),
        (lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-3)), "direction", None),
    ],
)
def test_momentum_and_direction(build, kind, estimate, monkeypatch):
    seen = seen_by(monkeypatch)
    torch.manual_seed(0)
    p = nn.Parameter(torch.zeros(30, dtype=torch.float64))
    g, h = torch.randn(2, 30, dtype=torch.float64)
    optimizer = build([p])
    assert fed(optimizer, p, [g]).estimate == kind
    after_first = p.detach().clone()
    fed(optimizer, p, [h])
    first, second = g.numpy(), h.numpy()
    expected = estimate(second) if estimate is np.sign else estimate and estimate(first, second)
    if expected is not None:
        decay = optimizer.defaults.get("weight_decay", 0) * after_first.numpy()
        np.testing.assert_allclose(seen[-1][1], expected + decay, rtol=1e-9)


def test_channels_last_groups_and_missing_gradients(monkeypatch):
    seen = seen_by(monkeypatch)
    a = nn.Parameter(torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last))
    b, frozen, empty = nn.Parameter(torch.randn(())), nn.Parameter(torch.ones(3)), torch.zeros(0)
    named = [{"params": [("a", a), ("frozen", frozen)]}, {"params": [("b", b), ("empty", empty)]}]
    optimizer = SGDF(named, lr=0.1)
    optimizer.param_groups[1]["betas"] = (0.5, 0.9)
    with Probe(optimizer, every=1, coordinates=60) as probe:
        for _ in range(2):
            a.grad = torch.randn(4, 3, 2, 2)  # in another layout than the parameter
            b.grad = torch.randn(())
            optimizer.step()
            everything = torch.cat([a.grad.flatten(), b.grad[None]]).double().numpy()
            np.testing.assert_array_equal(seen[-1][0], everything)
    record = probe.record()
    assert [layer["name"] for layer in record.layers] == ["a", "frozen", "b"]
    gain = record.rows[-1].gain
    assert gain[1] is None
    assert all(0 <= value <= 1 for layer in (gain[0], gain[2]) for value in layer)
    exact = math.sqrt(float((everything**2).sum()))
    assert record.rows[-1].raw_norm == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bfloat16], ids=str)
def test_other_dtypes(dtype, monkeypatch):
    seen = seen_by(monkeypatch)
    torch.manual_seed(0)
    p = nn.Parameter(torch.zeros(20, dtype=dtype))
    optimizer = SGDF([p], lr=1.0)
    gs = torch.randn(2, 20, dtype=dtype)
    record = fed(optimizer, p, gs)
    last = torch.view_as_real(gs[-1]).flatten() if dtype.is_complex else gs[-1].float()
    np.testing.assert_array_equal(seen[-1][0], last.numpy())
    assert len(seen[-1][1]) == len(last)
    assert record.rows[-1].raw_norm == pytest.approx(last.norm().item(), rel=1e-5)


def test_the_gain_of_a_layer_is_summed_up():
    values = np.concatenate([np.linspace(0, 1, 11), [0.25]])
    found = gradients.summaries(values, np.array([11, 1]))
    assert found[0] == pytest.approx([0.5, 0.1, 0.5, 0.9])
    assert found[1] == pytest.approx([0.25] * 4)


def test_every_layer_is_looked_at_and_norms_are_extrapolated():
    torch.manual_seed(0)
    big, small = nn.Parameter(torch.zeros(200, 500)), nn.Parameter(torch.zeros(20))
    optimizer = torch.optim.SGD([big, small], lr=0.1)
    big.grad, small.grad = torch.randn_like(big), 100 * torch.randn_like(small)
    with Probe(optimizer, coordinates=5000, names=["big", "small"], seed=1) as probe:
        optimizer.step()
    assert [layer["sampled"] for layer in probe.record().layers] == [4999, 16]
    row = probe.record().rows[0]
    assert row.estimated_norm == pytest.approx(row.raw_norm, rel=0.15)
    again = Probe(optimizer, coordinates=5000, seed=1)
    assert torch.equal(again.picks[big].index, probe.picks[big].index)
    assert len(again.picks[big].index.unique()) == 4999


# --- distributions -------------------------------------------------------------------------------


def test_histogram_and_density_are_those_of_the_distribution():
    torch.manual_seed(0)
    sigma = 0.003
    p = nn.Parameter(torch.zeros(20000))
    optimizer = torch.optim.SGD([p], lr=0.0)
    gs = sigma * torch.randn(20, 20000)
    gs[:, ::4] = 0
    record = fed(optimizer, p, gs, first=10)
    raw = record.raw
    assert (raw.total, raw.zeros, raw.not_finite, raw.below, raw.above) == (200000, 50000, 0, 0, 0)
    assert raw.std == pytest.approx(sigma * math.sqrt(0.75), rel=0.01)
    at = sigma * np.array([-2.0, -1.0, -0.3, 0.5, 1.5, 3.0])
    normal = np.array([0.5 * (1 + math.erf(x / sigma / math.sqrt(2))) for x in at])
    shares = (raw.cumulative(at) - raw.zeros * (at > 0)) / 150000
    np.testing.assert_allclose(shares, normal, atol=0.004)
    expected = 0.75 * np.exp(-((at / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))
    np.testing.assert_allclose(raw.density(at), expected, rtol=0.06, atol=0.02 * expected.max())
    assert record.estimated.counts == raw.counts  # of plain SGD


def test_what_no_bin_holds_is_counted():
    histogram = Histogram(1.0)
    histogram.add(np.array([0.0, 1e7, -1e7, -1e7, np.nan, np.inf, 0.5, -0.5]))
    found = (histogram.zeros, histogram.above, histogram.below, histogram.not_finite)
    assert found == (1, 1, 2, 2)
    assert sum(histogram.counts) == 2
    assert histogram.total == 6


def test_memory_does_not_grow(monkeypatch):
    monkeypatch.setattr(gradients, "ROWS", 16)
    p = nn.Parameter(torch.zeros(50))
    sizes = []
    for steps in (40, 400):
        record = fed(SGDF([p], lr=0.1), p, torch.randn(steps, 50), first=8)
        sizes.append(len(json.dumps(record.raw.counts)) + len(record.rows) * 100)
        assert record.steps == steps
        assert 8 <= len(record.rows) <= 16
        distances = np.diff([row.step for row in record.rows])
        assert len(set(distances)) == 1
        assert record.raw.total == 400
    assert sizes[1] < 1.5 * sizes[0]


def test_a_record_comes_back_from_its_file(tmp_path):
    p = nn.Parameter(torch.zeros(5))
    gs = torch.randn(3, 5)
    gs[1, 0] = math.inf
    record = fed(SGDF([p], lr=0.1), p, gs)
    assert record.rows[1].raw_norm is None
    record.save(tmp_path / "record.json")
    assert Record.load(tmp_path / "record.json") == record
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="not the record of a probe"):
        Record.load(tmp_path / "other.json")


# --- coming and going ----------------------------------------------------------------------------


def test_detaching_leaves_the_optimizer_as_it_was():
    p = nn.Parameter(torch.zeros(5))
    optimizer = SGDF([p], lr=0.1)
    p.grad = torch.ones(5)
    optimizer.step()
    state, attributes = optimizer.state_dict(), set(vars(optimizer))
    with Probe(optimizer) as probe:
        assert optimizer._optimizer_step_pre_hooks
        probe.detach()  # twice does no harm
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert set(vars(optimizer)) == attributes
    assert str(optimizer.state_dict()) == str(state)


def test_looking_makes_no_state():
    p = nn.Parameter(torch.zeros(5))
    optimizer = SGDF([p], lr=0.1)
    p.grad = torch.ones(5)
    with Probe(optimizer, every=1) as probe:
        probe._look()
    assert not optimizer.state


def test_raw_gradients_in_front_of_a_filter_that_overwrites_them(monkeypatch):
    seen = seen_by(monkeypatch)
    p = nn.Parameter(torch.zeros(6, dtype=torch.float64))
    optimizer = torch.optim.SGD([p], lr=0.1)
    probe = Probe(optimizer, every=1)
    WienerFilter(optimizer)
    for _ in range(2):
        g = torch.randn(6, dtype=torch.float64)
        p.grad = g.clone()
        optimizer.step()
    assert not torch.equal(p.grad, g)
    np.testing.assert_array_equal(seen[-1][0], g.numpy())
    probe.detach()


@pytest.mark.parametrize("build", [SGDF, torch.optim.SGD], ids=["unscales", "does not"])
def test_gradients_of_a_grad_scaler_are_read_unscaled(build, monkeypatch):
    seen = seen_by(monkeypatch)
    p = nn.Parameter(torch.zeros(6))
    optimizer = build([p], lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with Probe(optimizer, every=1) as probe:
        for values in (torch.arange(1.0, 7.0), torch.full((6,), math.inf)):
            optimizer.zero_grad()
            scaler.scale((p * values).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert len(seen) == 1  # the second step was skipped
    np.testing.assert_array_equal(seen[0][0], np.arange(1.0, 7.0))
    expected = math.sqrt(sum(i * i for i in range(1, 7)))
    assert probe.record().rows[0].raw_norm == pytest.approx(expected)


def test_mistakes_are_named():
    p = nn.Parameter(torch.zeros(5))
    optimizer = torch.optim.SGD([p], lr=0.1)
    with pytest.raises(TypeError, match="must be a torch"):
        Probe(p)
    with pytest.raises(ValueError, match="every is from 1"):
        Probe(optimizer, every=0)
    with pytest.raises(ValueError, match="coordinates is a number from 1"):
        Probe(optimizer, coordinates=0)
    with pytest.raises(ValueError, match="2 names for 1 parameters"):
        Probe(optimizer, names=["a", "b"])
    p.grad = torch.ones(5).to_sparse()
    with Probe(optimizer), pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()


def test_overhead_is_measured():
    p = nn.Parameter(torch.zeros(5))
    optimizer = torch.optim.SGD([p], lr=0.1)
    p.grad = torch.ones(5)
    cost = overhead(optimizer, optimizer.step, every=4, rounds=3)
    assert min(cost.plain_ms, cost.between_ms, cost.sampled_ms) > 0
    assert not optimizer._optimizer_step_pre_hooks
    cost = gradients.Overhead(plain_ms=1.0, between_ms=1.01, sampled_ms=2.01, every=10)
    assert cost.share == pytest.approx(0.11)
    assert cost.every_for(0.05) == 32
    assert cost.every_for(0.001) is None
    with pytest.raises(ValueError, match="once"):
        overhead(optimizer, lambda: (optimizer.step(), optimizer.step()))
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_importing_needs_torch_and_numpy_alone():
    program = (
        "import sys; sys.modules.update(dict.fromkeys(('scipy', 'matplotlib', 'rich')));"
        "import sgdf.analysis.gradients, sgdf.analysis.estimators"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# --- errors about the true gradient --------------------------------------------------------------


class Mean(nn.Module):
    """Estimates a mean by least squares: the gradient is w - x, with the noise of x alone."""

    def __init__(self, size):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def forward(self, x):
        return self.w - x


def half_square(outputs, _):
    return 0.5 * outputs.square().sum(1).mean()


class Drift(torch.optim.SGD):
    """Goes on by the same distance every step, whatever the gradient."""

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
    assert relative.value == pytest.approx(last.relative("ema"))


def test_classical_momentum_scaled_is_the_average(points):
    found = measured(points, steps=5, every=5, replicas=3, estimators=("sgd-ema", "sgd-cm"))
    errors = found.measurements[-1].errors
    assert errors["sgd-ema"].variance.value == pytest.approx(0.01 * errors["sgd-cm"].variance.value)


def test_standard_errors_have_the_size_of_the_spread():
    draws = torch.randn(200, 8, 50, generator=torch.Generator().manual_seed(0)).double()
    weights = torch.full((50,), 1 / 50, dtype=torch.float64)
    found = [estimators.decompose(d + 0.5, weights) for d in draws]
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
        ({"replicas": 1}, "replicas is at least 3"),
        ({"steps": 0}, "from 1 on"),
        ({"batch": 301}, "batch is from 1 to 300"),
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
    with pytest.raises(ValueError, match="do not go together"):
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


# --- pictures and the command --------------------------------------------------------------------


def test_figures_of_what_was_fed():
    pytest.importorskip("matplotlib")
    from sgdf.analysis import gradient_figures

    torch.manual_seed(0)
    p = nn.Parameter(torch.zeros(3000))
    gs = 0.01 * torch.randn(10, 3000)
    records = {
        "sgdf": fed(SGDF([p], lr=0.1), p, gs),
        "filter-adam": fed(FilterAdam([p], lr=0.1), p, gs),
        "adam": fed(torch.optim.Adam([p], lr=0.1), p, gs),
    }
    figure = gradient_figures.distributions(records)
    panels = figure.axes
    assert [ax.get_title(loc="left") for ax in panels] == list(records)
    # Axes that fit gradients of 0.01, not Adam's steps of 1; the line is the normal density.
    assert 0.02 < panels[2].get_xlim()[1] < 0.03
    x, y = panels[0].lines[0].get_data()
    normal = np.exp(-((x / 0.01) ** 2) / 2) / (0.01 * math.sqrt(2 * math.pi))
    np.testing.assert_allclose(y, normal, atol=0.05 * normal.max())
    lines = gradient_figures.norms(records).axes[0].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 3
    assert gradient_figures.gains({"adam": records["adam"]}) is None
    assert len(gradient_figures.gains(records).axes) == 4  # two panels and their scales


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
    said = capsys.readouterr().out
    assert "A probe of sgdf" in said
    assert "SGDF (2K)" in said


def test_the_command_follows_a_run(tmp_path):
    from sgdf.cli import analyze_gradients
    from sgdf.lab.runs import config as configs

    config = configs.make("digits", seed=3, overrides={"batch": 16})
    (tmp_path / "config.json").write_text(json.dumps(config.as_json()))
    words = ["analyze", "gradients", str(tmp_path), "--optimizers", "adam", "sgd", "--lr", "0.01"]
    found = analyze_gradients.settings(parse(words))
    assert list(found) == ["adam", "sgd"]
    assert {(c.task, c.seed, c.batch, c.lr) for c in found.values()} == {("digits", 3, 16, 0.01)}
    assert found["sgd"].settings["momentum"] == 0


def test_errors_are_measured_from_a_checkpoint_on(command, tmp_path, monkeypatch):
    """With batch norm by its running statistics, and the learning rate that the run came to."""
    from sgdf.analysis import estimators
    from sgdf.cli import analyze_gradients
    from sgdf.cli.main import main

    said = ["--model", "resnet18", "--epochs", "2", "--set", "batch=200", "--set", "milestones=[1]"]
    assert main(["train", "digits", *said, "--device", "cpu", "--out", str(tmp_path)]) == 0
    (run,) = tmp_path.iterdir()
    seen = {}
    measure = estimators.estimator_errors

    def looked_at(model, *arguments, **settings):
        seen["weights"] = [p.detach().clone() for p in model.parameters()]
        seen["modes"] = {m.training for m in model.modules() if isinstance(m, nn.BatchNorm2d)}
        return measure(model, *arguments, **settings)

    monkeypatch.setattr(estimators, "estimator_errors", looked_at)
    monkeypatch.setattr(analyze_gradients, "watch", lambda *_: None)  # slow here
    out = command(str(run), "--steps", "1", "--optimizers", "sgdf", "--errors", "--replicas", "3",
                  "--images", "64")  # fmt: skip
    found = json.loads((out / "gradients-errors.json").read_text())
    assert found["settings"]["settings"]["lr"] == pytest.approx(0.05)
    saved = torch.load(run / "last.pt", weights_only=True)["model"]
    kept = [saved[name] for name in saved if not name.endswith(("mean", "var", "tracked"))]
    assert all(torch.equal(a, b) for a, b in zip(seen["weights"], kept, strict=True))
    assert seen["modes"] == {False}


def test_errors_through_a_training(command, tmp_path, capsys):
    """From the weights of several epochs on, with the run's settings and learning rates."""
    from sgdf.cli.main import main
    from sgdf.support.errors import UserError

    said = ["--epochs", "3", "--set", "milestones=[2]", "--set", "weight_decay=0.01"]
    words = ["train", "digits", *said, "--keep", "1", "--device", "cpu", "--out", str(tmp_path)]
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
    with pytest.raises(UserError, match="it goes with --errors"):
        command(str(run), "--epoch", "2")
    with pytest.raises(
        UserError, match="not kept the weights of epoch 4: it has those of 0, 1, 2, 3"
    ):
        command(str(run), *small, "--epoch", "4")


def test_the_figure_of_errors_by_epoch(points):
    pytest.importorskip("matplotlib")
    from sgdf.analysis import gradient_figures

    found = {epoch: measured(points, steps=12, every=4, replicas=4, seed=epoch) for epoch in (3, 0)}
    panels = gradient_figures.errors_by_epoch(found).axes
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
    assert len(gradient_figures.errors_by_epoch({1: few}).axes) == 3  # no average to compare with
    low, high = panels[0].get_ylim()
    for ax in panels[:3]:  # nothing is cut off
        for line in ax.lines:
            inside = np.array(line.get_ydata(), dtype=float)
            assert np.nanmin(inside, initial=np.inf) >= low
            assert np.nanmax(inside, initial=0) <= high


def test_the_command_names_mistakes(command):
    from sgdf.support.errors import UserError

    with pytest.raises(UserError, match="no task 'digit'"):
        command("digit")
    with pytest.raises(UserError, match="batch norm"):
        command("digits", "--steps", "1", "--model", "resnet18", "--optimizers", "sgd", "--errors",
                "--images", "40")  # fmt: skip
