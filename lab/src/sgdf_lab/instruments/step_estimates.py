"""The estimate of the gradient that an optimizer's step follows, at chosen coordinates."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from sgdf.filter import Corrections, FilterSettings, wiener_filter, wiener_gain
from sgdf.kernels.arithmetic import compute_dtype, positive_eps
from sgdf.kernels.quantized import Quantized, dequantize
from sgdf.optim import Momentum
from sgdf.optim.filtered import FilteredOptimizer
from sgdf.optim.state import moment_in
from sgdf_lab.instruments.sampling import Pick, gather
from sgdf_lab.support.numerics import joint_norm

#: What counts as the estimated gradient of an optimizer.
ESTIMATES = {
    "filter": "the estimate of sgdf.filter, from gradient and state",
    "momentum": "the momentum buffer after the step (with Nesterov, what the step followed)",
    "direction": "what the step moved the parameters by, over the learning rate",
}


def estimate_of(optimizer: Optimizer) -> str:
    """Which of ESTIMATES applies."""
    if isinstance(optimizer, FilteredOptimizer):
        return "filter"
    return "momentum" if isinstance(optimizer, Momentum | SGD) else "direction"


@dataclass
class GroupSnapshot:
    """One parameter group just before a step, at the chosen coordinates."""

    group: dict[str, Any]
    parameters: list[Tensor]
    picks: list[Pick]
    raw: Tensor
    norm: Tensor  # of the group's full gradient
    before: Tensor | None = None  # the parameters, if the estimate depends on them
    moments: tuple[Tensor, Tensor, Tensor] | None = None  # steps, m and s of the filter

    def spread(self, numbers: Tensor) -> Tensor:
        """Repeat a number per parameter for each of its coordinates."""
        counts = torch.stack([pick.repeats for pick in self.picks])
        on_device = numbers.to(self.raw.device, non_blocking=True)
        return on_device.repeat_interleave(counts, output_size=len(self.raw))

    @property
    def gradient(self) -> Tensor:
        """As the optimizer uses it: negated to maximize, with the L2 penalty if there is one."""
        g = -self.raw if self.group.get("maximize") else self.raw
        return g if self.before is None else g + self.group["weight_decay"] * self.before


def snapshot(
    optimizer: Optimizer,
    estimate: str,
    group: dict[str, Any],
    parameters: list[Tensor],
    picks: list[Pick],
) -> GroupSnapshot:
    """Read gradients, and the parameters and state that the estimate depends on."""
    if any(p.grad is not None and p.grad.is_sparse for p in parameters):
        raise RuntimeError("a Probe does not support sparse gradients")
    grads: list[Any] = [p.grad for p in parameters]
    raw = gather(picks, grads)
    norm = joint_norm(grads)
    scale = getattr(optimizer, "grad_scale", None)  # set by torch's GradScaler
    if scale is not None:
        raw, norm = raw / scale, norm / scale.squeeze()
    seen = GroupSnapshot(group, parameters, picks, raw, norm)
    if depends_on_parameters(estimate, group):
        seen.before = gather(picks, parameters)
    if estimate == "filter":
        seen.moments = filter_state(optimizer, seen)
    return seen


def estimated(optimizer: Optimizer, estimate: str, seen: GroupSnapshot) -> tuple[Tensor, Any]:
    """The estimated gradient after the step, and the gain if there is a filter, else None."""
    gain = None
    if estimate == "filter":
        value, gain = filtered(seen)
    elif estimate == "momentum":
        value = momentum(optimizer, seen)
    else:
        assert seen.before is not None
        value = (seen.before - gather(seen.picks, seen.parameters)) / seen.group["lr"]
    return (-value if seen.group.get("maximize") else value), gain


def depends_on_parameters(estimate: str, group: dict[str, Any]) -> bool:
    """Whether parameters enter the estimate: by their movement, or by an L2 penalty."""
    if estimate == "direction":
        return True
    return bool(group.get("weight_decay")) and not group.get("decoupled_weight_decay")


def filter_state(optimizer: Optimizer, seen: GroupSnapshot) -> tuple[Tensor, Tensor, Tensor]:
    """Steps, m and s before a step. After it, low-precision state would be rounded."""
    states = [optimizer.state.get(p, {}) for p in seen.parameters]
    steps = [state.get("step", torch.zeros(())).double() for state in states]
    if any(step.is_cuda for step in steps):  # so that the host need not wait for these
        steps = [step.to(seen.raw.device, non_blocking=True) for step in steps]
    m, s = (
        gather(seen.picks, moments_or_zeros(seen.parameters, states, key))
        for key in ("exp_avg", "exp_var")
    )
    return torch.stack(steps), m, s


def moments_or_zeros(
    parameters: Sequence[Tensor], states: Sequence[dict[str, Any]], key: str
) -> list[Tensor]:
    pairs = zip(parameters, states, strict=True)
    return [
        dense_moment(state, key) if key in state else p.new_zeros(()).expand_as(p)
        for p, state in pairs
    ]


def dense_moment(state: dict[str, Any], key: str) -> Tensor:
    moment = moment_in(state, key)
    return dequantize(moment) if isinstance(moment, Quantized) else moment


def filtered(seen: GroupSnapshot) -> tuple[Tensor, Tensor]:
    """g^ and K by sgdf.filter, in float64; K is 1 where the gain is constant."""
    assert seen.moments is not None
    settings, g = FilterSettings.of(seen.group), seen.gradient
    steps, m, s = seen.moments
    beta1, beta2 = settings.betas
    eps = positive_eps(settings.eps, compute_dtype(seen.parameters[0]))
    by_parameter = settings.corrections(steps + 1, torch)
    corrections = Corrections(*(seen.spread(torch.zeros_like(steps) + x) for x in by_parameter))
    values: list[Any] = [g, m, s, *corrections]
    if not g.is_cuda:  # as in `gather`
        values = [value.numpy() for value in values]
    g, m, s, *scalars = values
    corrections = Corrections(*scalars)
    with np.errstate(all="ignore"):  # gradients may be infinite or NaN
        g_hat, m, s = wiener_filter(
            g,
            m,
            s,
            corrections,
            beta1=beta1,
            beta2=beta2,
            eps=eps,
            gain_scale=settings.gain_scale,
            gain_power=settings.gain_power,
        )
        gain = wiener_gain(s * corrections.fluctuation, g - m / corrections.trend, eps)
    if settings.constant_gain:
        gain = gain * 0 + 1
    return torch.as_tensor(g_hat), torch.as_tensor(gain)


def momentum(optimizer: Optimizer, seen: GroupSnapshot) -> Tensor:
    if "momentum" in seen.group and not seen.group["momentum"]:
        return seen.gradient  # torch's SGD then keeps no buffer
    buffers = [dense_moment(optimizer.state[p], "momentum_buffer") for p in seen.parameters]
    buffer = gather(seen.picks, buffers)
    if seen.group.get("nesterov"):
        buffer = seen.gradient + buffer * float(seen.group["momentum"])
    return buffer
