"""Names that are not settings: those of torch's SGD, and misspelt ones."""

import difflib
import functools
from collections.abc import Callable, Collection
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
Self = TypeVar("Self")

#: Of difflib's ratio. "weight_deacy" has 0.92, "beta1" 0.8; timm's "lr_scale" 0.67 (to gain_scale).
NEAR = 0.8
NESTEROV = (
    "SGD(lr=lr, momentum={momentum}, nesterov=True) is SGDF(lr=lr / (1 - {momentum}), "
    "betas=({momentum}, 0.999), gain_scale=1 - {momentum}, gain_power=0, bias_correction=False)"
)
#: What to write in the place of a setting of torch's SGD, by class.
CONVERSIONS = {
    "SGDF": {
        "nesterov": NESTEROV,
        "dampening": "in place of SGD(lr=lr, momentum={momentum}, dampening={dampening}) use "
        "SGDF(lr=lr * (1 - {dampening}) / (1 - {momentum}), betas=({momentum}, 0.999))",
        "momentum": "momentum sums gradients, the filter averages them; in place of "
        "SGD(lr=lr, momentum={momentum}) use "
        "SGDF(lr=lr / (1 - {momentum}), betas=({momentum}, 0.999))",
    },
    "FilterAdam": {
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
    """Let a constructor answer the settings of torch's SGD with how to convert them.

    A wrapper, so that the signature and `help` show the arguments that there are.
    """

    @functools.wraps(init)
    def wrapper(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> None:
        refuse_settings_of_sgd(type(self), kwargs)
        init(self, *args, **kwargs)

    return wrapper


def refuse_settings_of_sgd(cls: type, settings: dict[str, Any]) -> None:
    known = next((CONVERSIONS[c.__name__] for c in cls.mro() if c.__name__ in CONVERSIONS), {})
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
