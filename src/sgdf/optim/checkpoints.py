"""Checkpoints: validate a state dict, convert that of another optimizer, load or derive moments.

A state dict is checked while the optimizer is still as it was. It does not name its class; the
settings of its groups tell which one it was. What has another meaning or scale is converted or
stays the optimizer's own; other entries are dropped, and a sentence says what was converted.
"""

import math
import numbers
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import Tensor

from sgdf.filter import one_minus_power, second_moment, second_moment_weights
from sgdf.kernels.quantized import (
    Quantized,
    blocks_per_row,
    dequantize,
    laid_out,
    memory_order,
    quantize_,
)
from sgdf.kernels.work import PLAIN, is_fake
from sgdf.optim.settings import check_settings
from sgdf.optim.state import ORDER, local, moment_in, new_moment, state_dtype

MATRICES = "FilterMuon or FilterSOAP"
OURS = ("SGDF", "FilterAdam", "Momentum", MATRICES)
#: The settings that mean the same, by source and target.
SAME = {
    ("Adam", "FilterAdam"): (
        *("lr", "initial_lr", "betas", "eps", "weight_decay"),
        *("decoupled_weight_decay", "maximize"),
    ),
    ("Adam", "SGDF"): ("betas", "maximize"),
    ("FilterAdam", "SGDF"): ("betas", "maximize"),
    ("SGDF", "FilterAdam"): ("betas", "maximize"),
    ("SGD", "Momentum"): ("lr", "initial_lr", "weight_decay", "maximize"),
    ("SGD", "SGDF"): ("weight_decay", "maximize"),
    ("Momentum", "SGDF"): ("weight_decay", "decoupled_weight_decay", "maximize"),
}
#: The settings of the first versions of torch's SGD and Adam, and the entries of their state.
TORCHS = {
    "SGD": ({"lr", "momentum", "dampening", "weight_decay", "nesterov"}, {"momentum_buffer"}),
    "Adam": (
        {"lr", "betas", "eps", "weight_decay", "amsgrad"},
        {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
    ),
}
OF_MOMENTUM = {"beta", "mu", "weight_decay", "decoupled_weight_decay", "maximize"}
#: What later versions added, up to torch 2.15.
LATER = {
    *("maximize", "foreach", "differentiable", "fused"),
    *("capturable", "decoupled_weight_decay"),
}
#: What schedulers and trainers add to a group without a change of the rule, and names.
SCHEDULERS = {
    *("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"),
    *("param_names", "name", "lr_scale"),
}
#: What FilterAdam divides by and cannot do without: the next steps would be thousands of lr.
DIVISOR = {"separate": "exp_avg_sq", "fluctuation": "exp_var"}
#: What the settings meant before there were names for them.
BEFORE = {"gain_eps": None, "second_moment": "separate"}
#: The entries of a parameter's state that mean the same in `SAME`, but for momentum buffers.
MOMENTS = ("exp_avg", "exp_var", "exp_avg_sq")
LEAST_FLUCTUATION = 0.1  # of v^; see `_fluctuation`
STATE = ("step", *MOMENTS, *(f"{moment}_scale" for moment in MOMENTS), ORDER)


def validate_state_dict(
    state_dict: dict[str, Any],
    groups: list[dict[str, Any]],
    keys: tuple[str, ...],
    setting_names: Collection[str],
    own_settings: Callable[[dict[str, Any]], Collection[str]],
) -> dict[str, Any]:
    """A copy of `state_dict` with valid settings, complete, and state that fits the parameters.

    Args:
        state_dict: as `load_state_dict` received it.
        groups: the optimizer's parameter groups. They provide the settings that are missing.
        keys: the entries of a parameter's state that the optimizer uses.
        setting_names: the settings of a group.
        own_settings: those of a group that are the optimizer's own, whatever `state_dict` says.
    """
    saved = state_dict["param_groups"]
    sizes = [len(group["params"]) for group in groups]
    if [len(group["params"]) for group in saved] != sizes:
        return state_dict  # torch's own error says what is wrong
    complete, state = [], dict(state_dict["state"])
    for group, loaded in zip(groups, saved, strict=True):
        own = {name: group[name] for name in setting_names if name in group}
        older = {name: BEFORE[name] for name in BEFORE.keys() & own if "gain_scale" in loaded}
        merged = {**own, **older, **loaded, **{name: group[name] for name in own_settings(group)}}
        check_settings(merged)
        complete.append(merged)
        for i, p in zip(loaded["params"], group["params"], strict=True):
            if state.get(i) is not None:
                # torch's SGD saves None for a buffer it does not have.
                state[i] = {
                    key: value
                    for key, value in state[i].items()
                    if value is not None or key not in keys
                }
                check_state(i, p, state[i], keys)
    return {**state_dict, "param_groups": complete, "state": state}


def check_form(state_dict: dict[str, Any]) -> None:
    """A state dict has groups of settings and, by parameter, the entries of its state."""
    if not isinstance(state_dict, dict):
        raise ValueError(f"loaded state dict: it is {state_dict!r}, no dict")
    groups, state = state_dict.get("param_groups"), state_dict.get("state")
    if not isinstance(groups, list) or not all(
        isinstance(group, dict) and isinstance(group.get("params"), list) for group in groups
    ):
        raise ValueError("loaded state dict: it has no list of parameter groups with params")
    if not isinstance(state, dict):
        raise ValueError("loaded state dict: it has no state")
    for index, entries in state.items():
        if entries is not None and not isinstance(entries, dict):
            raise ValueError(f"loaded state dict: the state of {index!r} is {entries!r}, no dict")


def check_state(index: Any, p: Tensor, state: dict[str, Any], keys: Collection[str]) -> None:
    """Validate the state of one parameter, whose index is for the error message."""
    if "step" in keys and "step" not in state and any(key in state for key in keys):
        raise ValueError(
            f"loaded state dict: parameter {index} has moments, but no step to correct them by"
        )
    for key in {"step": None} | dict.fromkeys(keys):
        if key not in state:
            continue
        if key == "step":
            check_step(index, state["step"])
        else:
            check_moment(index, p, key, state)


def check_step(index: Any, step: Any) -> None:
    """A step counter is one number, at least 0; older checkpoints have it as a Python number."""
    scalar = isinstance(step, numbers.Real) or (
        isinstance(step, Tensor)
        and step.numel() == 1
        and step.layout == torch.strided
        and not step.is_complex()
    )
    if scalar and isinstance(step, Tensor) and step.is_meta:
        return  # no value to check
    if not scalar or not 0 <= float(step) < math.inf:
        raise ValueError(f"loaded state dict: invalid step of parameter {index}: {step!r}")


def check_moment(index: Any, p: Tensor, key: str, state: dict[str, Any]) -> None:
    """A moment has its parameter's shape; in 8 bits, also a scale for every block of a row."""
    moment, scale = state[key], state.get(f"{key}_scale")
    check_tensor(index, p, key, moment, tuple(p.shape))
    if moment.is_complex() and not p.is_complex():
        raise ValueError(f"loaded state dict: {key} of parameter {index} is complex, and it is not")
    in_8_bits = moment.dtype in (torch.int8, torch.uint8)
    if scale is not None and in_8_bits:
        blocks = (p.shape[0], blocks_per_row(p)) if p.dim() else ()
        check_tensor(index, p, f"{key}_scale", scale, blocks)
        _check_order(index, p, state.get(ORDER))
    elif scale is not None or not (moment.is_floating_point() or moment.is_complex()):
        beside = "without" if scale is None else "with"
        raise ValueError(
            f"loaded state dict: {key} of parameter {index} has dtype {moment.dtype} {beside} "
            f"{key}_scale"
        )


def _check_order(index: Any, p: Tensor, order: Any) -> None:
    if order is None:
        return
    check_tensor(index, p, ORDER, order, (p.dim(),))
    if sorted(map(int, order)) != list(range(p.dim())) or int(order[0]) != 0:
        raise ValueError(f"loaded state dict: invalid {ORDER} of parameter {index}: {order!r}")


def check_tensor(index: Any, p: Tensor, key: str, value: Any, shape: tuple[int, ...]) -> None:
    name = f"loaded state dict: {key} of parameter {index}"
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} is not a tensor but {value!r}")
    if type(value) not in PLAIN and not (hasattr(value, "placements") or is_fake(value)):
        raise ValueError(f"{name} is in a format of its own ({type(value).__name__})")
    if value.is_nested:
        raise ValueError(f"{name} is nested, but moments are dense")
    if tuple(value.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(value.shape)}, expected {shape}")
    if value.layout != torch.strided:
        raise ValueError(f"{name} is sparse ({value.layout}), but moments are dense")
    if value.is_meta and not p.is_meta:
        raise ValueError(f"{name} is on the meta device, without values")


