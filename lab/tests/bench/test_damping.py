"""The experiment of docs/damping.md: its step, its measurements, and how it goes on."""

import json
import math

import numpy as np
import pytest
import torch

import damping
import damping_run as runs
from damping_page import Found, mean, verdicts
from sgdf import FilterAdamW
from sgdf_lab.data.synthetic import make_text
from sgdf_lab.theory.damping import simulate

pytestmark = pytest.mark.usefixtures("one_thread")
SETTING = runs.Setting("gpt-tiny", 2, 8, 4)


@pytest.fixture(scope="module")
def text():
    found = make_text(1 << 14).copy()
    return runs.Text(found[:15_000], found[15_000:])


@pytest.fixture(scope="module")
def run(text):
    """Five steps on, with the gradient of the sixth taken in."""
    made = runs.Run(SETTING, text, 1, 0.1)
    next(step for step, _ in made.through(0.006, 6) if step == 6)
    return made


@pytest.mark.parametrize("gain", [0.0, 0.1])
def test_the_step_is_that_of_the_optimizer(text, gain):
    ours, theirs = runs.Run(SETTING, text, 1, gain), runs.Network(SETTING, text, 1)
    optimizer = FilterAdamW(
        theirs.parameters, lr=0.006, betas=runs.BETAS, eps=runs.EPS, weight_decay=runs.DECAY,
        gain_scale=gain, gain_power=0.0,
    )  # fmt: skip
    start = theirs.weights.clone()
    for step, _ in ours.through(0.006, 8):
        g, _ = theirs.clipped(step)
        for p, part in zip(theirs.parameters, theirs.parts(g), strict=True):
            p.grad = part.view_as(p)
        optimizer.param_groups[0]["lr"] = 0.006 * theirs.rates[step - 1]
        optimizer.step()
    moved = (theirs.weights - start).norm()
    assert (ours.weights - theirs.weights).norm() < 1e-3 * moved


def test_the_vector_is_the_network(run):
    before = run.held_out_loss()
    kept = run.weights.clone()
    run.weights.zero_()
    assert run.held_out_loss() == pytest.approx(math.log(256))
    run.weights.copy_(kept)
    assert run.held_out_loss() == before


# --- steep directions -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def steep(run):
    return runs.steepest(run, 6, 4, 3, 1e-4)


def test_directions_are_eigenvectors_in_the_metric_of_the_step(run, steep):
    multiply = runs.curvature(run, steep.root, "curvature", 6, 4)
    for value, vector in zip(steep.values, steep.vectors.T, strict=True):
        assert (multiply(vector) - value * vector).norm() < 0.02 * value
    assert (np.diff(steep.values) <= 0).all()


def test_the_curvature_is_the_second_derivative(text):
    """In float64, by differences of gradients; D^-1/2 on both sides."""
    network = runs.Run(SETTING, text, 1, 0.0)
    network.model.double()
    random = torch.Generator().manual_seed(0)
    vector, root = (torch.rand(len(network.weights), generator=random).double() for _ in range(2))
    root += 0.5
    product = runs.curvature(network, root, "curvature", 6, 4)(vector)
    ends = []
    for way in (-1e-6, 2e-6):
        for p, part in zip(network.parameters, network.parts(vector / root), strict=True):
            p.data += way * part.view_as(p)
        loss = network.loss(*network.windows("curvature", 6, 4))
        ends.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, network.parameters)]))
    expected = (ends[1] - ends[0]) / 2e-6 / root
    assert (product - expected).norm() < 1e-3 * expected.norm()


def test_the_part_along_directions_is_a_projection(run, steep):
    g = run.filter.g
    part = steep.part(g)
    assert (steep.part(part) - part).norm() < 1e-3 * part.norm()
    assert steep.part(g - part).norm() < 1e-3 * g.norm()
    inside, outside = part / steep.root, (g - part) / steep.root
    assert abs(inside @ outside) < 1e-3 * (g / steep.root).square().sum()


def test_a_branch_starts_from_the_same_state_and_leaves_it(run):
    state = run.state()
    first, again = ([w.clone() for w in run.branch(state, 0.006, 0.0, 7, 3)] for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))
    assert torch.equal(first[0], state[0])
    run.weights.copy_(state[0])
    run.gain, run.filter = 0.1, state[1]


# --- kicks and swings -----------------------------------------------------------------------------


@pytest.mark.parametrize(("x", "gain"), [(4.0, 0.0), (4.0, 0.1), (0.5, 0.3), (12.0, 0.1)])
def test_the_fit_finds_the_factor_of_the_formula(x, gain):
    from sgdf_lab.theory.damping import slowest

    response = simulate(x, 0.9, gain, 50)
    assert runs.fitted_factor(response) == pytest.approx(slowest(x, 0.9, gain), rel=1e-5)


def test_the_swing_is_about_a_line():
    t = np.arange(40.0)
    wave = np.cos(np.pi * t)
    found = runs.swing(np.column_stack([3 + 2 * t, 3 + 2 * t + wave]))
    assert found == pytest.approx([0, 1], abs=0.01)


# --- innovations and errors -----------------------------------------------------------------------


def test_the_best_weight_follows_from_the_innovations():
    """A mean that drifts at random in noise: the gain with the least error is correlation / b1."""
    random, b1, steps = np.random.default_rng(0), 0.9, 200_000
    means = np.cumsum(0.2 * random.standard_normal(steps))
    g = means + random.standard_normal(steps)
    m, innovations, averages = 0.0, np.empty(steps), np.empty(steps)
    for t in range(steps):
        innovations[t] = g[t] - m
        m = b1 * m + (1 - b1) * g[t]
        averages[t] = m
    correlation = np.corrcoef(innovations[1:], innovations[:-1])[0, 1]
    residual = g - averages
    best = (residual @ (means - averages)) / (residual @ residual)
    assert correlation / b1 == pytest.approx(best, abs=0.02)
    assert best > 0.05


