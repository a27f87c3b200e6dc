"""Invalid settings are refused, by name and value, before any parameter changes."""

import math

import pytest
import torch
from torch import nn

from reference import OPTIMIZERS
from sgdf import SGDF, FilterAdam, Momentum, WienerFilter

BAD = [
    (SGDF, {"lr": -0.1}, "Invalid learning rate: -0.1"),
    (SGDF, {"lr": math.nan}, "Invalid learning rate: nan"),
    (SGDF, {"lr": torch.tensor([0.1, 0.2])}, "Tensor lr must be 1-element"),
    (SGDF, {"betas": (1.0, 0.999)}, "Invalid beta parameter at index 0: 1.0"),
    (SGDF, {"betas": (0.9, -0.1)}, "Invalid beta parameter at index 1: -0.1"),
    (SGDF, {"eps": -1.0}, "Invalid epsilon value: -1.0"),
    (SGDF, {"weight_decay": -1.0}, "Invalid weight_decay value: -1.0"),
    (SGDF, {"gain_scale": -1.0}, "Invalid gain_scale value: -1.0"),
    (FilterAdam, {"gain_power": -1}, "Invalid gain_power value: -1"),
    (SGDF, {"gain_power": -1.0}, "Invalid gain_power value: -1.0"),
    (SGDF, {"gain_power": math.nan}, "Invalid gain_power value: nan"),
    (SGDF, {"gain_eps": -1.0}, "Invalid gain_eps value: -1.0"),
    (FilterAdam, {"second_moment": "Derived"}, "Invalid second_moment value .*: 'Derived'"),
    (
        FilterAdam,
        {"second_moment": "derived", "betas": (0, 0.9)},
        "second_moment='derived' needs a beta parameter at index 0 above 0",
    ),
    (FilterAdam, {"state_dtype": torch.int64}, "Invalid state_dtype value .*: torch.int64"),
    (Momentum, {"beta": 1.5}, "Invalid beta value: 1.5"),
    (Momentum, {"mu": -1}, "Invalid mu value: -1"),
    # What is not a number, or neither True nor False.
    (SGDF, {"lr": "0.1"}, "Invalid learning rate: '0.1'"),
    (SGDF, {"lr": None}, "Invalid learning rate: None"),
    (SGDF, {"betas": None}, "Invalid betas value: None"),
    (SGDF, {"betas": 0.9}, "Invalid betas value: 0.9"),
    (FilterAdam, {"betas": (0.9, 0.99, 0.999)}, r"Invalid betas value: \(0.9, 0.99, 0.999\)"),
    (SGDF, {"betas": ("0.9", 0.999)}, "Invalid beta parameter at index 0: '0.9'"),
    (SGDF, {"eps": "x"}, "Invalid epsilon value: 'x'"),
    (SGDF, {"weight_decay": None}, "Invalid weight_decay value: None"),
    (SGDF, {"gain_scale": "x"}, "Invalid gain_scale value: 'x'"),
    (SGDF, {"gain_power": torch.ones(2)}, "Invalid gain_power value"),
    (SGDF, {"correction": "yes"}, "Invalid correction value: 'yes'"),
    (SGDF, {"fused": "maybe"}, "Invalid fused value: 'maybe'"),
    (SGDF, {"foreach": "False"}, "Invalid foreach value: 'False'"),
    (SGDF, {"maximize": "no"}, "Invalid maximize value: 'no'"),
    (SGDF, {"capturable": None}, "Invalid capturable value: None"),
    (SGDF, {"differentiable": "true"}, "Invalid differentiable value: 'true'"),
    (SGDF, {"stochastic_rounding": "false"}, "Invalid stochastic_rounding value: 'false'"),
    (SGDF, {"decoupled_weight_decay": 2}, "Invalid decoupled_weight_decay value: 2"),
    (SGDF, {"rounding_seed": "x"}, "Invalid rounding_seed value: 'x'"),
    (SGDF, {"rounding_seed": 0.5}, "Invalid rounding_seed value: 0.5"),
    (Momentum, {"beta": "x"}, "Invalid beta value: 'x'"),
    (Momentum, {"mu": None}, "Invalid mu value: None"),
    (Momentum, {"differentiable": "true"}, "Invalid differentiable value: 'true'"),
]


