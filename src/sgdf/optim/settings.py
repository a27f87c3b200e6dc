"""The settings of a parameter group: reading, validating and explaining them.

Error messages are those of torch.optim. Names that are not settings, as those of torch's SGD and
misspelt ones, are answered with what to write instead. A setting that has no effect, or much more
than elsewhere, is explained once.
"""

import difflib
import functools
import inspect
import numbers
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from sgdf.filter import SECOND_MOMENTS, FilterSettings, default_gain_eps
from sgdf.matrix import LR_SCALES

P = ParamSpec("P")
Self = TypeVar("Self")

LARGE_DECAY = 0.02  #: the share of the weights that a step removes; AdamW removes at most 1e-4
LARGE_LOSS = 0.1  #: the share of a momentum buffer that rounding to nearest may lose
FLAGS = ("foreach", "fused")  #: True, False, or None: to be chosen
SWITCHES = (
    "decoupled_weight_decay",
    "maximize",
    "capturable",
    "differentiable",
    "stochastic_rounding",
    "eigenbasis",
    "turn_moments",
)
#: What the parameters of a group are: to be told by their dimensions, vectors, matrices, batches.
KINDS = (None, False, True, "stacked")
STATE_DTYPES = (None, torch.float64, torch.float32, torch.bfloat16, torch.int8)
#: The settings of the filter after `betas` and `eps`: their names in a group are the same.
SAME_NAME = FilterSettings._fields[2:]


