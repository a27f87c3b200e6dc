"""The optimizers as torch's own optimizer tests describe them.

`OPTIMIZER_INFOS` has the type of `torch.testing._internal.common_optimizers.optim_db`. To run
torch's `test_optim.py` on them, put them in its place before that file is imported:

    import torch.testing._internal.common_optimizers as contract
    contract.optim_db[:] = OPTIMIZER_INFOS
"""

import unittest
from typing import Any

import torch
from torch.optim.lr_scheduler import (
    ConstantLR,
    ExponentialLR,
    LinearLR,
    PolynomialLR,
    ReduceLROnPlateau,
    StepLR,
)
from torch.testing._internal.common_methods_invocations import DecorateInfo
from torch.testing._internal.common_optimizers import (
    ErrorOptimizerInput,
    OptimizerErrorEnum,
    OptimizerInfo,
    OptimizerInput,
    get_error_inputs_for_all_optims,
)

from sgdf import SGDF, FilterAdam, FilterAdamW, FilterMuon, FilterSOAP, Momentum

SCHEDULERS = (
    [lambda opt: StepLR(opt, gamma=0.9, step_size=10)],
    [lambda opt: LinearLR(opt, start_factor=0.4, total_iters=4)],
    [lambda opt: ConstantLR(opt, factor=0.4, total_iters=4)],
    [lambda opt: PolynomialLR(opt, power=0.9, total_iters=4)],
    [lambda opt: ExponentialLR(opt, gamma=0.9), lambda opt: ReduceLROnPlateau(opt)],
)
# Some of torch's tests give a scheduler the default lr and a curvature of about 10. SGDF's default
# of 0.5 is made for networks; there, where the first estimate is the raw gradient, it overshoots.
WARM = lambda opt: ConstantLR(opt, factor=0.1, total_iters=1000)  # noqa: E731
WARM_SCHEDULERS = tuple([WARM, *schedulers] for schedulers in SCHEDULERS)


def _is_accelerator(device: Any) -> bool:
    return device is not None and torch.device(device).type in ("cuda", "xpu")


def _inputs(
    lr: float,
    own: list[dict[str, Any]],
    has_capturable: bool,
    of_matrices: bool = False,
    **common: Any,
) -> Any:
    """Settings to test, each with an explicit lr: some of torch's tests divide by it.

    `common` goes into every one. FilterAdamW's carries its weight decay, because torch's
    zero-gradient test skips inputs that set a weight decay, and knows only AdamW by name.
    """

    def inputs(device: Any, dtype: torch.dtype | None = None) -> list[OptimizerInput]:
        settings = [
            {},
            {"lr": lr / 2},
            {"weight_decay": 0.1},
            {"maximize": True},
            {"weight_decay": 0.1, "maximize": True},
            *([] if of_matrices else [{"weight_decay": 0.1, "decoupled_weight_decay": True}]),
            {"state_dtype": torch.float64},
            *own,
        ]
        if has_capturable and _is_accelerator(device):
            settings += [
                {"capturable": True},
                {"capturable": True, "weight_decay": 0.1},
                {"capturable": True, "lr": torch.tensor(lr)},
            ]
        return [
            OptimizerInput(
                params=None,
                kwargs={"lr": lr, **common, **kwargs},
                desc=", ".join(kwargs) or "default",
            )
            for kwargs in settings
        ]

    return inputs


FILTER_SETTINGS: list[dict[str, Any]] = [
    {"betas": (0.0, 0.9)},
    {"betas": (0.5, 0.99), "eps": 1e-3},
    {"gain_scale": 0.0},
    {"gain_scale": 1.0, "gain_power": 0.5},
    {"correction": False},
    {"gain_eps": 1e-3},
    {"bias_correction": False},
    {"gain_scale": 0.1, "gain_power": 0.0},
    {"gain_scale": 0.1, "gain_power": 0, "bias_correction": False},
]
ADAM_SETTINGS: list[dict[str, Any]] = [
    *FILTER_SETTINGS,
    {"second_moment": "derived"},
    {"second_moment": "derived", "gain_scale": 0.05, "gain_power": 0.0},
    {"second_moment": "derived", "gain_eps": 1e-3, "bias_correction": False},
    {"second_moment": "fluctuation"},
]
MATRIX_SETTINGS: list[dict[str, Any]] = [
    {"betas": (0.5, 0.9), "eps": 1e-3},
    {"gain_scale": 0.0, "slow_weight": 0.0},
    {"gain_scale": 2.0, "gain_power": 1.0, "gain_eps": 1e-3},
    {"aux_lr": 1e-2, "aux_betas": (0.8, 0.9), "aux_weight_decay": 0.1},
    {"basis_interval": 2, "turn_moments": False},
    {"max_basis_dim": 5},
]
MUON_SETTINGS: list[dict[str, Any]] = [
    *MATRIX_SETTINGS,
    {"bias_correction": False},
    {"adjust_lr_fn": "original"},
    *({"eigenbasis": True, **settings} for settings in ({}, *MATRIX_SETTINGS)),
]
MOMENTUM_SETTINGS: list[dict[str, Any]] = [{"beta": 0.5, "mu": 0.5}, {"beta": 0.0}]