def changed_memory(
    name: str,
    where: list[tuple[Tensor, dict[str, Any]]],
    saved: list[dict[str, Any]],
    loaded: list[dict[str, Any]],
) -> str | None:
    """A sentence if the moments of these parameters take more or less memory than they did."""
    elements = sum(p.numel() for (p, _), state in zip(where, saved, strict=True) if state)
    before, after = (
        sum(map(_bytes_of_moments, states)) / max(elements, 1) for states in (saved, loaded)
    )
    if not before or abs(after / before - 1) < 0.05:
        return None
    own = {f"state_dtype={group['state_dtype']}" for _, group in where}
    own |= {
        f"second_moment={group['second_moment']!r}"
        for _, group in where
        if "second_moment" in group
    }
    return (
        f"loaded a state of {before:.3g} bytes per parameter into {name}, which keeps {after:.3g} "
        f"with {', '.join(sorted(own))}: pass the saved run's state_dtype and second_moment to the "
        "constructor to keep its memory"
    )


def _bytes_of_moments(state: dict[str, Any]) -> int:
    kept = [value for key, value in state.items() if key.removesuffix("_scale") in MOMENTS]
    return sum(value.numel() * value.element_size() for value in kept)


# --- the state of another optimizer -------------------------------------------------------------


def convert_state_dict(
    name: str, groups: list[dict[str, Any]], state_dict: dict[str, Any]
) -> tuple[dict[str, Any], str | None]:
    """What the optimizer `name` with these groups can load, and a sentence on what was converted.

    The sentence is None for a state dict of its own kind, which is returned as it is.
    """
    saved, state = state_dict["param_groups"], state_dict["state"]
    also = {key for group in groups for key in group}  # that a user added here, too
    target, source = optimizer_of(groups, {}), optimizer_of(saved, state, also)
    if source == target or source is None or target is None or len(saved) != len(groups):
        return state_dict, None
    if (source, target) not in SAME:
        why = _why_foreign(saved, state) if source == "" else _why_no_counterpart(source)
        raise ValueError(f"loaded state dict is not one that {name} can continue: {why}")
    complete = [
        {**own, **_converted_settings(loaded, own, source, target), "params": loaded["params"]}
        for own, loaded in zip(groups, saved, strict=True)
    ]
    for group in complete:
        check_settings(group)
    by_id = {
        i: _converted_state(state[i], loaded, source, target)
        for loaded in saved
        for i in loaded["params"]
        if state.get(i)
    }
    sentence = _what_was_converted(name, source, target, saved, complete)
    decay = "decoupled_weight_decay"
    if any(own.get(decay) and not new[decay] for own, new in zip(groups, complete, strict=True)):
        sentence += f"; weight decay is an L2 penalty now, as there, until you set {decay} again"
    return {**state_dict, "param_groups": complete, "state": by_id}, sentence