def filter_settings(group: Mapping[str, Any]) -> FilterSettings:
    """The filter's settings among those of a parameter group."""
    eps = group.get("gain_eps")
    if eps is None:
        eps = default_gain_eps(group["eps"], group.get("second_moment", "separate"))
    return FilterSettings(group["betas"], eps, *[group[name] for name in SAME_NAME])


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
    if "slow_beta" in settings:
        check_matrices(settings)
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
        if unsupported_by_foreach(settings):
            raise RuntimeError(
                "`foreach` does not support `state_dtype=torch.int8` or `stochastic_rounding`"
            )
    if settings["differentiable"] and rounds_at_random(settings):
        raise RuntimeError(
            "`differentiable` does not support `state_dtype=torch.int8` or `torch.bfloat16`, or "
            "`stochastic_rounding`"
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
    for name in SAME_NAME:
        value = getattr(settings, name)
        if isinstance(FilterSettings._field_defaults[name], bool):
            require(value in (True, False), f"{name} value", value)
        else:
            require(is_number(value) and value >= 0.0, f"{name} value", value)


def check_matrices(settings: Mapping[str, Any]) -> None:
    """Validate the settings of a matrix step."""
    for name in ("slow_beta", "basis_decay"):
        value = settings[name]
        require(is_number(value) and 0.0 <= value < 1.0, f"{name} value", value)
    weight = settings["slow_weight"]
    require(is_number(weight) and 0.0 <= weight <= 1.0, "slow_weight value", weight)
    for name in ("basis_interval", "max_basis_dim", "ns_steps"):
        value = settings[name]
        require(isinstance(value, int) and value > 0, f"{name} value", value)
    coefficients = settings["ns_coefficients"]
    right = len(coefficients) == 3 and all(map(is_number, coefficients))
    require(right, "ns_coefficients value", coefficients)
    known = settings["adjust_lr_fn"] in (None, *LR_SCALES)
    names = ", ".join(map(repr, LR_SCALES))
    require(known, f"adjust_lr_fn value (not one of {names})", settings["adjust_lr_fn"])
    require(settings["matrices"] in KINDS, "matrices value", settings["matrices"])
    if settings["eigenbasis"] and settings["capturable"]:
        raise RuntimeError("`eigenbasis` does not support `capturable`")


def check_gain_eps(gain_eps: Any) -> None:
    require(
        gain_eps is None or (is_number(gain_eps) and gain_eps >= 0.0), "gain_eps value", gain_eps
    )


def check_second_moment(settings: dict[str, Any]) -> None:
    kind = settings.get("second_moment")
    if kind is None:  # SGDF, or the default, before a group is made with it
        return
    names = ", ".join(map(repr, SECOND_MOMENTS))
    require(kind in SECOND_MOMENTS, f"second_moment value (not one of {names})", kind)
    # Then m is g and s is 0: nothing is left to derive a second moment from.
    if kind != "separate" and settings["betas"][0] == 0:
        raise ValueError(f"second_moment={kind!r} needs a beta parameter at index 0 above 0")


def check_state_dtype(dtype: Any, but: tuple[torch.dtype, ...] = ()) -> None:
    if dtype == torch.float16:
        raise ValueError(
            "Invalid state_dtype value: torch.float16, in which squares of gradients above 256 are "
            "infinite and those of gradients below 1e-4 are 0: use torch.bfloat16 or torch.int8"
        )
    allowed = [known for known in STATE_DTYPES if known not in but]
    names = ", ".join(str(known) for known in allowed)
    require(dtype in allowed, f"state_dtype value (not one of {names})", dtype)


def is_number(value: Any) -> bool:
    """A real number, or a tensor that has one."""
    return isinstance(value, numbers.Real) or (isinstance(value, Tensor) and value.numel() == 1)


def refuse_module(params: Any) -> None:
    """Refuse a model instead of its parameters; torch would say that it is not iterable."""
    if isinstance(params, nn.Module) and not isinstance(params, nn.ParameterList):
        raise TypeError(
            "params argument given to the optimizer should be an iterable of Tensors or dicts, "
            f"but got {torch.typename(params)}: pass its parameters()"
        )


def require(valid: Any, what: str, value: Any) -> None:
    """Raise torch.optim's error for a setting that is not valid."""
    if not valid:
        raise ValueError(f"Invalid {what}: {value!r}")


def unsupported_by_foreach(settings: dict[str, Any]) -> bool:
    """Whether the foreach functions cannot do what is asked for."""
    return settings["state_dtype"] == torch.int8 or settings.get("stochastic_rounding", False)


def rounds_at_random(settings: dict[str, Any]) -> bool:
    """Whether a step draws random bits: for parameters, or for state in few bits."""
    in_few_bits = settings["state_dtype"] in (torch.int8, torch.bfloat16) and "betas" in settings
    return in_few_bits or settings.get("stochastic_rounding", False)


def constructor_defaults(cls: type) -> dict[str, Any]:
    """The default of every setting, from the constructors of the class and its bases."""
    defaults: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, parameter in inspect.signature(base.__init__).parameters.items():  # type: ignore[misc]
            if parameter.default is not parameter.empty:
                defaults[name] = parameter.default
    return defaults


def given_settings(arguments: dict[str, Any]) -> dict[str, Any]:
    """The settings among the `locals()` at the start of a constructor."""
    others = ("self", "params", "__class__")
    return {name: value for name, value in arguments.items() if name not in others}


def explain_settings(name: str, groups: list[dict[str, Any]], stacklevel: int) -> None:
    """Warn of settings that do nothing, or much more than they do elsewhere."""
    rounded = [group["params"] for group in groups if group.get("stochastic_rounding")]
    if rounded and all(p.dtype != torch.bfloat16 for params in rounded for p in params):
        warnings.warn(
            f"{name}: stochastic_rounding is for bfloat16 parameters, and none of these is one: it "
            "has no effect",
            stacklevel=stacklevel + 1,
        )
    explain_rounding(name, groups, stacklevel + 1)
    shares = [group["lr"] * group["weight_decay"] for group in groups if _are_numbers(group)]
    if name == "SGDF" and max(shares, default=0) >= LARGE_DECAY:
        warnings.warn(
            f"SGDF: lr * weight_decay removes {max(shares):.1%} of the weights in every step. "
            "AdamW's weight_decay is meant for AdamW's much smaller lr: with SGDF use that of SGD",
            stacklevel=stacklevel + 1,
        )


def explain_rounding(name: str, groups: list[dict[str, Any]], stacklevel: int) -> None:
    """Warn of a Momentum that rounding stops: it counts no steps, so it cannot round at random."""
    betas = [g["beta"] for g in groups if "beta" in g and g["state_dtype"] == torch.bfloat16]
    lost = 2**-8 / (1 - max(betas, default=0.0))  # half a step of bfloat16, relative, over 1 - beta
    if lost > LARGE_LOSS:
        warnings.warn(
            f"{name}: with beta={max(betas):g}, a buffer in bfloat16 is off by up to {lost:.0%}, "
            "because a step changes it by less than its rounding: leave state_dtype out",
            stacklevel=stacklevel + 1,
        )


def _are_numbers(group: dict[str, Any]) -> bool:
    return all(isinstance(group[name], numbers.Real) for name in ("lr", "weight_decay"))


# --- names that are not settings ----------------------------------------------------------------

#: The least ratio of difflib. "weight_deacy" has 0.92, "beta1" 0.8; timm's "lr_scale" 0.67.
NEAR = 0.8
NESTEROV = (
    "SGD(lr=lr, momentum={momentum}, nesterov=True) is SGDF(lr=lr / (1 - {momentum}), "
    "betas=({momentum}, 0.999), gain_scale=1 - {momentum}, gain_power=0, bias_correction=False)"
)
#: What to write instead of a setting of torch's SGD or Adam, by class.
CONVERSIONS = {
    "SGDF": {
        "nesterov": NESTEROV,
        "dampening": "instead of SGD(lr=lr, momentum={momentum}, dampening={dampening}) use "
        "SGDF(lr=lr * (1 - {dampening}) / (1 - {momentum}), betas=({momentum}, 0.999))",
        "momentum": "momentum sums gradients, the filter averages them; instead of "
        "SGD(lr=lr, momentum={momentum}) use "
        "SGDF(lr=lr / (1 - {momentum}), betas=({momentum}, 0.999))",
    },
    "FilterAdam": {
        "amsgrad": "leave it out, there is no maximum of second moments here",
        "nesterov": "use betas=({momentum}, 0.999), gain_scale=1 - {momentum}, gain_power=0: "
        "Nesterov's momentum, as in NAdam",
        "dampening": "leave it out, because Adam's average weights each gradient by 1 - betas[0]",
        "momentum": "use betas=({momentum}, 0.999), as for Adam",
    },
    "Momentum": {
        "nesterov": NESTEROV,
        "dampening": "use mu=1 - {dampening}",
        "momentum": "use beta={momentum}",
    },
}


def explains_conversion(
    init: Callable[Concatenate[Self, P], None],
) -> Callable[Concatenate[Self, P], None]:
    """Let a constructor answer the settings of torch's optimizers with how to convert them.

    A wrapper, so that the signature and `help` show the arguments that there are.
    """

    @functools.wraps(init)
    def wrapper(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> None:
        drop_amsgrad(type(self), kwargs)
        refuse_settings_of_torch(type(self), kwargs)
        init(self, *args, **kwargs)

    return wrapper


def conversions(cls: type) -> dict[str, str]:
    return next((CONVERSIONS[c.__name__] for c in cls.mro() if c.__name__ in CONVERSIONS), {})


def drop_amsgrad(cls: type, settings: dict[str, Any]) -> None:
    """Remove `amsgrad=False`, torch's default, which configurations spell out."""
    if "amsgrad" in conversions(cls) and not settings.get("amsgrad", True):
        del settings["amsgrad"]


def refuse_settings_of_torch(cls: type, settings: dict[str, Any]) -> None:
    known = conversions(cls)
    given = [name for name in known if name in settings]
    # A `nesterov=False` or `dampening=0` beside a momentum is not what has to be converted.
    name = next((name for name in given if settings[name]), given[-1] if given else None)
    if name is not None:
        momentum, dampening = settings.get("momentum", "b"), settings.get("dampening")
        how = known[name].format(momentum=momentum, dampening=dampening)
        raise TypeError(f"{cls.__name__} has no setting {name!r}: {how}")


def refuse_misspelt(cls: type, names: Collection[str], known: Collection[str]) -> None:
    """Refuse the near misses of `known`; other names are for schedulers and trainers to use."""
    for name in names:
        near = None if name in known else _near(name, known)
        if near is not None:
            raise TypeError(f"{cls.__name__} has no setting {name!r}: did you mean {near}?")


def _near(name: str, known: Collection[str]) -> str | None:
    name = str(name).lower()
    near = difflib.get_close_matches(name, known, n=1, cutoff=NEAR)
    near += [other for other in known if sorted(other) == sorted(name)]  # "esp" has 0.67
    # "weight_decay_mult" or "base_lr" is another name on purpose.
    if not near or name.startswith(f"{near[0]}_") or name.endswith(f"_{near[0]}"):
        return None
    return near[0]
