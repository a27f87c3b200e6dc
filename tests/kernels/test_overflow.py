"""Gradients whose squares overflow: the steps are as long as any others.

`filter.without_overflow` says why. Every path of torch, Triton's interpreter, and JAX.
"""

import itertools
import math

import pytest
import torch

from reference import FORMS, Reference, numpy
from sgdf import SGDF, FilterAdam, FilterAdamW, WienerFilter
from sgdf.filter import FLOAT32

PATHS = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "capturable": {"foreach": False, "capturable": True},
    "differentiable": {"differentiable": True},
    "C++": {"fused": True},
    "8 bits, loop": {"foreach": False, "state_dtype": torch.int8},
    "8 bits, C++": {"fused": True, "state_dtype": torch.int8},
    "Triton": {"fused": True},
    "8 bits, Triton": {"fused": True, "state_dtype": torch.int8},
}
HUGE = (1e15, 1e17, 1e20, 1e25, -1e30, 3e38, math.inf, -math.inf)
LARGE = 1e10  # squares are far from overflowing
LR = 0.1
KINDS = ("separate", "derived", "fluctuation")
#: Where the spike comes: in the first step, and after some ordinary ones.
RUNS = ([LARGE, 1.0, 1.0, 1.0, 1.0], [1.0, -0.5, 1.0, LARGE, 1.0, 0.5, 1.0])
FORMS_OF_ADAM = {
    "separate": (FilterAdam, {}),
    "separate, K^0.5": (FilterAdamW, {"gain_scale": 1.0, "gain_power": 0.5}),
    **{name: form for name, form in FORMS.items() if form[0] is not SGDF},
}
FORMS_IN_JAX = FORMS_OF_ADAM | {
    "uncorrected": (FilterAdam, {"correction": False}),
    "SGDF": (SGDF, {}),
    **{name: form for name, form in FORMS.items() if form[0] is SGDF},
}
each_path = pytest.mark.parametrize("path", PATHS)


@pytest.fixture
def _path(path, request):
    if "Triton" in path:
        pytest.importorskip("triton")
        request.getfixturevalue("triton_on_the_cpu")


def zeros(flags, dtype=torch.float32):
    """A parameter, as small as its state allows."""
    shape = (16, 256) if "state_dtype" in flags else (4, 8)
    return torch.zeros(shape, dtype=dtype, requires_grad=not flags.get("differentiable"))


def step(optimizer, p, g):
    p.grad = torch.full_like(p, g)
    optimizer.step()


def steps_of(optimizer_class, settings, flags, run, spike, dtype=torch.float32):
    """The parameter's movement in every step, in units of lr; the state stays finite."""
    p = zeros(flags, dtype)
    optimizer = optimizer_class([p], lr=LR, weight_decay=0.0, **settings, **flags)
    moves = []
    for g in run:
        before = p.detach().clone()
        step(optimizer, p, spike if g == LARGE else g)
        moves.append((before - p.detach())[3, 7].item() / LR)
        assert all(value.double().isfinite().all() for value in optimizer.state[p].values())
    return moves


#: In Triton's interpreter, which is slow, a form for every second moment.
ONE_OF_EACH = ("separate", "FilterAdamW, derived", "FilterAdam, fluctuation")
PATHS_AND_FORMS = [
    (path, form)
    for path in PATHS
    for form in (ONE_OF_EACH if path == "8 bits, Triton" else FORMS_OF_ADAM)
]


@pytest.mark.usefixtures("_path")
@pytest.mark.parametrize("run", RUNS, ids=["first", "later"])
@pytest.mark.parametrize(("path", "form"), PATHS_AND_FORMS)
def test_the_steps_are_those_after_any_large_gradient(path, form, run):
    """Bounded by a few lr, at the spike and after it, and the same for every size of spike."""
    cls, settings = FORMS_OF_ADAM[form]
    rel = 0.2 if "8 bits" in path else 1e-3  # in 8 bits moments are rounded at random
    spikes = HUGE if "Triton" not in path else (math.inf,)  # the interpreter is slow
    ordinary = steps_of(cls, settings, PATHS[path], run, LARGE)
    for spike in spikes:
        sign = math.copysign(1.0, spike)
        expected = steps_of(cls, settings, PATHS[path], run, sign * LARGE) if sign < 0 else ordinary
        moves = steps_of(cls, settings, PATHS[path], run, spike)
        assert max(map(abs, moves)) < 10, spike
        assert moves == pytest.approx(expected, rel=rel, abs=rel), spike