class Layers:
    def parts(self, vector):
        return vector.split([300, 200])


def test_the_correlation_of_innovations_by_layer():
    random = np.random.default_rng(0)
    found, e = runs.Innovations(Layers()), np.zeros(500)
    coefficient = np.repeat([0.6, -0.3], [300, 200])
    for _ in range(400):
        e = coefficient * e + random.standard_normal(500)
        found.add(torch.from_numpy(e), torch.ones(500, dtype=torch.float64))
    correlations = found.take()
    assert correlations["plain"][:2] == pytest.approx([0.6, -0.3], abs=0.03)
    assert correlations["plain"] == correlations["adam"]
    assert found.take() == {}


def test_the_terms_are_those_of_the_squared_error(run):
    truth = torch.randn(len(run.weights), generator=torch.Generator().manual_seed(0))
    terms = runs.error_terms(run, [truth, truth])
    estimate = run.filter.estimate(gain_scale=0.2, gain_power=0.0)
    for metric, scale in (("plain", 1.0), ("adam", run.denominator())):
        a, b, c = terms[metric]
        error = ((estimate - truth) / scale).double().square().sum().item()
        assert a + 2 * b * 0.2 + c * 0.04 == pytest.approx(error, rel=1e-5)


# --- the record -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def record(text, tmp_path_factory):
    out = tmp_path_factory.mktemp("damping") / "damping.json"
    record = {"case": damping.case_of(damping.TINY), "betas": [0.9, 0.95], "rows": {}}
    damping.measure(damping.Experiment(damping.TINY, text, record), out, 25)
    return json.loads(out.read_text())


def test_every_row_of_the_plan_is_recorded(record):
    assert Found(record).missing() == []
    assert all(row["seconds"] >= 0 for row in record["rows"].values())


def test_it_goes_on_where_it_stopped(text, record, tmp_path):
    key = "projection only, seed 2"
    rows = {name: row for name, row in record["rows"].items() if name != key}
    experiment = damping.Experiment(damping.TINY, text, {**record, "rows": rows})
    experiment.loss = experiment.muon = experiment.result = None  # these are there
    damping.measure(experiment, tmp_path / "damping.json", 25)
    assert rows[key]["loss"] == record["rows"][key]["loss"]


def test_it_stops_when_the_time_is_used_up(text, tmp_path):
    record = {"case": {}, "rows": {}}
    damping.measure(damping.Experiment(damping.TINY, text, record), tmp_path / "d.json", 0)
    assert len(record["rows"]) == 1


def test_projections_share_the_correction(record):
    """What one keeps, the other loses; each is another run than the one with all of it."""
    rows = record["rows"]
    for seed in (1, 2):
        losses = {rows[k]["loss"] for k in (f"result adamw, gain 0.1, seed {seed}",
                  f"projection without, seed {seed}", f"projection only, seed {seed}")}  # fmt: skip
        assert len(losses) == 3
        assert 0 < rows[f"projection without, seed {seed}"]["share"] < 1


def altered(record, changes):
    rows = {key: {**row, **changes.get(key, {})} for key, row in record["rows"].items()}
    return Found({**record, "rows": rows})


@pytest.mark.parametrize(
    ("without", "only", "word"),
    [(0.0, 0.01, "for"), (0.01, 0.0, "against"), (0.01, 0.01, "not clear")],
)
def test_the_verdict_of_the_projection(record, without, only, word):
    """Losses by seed: 3 without a gain, 2.99 with it, and what the case says."""
    changes = {}
    for seed, luck in ((1, 0.0), (2, 1e-4), (3, 2e-4)):
        for key, lead in (("result adamw, gain 0", 0.0), ("result adamw, gain 0.1", 0.01 + luck),
                          ("projection without", without), ("projection only", only)):  # fmt: skip
            changes[f"{key}, seed {seed}"] = {"loss": 3.0 - lead}
    told = verdicts(altered(record, changes))
    assert told["the gain leads at all"][1] == "can be tested"
    assert next(w for name, (_, w) in told.items() if "goes without" in name) == word


def test_without_a_lead_there_is_nothing_to_explain(record):
    changes = {f"result adamw, gain 0.1, seed {s}": {"loss": 3.0 + d}
               for s, d in ((1, 0.02), (2, -0.03), (3, 0.01))}  # fmt: skip
    changes |= {f"result adamw, gain 0, seed {s}": {"loss": 3.0} for s in (1, 2, 3)}
    told = verdicts(altered(record, changes))
    assert told["the gain leads at all"][1] == "no clear lead to explain"
    assert next(w for name, (_, w) in told.items() if "goes without" in name) == "not clear"


def test_added_seeds_are_of_the_lead_and_the_projection_only(record):
    found = Found(record)
    assert [*found.corrections()["whole"]] == [1, 2, 3]
    assert [*found.results(0.1)] == [1, 2]


def test_the_muon_step_chooses_from_all_rates(record):
    found = altered(record, {"rate muon, gain 0.1, lr 0.012": {"loss": 0.0}})
    experiment = damping.Experiment(damping.TINY, None, {"rows": found.rows})
    assert experiment.rate(0.1, "muon") == 0.012
    assert experiment.rate(0.1) in damping.TINY.searched


def test_a_mean_of_one_has_no_error():
    assert mean([0.5]).words() == "0.500"
    assert not mean([0.5]).clear
