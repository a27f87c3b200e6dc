"""Validate settings, with torch.optim's error messages."""

import inspect
from typing import Any

import torch
from torch import Tensor

from sgdf.filter import SECOND_MOMENTS, FilterSettings

STATE_DTYPES = (None, torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int8)


def check_settings(settings: dict[str, Any]) -> None:
    """Validate the settings of one parameter group."""
    lr = settings["lr"]
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    require(lr >= 0.0, "learning rate", lr)
    if "betas" in settings:
        require(settings["eps"] >= 0.0, "epsilon value", settings["eps"])
        check_gain_eps(settings.get("gain_eps"))
        check_filter(FilterSettings.of(settings))
        check_second_moment(settings)
    else:
        require(0.0 <= settings["beta"] < 1.0, "beta value", settings["beta"])
        require(settings["mu"] > 0.0, "mu value", settings["mu"])
    require(settings["weight_decay"] >= 0.0, "weight_decay value", settings["weight_decay"])
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


def check_filter(settings: FilterSettings) -> None:
    """Validate the settings of the filter itself."""
    require(len(settings.betas) == 2, "betas value", settings.betas)
    for index, beta in enumerate(settings.betas):
        require(0.0 <= beta < 1.0, f"beta parameter at index {index}", beta)
    require(settings.eps >= 0.0, "epsilon value", settings.eps)
    require(settings.gain_scale >= 0.0, "gain_scale value", settings.gain_scale)
    require(settings.gain_power >= 0.0, "gain_power value", settings.gain_power)


def check_gain_eps(gain_eps: Any) -> None:
    require(gain_eps is None or gain_eps >= 0.0, "gain_eps value", gain_eps)


def check_second_moment(settings: dict[str, Any]) -> None:
    kind = settings.get("second_moment", "separate")
    names = ", ".join(map(repr, SECOND_MOMENTS))
    require(kind in SECOND_MOMENTS, f"second_moment value (not one of {names})", repr(kind))
    # Then m is g and s is 0: nothing is left to derive a second moment from.
    if kind != "separate" and settings["betas"][0] == 0:
        raise ValueError(f"second_moment={kind!r} needs a beta parameter at index 0 above 0")


def check_state_dtype(dtype: Any, but: tuple[torch.dtype, ...] = ()) -> None:
    allowed = [known for known in STATE_DTYPES if known not in but]
    names = ", ".join(str(known) for known in allowed)
    require(dtype in allowed, f"state_dtype value (not one of {names})", repr(dtype))


def require(valid: Any, what: str, value: Any) -> None:
    if not valid:
        raise ValueError(f"Invalid {what}: {value}")


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
