"""Validate settings, with torch.optim's error messages."""

import inspect
import numbers
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sgdf.filter import SECOND_MOMENTS, FilterSettings, default_gain_eps

FLAGS = ("foreach", "fused")  #: True, False, or None: to be chosen
SWITCHES = (
    "decoupled_weight_decay",
    "maximize",
    "capturable",
    "differentiable",
    "stochastic_rounding",
)
STATE_DTYPES = (None, torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int8)


def filter_settings(group: Mapping[str, Any]) -> FilterSettings:
    """The filter's settings among those of a parameter group."""
    settings = {name: group[name] for name in FilterSettings._fields if name in group}
    eps = group.get("gain_eps")
    if eps is None:
        eps = default_gain_eps(group["eps"], group.get("second_moment", "separate"))
    return FilterSettings(**{**settings, "eps": eps})


def check_settings(settings: dict[str, Any]) -> None:
    """Validate the settings of one parameter group."""
    lr = settings["lr"]
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    require(is_number(lr) and lr >= 0.0, "learning rate", lr)
    if "betas" in settings:
        eps = settings["eps"]
        require(is_number(eps) and eps >= 0.0, "epsilon value", eps)
        check_gain_eps(settings.get("gain_eps"))
        check_filter(filter_settings(settings))
        check_second_moment(settings)
    else:
        beta, mu = settings["beta"], settings["mu"]
        require(is_number(beta) and 0.0 <= beta < 1.0, "beta value", beta)
        require(is_number(mu) and mu > 0.0, "mu value", mu)
    weight_decay = settings["weight_decay"]
    require(is_number(weight_decay) and weight_decay >= 0.0, "weight_decay value", weight_decay)
    check_flags(settings)
    # 8-bit rounding needs the step for its random numbers, and Momentum does not count steps.
    check_state_dtype(settings["state_dtype"], but=() if "betas" in settings else (torch.int8,))
    if settings["fused"]:
        if settings["differentiable"]:
            raise RuntimeError("`fused` does not support `differentiable`")
        if settings["foreach"]:
            raise RuntimeError("`fused` and `foreach` cannot be `True` together.")
    if settings["foreach"]:
        if settings["differentiable"]:
            raise RuntimeError("`foreach` does not support `differentiable`")
        if needs_the_loop(settings):
            raise RuntimeError(
                "`foreach` does not support `state_dtype=torch.int8` or `stochastic_rounding`"
            )
    if settings["differentiable"] and needs_the_loop(settings):
        raise RuntimeError(
            "`differentiable` does not support `state_dtype=torch.int8` or `stochastic_rounding`"
        )


def check_flags(settings: dict[str, Any]) -> None:
    """Validate the settings that are not numbers: "false" would be taken for True."""
    for name in FLAGS:
        require(settings[name] in (None, True, False), f"{name} value", settings[name])
    for name in SWITCHES:
        value = settings.get(name, False)
        require(value in (True, False), f"{name} value", value)
    seed = settings.get("rounding_seed", 0)
    require(isinstance(seed, numbers.Integral), "rounding_seed value", seed)


def check_filter(settings: FilterSettings) -> None:
    """Validate the settings of the filter itself."""
    betas, eps = settings.betas, settings.eps
    require(isinstance(betas, (tuple, list)) and len(betas) == 2, "betas value", betas)
    for index, beta in enumerate(betas):
        require(is_number(beta) and 0.0 <= beta < 1.0, f"beta parameter at index {index}", beta)
    require(is_number(eps) and eps >= 0.0, "epsilon value", eps)
    scale, power = settings.gain_scale, settings.gain_power
    require(is_number(scale) and scale >= 0.0, "gain_scale value", scale)
    require(is_number(power) and power >= 0.0, "gain_power value", power)
    require(settings.correction in (True, False), "correction value", settings.correction)
    switch = settings.bias_correction
    require(switch in (True, False), "bias_correction value", switch)


def check_gain_eps(gain_eps: Any) -> None:
    require(
        gain_eps is None or (is_number(gain_eps) and gain_eps >= 0.0), "gain_eps value", gain_eps
    )


def check_second_moment(settings: dict[str, Any]) -> None:
    kind = settings.get("second_moment", "separate")
    names = ", ".join(map(repr, SECOND_MOMENTS))
    require(kind in SECOND_MOMENTS, f"second_moment value (not one of {names})", kind)
    # Then m is g and s is 0: nothing is left to derive a second moment from.
    if kind != "separate" and settings["betas"][0] == 0:
        raise ValueError(f"second_moment={kind!r} needs a beta parameter at index 0 above 0")


def check_state_dtype(dtype: Any, but: tuple[torch.dtype, ...] = ()) -> None:
    allowed = [known for known in STATE_DTYPES if known not in but]
    names = ", ".join(str(known) for known in allowed)
    require(dtype in allowed, f"state_dtype value (not one of {names})", dtype)


def is_number(value: Any) -> bool:
    """A real number, or a tensor that has one."""
    return isinstance(value, numbers.Real) or (isinstance(value, Tensor) and value.numel() == 1)


def refuse_module(params: Any) -> None:
    """A model in the place of its parameters; torch's error would say that it is not iterable."""
    if isinstance(params, nn.Module) and not isinstance(params, nn.ParameterList):
        raise TypeError(
            "params argument given to the optimizer should be an iterable of Tensors or dicts, "
            f"but got {torch.typename(params)}: pass its parameters()"
        )


def require(valid: Any, what: str, value: Any) -> None:
    if not valid:
        raise ValueError(f"Invalid {what}: {value!r}")


def needs_the_loop(settings: dict[str, Any]) -> bool:
    """Whether the foreach functions cannot do what is asked for."""
    return settings["state_dtype"] == torch.int8 or settings.get("stochastic_rounding", False)


def constructor_defaults(cls: type) -> dict[str, Any]:
    """The default of every setting, from the constructors of the class and its bases."""
    defaults: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, parameter in inspect.signature(base.__init__).parameters.items():  # type: ignore[misc]
            if parameter.default is not parameter.empty:
                defaults[name] = parameter.default
    return defaults
