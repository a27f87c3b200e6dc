"""Statistics of estimates as directions, beside sums written out in float64."""

import math

import numpy as np
import pytest
import torch

import why_directions as directions
from sgdf import FilterAdamW
from sgdf.filter import bias_corrections, wiener_filter
from sgdf_lab.models.language import build_gpt
from why_directions import QUANTILES, DirectionFilter, TriedSteps, gains_by_part, parts_of

BETAS = (0.9, 0.99)


@pytest.fixture
def random():
    return np.random.default_rng(7)


def tensor(values):
    return torch.from_numpy(np.asarray(values, dtype=np.float64))


# --- the estimates --------------------------------------------------------------------------------


def test_estimates_are_those_of_the_filter(random):
    gradients = random.normal(size=(12, 5))
    moments = DirectionFilter(BETAS, torch.float64)
    for g in gradients:
        moments(tensor(g))
    found = moments.estimates()
    assert list(found) == list(directions.rules(0.9))
    for name, rule in directions.rules(0.9).items():
        m = s = np.zeros(5)
        for t, g in enumerate(gradients, start=1):
            settings = {**rule, "eps": max(rule["eps"], 1e-300), "beta1": 0.9, "beta2": 0.99}
            expected, m, s = wiener_filter(g, m, s, bias_corrections(t, *BETAS), **settings)
        np.testing.assert_allclose(found[name].numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(found["gradient"].numpy(), gradients[-1], rtol=1e-12)


def test_moments_and_gain_are_those_written_out(random):
    gradients = random.normal(size=(9, 4))
    moments = DirectionFilter(BETAS, torch.float64)
    m, s, v = np.zeros(4), np.zeros(4), np.zeros(4)
    for g in gradients:
        moments(tensor(g))
        m = 0.9 * m + 0.1 * g
        s = 0.99 * s + 0.01 * (g - m) ** 2
        v = 0.99 * v + 0.01 * g**2
    m_hat, second = m / (1 - 0.9**9), v / (1 - 0.99**9)
    s_hat = s / (1 - 0.99**9) * 0.1 / 1.9 * (1 - 0.9**18)
    gain = s_hat / (s_hat + (g - m_hat) ** 2)
    np.testing.assert_allclose(moments.m_hat.numpy(), m_hat, rtol=1e-12)
    np.testing.assert_allclose(moments.second.numpy(), second, rtol=1e-12)
    np.testing.assert_allclose(moments.spread().numpy() ** 2, s / (1 - 0.99**9), rtol=1e-12)
    np.testing.assert_allclose(moments.gain.numpy(), gain, rtol=1e-12)


def test_moments_follow_the_optimizer():
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(6))
    optimizer = FilterAdamW([weight], gain_scale=1.0, betas=BETAS)
    moments = DirectionFilter(BETAS, weight.dtype)
    for _ in range(5):
        weight.grad = torch.randn(6)
        moments(weight.grad)
        optimizer.step()
    state = optimizer.state[weight]
    for key, moment in (
        ("exp_avg", moments.moments.m),
        ("exp_var", moments.moments.s),
        ("exp_avg_sq", moments.moments.v),
    ):
        torch.testing.assert_close(state[key], moment)


def test_repeated_moments_are_rows_of_their_own():
    moments = DirectionFilter(BETAS, torch.float64)
    moments(tensor([1.0, 2.0, 3.0]))
    rows = moments.repeated(2)
    rows(tensor([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]]))
    assert (rows.t, moments.t) == (2, 1)
    np.testing.assert_allclose(rows.moments.m.numpy(), [[0.09, 0.18, 0.27], [0.19, 0.38, 0.57]])
    np.testing.assert_allclose(moments.moments.m.numpy(), [0.1, 0.2, 0.3])


# --- errors and angles ----------------------------------------------------------------------------


