"""Very large and very small gradients; test_overflow.py has those whose squares overflow."""

import pytest
import torch

from kernels.problems import assert_finite, spiky
from reference import FORMS
from sgdf import SGDF, FilterAdam, FilterAdamW, WienerFilter
from stepping import ON_GPU, PATHS, TRITON_DEVICE, TRITON_MARKS, each_path

ALL_FORMS = FORMS | {
    "SGDF": (SGDF, {}),
    "SGDF, uncorrected root": (SGDF, {"correction": False, "gain_power": 0.5, "gain_eps": 0.0}),
    "FilterAdam": (FilterAdam, {}),
    "FilterAdamW": (FilterAdamW, {"gain_scale": 1.0, "gain_power": 0.5}),
}
each_form = pytest.mark.parametrize(("optimizer", "settings"), ALL_FORMS.values(), ids=ALL_FORMS)


def assert_stays_finite(optimizer, settings, state_dtype, path, device="cpu", steps=range(6)):
    p, still = (torch.ones(16, 256, device=device, requires_grad=True) for _ in range(2))
    flags = {"state_dtype": state_dtype, "weight_decay": 0.0, **PATHS[path]}
    moving = optimizer([p], lr=1e-3, **settings, **flags)
    standing = optimizer([still], lr=0.0, **settings, **flags)
    for step in steps:
        p.grad, still.grad = spiky(step).to(device), spiky(step).to(device)
        moving.step(), standing.step()
        assert_finite({"p": p, **moving.state[p]}, step)
        assert_finite(standing.state[still], step)
    assert torch.equal(still, torch.ones_like(still))
    assert not torch.equal(p, torch.ones_like(p))


@each_path
@each_form
@pytest.mark.parametrize("state_dtype", [torch.int8, torch.bfloat16], ids=str)
def test_finite_gradients_give_finite_parameters_and_state(optimizer, settings, path, state_dtype):
    if path == "foreach" and state_dtype == torch.int8:
        path = "loop"
    assert_stays_finite(optimizer, settings, state_dtype, path)


@pytest.mark.slow
@pytest.mark.usefixtures("triton_on_the_cpu")
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value", "ignore:overflow")
@pytest.mark.parametrize(
    "state_dtype",
    [
        pytest.param(dtype, marks=TRITON_MARKS)
        for dtype in (torch.int8, *([torch.bfloat16, None] if ON_GPU else []))
    ],
    ids=str,
)
@pytest.mark.parametrize(("optimizer", "settings"), [*FORMS.values(), (FilterAdam, {})])
def test_so_they_do_in_triton(optimizer, settings, state_dtype):
    """Interpreted, which is slow, only with state in 8 bits, and only three steps."""
    pytest.importorskip("triton")
    steps = range(6) if ON_GPU else (0, 3, 1)
    assert_stays_finite(optimizer, settings, state_dtype, "fused", TRITON_DEVICE, steps)


@pytest.mark.parametrize("state_dtype", [None, torch.int8], ids=str)
@pytest.mark.parametrize("gain_power", [1.0, 0.0])
@pytest.mark.parametrize("fused", [None, False])
def test_the_filter_alone_keeps_finite_gradients_finite(fused, gain_power, state_dtype):
    p = torch.ones(16, 256, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=0.0)
    wiener = WienerFilter(optimizer, gain_power=gain_power, fused=fused, state_dtype=state_dtype)
    for step in range(6):
        p.grad = spiky(step)
        optimizer.step()
        assert_finite({"g": p.grad, "p": p, **wiener.state[p]}, step)


# --- small gradients ------------------------------------------------------------------------------


def error(build, magnitude, steps=20, n=2000):
    """Root mean square of float32 less float64, relative to the distance travelled."""
    generator = torch.Generator().manual_seed(0)
    p = torch.zeros(n, requires_grad=True)
    q = torch.zeros(n, dtype=torch.float64, requires_grad=True)
    narrow, wide = build([p]), build([q])
    for _ in range(steps):
        g = (magnitude * (0.3 + torch.randn(n, generator=generator))).float()
        p.grad, q.grad = g.clone(), g.double()
        narrow.step(), wide.step()
    distance = q.detach().square().mean().sqrt()
    return ((p.double() - q).detach().square().mean().sqrt() / distance).item()


