"""FilterAdamW's default does not depend on the magnitude of gradients; others say if it closes."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from sgdf import SGDF, FilterAdam, FilterAdamW
from sgdf.filter import DEFAULT_FORM, FilterSettings
from sgdf.optim.closed_gain import CHECKED, warn_if_closed
from stepping import PATHS, each_path, filtered_sgd, through_a_file


def gradient(shape, generator):
    """Noise about 0.2, none of it near 0, where Adam's own eps of 1e-8 would be felt."""
    g = 0.2 + torch.randn(shape, generator=generator, dtype=torch.float64)
    return g + 0.5 * g.sign()


def steps_of(optimizer, scale=1.0, steps=10, seed=0):
    generator = torch.Generator().manual_seed(seed)
    (p,) = optimizer.param_groups[0]["params"]
    moves = []
    for _ in range(steps):
        before = p.detach().clone()
        p.grad = (scale * gradient(p.shape, generator)).to(p.dtype)
        optimizer.step()
        moves.append(p.detach() - before)
    return torch.stack(moves)


def zeros(dtype=torch.float32, shape=(200,)):
    return torch.zeros(shape, dtype=dtype, requires_grad=True)


@each_path
@given(st.integers(-6, 6).map(lambda exponent: 10.0**exponent), st.integers(0, 1000))
@settings(deadline=None, max_examples=10)
def test_the_default_takes_the_same_steps_whatever_the_scale_of_the_gradients(path, scale, seed):
    def run(scale, **options):
        optimizer = FilterAdamW([zeros()], **options, **PATHS[path])
        return steps_of(optimizer, scale, seed=seed)

    assert (run(scale) - run(1.0)).norm() < 0.02 * run(1.0).norm()
    torch.testing.assert_close(run(scale, eps=0.0), run(1.0, eps=0.0), rtol=2e-3, atol=1e-6)


def test_the_form_is_decided_in_one_place():
    group = FilterAdamW([zeros()]).param_groups[0]
    assert {name: group[name] for name in DEFAULT_FORM._fields} == DEFAULT_FORM._asdict()
    papers = FilterAdam([zeros()]).param_groups[0]
    assert (papers["gain_scale"], papers["second_moment"], papers["gain_eps"]) == (
        2.0,
        "separate",
        None,
    )


# --- checkpoints ----------------------------------------------------------------------------------


@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize("form", ["separate", "derived"])
def test_an_old_checkpoint_keeps_the_settings_it_was_saved_with(form, absent, monkeypatch):
    """Whatever the default is now: 0.1.0 saved `gain_eps=None`, versions before it nothing."""
    now = "derived" if form == "separate" else "separate"
    monkeypatch.setattr(FilterAdamW, "default_second_moment", now)
    old = FilterAdamW([zeros()], gain_eps=None, second_moment=form, gain_scale=1.5)
    steps_of(old, scale=1e-4)
    checkpoint = through_a_file(old.state_dict())
    if absent:
        del checkpoint["param_groups"][0]["gain_eps"]
    p = old.param_groups[0]["params"][0].detach().clone().requires_grad_()
    new = FilterAdamW([p])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new.load_state_dict(checkpoint)
    group = new.param_groups[0]
    assert (group["gain_eps"], group["second_moment"], group["gain_scale"]) == (None, form, 1.5)
    ours, theirs = steps_of(new, scale=1e-4, seed=1), steps_of(old, scale=1e-4, seed=1)
    assert torch.equal(ours, theirs)


@pytest.mark.filterwarnings("ignore:loaded a state of")
def test_a_form_that_the_user_names_is_not_changed_by_a_checkpoint():
    source = FilterAdamW([zeros()], second_moment="derived")
    steps_of(source)
    for named in ({"second_moment": "separate"}, {"second_moment": "fluctuation"}):
        for make in (
            lambda named=named: FilterAdamW([zeros()], **named),
            lambda named=named: FilterAdamW([{"params": [zeros()], **named}]),
        ):
            if make().param_groups[0]["second_moment"] == FilterAdamW.default_second_moment:
                continue
            optimizer = make()
            optimizer.load_state_dict(source.state_dict())
            assert optimizer.param_groups[0]["second_moment"] == named["second_moment"]


