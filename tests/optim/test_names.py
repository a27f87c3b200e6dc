"""Names that are not settings: torch's SGD's are converted in words, misspelt ones refused."""

import re
import warnings
from copy import deepcopy

import pytest
import torch
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR
from torch.optim.swa_utils import SWALR

from reference import OPTIMIZERS
from sgdf import SGDF, FilterAdam, FilterAdamW, Momentum


def parameter():
    return torch.ones(3, dtype=torch.float64, requires_grad=True)


def trajectory(optimizer, steps=20):
    generator = torch.Generator().manual_seed(0)
    (p,) = optimizer.param_groups[0]["params"]
    path = []
    for _ in range(steps):
        p.grad = torch.randn(3, generator=generator, dtype=torch.float64)
        optimizer.step()
        path.append(p.detach().clone())
    return torch.stack(path)


CONVERTED = [
    (
        SGDF,
        {"momentum": 0.9},
        "SGDF has no setting 'momentum': .* use SGDF(lr=lr / (1 - 0.9), betas=(0.9, 0.999))",
    ),
    (SGDF, {"momentum": 0.9, "nesterov": False, "dampening": 0}, "no setting 'momentum'"),
    (SGDF, {"momentum": 0.0}, "SGDF(lr=lr / (1 - 0.0), betas=(0.0, 0.999))"),
    (SGDF, {"nesterov": True}, "gain_scale=1 - b, gain_power=0, bias_correction=False"),
    (SGDF, {"momentum": 0.8, "nesterov": True}, "gain_scale=1 - 0.8, gain_power=0, bias_correct"),
    (SGDF, {"momentum": 0.9, "dampening": 0.5}, "SGDF(lr=lr * (1 - 0.5) / (1 - 0.9), betas=(0.9"),
    (FilterAdam, {"momentum": 0.8}, "FilterAdam has no setting 'momentum': use betas=(0.8, 0.999)"),
    (FilterAdamW, {"nesterov": True}, "FilterAdamW has no setting 'nesterov': use betas=(b, 0.99"),
    (FilterAdamW, {"dampening": 0.1}, "FilterAdamW has no setting 'dampening': leave it out"),
    (Momentum, {"momentum": 0.9}, "Momentum has no setting 'momentum': use beta=0.9"),
    (Momentum, {"dampening": 0.1}, "Momentum has no setting 'dampening': use mu=1 - 0.1"),
    (
        Momentum,
        {"nesterov": True},
        "Momentum has no setting 'nesterov': .* is SGDF(lr=lr / (1 - b)",
    ),
]


@pytest.mark.parametrize(("optimizer_class", "settings", "message"), CONVERTED)
def test_settings_of_sgd_are_answered_with_their_conversion(optimizer_class, settings, message):
    message = re.escape(message).replace(r"\.\*", ".*").replace(r"\ ", " ")
    with pytest.raises(TypeError, match=message):
        optimizer_class([parameter()], lr=0.1, **settings)
    with pytest.raises(TypeError, match=message):
        optimizer_class([{"params": [parameter()], **settings}])


@pytest.mark.parametrize("optimizer_class", [FilterAdam, FilterAdamW])
def test_amsgrad_may_be_spelt_out_as_off(optimizer_class):
    """As configurations do for Adam."""
    optimizer = optimizer_class([{"params": [parameter()], "amsgrad": False}], amsgrad=False)
    assert "amsgrad" not in optimizer.param_groups[0]
    for given in ({"amsgrad": True}, {"amsgrad": 1}):
        with pytest.raises(TypeError, match="no setting 'amsgrad': leave it out"):
            optimizer_class([parameter()], **given)
        with pytest.raises(TypeError, match="no setting 'amsgrad': leave it out"):
            optimizer.add_param_group({"params": [parameter()], **given})
    with pytest.raises(TypeError, match="amsgrad"):
        SGDF([parameter()], amsgrad=False)


EXPLAINED = [
    (SGDF, {"stochastic_rounding": True}, torch.float32, "it has no effect"),
    (SGDF, {"stochastic_rounding": True}, torch.bfloat16, None),
    (FilterAdamW, {"stochastic_rounding": True}, torch.float32, "it has no effect"),
    (SGDF, {"weight_decay": 0.1}, torch.float32, "removes 5.0% of the weights in every step"),
    (SGDF, {"weight_decay": 5e-4}, torch.float32, None),
    (FilterAdamW, {"weight_decay": 0.1}, torch.float32, None),
]


@pytest.mark.parametrize(("optimizer_class", "settings", "dtype", "message"), EXPLAINED)
def test_what_has_no_effect_or_too_much_is_explained_once(
    optimizer_class, settings, dtype, message
):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        params = [torch.ones(3, dtype=dtype, requires_grad=True) for _ in range(3)]
        optimizer = optimizer_class([{"params": [p]} for p in params], **settings)
    assert [message in str(w.message) for w in caught] == ([True] if message else [])
    assert all(w.filename == __file__ for w in caught)
    assert len(optimizer.param_groups) == 3


def conversion_in(**settings):
    """The expression that the error for SGD's settings proposes, built."""
    with pytest.raises(TypeError) as refused:
        SGDF([parameter()], **settings)
    call = str(refused.value)[str(refused.value).rindex("SGDF(") :]
    return eval(
        call.replace("SGDF(", "SGDF([p], ", 1), {"SGDF": SGDF, "p": parameter(), "lr": 0.01}
    )