def optimizer_of(
    groups: list[dict[str, Any]], state: dict[Any, Any], also: Collection[str] = ()
) -> str | None:
    """The optimizer that has these groups and this state, or "" if it is none of those we know.

    Those are ours, "SGD" and "Adam" (also AdamW). None if the groups have no settings. The groups
    of torch's may have the settings in `also`; any other could be that of a subclass.
    """
    if all(set(group) <= {"params", "param_names"} for group in groups):
        return None
    states = [set(entries) for entries in state.values() if entries]
    kinds = {_optimizer_of(set(group) - {"params"}, states, also) for group in groups}
    return kinds.pop() if len(kinds) == 1 else ""


def _optimizer_of(settings: set[str], states: list[set[str]], also: Collection[str]) -> str:
    if "slow_beta" in settings:
        return MATRICES  # s and v may belong to an eigenbasis
    # Older versions had fewer settings, so one of ours is enough.
    if {"gain_scale", "gain_power"} & settings:
        adam = "second_moment" in settings or any("exp_avg_sq" in entries for entries in states)
        known = all("exp_avg" in entries for entries in states)
        return ("FilterAdam" if adam else "SGDF") if known else ""
    if {"beta", "mu"} & settings and len(OF_MOMENTUM - settings) <= 1:
        return "Momentum" if all("momentum_buffer" in entries for entries in states) else ""
    for name, (first, entries) in TORCHS.items():
        own = first <= settings <= first.union(LATER, SCHEDULERS, also)
        if own and all(kept <= entries for kept in states):
            return name
    return ""


