"""State keeps its dtype, finds its device, and survives what checkpoints go through."""

import functools
import warnings
from copy import deepcopy

import pytest
import torch

from sgdf import SGDF, FilterAdam, FilterMuon, FilterSOAP, WienerFilter
from sgdf.filter import SECOND_MOMENTS
from stepping import advance, assert_bitwise, through_a_file


def trained(optimizer_class, dtype=torch.float32, steps=3, shapes=((4, 3), (5,)), **kwargs):
    torch.manual_seed(0)
    parameters = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]
    optimizer = optimizer_class(parameters, lr=0.1, **kwargs)
    advance(optimizer, steps)
    return optimizer


def parameters(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def moments(optimizer):
    return [
        state[key]
        for state in optimizer.state.values()
        for key in optimizer.moments_of(optimizer.param_groups[0])
    ]


def saved(optimizer):
    return through_a_file(optimizer.state_dict())


@pytest.mark.parametrize("requested", [torch.float32, torch.float64, torch.bfloat16])
def test_state_dtype_is_the_optimizers_choice_not_the_checkpoints(requested):
    checkpoint = saved(trained(SGDF, torch.bfloat16))
    optimizer = trained(SGDF, torch.bfloat16, steps=0, state_dtype=requested)
    optimizer.load_state_dict(checkpoint)
    assert {m.dtype for m in moments(optimizer)} == {requested}
    assert optimizer.param_groups[0]["state_dtype"] == requested
    advance(optimizer, 2)
    assert {m.dtype for m in moments(optimizer)} == {requested}


def test_a_checkpoint_of_another_parameter_dtype_follows_the_parameter():
    checkpoint = saved(trained(SGDF, torch.float64))
    optimizer = trained(SGDF, torch.float32, steps=0)
    optimizer.load_state_dict(checkpoint)
    assert {m.dtype for m in moments(optimizer)} == {torch.float32}
    advance(optimizer, 1)


def test_state_follows_the_parameter_to_its_device():
    checkpoint = saved(trained(FilterAdam))
    elsewhere = [torch.empty(4, 3, device="meta"), torch.empty(5, device="meta")]
    optimizer = FilterAdam(elsewhere)
    optimizer.load_state_dict(checkpoint)
    assert {m.device.type for m in moments(optimizer)} == {"meta"}
    assert {state["step"].device.type for state in optimizer.state.values()} == {"cpu"}
    capturable = FilterAdam([p.clone() for p in elsewhere], capturable=True)
    for group in checkpoint["param_groups"]:
        group["capturable"] = True
    capturable.load_state_dict(checkpoint)
    assert {state["step"].device.type for state in capturable.state.values()} == {"meta"}


def test_a_group_keeps_its_own_state_dtype():
    p, q, r = (torch.randn(16, 512, requires_grad=True) for _ in range(3))
    groups = [
        {"params": [p]},
        {"params": [q], "state_dtype": torch.bfloat16},
        {"params": [r], "state_dtype": None},
    ]
    optimizer = SGDF(groups, state_dtype=torch.int8)
    advance(optimizer, 2)
    optimizer.load_state_dict(saved(optimizer))
    dtypes = [optimizer.state[each]["exp_avg"].dtype for each in (p, q, r)]
    assert dtypes == [torch.int8, torch.bfloat16, torch.float32]


def test_state_put_there_by_a_wrapper_is_left_alone():
    p = torch.randn(3, requires_grad=True)
    optimizer = SGDF([p])
    optimizer.state[p]["shadow"] = torch.ones(3)
    advance(optimizer, 1)
    assert torch.equal(optimizer.state[p]["shadow"], torch.ones(3))
    assert set(optimizer.state[p]) == {"shadow", "step", "exp_avg", "exp_var"}


def test_a_moment_missing_from_an_older_checkpoint_starts_at_zero():
    optimizer = trained(FilterAdam)
    checkpoint = saved(optimizer)
    for state in checkpoint["state"].values():
        del state["exp_avg_sq"]
    optimizer.load_state_dict(checkpoint)
    advance(optimizer, 1)
    assert all("exp_avg_sq" in state for state in optimizer.state.values())


def test_an_older_pickle_gets_the_settings_it_lacks():
    optimizer = trained(SGDF)
    old = deepcopy(optimizer.__getstate__())
    for settings in (old["defaults"], *old["param_groups"]):
        del settings["gain_power"], settings["state_dtype"]
    revived = SGDF.__new__(SGDF)
    revived.__setstate__(old)
    assert revived.param_groups[0]["gain_power"] == 1.0
    advance(revived, 1)


def test_a_failed_load_leaves_the_optimizer_as_it_was():
    optimizer = trained(SGDF)
    before = deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict({"state": {}, "param_groups": []})
    with pytest.raises(ValueError, match="doesn't match the size"):
        optimizer.load_state_dict(trained(SGDF, shapes=((2,),)).state_dict())
    torch.testing.assert_close(optimizer.state_dict()["state"], before["state"], rtol=0, atol=0)
    assert not optimizer._optimizer_load_state_dict_pre_hooks
    assert not optimizer._optimizer_load_state_dict_post_hooks


def put(key, value):
    """A change of the first parameter's state."""
    return lambda checkpoint: checkpoint["state"][0].update({key: value})


def put_setting(name, value):
    return lambda checkpoint: checkpoint["param_groups"][0].update({name: value})


class InBlocks(torch.Tensor):
    """A tensor whose numbers are not its elements, as torchao's 8-bit states are."""


UNFIT = {
    "no step": (
        lambda checkpoint: checkpoint["state"][0].pop("step"),
        "parameter 0 has moments, but no step",
    ),
    "a format of its own": (
        put("exp_avg", torch.ones(64, 128).as_subclass(InBlocks)),
        r"exp_avg of parameter 0 is in a format of its own \(InBlocks\)",
    ),
    "a moment of another shape": (
        put("exp_avg", torch.zeros(1, 128)),
        r"loaded state dict: exp_avg of parameter 0 has shape \(1, 128\), expected \(64, 128\)",
    ),
    "a moment that is a number": (put("exp_var", 0.0), "exp_var of parameter 0 is not a tensor"),
    "a moment without values": (
        put("exp_var", torch.zeros(64, 128, device="meta")),
        "exp_var of parameter 0 is on the meta device",
    ),
    "codes without scales": (
        put("exp_avg", torch.zeros(64, 128, dtype=torch.int8)),
        "exp_avg of parameter 0 has dtype torch.int8 without exp_avg_scale",
    ),
    "scales without codes": (
        put("exp_avg_scale", torch.zeros(64, 1)),
        "exp_avg of parameter 0 has dtype torch.float32 with exp_avg_scale",
    ),
    "a negative step": (put("step", torch.tensor(-1.0)), r"invalid step of parameter 0: .*-1"),
    "a step that is no number": (put("step", float("nan")), "invalid step of parameter 0: nan"),
    "several steps": (put("step", torch.ones(2)), "invalid step of parameter 0"),
    "a step in words": (put("step", "3"), "invalid step of parameter 0: '3'"),
    "a sparse moment": (
        put("exp_avg", torch.zeros(64, 128).to_sparse()),
        "exp_avg of parameter 0 is sparse",
    ),
    "a sparse step": (put("step", torch.ones(1).to_sparse()), "invalid step of parameter 0"),
    "a complex step": (put("step", torch.tensor(1j)), "invalid step of parameter 0"),
}
UNFIT_SETTINGS = {
    "betas": (put_setting("betas", (1.5, -1)), "Invalid beta parameter at index 0: 1.5"),
    "lr": (put_setting("lr", -1.0), "Invalid learning rate: -1.0"),
    "fused": (put_setting("fused", "maybe"), "Invalid fused value: 'maybe'"),
}


def saver(filtered, **settings):
    """SGDF, or the filter in front of SGD, after three steps: the entries of both are the same."""
    optimizer = trained(torch.optim.SGD if filtered else SGDF, steps=0, **settings)
    wiener = WienerFilter(optimizer) if filtered else None
    advance(optimizer, 3)
    return wiener or optimizer


@pytest.mark.parametrize(
    ("unfit", "filtered"),
    [*((unfit, False) for unfit in UNFIT | UNFIT_SETTINGS), *((unfit, True) for unfit in UNFIT)],
)
def test_a_checkpoint_that_does_not_fit_changes_nothing(unfit, filtered):
    change, message = (UNFIT | UNFIT_SETTINGS)[unfit]
    keeper = saver(filtered, shapes=((64, 128), (5,)))
    before, checkpoint = deepcopy(keeper.state_dict()), deepcopy(keeper.state_dict())
    if not filtered:
        checkpoint["param_groups"][0]["eps"] = 0.5
    change(checkpoint)
    with pytest.raises(ValueError, match=message):
        keeper.load_state_dict(checkpoint)
    assert_bitwise(keeper.state_dict(), before)
    if not filtered:
        assert not keeper._optimizer_load_state_dict_pre_hooks
        assert not keeper._optimizer_load_state_dict_post_hooks


@pytest.mark.parametrize(
    ("key", "shape"), [("exp_avg", (1, 128)), ("exp_avg_scale", (1, 1)), ("exp_var_scale", (64,))]
)
def test_8_bit_state_of_another_shape_is_refused(key, shape):
    optimizer = trained(SGDF, shapes=((64, 128),), state_dtype=torch.int8)
    before, checkpoint = deepcopy(optimizer.state_dict()), deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(checkpoint)
    checkpoint["state"][0][key] = torch.zeros(shape, dtype=checkpoint["state"][0][key].dtype)
    for state_dtype in (torch.int8, None):
        optimizer.param_groups[0]["state_dtype"] = state_dtype
        with pytest.raises(ValueError, match=f"{key} of parameter 0 has shape"):
            optimizer.load_state_dict(checkpoint)
    torch.testing.assert_close(optimizer.state_dict(), before, rtol=0, atol=0)


def test_a_setting_missing_from_an_older_checkpoint_stays():
    checkpoint = saved(trained(SGDF, gain_power=0.25))
    del checkpoint["param_groups"][0]["gain_power"]
    optimizer = trained(SGDF, steps=0, gain_power=0.5)
    optimizer.param_groups[0]["initial_lr"] = 3.0  # a scheduler's: not a setting
    optimizer.load_state_dict(checkpoint)
    assert optimizer.param_groups[0]["gain_power"] == 0.5
    assert "initial_lr" not in optimizer.param_groups[0]


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("change", [lambda t: t.reshape(1), torch.Tensor.long, float, int])
def test_a_step_of_another_shape_or_type_is_a_step(change, filtered):
    keeper = saver(filtered)
    checkpoint = through_a_file(keeper.state_dict())
    for state in checkpoint["state"].values():
        state["step"] = change(state["step"])
    keeper.load_state_dict(checkpoint)
    advance(keeper.optimizer if filtered else keeper, 2)
    steps = [state["step"] for state in keeper.state.values()]
    assert {(step.shape, step.dtype, step.item()) for step in steps} == {
        (torch.Size([]), torch.float32, 5.0)
    }


UNCOUNTED = {
    "SGDF": SGDF,
    **{kind: functools.partial(FilterAdam, second_moment=kind) for kind in SECOND_MOMENTS},
    "FilterMuon": FilterMuon,
    "FilterSOAP": FilterSOAP,
}


@pytest.mark.parametrize("step", [0.0, torch.tensor(0.0)], ids=repr)
@pytest.mark.parametrize("name", UNCOUNTED)
def test_moments_of_no_steps_start_anew(name, step):
    """As if they were of one step they would be corrected to ten times what they are."""
    lengths = []
    for make in (UNCOUNTED[name],) * 2:
        optimizer = trained(make, steps=0, shapes=((8, 6),))
        if not lengths:
            checkpoint = saved(trained(make, steps=40, shapes=((8, 6),)))
            checkpoint["state"][0]["step"] = step
            with pytest.warns(UserWarning, match="moments and steps start anew"):
                optimizer.load_state_dict(checkpoint)
            assert not optimizer.state
        advance(optimizer, 3)
        lengths.append([p.detach().clone() for p in parameters(optimizer)])
    assert_bitwise(*lengths)


def test_moments_of_no_steps_start_anew_in_front_of_another_optimizer():
    keeper = saver(True)
    checkpoint = through_a_file(keeper.state_dict())
    checkpoint["state"][0]["step"] = torch.tensor(0.0)
    with pytest.warns(UserWarning, match="1 of its parameters .* start anew"):
        keeper.load_state_dict(checkpoint)
    assert len(keeper.state) == 1


def test_a_state_that_only_was_created_is_loaded_without_a_word():
    optimizer = trained(FilterAdam, steps=0)
    for p in parameters(optimizer):
        optimizer.state[p] = {
            "step": torch.tensor(0.0),
            **{key: torch.zeros_like(p) for key in ("exp_avg", "exp_var", "exp_avg_sq")},
        }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.load_state_dict(saved(optimizer))
    assert len(optimizer.state) == 2


@pytest.mark.parametrize("filtered", [False, True])
def test_moments_that_are_not_finite_are_said(filtered):
    """float16, which early versions took as a state_dtype, ends at 65504."""
    keeper = saver(filtered)
    checkpoint = through_a_file(keeper.state_dict())
    checkpoint["state"][0]["exp_var"] = torch.full((4, 3), 1e5).half()
    with pytest.warns(UserWarning, match="1 of its parameters have moments that are not finite"):
        keeper.load_state_dict(checkpoint)


def test_hooks_can_mend_a_checkpoint_before_it_is_checked():
    optimizer = trained(SGDF)
    checkpoint = saved(optimizer)
    checkpoint["param_groups"][0]["betas"] = (1.5, 0.9)

    def mend(_, state_dict):
        groups = [{**group, "betas": (0.5, 0.9)} for group in state_dict["param_groups"]]
        return {**state_dict, "param_groups": groups}

    optimizer.register_load_state_dict_pre_hook(mend)
    optimizer.load_state_dict(checkpoint)
    assert optimizer.param_groups[0]["betas"] == (0.5, 0.9)


@pytest.mark.parametrize(
    "change",
    [
        lambda saved: [1],
        lambda saved: {**saved, "param_groups": [{"lr": 0.1}]},
        lambda saved: saved["state"][0].update(exp_avg=torch.ones(3, dtype=torch.complex64)),
        lambda saved: saved["state"][0].update(
            exp_avg=torch.nested.nested_tensor([torch.ones(3)], layout=torch.strided)
        ),
    ],
)
def test_what_is_no_state_dict_is_refused_with_a_sentence(change):
    p = torch.ones(3, requires_grad=True)
    optimizer = SGDF([p])
    p.grad = torch.ones(3)
    optimizer.step()
    saved = optimizer.state_dict()
    with pytest.raises(ValueError, match="loaded state dict"):
        optimizer.load_state_dict(change(saved) or saved)