def test_errors_are_the_products_written_out(random):
    rows, first, second = (random.normal(size=shape) for shape in ((4, 6), 6, 6))
    found = directions.errors_about(*map(tensor, (rows, first, second)))
    squares = [np.mean((row - first) * (row - second)) for row in rows]
    pairs = [
        np.mean((rows[r] - first) * (rows[q] - second))
        for r in range(4)
        for q in range(4)
        if r != q
    ]
    assert found.squares == pytest.approx(squares)
    assert found.mse.value == pytest.approx(np.mean(squares))
    assert found.bias2.value == pytest.approx(np.mean(pairs))
    assert found.variance.value == pytest.approx(np.mean(squares) - np.mean(pairs))
    without = [np.mean(np.delete(squares, r)) for r in range(4)]
    assert found.mse.error == pytest.approx(math.sqrt(3 * np.var(without)))


def test_the_noise_of_the_truth_is_no_error_of_the_estimate(random):
    size, truth = 400_000, 1.0
    rows = truth + 0.5 + 0.3 * random.normal(size=(4, size))
    first, second = (truth + 2 * random.normal(size=size) for _ in range(2))
    found = directions.errors_about(*map(tensor, (rows, first, second)))
    # The truth's variance is 4; a product's standard deviation is about 4 / sqrt(size) = 0.006.
    assert found.bias2.value == pytest.approx(0.25, abs=0.04)
    assert found.variance.value == pytest.approx(0.09, abs=0.01)


def test_cosines_are_those_written_out(random):
    rows, first, second = (random.normal(size=shape) + 3 for shape in ((3, 5), 5, 5))
    found = directions.cosines(*map(tensor, (rows, first, second)))
    length = math.sqrt(first @ second)
    expected = [row @ (first + second) / 2 / np.linalg.norm(row) / length for row in rows]
    assert found == pytest.approx(expected)
    signs = directions.sign_cosines(tensor(rows), tensor(first))
    expected = [row @ np.sign(first) / np.linalg.norm(row) / math.sqrt(5) for row in rows]
    assert signs == pytest.approx(expected)


def test_a_truth_below_its_noise_has_no_direction():
    row = tensor([[1.0, 0.0]])
    assert math.isnan(directions.cosines(row, tensor([1.0, 0.0]), tensor([-1.0, 0.0]))[0])


def test_a_ratio_and_a_mean_with_their_errors():
    ratio = directions.ratio_of([2.0, 4.0, 9.0], [1.0, 2.0, 3.0])
    without = [13 / 5, 11 / 4, 6 / 3]
    assert ratio.value == pytest.approx(15 / 6)
    assert ratio.error == pytest.approx(math.sqrt(2 * np.var(without)))
    mean = directions.mean_of([1.0, 2.0, 6.0])
    assert mean.value == pytest.approx(3.0)
    assert mean.error == pytest.approx(np.std([1, 2, 6], ddof=1) / math.sqrt(3))


# --- the best gain --------------------------------------------------------------------------------


def test_the_best_gain_minimises_the_error_of_its_bin(random):
    residual, wanted = random.normal(size=(2, 3, 200))
    gain, weights = random.uniform(size=(2, 3, 200))
    bins = directions.best_gains(
        tensor(np.abs(residual)), (0, 0.5, 1), *map(tensor, (residual, wanted, gain, weights))
    )
    assert [(one.low, one.high) for one in bins] == [(0, 0.5), (0.5, 1), (1, None)]
    for one in bins:
        high = math.inf if one.high is None else one.high
        inside = (np.abs(residual) >= one.low) & (np.abs(residual) < high)
        w, r, x = weights[inside], residual[inside], wanted[inside]

        def error(c, w=w, r=r, x=x):
            return np.sum(w * (x - c * r) ** 2)

        best = one.best.value
        assert error(best) < min(error(best - 1e-4), error(best + 1e-4))
        assert one.share == pytest.approx(inside.mean())
        assert one.energy == pytest.approx(np.sum(w * r**2) / np.sum(weights * residual**2))
        assert one.gain == pytest.approx(np.sum(w * r**2 * gain[inside]) / np.sum(w * r**2))