# One of each; test_errors.py has all.
BAD_FILTER_SETTINGS = [({"betas": (1.0, 0.0)}, "Invalid beta parameter at index 0: 1.0")]
BAD_MOMENTUM_SETTINGS = [({"beta": 1.0}, "Invalid beta value: 1.0")]
BAD_MATRIX_SETTINGS = [
    ({"slow_beta": 1.0}, "Invalid slow_beta value: 1.0"),
    ({"slow_weight": -0.1}, "Invalid slow_weight value: -0.1"),
    ({"basis_interval": 0}, "Invalid basis_interval value: 0"),
    ({"max_basis_dim": 0}, "Invalid max_basis_dim value: 0"),
]
BAD_SETTINGS = [
    ({"lr": -0.5}, "Invalid learning rate: -0.5"),
    ({"weight_decay": -1}, "Invalid weight_decay value: -1"),
    ({"state_dtype": "float32"}, r"Invalid state_dtype value .*: 'float32'"),
]
CONTRADICTIONS = [
    ({"fused": True, "differentiable": True}, "`fused` does not support `differentiable`"),
    ({"fused": True, "foreach": True}, "`fused` and `foreach` cannot be `True` together"),
    ({"foreach": True, "differentiable": True}, "`foreach` does not support `differentiable`"),
]


def _error_inputs(own: list[tuple[dict[str, Any], str]], of_matrices: bool) -> Any:
    def errors(device: Any, dtype: torch.dtype) -> list[ErrorOptimizerInput]:
        if torch.device(device).type != "cpu":
            return []
        parameter = torch.nn.Parameter(torch.zeros(1))
        sparse = torch.nn.Parameter(torch.zeros(2, 2))
        sparse.grad = torch.eye(2).to_sparse()
        bad = [(ValueError, *case) for case in own + BAD_SETTINGS]
        bad += [
            (RuntimeError, *case)
            for case in CONTRADICTIONS
            if not (of_matrices and "differentiable" in case[0])
        ]
        return [
            *get_error_inputs_for_all_optims(device, dtype),
            ErrorOptimizerInput(
                OptimizerInput(params=[], kwargs={}, desc="no parameters"),
                error_type=ValueError,
                error_regex="optimizer got an empty parameter list",
            ),
            ErrorOptimizerInput(
                OptimizerInput(params=[sparse], kwargs={}, desc="a sparse gradient"),
                error_on=OptimizerErrorEnum.STEP_ERROR,
                error_type=RuntimeError,
                error_regex="does not support sparse gradients",
            ),
            *(
                ErrorOptimizerInput(
                    OptimizerInput(params=params, kwargs=outer, desc=message),
                    error_type=error,
                    error_regex=message,
                )
                for error, kwargs, message in bad
                for params, outer in (
                    ([parameter], kwargs),
                    ([{"params": [parameter], **kwargs}], {}),  # the same, for one group
                )
            ),
        ]

    return errors


#: What tests/optim/test_matrix.py tests instead.
MATRICES_DIFFER = {
    "test_a_complex_parameter_is_a_pair_of_real_ones": "a complex matrix is stepped element by "
    "element, its pairs are not",
    "test_every_setting_can_differ_between_groups": "the constructor's weight_decay is that of "
    "matrices, a group's that of its parameters",
    "test_foreach_is_the_loop": "the gradients are of rank one: rounding chooses the basis",
}


def _info(
    cls: type,
    lr: float,
    own: list[dict[str, Any]],
    bad: Any,
    has_capturable: bool,
    of_matrices: bool = False,
    **common: Any,
) -> OptimizerInfo:
    flags = ("foreach", "fused") if of_matrices else ("foreach", "differentiable", "fused")
    skips = [
        DecorateInfo(
            unittest.skip("patches a function by the name it would have inside torch.optim"),
            "TestOptimRenewed",
            "test_defaults_changed_to_foreach",
        )
    ]
    if of_matrices:
        skips += [
            DecorateInfo(unittest.skip(why), "TestContract", test)
            for test, why in MATRICES_DIFFER.items()
            if not (cls is FilterMuon and test == "test_foreach_is_the_loop")  # without a basis
        ]
    return OptimizerInfo(
        cls,
        optim_inputs_func=_inputs(lr, own, has_capturable, of_matrices, **common),
        optim_error_inputs_func=_error_inputs(bad, of_matrices),
        scheduler_inputs=WARM_SCHEDULERS if cls is SGDF else SCHEDULERS,
        supported_impls=flags,
        supports_fused_on=("cpu", "cuda"),
        not_og_supported_flags=(*flags, "maximize", "capturable"),
        has_capturable_arg=has_capturable,
        skips=tuple(skips),
    )


OPTIMIZER_INFOS = [
    _info(SGDF, 1e-2, FILTER_SETTINGS, BAD_FILTER_SETTINGS, True),
    _info(FilterAdam, 1e-3, ADAM_SETTINGS, BAD_FILTER_SETTINGS, True),
    _info(FilterAdamW, 1e-3, ADAM_SETTINGS, BAD_FILTER_SETTINGS, True, weight_decay=1e-2),
    _info(Momentum, 1e-2, MOMENTUM_SETTINGS, BAD_MOMENTUM_SETTINGS, False),
    _info(FilterMuon, 1e-3, MUON_SETTINGS, BAD_MATRIX_SETTINGS, True, True),
    _info(FilterSOAP, 1e-3, MATRIX_SETTINGS, BAD_MATRIX_SETTINGS, False, True),
]