@each_path
@pytest.mark.parametrize(
    "settings",
    [
        {"gain_scale": 0.0},
        {},
        {"second_moment": "derived"},
        {"second_moment": "derived", "gain_scale": 0.05, "gain_power": 0},
        {"second_moment": "fluctuation"},
    ],
    ids=str,
)
def test_tiny_gradients_are_followed_as_well_as_adam_does(settings, path):
    """Adam's squares are subnormal or 0 here: its error is 1e6 from 1e-18 on; derived: 0.01."""
    for magnitude in (1e-17, 1e-18, 1e-19, 1e-20):
        adam = error(lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-30), magnitude)
        ours = error(
            lambda p: FilterAdam(p, lr=0.01, eps=1e-30, **settings, **PATHS[path]), magnitude
        )
        assert ours <= max(1e-3, 1.5 * adam)
        if settings.get("second_moment") == "derived" and magnitude >= 1e-18:
            assert ours < 0.1  # its m^2 is not multiplied by 1 - b2 before it is stored
    assert error(lambda p: FilterAdam(p, lr=0.01, eps=0.0, **settings, **PATHS[path]), 1e-17) < 1e-3


def filtered(path, scale, dtype=torch.float32, steps=30):
    """The estimates of a run of gradients times `scale`, with K and without its eps."""
    generator = torch.Generator().manual_seed(0)
    p = torch.zeros(500, dtype=dtype, requires_grad=True)
    # The parameter after a step of lr 1 from 0 is the estimate, with its sign turned.
    optimizer = SGDF([p], lr=1.0, gain_eps=0.0, gain_scale=1.0, **PATHS[path])
    estimates = []
    for _ in range(steps):
        with torch.no_grad():
            p.zero_()
        p.grad = scale * (0.3 + torch.randn(500, generator=generator, dtype=torch.float64)).to(
            dtype
        )
        optimizer.step()
        estimates.append(-p.detach().clone())
    return torch.stack(estimates)


@each_path
def test_without_gain_eps_the_estimate_scales_with_the_gradients_exactly(path):
    """By a power of two: float32 from 2^-36 to 2^50, below which its smallest eps is felt."""
    plain = filtered(path, 1.0)
    for exponent in (-36, -10, 7, 50):
        scaled = filtered(path, 2.0**exponent)
        assert torch.equal(scaled, plain * 2.0**exponent), exponent
    plain = filtered(path, 1.0, torch.float64)
    for exponent in (-400, 400):
        scaled = filtered(path, 2.0**exponent, torch.float64)
        assert torch.equal(scaled, plain * 2.0**exponent), exponent


@pytest.mark.parametrize("kind", ["separate", "derived"])
def test_the_papers_eps_closes_the_gain_of_small_gradients_and_gain_eps_opens_it(kind):
    """1e-8 beside squares of 1e-6: the estimate is the average. The default of "derived" is 0."""

    def run(**settings):
        p = torch.zeros(500, dtype=torch.float64, requires_grad=True)
        optimizer = FilterAdam([p], lr=1.0, second_moment=kind, **settings)
        generator = torch.Generator().manual_seed(0)
        for _ in range(20):
            p.grad = 1e-6 * torch.randn(500, generator=generator, dtype=torch.float64)
            optimizer.step()
        return p.detach()

    def difference(**settings):
        return ((run(**settings) - average).norm() / average.norm()).item()

    average = run(gain_scale=0.0)
    assert difference(gain_eps=1e-8) < 1e-3
    assert difference(gain_eps=0.0) > 0.05
    assert (difference() < 1e-3) == (kind == "separate")
    assert (difference() == difference(gain_eps=0.0)) == (kind == "derived")