def test_the_best_gain_in_still_noise_is_negative(random):
    """An average that forgets has too much of the newest gradient, if nothing moves.

    With noise of variance 1: E r (g* - m^) = (1-b1)/(1+b1) - (1-b1), E r^2 = 1 - 2 (1-b1) + the
    first.
    """
    moments = DirectionFilter(BETAS, torch.float64)
    for _ in range(100):
        g = tensor(random.normal(size=(3, 40_000)))
        moments(g)
    average = moments.m_hat
    size = torch.zeros_like(g)
    (found,) = directions.best_gains(size, (0,), g - average, -average, moments.gain)
    variance = 0.1 / 1.9
    assert found.best.value == pytest.approx((variance - 0.1) / (0.8 + variance), abs=0.005)


def test_bins_without_a_coordinate_are_left_out():
    residual = tensor([[1.0, 2.0], [1.0, 1.0]])  # the second row has none above 2
    bins = directions.best_gains(residual, (0, 2, 9), residual, residual, residual)
    assert [one.low for one in bins] == [0]


# --- steps ----------------------------------------------------------------------------------------


def test_steps_have_equal_sizes_and_go_against_the_rows():
    curvature = tensor([1.0, 4.0])
    rows = tensor([[3.0, 4.0], [0.0, -100.0]])

    def loss_at(weights):
        return float(0.5 * (curvature * weights**2).sum())

    found = directions.decreases(loss_at, tensor([1.0, 1.0]), rows, 0.1)
    length = 0.1 * math.sqrt(2)  # of an RMS of 0.1 in two coordinates
    ends = [(1 - 0.6 * length, 1 - 0.8 * length), (1, 1 + length)]
    assert found == pytest.approx([2.5 - 0.5 * (a**2 + 4 * b**2) for a, b in ends])


def test_slope_and_cost_are_those_of_a_parabola():
    def tried(slopes, costs):
        pairs = list(zip(slopes, costs, strict=True))
        return TriedSteps(0.25, [a / 4 - b / 16 for a, b in pairs], [a - b for a, b in pairs])

    ours, others = tried([2.0, 4.0, 6.0], [1.0, 1.0, 4.0]), tried([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])
    summary = ours.summary()
    assert summary == pytest.approx({"slope": 4.0, "cost": 2.0, "length": 1.0, "most": 2.0})
    over = ours.over(others)
    assert over["slope"].value == pytest.approx(2.0)
    assert over["slope"].error == pytest.approx(0, abs=1e-12)  # twice in every replica
    assert over["cost"].value == pytest.approx(2.0)
    assert over["cost"].error == pytest.approx(math.sqrt(2 * np.var([2.5, 2.5, 1.0])))
    assert over["most"].value == pytest.approx(2.0)
    assert math.isnan(tried([1.0, 1.0], [-1.0, -1.0]).summary()["length"])


# --- layers ---------------------------------------------------------------------------------------


def test_the_parts_of_a_gpt_are_its_vector():
    model = build_gpt("gpt-tiny", vocabulary=256)
    parts = parts_of(model)
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == sum(p.numel() for p in model.parameters())
    weight = dict(model.named_parameters())["blocks.1.attention.qkv.weight"]
    vector = torch.cat([p.flatten() for p in model.parameters()])
    (keys,) = (part for part in parts if (part.kind, part.depth) == ("key", 2))
    assert torch.equal(vector[keys.start : keys.stop], weight[64:128].flatten())


def test_gains_by_part_are_quantiles_of_the_part():
    model = build_gpt("gpt-tiny", vocabulary=256)
    parts = parts_of(model)
    gain = torch.zeros(2, parts[-1].stop)
    (norms,) = (part for part in parts if (part.kind, part.depth) == ("norms", None))
    gain[:, norms.start : norms.stop] = torch.linspace(0, 1, 2 * 64).view(2, 64)
    found = {(part.kind, part.depth): part for part in gains_by_part(gain, parts, seed=0)}
    assert found["norms", None].quantiles == pytest.approx(QUANTILES, abs=1e-6)
    assert found["norms", None].mean == pytest.approx(0.5)
    assert found["MLP in", 1].quantiles == [0] * 5
