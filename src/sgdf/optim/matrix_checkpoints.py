"""State dicts that FilterMuon and FilterSOAP load: their own, and those of Muon and Adam."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sgdf.filter import one_minus_power
from sgdf.optim.checkpoints import (
    LATER,
    SCHEDULERS,
    _dense,
    check_step,
    check_tensor,
    loaded_moment,
    optimizer_of,
)
from sgdf.optim.state import moment_in, new_moment

Group = dict[str, Any]


def started_average(p: Tensor, state: Mapping[str, Any], group: Group) -> dict[str, Tensor]:
    """A second average whose bias-corrected value is that of the first one; 0 at the start."""
    step = state.get("step")
    t = 0.0 if step is None else float(step)
    if t < 1 or "exp_avg" not in state:
        return new_moment(p, "exp_avg_slow", group["state_dtype"])
    m = _dense(moment_in(state, "exp_avg"))
    ratio = 1.0
    if group["bias_correction"]:
        beta, slow = group["betas"][0], group["slow_beta"]
        ratio = one_minus_power(slow, t) / one_minus_power(beta, t)
    return loaded_moment(p, "exp_avg_slow", {"exp_avg_slow": m * ratio}, group["state_dtype"])


def convert_matrix_state_dict(
    optimizer: Any, state_dict: dict[str, Any]
) -> tuple[dict[str, Any], str | None]:
    """What a `MatrixOptimizer` can load, and a sentence on what was converted.

    The state of Muon is for matrices only, that of Adam may be for all parameters or for those that
    are not matrices. Parameters that it leaves out keep the state that they have.
    """
    groups, saved = optimizer.param_groups, state_dict["param_groups"]
    without_settings = optimizer_of(saved, {}) is None
    if without_settings or any("matrices" in group for group in saved):
        refuse_the_other(optimizer, saved)
        return with_checked_bases(optimizer, state_dict)
    name = type(optimizer).__name__
    sources = {source_of(group, state_dict["state"]) or "" for group in saved}
    if not sources <= set(SOURCES):
        raise ValueError(
            f"loaded state dict is not one that {name} can continue: its settings are not those of "
            f"{name}, FilterAdam, FilterAdamW or torch's Muon, Adam, AdamW"
        )
    origin = places(optimizer, saved, state_dict["state"])
    own = optimizer.state_dict()
    complete, state = [], {}
    for group, with_ids in zip(groups, own["param_groups"], strict=True):
        taken: dict[str, Any] = {}
        for p, i in zip(group["params"], with_ids["params"], strict=True):
            if p not in origin:
                if i in own["state"]:
                    state[i] = own["state"][i]
                continue
            loaded, values = origin[p]
            source = source_of(loaded, {0: values})
            taken = taken or converted_settings(group, loaded, source, optimizer.orthogonalises)
            if group["matrices"] is False or optimizer.orthogonalises:
                state[i] = converted_state(p, group, loaded, values, source)
        complete.append({**with_ids, **taken})
    rates = ", ".join(dict.fromkeys(f"{float(group['lr']):g}" for group in complete))
    sentence = (
        f"loaded a state dict of {' and '.join(SOURCES[s] for s in sorted(sources))} into {name}: "
        f"averages, steps, lr (now {rates}) and weight decay are taken over; the settings of the "
        "filter stay as they were"
    )
    if not optimizer.orthogonalises and any(group["matrices"] is not False for group in groups):
        # Divided by a v of few gradients, an average of many gives steps of a hundred lr.
        sentence += "; the averages of matrices start anew, together with their second moments"
    if any(group["matrices"] is not False and group["eigenbasis"] for group in groups):
        sentence += "; the next gradient of a matrix builds its basis and moves nothing"
    return {**state_dict, "param_groups": complete, "state": state}, sentence


def refuse_the_other(optimizer: Any, saved: list[Group]) -> None:
    """FilterMuon and FilterSOAP have the same settings and entries, but steps of other lengths.

    Only FilterSOAP has an eigenbasis and no scale of its own, unless a FilterMuon was made so.
    """
    for own, group in zip(optimizer.param_groups, saved, strict=False):
        if own["matrices"] is False or group.get("matrices") is False:
            continue
        if not {"eigenbasis", "adjust_lr_fn"} <= group.keys():  # of an earlier version
            continue
        of_soap, is_soap = (
            bool(each.get("eigenbasis")) and each.get("adjust_lr_fn") is None
            for each in (group, own)
        )
        if is_soap != of_soap and not (optimizer.orthogonalises and is_soap):
            other = "FilterMuon"
            if of_soap:
                other = "FilterSOAP, or of a FilterMuon(eigenbasis=True, adjust_lr_fn=None)"
            raise ValueError(
                f"loaded state dict is not one that {type(optimizer).__name__} with these settings "
                f"can continue: it is of {other}"
            )


#: The settings of torch's Muon. Others of this name have more, which mean something else.
OF_MUON = {
    *("lr", "weight_decay", "momentum", "nesterov", "ns_coefficients", "eps", "ns_steps"),
    "adjust_lr_fn",
}
#: Whose state can be converted, and what it is called.
SOURCES = {"Adam": "torch's Adam", "FilterAdam": "FilterAdam", "Muon": "torch's Muon"}


def source_of(group: Group, state: dict[Any, Any]) -> str | None:
    """The optimizer that saved this group."""
    if OF_MUON <= set(group) <= {"params", *OF_MUON, *LATER, *SCHEDULERS}:
        return "Muon"
    return optimizer_of([group], state)


def places(
    optimizer: Any, saved: list[Group], state: dict[Any, Any]
) -> dict[Tensor, tuple[Group, dict[str, Any]]]:
    """The group and the state of the checkpoint for each parameter that it has.

    By name if both have names. Else by order: what Muon has saved belongs to the matrices. The
    parameters of an optimizer for all are in the order in which ours were given.
    """
    groups = optimizer.param_groups
    rows = [(group, i) for group in saved for i in group["params"]]
    if all("param_names" in group for group in (*groups, *saved)):
        ours = {n: p for g in groups for n, p in zip(g["param_names"], g["params"], strict=True)}
        names = [name for group in saved for name in group["param_names"]]
        pairs = [(ours[n], row) for n, row in zip(names, rows, strict=True) if n in ours]
    else:
        params = optimizer.in_given_order()
        matrices = {
            p for group in groups if group["matrices"] is not False for p in group["params"]
        }
        of_muon = [row for row in rows if source_of(row[0], state) == "Muon"]
        of_adam = [row for row in rows if source_of(row[0], state) != "Muon"]
        others = [p for p in params if p not in matrices]
        if len(of_adam) == len(params):
            pairs = list(zip(params, of_adam, strict=True))
        else:
            pairs = []
            for some, theirs in (
                ([p for p in params if p in matrices], of_muon),
                (others, of_adam),
            ):
                if theirs and len(some) != len(theirs):
                    raise ValueError(
                        f"loaded state dict has {len(rows)} parameters, of which {len(of_muon)} "
                        f"are Muon's; here are {len(params)}, of which {len(matrices)} are "
                        "matrices: with named parameters on both sides they are matched by name"
                    )
                pairs += zip(some, theirs, strict=False)
    for p, (_, i) in pairs:
        for key in ("momentum_buffer", "exp_avg"):
            value = (state.get(i) or {}).get(key)
            if isinstance(value, Tensor) and value.shape != p.shape:
                raise ValueError(
                    f"loaded state dict: {key} of parameter {i} has shape {tuple(value.shape)}, "
                    f"expected {tuple(p.shape)}; with named parameters on both sides they are "
                    "matched by name"
                )
    return {p: (group, state.get(i) or {}) for p, (group, i) in pairs}


def converted_settings(own: Group, loaded: Group, source: str | None, orthogonal: bool) -> Group:
    """The settings of a loaded group that replace those of `own`."""
    names = ["maximize"]
    if own["matrices"] is False:
        names += ["lr", "initial_lr", "betas", "eps", "weight_decay", "decoupled_weight_decay"]
        if source == "FilterAdam":
            names += ["gain_scale", "gain_power", "gain_eps", "correction", "bias_correction"]
    elif source == "Muon":
        names += ["weight_decay"]
        names += ["lr", "initial_lr", "ns_steps", "ns_coefficients", "adjust_lr_fn"] * orthogonal
    elif own["adjust_lr_fn"] == "match_rms_adamw" or not orthogonal:
        names += ["lr", "initial_lr"]
        names += ["weight_decay"] * bool(loaded.get("decoupled_weight_decay"))
    return {name: loaded[name] for name in names if name in loaded}


def converted_state(
    p: Tensor, own: Group, loaded: Group, values: dict[str, Any], source: str | None
) -> dict[str, Any]:
    """The state of one parameter: for a matrix its average, with the bias of our decay rate."""
    if own["matrices"] is False:
        return values
    if source == "Muon":
        buffer = values.get("momentum_buffer")
        if buffer is None:
            return {}
        # It counts no steps: so many that no bias is left to correct.
        slowest = max(own["betas"][0], own["slow_beta"] if own["slow_weight"] else 0.0, 0.5)
        steps = math.ceil(36 * math.log(2) / -math.log(slowest))
        return {"step": torch.tensor(float(steps), device="cpu"), "exp_avg": buffer}
    if not {"step", "exp_avg"} <= values.keys():
        return {}
    check_step(0, values["step"])
    t = float(values["step"])
    if t < 1:
        return {}
    ratio = one_minus_power(own["betas"][0], t) if own["bias_correction"] else 1.0
    if loaded.get("bias_correction", True):
        ratio /= one_minus_power(loaded["betas"][0], t)
    return {
        "step": torch.tensor(t, device="cpu"),
        "exp_avg": _dense(moment_in(values, "exp_avg")) * ratio,
    }


# --- the basis ----------------------------------------------------------------------------------


def with_checked_bases(
    optimizer: Any, state_dict: dict[str, Any]
) -> tuple[dict[str, Any], str | None]:
    """The state dict without bases that are incomplete, as a checkpoint of shards may have them.

    Without its basis s and v mean nothing, nor does the basis without v: the next gradient builds a
    new one. A sentence says of how many parameters.
    """
    state, count = dict(state_dict["state"]), 0
    groups = zip(optimizer.param_groups, state_dict["param_groups"], strict=False)
    for group, saved in groups:
        if group["matrices"] is False:
            continue
        for p, i in zip(group["params"], saved["params"], strict=False):
            values = state.get(i)
            if not values:
                continue
            complete = {**group, **saved}
            wanted = {
                name: shape
                for name, shape in optimizer.basis_shapes(p, complete).items()
                if optimizer._has(p, name, complete)
            }
            kept = [*wanted, *(["exp_avg_sq"] if wanted else [])]
            missing = [x for x in kept if x not in values and optimizer._has(p, x, complete)]
            count += bool(missing)
            if missing and not optimizer.orthogonalises:
                state[i] = {}  # v and the steps start anew together: v of few gradients is small
                continue
            if missing:
                dropped = (*wanted, "exp_var", "exp_avg_sq", "exp_var_scale", "exp_avg_sq_scale")
                state[i] = {key: value for key, value in values.items() if key not in dropped}
                continue
            for name, shape in wanted.items():
                check_tensor(i, p, name, values[name], shape)
                if not values[name].is_floating_point():
                    raise ValueError(
                        f"loaded state dict: {name} of parameter {i} has dtype {values[name].dtype}"
                    )
    sentence = f"the basis of {count} parameters is incomplete: the next gradient builds a new one"
    return {**state_dict, "state": state}, sentence if count else None
