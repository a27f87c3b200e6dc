"""Convert the state dict of another optimizer before it is loaded, and say what was converted.

A state dict does not name its class; the settings of its groups tell which one it was. What has
another meaning or scale is converted or stays the optimizer's own; other entries are dropped.
"""

import math
from typing import Any

import torch
from torch import Tensor

OURS = ("SGDF", "FilterAdam", "Momentum")
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
#: The entries of a parameter's state that mean the same in `SAME`, but for momentum buffers.
MOMENTS = ("exp_avg", "exp_var", "exp_avg_sq")
STATE = ("step", *MOMENTS, *(f"{moment}_scale" for moment in MOMENTS))


def converted(
    name: str, groups: list[dict[str, Any]], state_dict: dict[str, Any]
) -> tuple[dict[str, Any], str | None]:
    """What the optimizer `name` with these groups can load, and a sentence on what was converted.

    The sentence is None for a state dict of its own kind, which is returned as it is.
    """
    saved, state = state_dict["param_groups"], state_dict["state"]
    target, source = kind_of(groups, {}), kind_of(saved, state)
    if source == target or source is None or target is None or len(saved) != len(groups):
        return state_dict, None
    if (source, target) not in SAME:
        raise ValueError(f"loaded state dict is not one that {name} can continue: {_why(source)}")
    complete = [
        {**own, **_settings(loaded, own, source, target), "params": loaded["params"]}
        for own, loaded in zip(groups, saved, strict=True)
    ]
    by_id = {
        i: _state(state[i], loaded, source, target)
        for loaded in saved
        for i in loaded["params"]
        if state.get(i)
    }
    sentence = _sentence(name, source, target, saved, complete)
    decay = "decoupled_weight_decay"
    if any(own.get(decay) and not new[decay] for own, new in zip(groups, complete, strict=True)):
        sentence += f"; weight decay is an L2 penalty now, as there, until you set {decay} again"
    return {**state_dict, "param_groups": complete, "state": by_id}, sentence


def kind_of(groups: list[dict[str, Any]], state: dict[Any, Any]) -> str | None:
    """The optimizer with these groups: one of ours, "SGD", "Adam" (also AdamW), or "" if unknown.

    None if the groups have no settings.
    """
    settings = set(groups[0]) if groups else set()
    if "lr" not in settings:
        return None
    # Older versions had fewer settings, so one of ours is enough.
    if {"gain_scale", "gain_power"} & settings:
        adam = "second_moment" in settings or any("exp_avg_sq" in s for s in state.values() if s)
        return "FilterAdam" if adam else "SGDF"
    if {"beta", "mu"} & settings:
        return "Momentum"
    if {"momentum", "dampening", "nesterov"} <= settings:
        return "SGD"
    return "Adam" if {"betas", "amsgrad"} <= settings else ""


def _settings(
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


def _state(
    state: dict[str, Any], loaded: dict[str, Any], source: str, target: str
) -> dict[str, Any]:
    """The state of one parameter, in the entries of `target`."""
    if source not in ("SGD", "Momentum"):
        return {key: state[key] for key in STATE if key in state}
    buffer = state.get("momentum_buffer")
    if buffer is None or target == "Momentum":
        return {} if buffer is None else {"momentum_buffer": buffer}
    beta, mu = _momentum(loaded, source)
    if beta == 0:  # the last gradient alone
        return {}
    if isinstance(buffer, Tensor):  # else it is refused as m
        wide = torch.promote_types(buffer.dtype, torch.float32)
        buffer = buffer.to(wide) * ((1 - beta) / mu)
    # SGD counts no steps. So many that a complete m has no bias left to correct, in float32.
    step = math.ceil(24 * math.log(2) / -math.log(beta))
    return {"step": torch.tensor(float(step)), "exp_avg": buffer}


# --- what is said -----------------------------------------------------------------------------


def _why(source: str) -> str:
    if source:
        return f"it is of {_full(source)}, whose state and learning rate have no counterpart here"
    return (
        "its settings are not those of SGDF, FilterAdam, FilterAdamW, Momentum or torch's SGD, "
        "Adam, AdamW"
    )


def _full(source: str) -> str:
    return source if source in OURS else f"torch's {source}"


def _sentence(
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
    return f"loaded a state dict of {_full(source)} into {name}: {'; '.join(parts)}"


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
