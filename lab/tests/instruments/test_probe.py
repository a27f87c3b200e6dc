"""The probe changes nothing, and reads what the optimizer uses."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from sgdf import SGDF, FilterAdam, Momentum, WienerFilter
from sgdf.filter import bias_corrections, wiener_filter
from sgdf_lab.instruments import probe as probe_module
from sgdf_lab.instruments.probe import Probe, ProbeRecord, summaries
from sgdf_lab.instruments.sampling import Histogram

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


def fed(optimizer, p, gradients, **settings):
    """The record of a probe that saw these gradients of p."""
    with Probe(optimizer, every=1, **settings) as probe:
        for g in gradients:
            p.grad = g.to(p.dtype)
            optimizer.step()
    return probe.record()


@pytest.fixture
def seen(monkeypatch):
    """All raw and estimated values that probes count."""
    pairs = []
    monkeypatch.setattr(Probe, "_fill", lambda self, raw, est: pairs.append((raw, est)))
    return pairs


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
def test_the_estimate_is_that_of_the_filter(kind, settings, seen):
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


@pytest.mark.parametrize("state_dtype", [None, torch.int8], ids=str)
def test_the_estimate_of_float32_sgdf_is_its_step(seen, state_dtype):
    """8-bit state is read before it is rounded."""
    torch.manual_seed(0)
    p = nn.Parameter(torch.zeros(32, 256))
    optimizer = SGDF([p], lr=1.0, state_dtype=state_dtype)
    with Probe(optimizer, every=1, coordinates=32 * 256):
        for _ in range(4):
            before = p.detach().clone()
            p.grad = torch.randn_like(p)
            optimizer.step()
            moved = (before - p.detach()).flatten().numpy()
            np.testing.assert_allclose(seen[-1][1], moved, rtol=1e-3, atol=1e-5)


def momentum_sgd(**settings):
    return lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, **settings)


@pytest.mark.parametrize(
    ("build", "kind", "estimate"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.5), "momentum", lambda g, h: h),
        (momentum_sgd(maximize=True), "momentum", lambda g, h: 0.9 * g + h),
        (momentum_sgd(nesterov=True), "momentum", lambda g, h: h + 0.9 * (0.9 * g + h)),
        (lambda p: Momentum(p, lr=0.1, mu=0.1), "momentum", lambda g, h: 0.09 * g + 0.1 * h),
        (lambda p: torch.optim.RMSprop(p, lr=1e-3, alpha=0, eps=0), "direction", np.sign),
        (lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-3)), "direction", None),
    ],
)
def test_momentum_and_direction(build, kind, estimate, seen):
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


def test_channels_last_groups_and_missing_gradients(seen):
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
def test_other_dtypes(dtype, seen):
    torch.manual_seed(0)
    p = nn.Parameter(torch.zeros(20, dtype=dtype))
    optimizer = SGDF([p], lr=1.0)
    gs = torch.randn(2, 20, dtype=dtype)
    record = fed(optimizer, p, gs)
    last = torch.view_as_real(gs[-1]).flatten() if dtype.is_complex else gs[-1].float()
    np.testing.assert_array_equal(seen[-1][0], last.numpy())
    assert len(seen[-1][1]) == len(last)
    assert record.rows[-1].raw_norm == pytest.approx(last.norm().item(), rel=1e-5)


def test_the_gain_of_a_layer_is_summarised():
    values = np.concatenate([np.linspace(0, 1, 11), [0.25]])
    found = summaries(values, np.array([11, 1]))
    assert found[0] == pytest.approx([0.5, 0.1, 0.5, 0.9])
    assert found[1] == pytest.approx([0.25] * 4)


def test_every_layer_is_sampled_and_norms_are_extrapolated():
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


def test_values_outside_all_bins_are_counted():
    histogram = Histogram(1.0)
    histogram.add(np.array([0.0, 1e7, -1e7, -1e7, np.nan, np.inf, 0.5, -0.5]))
    outside = (histogram.zeros, histogram.above, histogram.below, histogram.not_finite)
    assert outside == (1, 1, 2, 2)
    assert sum(histogram.counts) == 2
    assert histogram.total == 6


def test_memory_does_not_grow(monkeypatch):
    monkeypatch.setattr(probe_module, "ROWS", 16)
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


def test_a_record_survives_saving_and_loading(tmp_path):
    p = nn.Parameter(torch.zeros(5))
    gs = torch.randn(3, 5)
    gs[1, 0] = math.inf
    record = fed(SGDF([p], lr=0.1), p, gs)
    assert record.rows[1].raw_norm is None
    record.save(tmp_path / "record.json")
    assert ProbeRecord.load(tmp_path / "record.json") == record
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="not the record of a probe"):
        ProbeRecord.load(tmp_path / "other.json")


# --- attaching and detaching ---------------------------------------------------------------------


def test_detaching_leaves_the_optimizer_as_it_was():
    p = nn.Parameter(torch.zeros(5))
    optimizer = SGDF([p], lr=0.1)
    p.grad = torch.ones(5)
    optimizer.step()
    state, attributes = optimizer.state_dict(), set(vars(optimizer))
    with Probe(optimizer) as probe:
        assert optimizer._optimizer_step_pre_hooks
        probe.detach()  # a second time is harmless
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert set(vars(optimizer)) == attributes
    assert str(optimizer.state_dict()) == str(state)


def test_looking_creates_no_state():
    p = nn.Parameter(torch.zeros(5))
    optimizer = SGDF([p], lr=0.1)
    p.grad = torch.ones(5)
    with Probe(optimizer, every=1) as probe:
        probe._look()
    assert not optimizer.state


def test_raw_gradients_are_read_before_a_filter_overwrites_them(seen):
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
def test_gradients_of_a_grad_scaler_are_read_unscaled(build, seen):
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


def test_bad_arguments_are_refused():
    p = nn.Parameter(torch.zeros(5))
    optimizer = torch.optim.SGD([p], lr=0.1)
    with pytest.raises(TypeError, match="must be a torch"):
        Probe(p)
    with pytest.raises(ValueError, match="every must be at least 1"):
        Probe(optimizer, every=0)
    with pytest.raises(ValueError, match="coordinates must be a number from 1"):
        Probe(optimizer, coordinates=0)
    with pytest.raises(ValueError, match="2 names for 1 parameters"):
        Probe(optimizer, names=["a", "b"])
    p.grad = torch.ones(5).to_sparse()
    with Probe(optimizer), pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()


# --- figures -------------------------------------------------------------------------------------


def test_the_figures():
    pytest.importorskip("matplotlib")
    from sgdf_lab.instruments import figures

    torch.manual_seed(0)
    p = nn.Parameter(torch.zeros(3000))
    gs = 0.01 * torch.randn(10, 3000)
    records = {
        "sgdf": fed(SGDF([p], lr=0.1), p, gs),
        "filter-adam": fed(FilterAdam([p], lr=0.1), p, gs),
        "adam": fed(torch.optim.Adam([p], lr=0.1), p, gs),
    }
    figure = figures.distributions(records)
    panels = figure.axes
    assert [ax.get_title(loc="left") for ax in panels] == list(records)
    # Axes that fit gradients of 0.01, not Adam's steps of 1; the line is the normal density.
    assert 0.02 < panels[2].get_xlim()[1] < 0.03
    x, y = panels[0].lines[0].get_data()
    normal = np.exp(-((x / 0.01) ** 2) / 2) / (0.01 * math.sqrt(2 * math.pi))
    np.testing.assert_allclose(y, normal, atol=0.05 * normal.max())
    lines = figures.norms(records).axes[0].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 3
    assert figures.gains({"adam": records["adam"]}) is None
    assert len(figures.gains(records).axes) == 4  # two panels and their scales
