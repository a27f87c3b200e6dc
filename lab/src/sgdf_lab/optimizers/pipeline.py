"""Any filter before any step, in plain torch: the cells of the map of filters.

Hidden matrices take one of `STEPS`; all other parameters Adam's, which is the same in every cell.
The arithmetic is `sgdf.matrix.direction`: without a basis and an orthogonalisation it is a filter
of one or two averages, with a basis of no side it is Adam. It is slower than the optimizers that
people use, and none of them has all cells.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from sgdf.filter import FLOAT32, FLOAT64, FilterSettings, NumberRange
from sgdf.matrix import (
    MatrixSettings,
    MatrixState,
    Sides,
    direction,
    refreshed,
    start,
    with_first_gradient,
)
from sgdf_lab.optimizers.build import split_by
from sgdf_lab.optimizers.variants import GroupOptimizer

#: What happens to the estimate of a hidden matrix. The first: whether it is divided by the root of
#: the second moment, and in which coordinates; the second: whether it is orthogonalised.
STEPS: dict[str, dict[str, Any]] = {
    "sgd": {"eigenbasis": False, "orthogonalise": False},
    "adam": {"eigenbasis": True, "max_basis_dim": 0, "orthogonalise": False},
    "eigen": {"eigenbasis": True, "orthogonalise": False},
    "orthogonal": {"eigenbasis": False, "orthogonalise": True},
    "eigen-orthogonal": {"eigenbasis": True, "orthogonalise": True},
}
#: Entries of a parameter's state, in the order of `MatrixState`.
MOMENTS = ("exp_avg", "exp_avg_slow", "exp_var", "exp_avg_sq")
SIDES = ("left", "right")


class Rule(NamedTuple):
    """How a parameter is stepped."""

    settings: MatrixSettings
    interval: int = 10  # steps between two refreshes of a basis
    turn: int = 0  # which of them are its own


def has_basis(rule: Rule, shape: tuple[int, ...]) -> bool:
    """Whether a matrix of this shape has a basis, which its first gradient only builds."""
    return any(rule.settings.has_basis(side) for side in shape[-2:])


def as_matrices(x: Tensor, batch: int = 0) -> Tensor:
    """A parameter as its step sees it, behind `batch` dimensions: a kernel is out x rest."""
    rows = x.shape[batch] if x.dim() > batch + 1 else 1
    return x.reshape(*x.shape[:batch], rows, -1)


def is_due(rule: Rule, step: int) -> bool:
    """Whether the basis is refreshed in this step, counted from 0."""
    return (step + rule.turn) % rule.interval == 0


class Pipeline(GroupOptimizer):
    """A filter, a step of `STEPS`, and decoupled weight decay.

    Args:
        params: parameters or groups; a group may say ``matrices``, as `sgdf.param_groups` does.
            Without it, parameters of two dimensions are hidden matrices.
        lr: learning rate of hidden matrices.
        betas: decay rates of the average, and of s and v.
        eps: beside the root of v.
        weight_decay: of hidden matrices.
        step: one of `STEPS`.
        gain_scale: the gain, or the factor on K.
        gain_power: exponent of K; 0: a constant gain.
        slow_beta, slow_weight: of the second average; with a weight of 0 there is none.
        basis_decay, basis_interval: of the eigenbasis.
        aux_lr: learning rate of all other parameters; default: lr. A schedule keeps the ratio.
        aux_betas, aux_weight_decay: of these; they have Adam's average, without a gain.

    >>> model = torch.nn.Linear(4, 3)
    >>> optimizer = Pipeline(model.parameters(), lr=0.01, step="orthogonal", gain_scale=0.1)
    >>> model(torch.ones(2, 4)).sum().backward()
    >>> optimizer.step()
    >>> sorted(optimizer.state[model.bias])
    ['exp_avg', 'exp_avg_sq', 'step']
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        *,
        step: str = "adam",
        gain_scale: float = 0.0,
        gain_power: float = 0.0,
        slow_beta: float = 0.98,
        slow_weight: float = 0.0,
        basis_decay: float = 0.95,
        basis_interval: int = 10,
        aux_lr: float | None = None,
        aux_betas: tuple[float, float] = (0.9, 0.95),
        aux_weight_decay: float = 0.0,
    ) -> None:
        if step not in STEPS:
            raise ValueError(f"step is one of {', '.join(STEPS)}, not {step!r}")
        of_filter = FilterSettings((betas[0], betas[1]), 0.0, gain_scale, gain_power)
        settings = MatrixSettings(
            of_filter, slow_beta, slow_weight, eps=eps, basis_decay=basis_decay
        )
        rules = {
            True: Rule(settings._replace(**STEPS[step]), basis_interval),
            False: Rule(
                MatrixSettings(
                    FilterSettings((aux_betas[0], aux_betas[1]), 0.0, 0.0, 0.0),
                    slow_weight=0.0,
                    eps=eps,
                    **STEPS["adam"],
                )
            ),
        }
        rates = {True: lr, False: lr if aux_lr is None else aux_lr}
        decays = {True: weight_decay, False: aux_weight_decay}
        self._rules = rules
        groups = [
            {**group, "lr": rates[group["matrices"]], "weight_decay": decays[group["matrices"]]}
            for group in split_by("matrices", params)
        ]
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay})

    def rule_of(self, group: dict[str, Any]) -> Rule:
        return self._rules[bool(group["matrices"])]

    def update(self, group: dict[str, Any], params: list[Tensor]) -> None:
        for p in params:
            self._step(p, group, self.rule_of(group))

    def _step(self, p: Tensor, group: dict[str, Any], rule: Rule) -> None:
        state, g = self.state[p], as_matrices(p.grad)  # type: ignore[arg-type]
        count = int(state.get("step", 0))
        state["step"] = torch.tensor(float(count + 1))
        numbers = FLOAT64 if g.dtype == torch.float64 else FLOAT32
        own = read_state(state) if count else start(g, rule.settings, torch)
        update, own = step_matrix(g, own, count, rule, numbers)
        write_state(state, own)
        if update is not None:
            p.mul_(1 - group["lr"] * group["weight_decay"])
            p.sub_(group["lr"] * update.view_as(p))


def step_matrix(
    g: Tensor, state: MatrixState, count: int, rule: Rule, numbers: NumberRange
) -> tuple[Tensor | None, MatrixState]:
    """The update of step `count`, counted from 0, if there is one, and the new state."""
    builds = has_basis(rule, tuple(g.shape))
    if builds and count == 0:
        return None, with_first_gradient(g, state, rule.settings, numbers, torch)
    t = count if builds else count + 1
    update, state = direction(g, state, t, rule.settings, numbers=numbers, xp=torch)
    if builds and is_due(rule, count):
        state = refreshed(state, rule.settings, numbers, torch)
    return update, state


def read_state(state: dict[str, Any]) -> MatrixState:
    factors, basis = (
        Sides(*(state.get(f"{kind}_{side}") for side in SIDES)) for kind in ("factor", "basis")
    )
    m, slow, s, v = (state.get(name) for name in MOMENTS)
    return MatrixState(m, slow, s, v, factors, basis)


def write_state(state: dict[str, Any], own: MatrixState) -> None:
    entries = dict(zip(MOMENTS, own[:4], strict=True))
    for kind, sides in (("factor", own.factors), ("basis", own.basis)):
        entries |= {f"{kind}_{side}": x for side, x in zip(SIDES, sides, strict=True)}
    state.update({name: x for name, x in entries.items() if x is not None})