# --- a gain that is closed ------------------------------------------------------------------------


def warned(optimizer, scale, steps=CHECKED[1]):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        steps_of(optimizer, scale, steps)
    return [str(w.message) for w in caught if "gain_eps=0" in str(w.message)]


@pytest.mark.parametrize("make", [SGDF, FilterAdam, filtered_sgd])
@pytest.mark.parametrize("state_dtype", [None, torch.int8], ids=str)
def test_a_closed_gain_is_said_once(make, state_dtype):
    shape = (16, 256)
    assert len(warned(make([zeros(shape=shape)], state_dtype=state_dtype), 1e-6)) == 1
    assert not warned(make([zeros(shape=shape)], state_dtype=state_dtype), 1e-2)
    assert not warned(make([zeros(shape=shape)], state_dtype=state_dtype, gain_eps=0.0), 1e-6)
    assert not warned(make([zeros(shape=shape)], state_dtype=state_dtype, gain_power=0), 1e-6)


def test_the_default_has_nothing_to_warn_of_and_gradients_of_zero_neither():
    assert not warned(FilterAdamW([zeros()]), 1e-6)
    assert not warned(SGDF([zeros()]), 0.0)
    assert warned(FilterAdamW([zeros()], gain_eps=1e-8), 1e-6)


@pytest.mark.parametrize("make", [SGDF, FilterAdam, filtered_sgd])
@pytest.mark.parametrize("fake", [False, True])
def test_tensors_without_values_are_not_asked(make, fake):
    """As trainers step them, to plan memory."""
    with FakeTensorMode() if fake else torch.device("meta"):
        p = torch.zeros(16, 256, requires_grad=True)
        optimizer = make([p])
        for _ in range(CHECKED[0] + 1):
            p.grad = torch.zeros(16, 256)
            optimizer.step()


def test_neither_compiled_nor_captured_steps_look_at_the_gain(monkeypatch):
    def never(*_, **__):
        pytest.fail("looked at the gain")

    monkeypatch.setattr("sgdf.optim.closed_gain.share_left", never)
    monkeypatch.setattr("sgdf.optim.optimizer.warn_if_closed", never)
    optimizer = SGDF([zeros()], lr=torch.tensor(0.1), foreach=True)
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(CHECKED[0] + 1):
        optimizer.param_groups[0]["params"][0].grad = torch.full((200,), 1e-6)
        step()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    p = zeros()
    rules = [(FilterSettings(), [p])]
    assert not warn_if_closed("SGDF", rules, {p: {"exp_var": p, "step": torch.ones(())}}, 1)


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("saved", "loaded", "bytes_of"),
    [
        ({"state_dtype": torch.int8}, {}, ("3.05", "12")),
        ({"second_moment": "derived"}, {"second_moment": "separate"}, ("8", "12")),
        ({"second_moment": "derived", "state_dtype": torch.int8}, {}, ("2.03", "8")),
        ({}, {"state_dtype": torch.bfloat16}, ("12", "6")),
    ],
)
def test_a_checkpoint_that_takes_another_amount_of_memory_says_so_once(saved, loaded, bytes_of):
    shape = (16, 256)
    source = FilterAdam([zeros(shape=shape)], **saved)
    steps_of(source)
    with pytest.warns(UserWarning, match="bytes per parameter") as caught:
        FilterAdam([zeros(shape=shape)], **loaded).load_state_dict(source.state_dict())
    (warning,) = caught
    assert warning.filename == __file__
    before, after = bytes_of
    assert f" {before} bytes" in str(warning.message)
    assert f" {after} with" in str(warning.message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FilterAdam([zeros(shape=shape)], **saved).load_state_dict(source.state_dict())