def _converted_settings(
    loaded: dict[str, Any], own: dict[str, Any], source: str, target: str
) -> dict[str, Any]:
    """The settings of a loaded group that replace those of `own`."""
    taken = {key: loaded[key] for key in SAME[source, target] if key in loaded}
    if source not in ("SGD", "Momentum"):
        return taken
    beta, mu = _momentum(loaded, source)
    taken.setdefault("decoupled_weight_decay", False)  # SGD adds its decay to the gradient
    if target == "Momentum":
        return {**taken, "beta": beta, "mu": mu}
    for key in ("lr", "initial_lr"):
        if key in loaded:
            taken[key] = loaded[key] * mu / (1 - beta)
    if beta > 0:  # without momentum, b1 = 0 would switch the filter off
        taken["betas"] = (beta, own["betas"][1])
    return taken


def _momentum(loaded: dict[str, Any], source: str) -> tuple[float, float]:
    """How much of the momentum stays, and how much of a gradient is added."""
    if source == "Momentum":
        return loaded["beta"], loaded["mu"]
    beta, mu = loaded["momentum"], 1 - loaded["dampening"]
    if not (0 <= beta < 1 and mu > 0):
        raise ValueError(
            f"loaded state dict: SGD's momentum of {beta} and dampening of {1 - mu} cannot be "
            "converted"
        )
    return beta, mu


def _converted_state(
    state: dict[str, Any], loaded: dict[str, Any], source: str, target: str
) -> dict[str, Any]:
    """The state of one parameter, in the entries of `target`."""
    if source not in ("SGD", "Momentum"):
        return {key: state[key] for key in STATE if key in state}
    buffer = state.get("momentum_buffer")
    if buffer is None or target == "Momentum":
        return {} if buffer is None else {"momentum_buffer": buffer}
    beta, mu = _momentum(loaded, source)
    if beta == 0:  # only the last gradient
        return {}
    if isinstance(buffer, Tensor):  # else it is refused as m
        wide = torch.promote_types(buffer.dtype, torch.float32)
        buffer = buffer.to(wide) * ((1 - beta) / mu)
    # SGD counts no steps. So many that a complete m has no bias left to correct, in float32.
    step = math.ceil(24 * math.log(2) / -math.log(beta))
    return {"step": torch.tensor(float(step), device="cpu"), "exp_avg": buffer}


def _why_no_counterpart(source: str) -> str:
    return f"it is of {_with_owner(source)}, whose state and learning rate have no counterpart here"