def test_the_conversion_of_nesterovs_momentum_is_exact():
    theirs = torch.optim.SGD([parameter()], lr=0.01, momentum=0.8, nesterov=True)
    torch.testing.assert_close(
        trajectory(conversion_in(momentum=0.8, nesterov=True)), trajectory(theirs)
    )


@pytest.mark.parametrize("dampening", [{}, {"dampening": 0.5}])
def test_the_conversion_of_momentum_has_its_step(dampening):
    """On a constant gradient, both end with the same step."""
    ours = conversion_in(momentum=0.8, **dampening)
    ours.param_groups[0].update(gain_scale=0.0, bias_correction=False)
    theirs = torch.optim.SGD([parameter()], lr=0.01, momentum=0.8, **dampening)
    p, q = (o.param_groups[0]["params"][0] for o in (ours, theirs))
    for _ in range(200):
        before = p.detach().clone(), q.detach().clone()
        p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
        ours.step(), theirs.step()
    torch.testing.assert_close(p - before[0], q - before[1])


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_an_unknown_argument_is_refused_as_python_does(optimizer_class):
    with pytest.raises(TypeError, match="unexpected keyword argument 'rate'"):
        optimizer_class([parameter()], rate=0.1)


MISSPELT = {
    "weight_deacy": "weight_decay",
    "weigth_decay": "weight_decay",
    "weight-decay": "weight_decay",
    "weightDecay": "weight_decay",
    "LR": "lr",
    "esp": "eps",
    "beta": "betas",
    "beta1": "betas",
    "gain_scal": "gain_scale",
    "maximise": "maximize",
    "fuse": "fused",
}


@pytest.mark.parametrize("name", MISSPELT)
def test_a_misspelt_setting_of_a_group_is_refused_with_the_near_name(name):
    message = f"SGDF has no setting '{name}': did you mean {MISSPELT[name]}\\?"
    with pytest.raises(TypeError, match=message):
        SGDF([{"params": [parameter()], name: 0}])
    optimizer = SGDF([parameter()])
    with pytest.raises(TypeError, match=message):
        optimizer.add_param_group({"params": [parameter()], name: 0})
    assert len(optimizer.param_groups) == 1


def test_a_group_without_params_is_told_which_key_is_near():
    with pytest.raises(TypeError, match="no setting 'param': did you mean params"):
        SGDF([{"param": [parameter()]}])


#: Keys that schedulers, trainers and other libraries put into groups.
FOREIGN = [
    *("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr", "swa_anneal"),
    *("lr_scale", "lr_mult", "wd_mult", "decay_mult", "lr_multiplier", "wd_multiplier", "base_lr"),
    *("weight_decay_mult", "weight_decay_scale", "initial_weight_decay", "base_weight_decay"),
    *("name", "group_name", "param_group_name", "layer_name", "is_last_layer", "moe", "use_muon"),
    *("is_expert_parallel", "is_decoupled_lr", "pre_wd_mult", "default_config", "rank", "scale"),
    *("update_proj_gap", "proj_type", "weight_sum", "scheduled_lr", "lr_max", "train_mode"),
]


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_keys_of_other_libraries_pass(optimizer_class):
    groups = [{"params": [parameter()], **dict.fromkeys(FOREIGN, 1.0)}]
    optimizer = optimizer_class(groups, lr=0.1)
    assert optimizer.param_groups[0]["lr_scale"] == 1.0
    trajectory(optimizer, 2)
    twin = optimizer_class([parameter()], lr=0.1)
    twin.load_state_dict(deepcopy(optimizer.state_dict()))
    assert set(FOREIGN) <= set(twin.param_groups[0])


def test_keys_added_after_construction_pass():
    optimizer = SGDF([parameter()])
    optimizer.param_groups[0]["weight_deacy"] = 0.0  # a trainer's own, whatever its name
    trajectory(optimizer, 1)
    SGDF([parameter()]).load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("cycled", [True, False])
def test_one_cycle_moves_the_first_beta_unless_told_not_to(cycled):
    """As it does with Adam's."""
    optimizer = SGDF([parameter()])
    scheduler = OneCycleLR(optimizer, max_lr=0.5, total_steps=10, cycle_momentum=cycled)
    seen = []
    for _ in range(10):
        seen.append(optimizer.param_groups[0]["betas"])
        assert trajectory(optimizer, 1).isfinite().all()
        scheduler.step() if len(seen) < 10 else None
    assert {b2 for _, b2 in seen} == {0.999}
    first = [b1 for b1, _ in seen]
    limits = (min(first), max(first))
    assert limits == (pytest.approx((0.85, 0.95)) if cycled else (0.9, 0.9))
    state = deepcopy(optimizer.state_dict())
    twin = SGDF([parameter()])
    twin.load_state_dict(state)
    assert twin.param_groups[0]["max_lr"] == 0.5


def test_other_schedulers_add_their_keys():
    optimizer = SGDF([parameter()], lr=0.1)
    CyclicLR(optimizer, 0.01, 0.1, cycle_momentum=False)
    SWALR(optimizer, swa_lr=0.05)
    trajectory(optimizer, 1)
    SGDF([parameter()]).load_state_dict(optimizer.state_dict())