@pytest.mark.parametrize("run", RUNS, ids=["first", "later"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", ["loop", "foreach", "C++"])
def test_so_are_those_in_float64(path, kind, run):
    settings, options = {"second_moment": kind}, {"dtype": torch.float64}
    expected = steps_of(FilterAdam, settings, PATHS[path], run, LARGE, **options)
    for spike in (1e150, 1e200, 1e308, math.inf):
        moves = steps_of(FilterAdam, settings, PATHS[path], run, spike, **options)
        assert moves == pytest.approx(expected, rel=1e-3, abs=1e-3), spike


@pytest.mark.parametrize("path", [path for path in PATHS if "Triton" not in path])
def test_training_goes_on_after_it(path):
    """v decays again: with b2 = 0.5, 300 steps later nothing is left of the spike.

    Triton's interpreter would take minutes; its moments are compared above.
    """
    flags = {**PATHS[path], "betas": (0.5, 0.5)}
    for cls, settings in ((SGDF, {}), *((FilterAdam, {"second_moment": kind}) for kind in KINDS)):
        p = zeros(flags)
        optimizer = cls([p], lr=0.0 if cls is SGDF else LR, **settings, **flags)
        for t in range(300):
            step(optimizer, p, math.inf if t == 0 else 1.0 + t % 2)
        for key in optimizer.moments_of(optimizer.param_groups[0]):
            assert optimizer.state[p][key].float().abs().max() < 300, (settings, key)


#: What divides by nothing: SGDF, and its forms.
UNDIVIDED = {"SGDF": {}} | {name: form[1] for name, form in FORMS.items() if form[0] is SGDF}


@pytest.mark.usefixtures("_path")
@pytest.mark.parametrize("run", RUNS, ids=["first", "later"])
@pytest.mark.parametrize("form", UNDIVIDED)
@each_path
def test_without_a_division_an_overflow_brings_no_news(path, form, run):
    """The average stands in for it: m stays, and the step is like the others."""
    settings = UNDIVIDED[form]
    spikes = [g for g in HUGE if abs(g) > 4e16] if "Triton" not in path else (-math.inf,)
    for spike in spikes:
        moves = steps_of(SGDF, settings, PATHS[path], run, spike)
        assert max(map(abs, moves)) < 2, spike
        p = torch.zeros(1, requires_grad=True)
        beside = Reference(SGDF([p], lr=LR, **settings), numpy(p), numbers=FLOAT32)
        at = [0.0]
        for g in run:
            beside.step([spike if g == LARGE else g])
            at.append(-beside.p.item() / LR)
        expected = [after - before for before, after in itertools.pairwise(at)]
        rel = 0.2 if "8 bits" in path else 1e-4
        assert moves == pytest.approx(expected, rel=rel, abs=rel), spike
        if run[0] == LARGE:
            assert moves[0] == 0, "nothing is known yet"


@pytest.mark.usefixtures("_path")
@each_path
def test_without_a_division_an_ordinary_gradient_is_followed_whatever_its_size(path):
    for spike in (1e-12, 1e12, 1e16):
        (first,) = steps_of(SGDF, {"gain_eps": 0.0}, PATHS[path], [LARGE], spike)
        assert first == pytest.approx(spike, rel=0.2 if "8 bits" in path else 1e-3)


@pytest.mark.usefixtures("_path")
@each_path
def test_nan_is_not_hidden(path):
    """In 8 bits it takes its block with it."""
    for settings in ({}, {"second_moment": "derived"}):
        p = zeros(PATHS[path])
        optimizer = FilterAdam([p], **settings, **PATHS[path])
        p.grad = torch.ones_like(p)
        p.grad[3, 7] = math.nan
        optimizer.step()
        finite = p.isfinite()
        assert not finite[3, 7]
        assert finite[:3].all()


@pytest.mark.parametrize("state_dtype", [None, torch.int8], ids=str)
@pytest.mark.parametrize("path", ["loop", "C++", "Triton"])
@pytest.mark.usefixtures("_path")
def test_the_filter_in_front_of_adam(path, state_dtype):
    """What it gives to the next optimizer is finite, and its square does not overflow."""
    p = zeros({"state_dtype": state_dtype} if state_dtype else {})
    optimizer = torch.optim.Adam([p], lr=LR)
    fused = False if path == "loop" else None
    wiener = WienerFilter(optimizer, fused=fused, state_dtype=state_dtype)
    for g in RUNS[1]:
        before = p.detach().clone()
        step(optimizer, p, math.inf if g == LARGE else g)
        assert p.grad.square().isfinite().all()
        assert ((p - before).abs() < 10 * LR).all()
        assert all(value.float().isfinite().all() for value in wiener.state[p].values())


@pytest.mark.parametrize("run", RUNS, ids=["first", "later"])
@pytest.mark.parametrize(("cls", "settings"), FORMS_IN_JAX.values(), ids=FORMS_IN_JAX)
def test_jax_takes_the_same_steps(cls, settings, run):
    jax = pytest.importorskip("jax")
    optax = pytest.importorskip("optax")
    from sgdf.optax import filter_adam, sgdf

    optimizer = (sgdf if cls is SGDF else filter_adam)(LR, **settings)
    update = jax.jit(optimizer.update)
    for spike in HUGE[1::2]:
        expected = steps_of(cls, settings, PATHS["loop"], run, spike)
        p, moves = jax.numpy.zeros(()), []
        state = optimizer.init(p)
        for g in run:
            change, state = update(jax.numpy.asarray(spike if g == LARGE else g), state, p)
            before, p = p, optax.apply_updates(p, change)
            moves.append(float(before - p) / LR)
            assert all(bool(jax.numpy.isfinite(leaf)) for leaf in jax.tree.leaves(state))
        largest = max(map(abs, expected)) if cls is SGDF else 1.0
        assert moves == pytest.approx(expected, rel=1e-4, abs=1e-4 * largest), spike