def _why_foreign(groups: list[dict[str, Any]], state: dict[Any, Any]) -> str:
    settings = sorted({name for group in groups for name in group} - {"params"})
    entries = sorted({str(name) for kept in state.values() for name in kept or ()})
    of_state = f" and its state ({', '.join(entries)})" if entries else ""
    return (
        f"its settings ({', '.join(settings)}){of_state} are not those of SGDF, FilterAdam, "
        "FilterAdamW, Momentum or torch's SGD, Adam, AdamW"
    )


def _with_owner(source: str) -> str:
    return source if source in OURS else f"torch's {source}"


def _what_was_converted(
    name: str,
    source: str,
    target: str,
    saved: list[dict[str, Any]],
    complete: list[dict[str, Any]],
) -> str:
    rates = ", ".join(dict.fromkeys(f"{float(group['lr']):g}" for group in complete))
    if target == "Momentum":
        parts = ["its buffers, lr, momentum, dampening and weight decay are taken over"]
        if any(group["nesterov"] for group in saved):
            parts.append("Nesterov's step is not, for which SGDF has settings")
    elif source in ("SGD", "Momentum"):
        parts = _about_momentum(source, saved, rates)
    elif "lr" in SAME[source, target]:
        parts = [
            "m, v, steps, lr, betas, eps and weight decay are taken over, s is made from m and v"
        ]
        if any(group["amsgrad"] for group in saved):
            parts.append("the maximum of amsgrad is dropped")
    else:
        other = "s is made from m and v" if target == "SGDF" else "v is made from m and s"
        parts = [
            f"m, steps and betas are taken over, {other}",
            f"lr ({rates}), weight_decay and eps stay as they were, having another scale",
        ]
    return f"loaded a state dict of {_with_owner(source)} into {name}: {'; '.join(parts)}"


def _about_momentum(source: str, saved: list[dict[str, Any]], rates: str) -> list[str]:
    if not any(_momentum(group, source)[0] for group in saved):
        return [f"it had no momentum, so the filter starts anew, with its lr ({rates})"]
    factor = "(1 - dampening) / (1 - momentum)" if source == "SGD" else "mu / (1 - beta)"
    parts = [
        f"its buffers are converted to averages m, and lr is now {rates}, the old one * {factor}",
        "the variance s starts at 0, so the gain opens within the next steps",
        "do not load the state of its scheduler, which has the old rates",
    ]
    if any(group.get("nesterov") for group in saved):
        parts.append(
            "gain_scale=1 - momentum, gain_power=0, bias_correction=False would continue it exactly"
        )
    return parts


# --- moments ------------------------------------------------------------------------------------


def loaded_moment(
    p: Tensor, key: str, saved: dict[str, Tensor], requested: torch.dtype | None
) -> dict[str, Tensor]:
    """A copy of a moment of a checkpoint, in the format that `requested` means for p."""
    target, source = new_moment(p, key, requested), moment_in(saved, key)
    ours = moment_in(target, key)
    if not isinstance(source, Quantized):
        value = source
    else:
        codes, scale = local(source)
        order = saved.get(ORDER)
        if order is not None:  # older checkpoints have none, but strides
            codes = laid_out(codes, tuple(map(int, order)))
        if isinstance(ours, Quantized):
            target_codes, target_scale = local(ours)
            if memory_order(codes) == memory_order(target_codes):
                target_codes.copy_(codes)
                target_scale.copy_(scale)
                return target
        value = dequantize(Quantized(codes, scale))
    if isinstance(ours, Quantized):
        wide = torch.empty_like(local(p), dtype=torch.float32).copy_(local(value))
        quantize_(local(ours), wide)
        return target
    if isinstance(source, Quantized):
        local(ours).copy_(value)
        return target
    return {key: value.to(device=p.device, dtype=state_dtype(p, requested), copy=True)}


def lacks_steps(state: dict[str, Any]) -> bool:
    """Whether there are moments but no step: its bias correction would make them many times larger.

    Moments of 0 and no step are those of an optimizer that has just been made.
    """
    step = state.get("step", math.inf)
    if (isinstance(step, Tensor) and step.is_meta) or float(step) >= 1:
        return False
    moments = [state[key] for key in MOMENTS if key in state]
    return any(bool((m != 0).sum()) for m in moments if not (m.is_meta or is_fake(m)))


