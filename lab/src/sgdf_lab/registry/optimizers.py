"""The optimizers of the lab: one row each. Nothing here imports torch.

To add an optimizer, add a row: the command line, runs, sweeps, reports and figures read it here.
"""

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Union, get_args, get_origin

from sgdf_lab import plugins
from sgdf_lab.registry.spaces import (
    ADAM_SPACE,
    AUX_RATE,
    DECOUPLED,
    GAIN,
    L2,
    MATRIX_SPACE,
    MOMENTUM,
    SECOND,
    Range,
    Space,
    adam_space,
    sgd_space,
)
from sgdf_lab.support.errors import UserError, unknown
from sgdf_lab.support.numbers import is_number
from sgdf_lab.support.palette import (
    BLACK,
    BLUE,
    BROWN,
    GREEN,
    GREY,
    INDIGO,
    OLIVE,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    WINE,
    Look,
    spare_look,
)

GROUP = "sgdf.optimizers"  # of entry points
NAME = "wiener-"  # before a name: the optimizer's gradients are filtered
PREFIX = "filter_"  # of the filter's settings then, and of its entries in a state dict

CAPTURABLE = {"capturable": True}
FUSED = {"fused": True}

# --- settings and their kinds ---------------------------------------------------------------------

#: The kind of a setting by its name; any other is a number. "?" allows None, a digit says how many
#: numbers there are. A row may give another kind as "name:kind".
KINDS = {
    **dict.fromkeys(
        (
            *("correction", "bias_correction", "decoupled_weight_decay", "maximize", "capturable"),
            *("differentiable", "stochastic_rounding", "nesterov", "amsgrad", "centered"),
            *("decay_norms", "param_groups", "eigenbasis", "turn_moments"),
        ),
        "flag",
    ),
    **dict.fromkeys(("foreach", "fused"), "flag?"),
    **dict.fromkeys(("gain_eps", "adamw_lr", "aux_lr"), "number?"),
    **dict.fromkeys(("second_moment", "adjust_lr_fn"), "any"),
    **dict.fromkeys(("betas", "adamw_betas", "aux_betas"), "2"),
    **dict.fromkeys(
        (
            *("rounding_seed", "hessian_every", "ns_steps", "precondition_frequency"),
            *("max_precondition_dim", "preconditioning_compute_steps", "warmup_steps"),
            *("basis_interval", "max_basis_dim"),
        ),
        "integer",
    ),
    "state_dtype": "dtype",
}
STATE_DTYPES = ("float64", "float32", "bfloat16", "int8")
SHORT_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}

_FILTER = "betas eps gain_scale gain_power gain_eps correction bias_correction"
_OF_SGDF = (
    "decoupled_weight_decay maximize foreach fused capturable differentiable state_dtype "
    "stochastic_rounding rounding_seed"
)
_OF_TORCH = "maximize foreach capturable differentiable"
_USUAL = "lr betas eps weight_decay"
_OF_MATRICES = (
    f"{_USUAL} gain_scale gain_power gain_eps:number slow_beta slow_weight basis_decay "
    "basis_interval max_basis_dim turn_moments aux_lr aux_betas aux_weight_decay aux_gain_scale "
    "aux_gain_power maximize foreach fused state_dtype stochastic_rounding rounding_seed"
)
_OF_MUON = f"{_OF_MATRICES} eigenbasis bias_correction ns_steps ns_coefficients:3 adjust_lr_fn"


def kinds_from(names: str) -> dict[str, str]:
    """
    >>> kinds_from("lr betas:3 maximize")
    {'lr': 'number', 'betas': '3', 'maximize': 'flag'}
    """
    pairs = (each.partition(":") for each in names.split())
    return {name: kind or KINDS.get(name, "number") for name, _, kind in pairs}