def one_parameter():
    p = torch.ones(3, requires_grad=True)
    p.grad = torch.ones(3)
    return p


@pytest.mark.parametrize(("optimizer_class", "settings", "message"), BAD)
def test_bad_settings_are_refused_at_construction_and_in_groups(optimizer_class, settings, message):
    with pytest.raises(ValueError, match=message):
        optimizer_class([one_parameter()], **settings)
    with pytest.raises(ValueError, match=message):
        optimizer_class([{"params": [one_parameter()], **settings}])
    optimizer = optimizer_class([one_parameter()])
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": [one_parameter()], **settings})


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("optimizer_class", [*OPTIMIZERS, WienerFilter])
def test_a_sparse_gradient_is_refused_before_anything_changes(optimizer_class, fused):
    dense, sparse = one_parameter(), torch.ones(2, 2, requires_grad=True)
    sparse.grad = torch.eye(2).to_sparse()
    groups = [{"params": [dense]}, {"params": [sparse]}]
    if optimizer_class is WienerFilter:
        optimizer = torch.optim.SGD(groups, lr=0.1)
        wiener = WienerFilter(optimizer, fused=fused, gain_power=0, gain_scale=0.5)
    else:
        optimizer = optimizer_class(groups, fused=fused)
    with pytest.raises(RuntimeError, match=f"{optimizer_class.__name__} does not support sparse"):
        optimizer.step()
    assert torch.equal(dense, torch.ones(3))
    assert torch.equal(dense.grad, torch.ones(3))
    assert optimizer_class is not WienerFilter or wiener.state[dense]["step"] == 0


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_wrong_parameter_lists(optimizer_class):
    with pytest.raises(ValueError, match="empty parameter list"):
        optimizer_class([])
    with pytest.raises(TypeError, match="should be an iterable"):
        optimizer_class(one_parameter())
    with pytest.raises(TypeError, match="can only optimize Tensors"):
        optimizer_class([1.0])
    with pytest.raises(ValueError, match="non-leaf"):
        optimizer_class([one_parameter() * 2])
    with pytest.raises(TypeError, match="must be a dict"):
        optimizer_class([one_parameter()]).add_param_group([one_parameter()])


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
@pytest.mark.parametrize("model", [nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))], ids=repr)
def test_a_model_in_the_place_of_its_parameters(optimizer_class, model):
    message = r"iterable of Tensors or dicts, but got torch.nn.modules.*: pass its parameters\(\)"
    with pytest.raises(TypeError, match=message):
        optimizer_class(model)
    with pytest.raises(TypeError, match=message):
        optimizer_class([{"params": model}])
    optimizer_class(nn.ParameterList([one_parameter()]))  # torch accepts it


def test_an_exhausted_generator_is_an_empty_list():
    parameters = nn.Linear(2, 2).parameters()
    SGDF(parameters)
    with pytest.raises(ValueError, match="optimizer got an empty parameter list"):
        SGDF(parameters)


def test_the_filter_refuses_invalid_settings():
    optimizer = torch.optim.SGD([one_parameter()], lr=0.1)
    with pytest.raises(TypeError, match=r"torch.optim.Optimizer"):
        WienerFilter([one_parameter()])
    with pytest.raises(ValueError, match="Invalid beta parameter at index 0: 2"):
        WienerFilter(optimizer, betas=(2, 0.5))
    with pytest.raises(ValueError, match="Invalid state_dtype"):
        WienerFilter(optimizer, state_dtype=torch.int32)
    with pytest.raises(ValueError, match="Invalid gain_power value: -1"):
        WienerFilter(optimizer, gain_power=-1)
    with pytest.raises(ValueError, match="Invalid gain_eps value: -1"):
        WienerFilter(optimizer, gain_eps=-1)
    with pytest.raises(ValueError, match="Invalid epsilon value: -1"):
        WienerFilter(optimizer, eps=-1, gain_eps=1e-8)
    with pytest.raises(ValueError, match="Invalid epsilon value: '1e-8'"):
        WienerFilter(optimizer, eps="1e-8")
    with pytest.raises(ValueError, match=r"Invalid betas value: 0.9"):
        WienerFilter(optimizer, betas=0.9)
    assert not optimizer._optimizer_step_pre_hooks