def not_finite(states: Iterable[dict[str, Any]]) -> str | None:
    """A sentence if there are moments that are not finite, as s was in old float16 checkpoints."""
    moments = [[local(x) for x in state.values() if isinstance(x, Tensor)] for state in states]
    count = sum(
        any(not (x.is_meta or is_fake(x) or x.isfinite().all()) for x in each) for each in moments
    )
    sentence = f"{count} of its parameters have moments that are not finite: nor is their next step"
    return sentence if count else None


def lacks_divisor(state: dict[str, Any], group: dict[str, Any]) -> bool:
    """Whether the moment that FilterAdam divides by is neither in a state nor can be made."""
    key = DIVISOR.get(group.get("second_moment", ""))
    if key is None or key in state or float(state.get("step", 0)) < 1:
        return False
    return derive_moment(key, state, group["betas"]) is None


def derive_moment(key: str, state: dict[str, Any], betas: tuple[float, float]) -> Tensor | None:
    """The missing moment `key` of a parameter, in float32 or float64; None if it cannot be made."""
    needed = {"exp_avg_sq": "exp_var", "exp_var": "exp_avg_sq"}.get(key)
    if needed is None or not {"exp_avg", needed, "step"} <= state.keys():
        return None
    t = float(state["step"])  # waits for the device, so only where a moment can be made
    if t < 1:
        return None
    m, other = (_dense(moment_in(state, name)) for name in ("exp_avg", needed))
    if key == "exp_avg_sq":
        return _per_part(_second_moment, m, other, t, betas)
    return _per_part(_fluctuation, m, other, t, betas)


def _second_moment(m: Tensor, s: Tensor, t: float, betas: tuple[float, float]) -> Tensor:
    """The v whose v^ is the one derived from m and s."""
    weights = second_moment_weights(t, *betas, "derived")
    return second_moment(m, s, weights) * one_minus_power(betas[1], t)


def _fluctuation(m: Tensor, v: Tensor, t: float, betas: tuple[float, float]) -> Tensor:
    """The s with which m and s give the v^ of v.

    At least a tenth of what it would be for m = 0: v averages over more steps than m^2, which may
    be larger, and a step divided by an s of 0 would have any length.
    """
    beta1, beta2 = betas
    if t == 1 or beta1 == 0:  # one gradient: m is (1-b1) g, and s is (1-b2) (b1 g)^2
        return (1 - beta2) * (beta1 / (1 - beta1)) ** 2 * m * m
    of_m, of_s = second_moment_weights(t, beta1, beta2, "derived")
    v_hat = v / one_minus_power(beta2, t)
    return torch.maximum(v_hat - of_m * m * m, LEAST_FLUCTUATION * v_hat) / of_s


def _per_part(function: Any, m: Tensor, other: Tensor, t: float, betas: Any) -> Tensor:
    """Real and imaginary parts have moments of their own."""
    if not m.is_complex():
        return function(m, other, t, betas)  # type: ignore[no-any-return]
    parts = (torch.view_as_real(x.contiguous()) for x in (m, other))
    return torch.view_as_complex(function(*parts, t, betas))


def _dense(moment: Any) -> Tensor:
    """A moment in at least float32; 8-bit codes of a DTensor as a DTensor."""
    if not isinstance(moment, Quantized):
        wide = moment.dtype in (torch.float64, torch.complex128) or moment.is_complex()
        return moment if wide else moment.float()  # type: ignore[no-any-return]
    codes: Any = moment.codes
    if not hasattr(codes, "to_local"):
        return dequantize(moment)
    from torch.distributed.tensor import DTensor

    local = Quantized(codes.to_local(), moment.scale.to_local())  # type: ignore[attr-defined]
    return DTensor.from_local(
        dequantize(local),
        codes.device_mesh,
        codes.placements,
        shape=codes.shape,
        stride=codes.stride(),
    )