def kind_of(annotation: Any) -> str:
    """The kind of a setting by the annotation of a parameter."""
    is_union = get_origin(annotation) in (types.UnionType, Union)
    parts = get_args(annotation) if is_union else (annotation,)
    names = {getattr(part, "__name__", str(part)) for part in parts}
    none = "?" if "NoneType" in names else ""
    if "dtype" in names:
        return "dtype"
    if get_origin(annotation) is tuple:
        return str(len(get_args(annotation)))
    if annotation is int:
        return "integer"
    return f"flag{none}" if "bool" in names else f"number{none}" if "float" in names else "any"


def signature_kinds(builder: Callable[..., Any]) -> dict[str, str]:
    """The parameters but the first."""
    parameters = list(inspect.signature(builder).parameters.values())[1:]
    return {
        p.name: kind_of(p.annotation)
        for p in parameters
        if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    }


def checked(name: str, value: Any, kind: str) -> Any:
    """The value as a run records it, a dtype by its name; a `UserError` if its type is wrong.

    A value of a wrong type may fail in the first step only, or change nothing at all.
    """
    if kind == "dtype":
        return None if value is None else dtype_name(name, value)
    if name == "differentiable" and value is True:
        raise UserError("differentiable=True is not supported by the lab's training loop")
    if kind.endswith("?") and value in (None, "none"):  # TOML and --set have no None
        return None
    if kind == "any":
        return value
    if kind.startswith("flag") and not isinstance(value, bool):
        raise UserError(f"{name} is true or false, not {value!r}")
    if kind == "integer" and type(value) is not int:
        raise UserError(f"{name} is an integer, not {value!r}")
    if kind.startswith("number") and not is_number(value):
        raise UserError(f"{name} is a number, not {value!r}")
    if kind.isdigit():
        is_list = isinstance(value, list | tuple) and all(map(is_number, value))
        if not is_list or len(value) != int(kind):
            raise UserError(f"{name} is {kind} numbers, not {value!r}")
    return value


def dtype_name(name: str, value: Any) -> str:
    """The name of a dtype that the state of an optimizer may have, such as "int8"."""
    word = str(value).removeprefix("torch.")
    word = SHORT_NAMES.get(word, word)
    if word not in STATE_DTYPES:
        raise UserError(f"{name} is one of {', '.join(STATE_DTYPES)}, not {value!r}")
    return word


#: Of the filter in front of another optimizer.
FILTER_KINDS = {
    PREFIX + name: kind for name, kind in kinds_from(f"{_FILTER} state_dtype rounding_seed").items()
}


# --- a row ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OptimizerRow:
    """An optimizer of the lab.

    Args:
        name: for --optimizer and in the names of runs.
        builder: a class or function, or its place as "module:name".
        about: what it does, in a phrase.
        colour, dash: of its curves, the dash from `palette.DASHES`. No two rows share both; those
            that are often compared differ in colour. Filtered rows have the dash "longdashdot".
        title: its name in reports; default: the parts of `name` with capitals.
        settings: what a run has unless the paper or a user says otherwise; needs `lr` at least.
        takes: the names of its settings, as `kinds_from` reads them; default: the parameters of
            the builder after the first.
        fixed: further keyword arguments of the builder; those in `takes` may be overridden.
        renamed: names of settings that the builder calls otherwise.
        at_least, above: lower bounds of settings that the class itself does not check.
        space: what a search varies; default: a learning rate around its own.
        capturable: a CUDA graph can hold step(), with lr a tensor on the device.
        on_cuda: settings for a CUDA device.
        needs_hessian: is a `sgdf_lab.optimizers.HessianOptimizer`.
        any_setting: accepts settings under any name.
        groups: a function, or its place, that splits the parameters into groups, given the model
            they belong to (or None).
        shardable: step() works on weights that FSDP2 shares among processes (`--shard`); an
            optimizer that needs the Hessian does not.
        typed: the kinds of settings hold; the annotations of a user's class may be wrong.

    Rows with a weight decay have two more settings: `param_groups`, for the groups of the function
    of that name in `sgdf`, and `decay_norms`.
    """

    name: str
    builder: str | Callable[..., Any]
    about: str
    colour: str
    dash: str
    title: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    takes: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    at_least: Mapping[str, float] = field(default_factory=dict)
    above: Mapping[str, float] = field(default_factory=dict)
    space: Space = field(default_factory=dict)
    capturable: bool = True
    on_cuda: Mapping[str, Any] = field(default_factory=dict)
    needs_hessian: bool = False
    any_setting: bool = False
    groups: str | Callable[..., Any] | None = None
    shardable: bool = True
    typed: bool = True

    @property
    def published_as(self) -> str:
        """The name under which the paper may have settings."""
        return self.name

    def load(self) -> Callable[..., Any]:
        """The class or function that builds it."""
        builder = self.builder
        found: Callable[..., Any] = (
            plugins.load_own(builder) if isinstance(builder, str) else builder
        )
        return found

    @functools.cached_property
    def kinds(self) -> dict[str, str]:
        """The kind of every setting."""
        kinds = kinds_from(self.takes) if self.takes else signature_kinds(self.load())
        if "weight_decay" in kinds:
            kinds = kinds | {"param_groups": "flag"}
            if self.typed:
                kinds |= {"decay_norms": "flag"}
        return kinds

    @property
    def setting_names(self) -> tuple[str, ...]:
        return tuple(self.kinds)

    def checked(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings as a run records them; refuses wrong names, and values of a wrong type."""
        for setting in settings:
            if setting not in self.kinds and not self.any_setting:
                raise unknown(f"setting of {self.name}", setting, tuple(self.kinds))
        kinds = self.kinds if self.typed else FILTER_KINDS
        return {
            name: checked(name, value, kinds.get(name, "any")) for name, value in settings.items()
        }


@dataclass(frozen=True, kw_only=True)
class FilteredRow(OptimizerRow):
    """A row whose optimizer sees gradients behind the Wiener filter."""

    inner: OptimizerRow

    @property
    def published_as(self) -> str:
        return self.inner.published_as

    @functools.cached_property
    def kinds(self) -> dict[str, str]:
        return self.inner.kinds | FILTER_KINDS


def filtered(row: OptimizerRow) -> FilteredRow:
    """The row with the filter in front; its curves have the row's colour."""
    values = {f.name: getattr(row, f.name) for f in fields(OptimizerRow)}
    values["name"] = NAME + row.name
    values["about"] = f"the Wiener filter in front of {row.name}: {row.about}"
    values["dash"] = "longdashdot"
    values["title"] = f"Wiener-{title_of(row.name)}"
    return FilteredRow(**values, inner=row)


# --- the table ------------------------------------------------------------------------------------

_OURS = "sgdf_lab.optimizers.variants"
_COUPLED = {"weight_decouple": False}  # an L2 penalty; pytorch_optimizer decouples by default
_DECOUPLED = {"weight_decouple": True}

_ROWS = (
    # name, builder, what it does; colour and dash, learning rate, settings; then what else differs.
    OptimizerRow("sgdf", "sgdf:SGDF", "SGD along the Wiener-filtered gradient",
        VERMILION, "solid", title="SGDF", settings={"lr": 0.5},
        takes=f"lr {_FILTER} weight_decay {_OF_SGDF}", on_cuda=CAPTURABLE,
        space={"lr": Range(3e-2, 10.0), "beta1": MOMENTUM, "beta2": SECOND, "weight_decay": L2,
               "gain_scale": GAIN}),
    OptimizerRow("filter-adam", "sgdf:FilterAdam", "Adam with the filtered gradient",
        WINE, "dash", title="FilterAdam", settings={"lr": 0.001},
        takes=f"lr {_FILTER} weight_decay second_moment {_OF_SGDF}", on_cuda=CAPTURABLE,
        space={**adam_space(decay=L2), "gain_scale": GAIN}),
    OptimizerRow("filter-adamw", "sgdf:FilterAdamW", "AdamW with the filtered gradient",
        INDIGO, "longdash", title="FilterAdamW", settings={"lr": 0.001, "gain_eps": 0.0},
        fixed={"gain_eps": None, "second_moment": "separate"},  # of runs that do not name them
        takes=f"lr {_FILTER} weight_decay second_moment {_OF_SGDF}", on_cuda=CAPTURABLE,
        space={**ADAM_SPACE, "gain_scale": GAIN}),
    # The paper's tables call it SGD.
    OptimizerRow("sgd", "torch.optim:SGD", "SGD with momentum 0.9",
        BLUE, "dash", title="SGD", settings={"lr": 0.1},
        takes="lr momentum dampening weight_decay nesterov maximize foreach differentiable fused",
        fixed={"momentum": 0.9}, on_cuda=FUSED, space=sgd_space(3e-3, 1.0, "momentum")),
    OptimizerRow("sgd-nesterov", "torch.optim:SGD", "SGD with Nesterov's momentum 0.9",
        BLUE, "dashdot", title="SGD, Nesterov", settings={"lr": 0.1},
        takes="lr momentum dampening weight_decay nesterov maximize foreach differentiable fused",
        fixed={"momentum": 0.9, "nesterov": True}, on_cuda=FUSED,
        space=sgd_space(3e-3, 1.0, "momentum")),
    OptimizerRow("sgd-ema", f"{_OURS}:sgd_ema", "SGD along a moving average of the gradient",
        PURPLE, "dot", title="SGD-EMA", settings={"lr": 0.1}, takes="lr beta weight_decay",
        space=sgd_space(3e-2, 10.0, "beta")),
    OptimizerRow("sgd-cm", f"{_OURS}:sgd_cm",
        "SGD with classical momentum, as the paper defines it",
        SKY, "dashdot", title="SGD-CM", settings={"lr": 0.1}, takes="lr beta weight_decay",
        space=sgd_space(3e-3, 1.0, "beta")),
    OptimizerRow("adam", "torch.optim:Adam", "Adam, L2 weight decay",
        GREEN, "dot", settings={"lr": 0.001},
        takes=f"{_USUAL} amsgrad {_OF_TORCH} fused decoupled_weight_decay",
        on_cuda=FUSED | CAPTURABLE,
        space=adam_space(decay=L2)),
    OptimizerRow("adamw", "torch.optim:AdamW", "Adam, decoupled weight decay",
        OLIVE, "longdash", title="AdamW", settings={"lr": 0.001},
        takes=f"{_USUAL} amsgrad {_OF_TORCH} fused", on_cuda=FUSED | CAPTURABLE, space=ADAM_SPACE),
    OptimizerRow("radam", "torch.optim:RAdam", "rectified Adam, L2 weight decay",
        GREY, "dashdot", title="RAdam", settings={"lr": 0.001},
        takes=f"{_USUAL} decoupled_weight_decay {_OF_TORCH}",
        on_cuda=CAPTURABLE | {"foreach": True},
        space=adam_space(decay=L2)),
    OptimizerRow("rmsprop", "torch.optim:RMSprop", "gradient over its root mean square",
        GREY, "solid", title="RMSprop", settings={"lr": 0.01},
        takes=f"lr alpha eps weight_decay momentum centered {_OF_TORCH}",
        on_cuda=CAPTURABLE | {"foreach": True},
        space={"lr": Range(3e-4, 1e-1), "alpha": SECOND, "weight_decay": L2}),
    OptimizerRow("msvag", f"{_OURS}:msvag", "momentum damped by the gradient's variance",
        ORANGE, "dashdot", title="MSVAG", settings={"lr": 0.1}, takes=_USUAL, capturable=False,
        space={"lr": Range(1e-2, 1.0), "beta1": MOMENTUM, "beta2": SECOND, "weight_decay": L2}),
    OptimizerRow("adabound", "pytorch_optimizer:AdaBound", "Adam with bounds that close on SGD",
        SKY, "solid", title="AdaBound", settings={"lr": 0.001}, takes=f"{_USUAL} final_lr gamma",
        fixed=_COUPLED, above={"final_lr": 0.0}, capturable=False,
        space={**adam_space(decay=L2), "final_lr": Range(1e-2, 1.0)}),
    # For CIFAR: L2 weight decay, no rectification, and eps 1e-8 where the class has 1e-16.
    OptimizerRow("adabelief", "pytorch_optimizer:AdaBelief", "Adam by the variance about the trend",
        PURPLE, "longdash", title="AdaBelief", settings={"lr": 0.001},
        takes=f"{_USUAL} decoupled_weight_decay",
        fixed={"eps": 1e-8, "decoupled_weight_decay": False},
        renamed={"decoupled_weight_decay": "weight_decouple"}, space=ADAM_SPACE, capturable=False),
    OptimizerRow("yogi", "pytorch_optimizer:Yogi",
        "Adam with an additive second moment (with Adam's bias correction, which the paper lacks)",
        PURPLE, "dashdot", settings={"lr": 0.01}, takes=f"{_USUAL} initial_accumulator",
        fixed=_COUPLED, at_least={"initial_accumulator": 0.0}, capturable=False,
        space=adam_space(1e-3, 1e-1, L2)),
    # The power 1/8 of the publication, where the class has 1/4.
    OptimizerRow("padam", "pytorch_optimizer:PAdam",
        "partially adaptive Adam (without the paper's running maximum, AMSGrad)",
        ORANGE, "dash", settings={"lr": 0.1}, takes=f"{_USUAL} partial",
        fixed={"partial": 0.125, **_COUPLED}, capturable=False,
        space=adam_space(1e-2, 1.0, L2)),
    # No weight decay: the publication has none.
    OptimizerRow("fromage", "pytorch_optimizer:Fromage", "steps in proportion to the weights",
        GREY, "dash", settings={"lr": 0.01}, takes="lr",
        space={"lr": Range(1e-3, 0.1)}),
    OptimizerRow("lion", "pytorch_optimizer:Lion", "the sign of an interpolated momentum",
        BROWN, "dash", settings={"lr": 0.0001}, takes="lr betas weight_decay", fixed=_DECOUPLED,
        space={**ADAM_SPACE, "lr": Range(3e-5, 1e-3), "weight_decay": Range(0.1, 10.0)}),
    OptimizerRow("eadam", f"{_OURS}:EAdam",
        "Adam with eps summed in the second moment",
        SKY, "dash", title="EAdam", settings={"lr": 0.001}, takes=f"{_USUAL} capturable",
        on_cuda=CAPTURABLE,
        space=adam_space(decay=L2)),
    OptimizerRow("sophia-g", f"{_OURS}:SophiaG",
        "momentum over a diagonal of the curvature, clipped",
        BLACK, "dot", title="Sophia-G", settings={"lr": 0.0001},
        takes=f"{_USUAL} rho hessian_every", needs_hessian=True,
        space={**adam_space(3e-5, 1e-3), "rho": Range(1e-2, 0.2)}),
    OptimizerRow("nadam", "torch.optim:NAdam", "Adam with Nesterov's momentum, L2 weight decay",
        GREEN, "solid", title="NAdam", settings={"lr": 2e-3},
        takes=f"{_USUAL} momentum_decay decoupled_weight_decay {_OF_TORCH}",
        on_cuda=CAPTURABLE | {"foreach": True},
        space=adam_space(decay=L2)),
    OptimizerRow("nadamw", "torch.optim:NAdam",
        "Adam with Nesterov's momentum, decoupled weight decay",
        GREEN, "dash", title="NAdamW", settings={"lr": 2e-3},
        takes=f"{_USUAL} momentum_decay decoupled_weight_decay {_OF_TORCH}",
        fixed={"weight_decay": 1e-2, "decoupled_weight_decay": True},
        on_cuda=CAPTURABLE | {"foreach": True}, space=ADAM_SPACE),
    OptimizerRow("adafactor", "torch.optim:Adafactor",
        "a second moment by rows and columns, steps in proportion to the weights",
        GREY, "longdash", settings={"lr": 1e-2},
        takes="lr beta2_decay eps:2 d weight_decay foreach maximize", capturable=False,
        shardable=False,
        space={"lr": Range(1e-3, 1e-1), "beta2_decay": Range(-0.9, -0.5, "linear"),
               "weight_decay": DECOUPLED}),
    OptimizerRow("muon", "sgdf_lab.optimizers.muon:MuonAdamW",
        "torch's Muon for hidden matrices, AdamW for everything else",
        BLACK, "solid", settings={"lr": 1e-3},
        takes="lr weight_decay momentum nesterov ns_steps adjust_lr_fn adamw_lr adamw_betas "
        "adamw_eps",
        # adamw_lr is the rate of all else: untuned, it would decide a comparison.
        space={"lr": MATRIX_SPACE["lr"], "momentum": MOMENTUM, "weight_decay": DECOUPLED,
               "adamw_lr": AUX_RATE},
        capturable=False, groups="sgdf_lab.optimizers.muon:hidden_matrices"),
    OptimizerRow("filter-muon", "sgdf:FilterMuon",
        "Muon along a filter of two averages, FilterAdamW for all but hidden matrices",
        VERMILION, "dash", title="FilterMuon", settings={"lr": 1e-3}, takes=_OF_MUON,
        space=MATRIX_SPACE, capturable=False,
        groups="sgdf_lab.optimizers.muon:matrices_and_rest"),
    OptimizerRow("filter-muon-eigen", "sgdf:FilterMuon",
        "FilterMuon behind Adam's division in the eigenbasis of the gradients",
        WINE, "solid", title="FilterMuon, eigenbasis", settings={"lr": 1e-3}, takes=_OF_MUON,
        fixed={"eigenbasis": True}, space=MATRIX_SPACE, capturable=False,
        groups="sgdf_lab.optimizers.muon:matrices_and_rest"),
    OptimizerRow("filter-soap", "sgdf:FilterSOAP",
        "SOAP along a filter of two averages, FilterAdamW for all but hidden matrices",
        INDIGO, "solid", title="FilterSOAP", settings={"lr": 3e-3}, takes=_OF_MATRICES,
        space=MATRIX_SPACE, capturable=False,
        groups="sgdf_lab.optimizers.muon:matrices_and_rest"),
    OptimizerRow("pipeline", "sgdf_lab.optimizers.pipeline:Pipeline",
        "any filter before any step, for the map of filters; Adam for all but hidden matrices",
        BROWN, "solid", settings={"lr": 1e-3},
        takes="lr betas eps weight_decay step:any gain_scale gain_power slow_beta slow_weight "
        "basis_decay basis_interval aux_lr aux_betas aux_weight_decay",
        space={"lr": Range(3e-4, 3e-2)}, capturable=False, shardable=False,
        groups="sgdf_lab.optimizers.muon:matrices_and_rest"),
    OptimizerRow("soap", "sgdf_lab.optimizers.muon:soap",
        "Adam in the eigenbasis of Shampoo's preconditioner",
        BLACK, "dash", title="SOAP", settings={"lr": 3e-3},
        takes=f"{_USUAL} aux_lr precondition_frequency max_precondition_dim",
        space={**ADAM_SPACE, "lr": MATRIX_SPACE["lr"], "aux_lr": AUX_RATE}, capturable=False,
        shardable=False, groups="sgdf_lab.optimizers.muon:naming_hidden"),
    # The first publication's. The package's scalable form keeps objects in its state, which
    # checkpoints cannot hold. Its momentum mixes gradients with preconditioned ones: left out.
    OptimizerRow("shampoo", "pytorch_optimizer:Shampoo",
        "gradient preconditioned by a matrix for every dimension; for small layers",
        BLACK, "longdash", settings={"lr": 0.1},
        takes="lr matrix_eps weight_decay preconditioning_compute_steps", above={"matrix_eps": 0.0},
        capturable=False, shardable=False,
        space={"lr": Range(1e-2, 1.0), "matrix_eps": Range(1e-8, 1e-4), "weight_decay": L2}),
    # L2 weight decay at the training weights, as published.
    OptimizerRow("schedule-free-sgd", "pytorch_optimizer:ScheduleFreeSGD",
        "SGD, evaluated at an average of its weights instead of a schedule",
        BLUE, "solid", title="Schedule-free SGD", settings={"lr": 1.0},
        takes="lr momentum weight_decay warmup_steps", at_least={"warmup_steps": 0},
        capturable=False,
        space=sgd_space(0.1, 10.0, "momentum")),
    OptimizerRow("schedule-free-adamw", "pytorch_optimizer:ScheduleFreeAdamW",
        "AdamW, evaluated at an average of its weights instead of a schedule",
        BLUE, "longdash", title="Schedule-free AdamW", settings={"lr": 2.5e-3},
        takes=f"{_USUAL} warmup_steps", at_least={"warmup_steps": 0}, space=ADAM_SPACE,
        capturable=False),
    OptimizerRow("ademamix", f"{_OURS}:ademamix", "AdamW with a fast and a slow moving average",
        ORANGE, "solid", title="AdEMAMix", settings={"lr": 1e-3},
        takes="lr betas:3 alpha eps weight_decay warmup_steps", capturable=False,
        space={**ADAM_SPACE, "beta3": Range(0.99, 0.9999, "memory"), "alpha": Range(1.0, 10.0)}),
    OptimizerRow("mars", f"{_OURS}:mars", "AdamW with variance reduction from the gradient before",
        ORANGE, "longdash", title="MARS", settings={"lr": 3e-3}, takes=f"{_USUAL} gamma",
        capturable=False, shardable=False,
        space={**ADAM_SPACE, "gamma": Range(5e-3, 0.1)}),
    OptimizerRow("cautious-adamw", f"{_OURS}:CautiousAdamW",
        "AdamW without the coordinates that would move against the gradient",
        BROWN, "longdash", title="Cautious-AdamW", settings={"lr": 1e-3},
        takes=f"{_USUAL} capturable", on_cuda=CAPTURABLE,
        space=ADAM_SPACE),
    OptimizerRow("cautious-lion", "pytorch_optimizer:Lion",
        "Lion without the coordinates that would move against the gradient",
        BROWN, "dot", settings={"lr": 1e-4}, takes="lr betas weight_decay",
        fixed={"cautious": True, **_DECOUPLED},
        space={**adam_space(3e-5, 1e-3), "weight_decay": Range(0.1, 10.0)}),
    # The first step only starts the second moment. As in the authors' code, the clip counts the
    # steps after that one.
    OptimizerRow("adopt", "pytorch_optimizer:ADOPT",
        "Adam divided by the second moment before the gradient came in",
        PURPLE, "solid", title="ADOPT", settings={"lr": 1e-3}, takes=_USUAL,
        fixed={"clip_lambda": lambda step: (step - 1) ** 0.25, **_DECOUPLED},
        capturable=False, shardable=False, space=ADAM_SPACE),
    OptimizerRow("laprop", "pytorch_optimizer:LaProp", "momentum of normalised gradients",
        PURPLE, "dash", title="LaProp", settings={"lr": 4e-4}, takes=_USUAL, fixed=_DECOUPLED,
        capturable=False,
        space=adam_space(1e-4, 3e-3)),
    # The published (proximal) weight decay, which the class calls not decoupled.
    OptimizerRow("adan", "pytorch_optimizer:Adan",
        "Adam with Nesterov's momentum from differences of gradients",
        SKY, "longdash", settings={"lr": 1e-3}, takes="lr betas:3 eps weight_decay", fixed=_COUPLED,
        capturable=False, shardable=False,
        space={"lr": Range(3e-4, 1e-2), "beta1": Range(0.9, 0.99, "memory"), "beta2": MOMENTUM,
               "beta3": SECOND, "weight_decay": DECOUPLED}),
    # It finds the scale of its steps: lr stays 1, times the schedule.
    OptimizerRow("prodigy", "pytorch_optimizer:Prodigy",
        "Adam that estimates its own learning rate",
        BLUE, "dot", settings={"lr": 1.0}, takes=f"{_USUAL} d0 d_coef", above={"d0": 0.0},
        capturable=False, shardable=False,
        space={"d_coef": Range(0.3, 3.0), "beta1": MOMENTUM, "beta2": SECOND,
               "weight_decay": DECOUPLED}),
    # lr is used as given, not divided by 1 + grokfast_lamb.
    OptimizerRow("grokfast-adamw", "pytorch_optimizer:GrokFastAdamW",
        "AdamW with the slow part of the gradient amplified",
        SKY, "dot", title="Grokfast-AdamW", settings={"lr": 1e-3},
        takes=f"{_USUAL} grokfast_alpha grokfast_lamb", fixed={"normalize_lr": False},
        capturable=False,
        space={**ADAM_SPACE, "grokfast_lamb": Range(0.5, 5.0)}),
)  # fmt: skip
OPTIMIZERS = {row.name: row for row in _ROWS}


# --- by name --------------------------------------------------------------------------------------


def find(name: str) -> OptimizerRow:
    """The row of a name; `UserError` if there is none or it cannot be loaded.

    A name is one of `OPTIMIZERS`, an entry point of the group ``sgdf.optimizers`` in an installed
    package, or the path of a class or function, such as ``mypkg.MyOptimizer``. With ``wiener-``
    before it, the optimizer's gradients are filtered.
    """
    if name in OPTIMIZERS:
        return OPTIMIZERS[name]
    announced = plugins.announced(GROUP)
    if name in announced:
        return row_for(name, plugins.load("optimizer", announced[name]))
    if name.startswith(NAME):
        row = find(name.removeprefix(NAME))
        if isinstance(row, FilteredRow):
            raise UserError(f"{name}: the filter can be in front only once")
        return filtered(row)
    if "." in name or ":" in name:
        hint = "install its package, or put the folder that holds it on PYTHONPATH"
        return row_for(name, plugins.load_object("optimizer", name, hint))
    raise unknown("optimizer", name, [*OPTIMIZERS, *announced])


def row_for(name: str, target: Any) -> OptimizerRow:
    """A row for a user's class or function."""
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):  # cannot be called, or is built in
        raise UserError(
            f"{name} is neither an optimizer class nor a function that builds an optimizer: it is "
            f"of type {type(target).__name__}"
        ) from None
    capturable = "capturable" in signature_kinds(target)
    colour, dash = style(name)
    return OptimizerRow(
        name=name,
        builder=target,
        about=(inspect.getdoc(target) or "").partition("\n")[0],
        colour=colour,
        dash=dash,
        capturable=capturable,
        on_cuda=CAPTURABLE if capturable else {},
        needs_hessian=hasattr(target, "update_hessian"),
        typed=False,
        any_setting=any(p.kind is p.VAR_KEYWORD for p in parameters.values()),
    )


def style(name: str) -> Look:
    """The colour and dash of an optimizer's curves; for an unknown name always the same ones."""
    row = OPTIMIZERS.get(name.removeprefix(NAME))
    if row is None:
        return spare_look(name)
    return Look(row.colour, "longdashdot" if name.startswith(NAME) else row.dash)


def title_of(name: str) -> str:
    """The name of an optimizer in reports.

    >>> [title_of(n) for n in ("filter-adamw", "sgd-ema", "wiener-lion", "mypkg.Mine")]
    ['FilterAdamW', 'SGD-EMA', 'Wiener-Lion', 'mypkg.Mine']
    """
    if name.startswith(NAME):
        return f"Wiener-{title_of(name.removeprefix(NAME))}"
    if "." in name or ":" in name:
        return name
    row = OPTIMIZERS.get(name)
    return row.title if row and row.title else "-".join(map(str.capitalize, name.split("-")))
