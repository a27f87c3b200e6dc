"""The weights of many runs as one: a step of all of them costs little more than a step of one.

Small networks leave a GPU idle: a step of one run is a few hundred tiny kernels. Here every tensor
has a first dimension that numbers the runs, and the settings that runs differ in (rates, betas,
gains) are tensors along it. What each run computes is what it would compute by itself, up to the
order of sums; the update is `sgdf.filter.direction` or `sgdf.matrix.direction`, as everywhere.
"""

from collections.abc import Hashable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

import sgdf
from sgdf.filter import (
    FLOAT32,
    Denominator,
    FilterSettings,
    Moments,
    direction,
    moment_names,
)
from sgdf.matrix import (
    MatrixSettings,
    MatrixState,
    Sides,
    lr_scale,
    newton_schulz,
    refreshed,
    shares,
    start,
    with_first_gradient,
)
from sgdf.matrix import direction as matrix_direction
from sgdf.optim import filter_settings
from sgdf_lab.optimizers.muon import MuonAdamW
from sgdf_lab.optimizers.pipeline import Pipeline, Rule, as_matrices, has_basis, is_due
from sgdf_lab.support.errors import UserError
from sgdf_lab.support.numerics import full_precision

# --- what an optimizer does to a parameter --------------------------------------------------------


class Elements(NamedTuple):
    """Element by element: `sgdf.filter.direction`."""

    settings: FilterSettings
    denominator: Denominator | None


class Nadam(NamedTuple):
    """torch's NAdam, whose momentum changes with the step."""

    betas: tuple[float, float]
    eps: float
    momentum_decay: float


class ParameterRule(NamedTuple):
    """The rule of a parameter with its rate and decoupled weight decay."""

    rule: Elements | Nadam | Rule
    lr: float
    weight_decay: float


#: What a stack does, of settings that an optimizer may have.
USUAL: dict[str, tuple[Any, ...]] = {
    "amsgrad": (False,),
    "decoupled_weight_decay": (True,),
    "maximize": (False,),
    "state_dtype": (None, torch.float32),
    "stochastic_rounding": (False,),
}


def rules_of(optimizer: Optimizer) -> dict[Tensor, ParameterRule]:
    """What the optimizer does to each of its parameters; `UserError` if that is not known here."""
    found: dict[Tensor, ParameterRule] = {}
    for group in optimizer.param_groups:
        params, rate = group["params"], (float(group["lr"]), float(group["weight_decay"]))
        rules = rules_of_group(optimizer, group, params)
        found.update((p, ParameterRule(rule, *rate)) for p, rule in zip(params, rules, strict=True))
    return found


def rules_of_group(
    optimizer: Optimizer, group: dict[str, Any], params: Sequence[Tensor]
) -> Sequence[Elements | Nadam | Rule]:
    count, name = len(params), type(optimizer).__name__
    for setting, allowed in USUAL.items():
        if group.get(setting, allowed[0]) not in allowed:
            given = f"{setting}={group[setting]}"
            raise UserError(f"{name} with {given} cannot be trained in a stack: use another engine")
    if isinstance(optimizer, torch.optim.NAdam):
        return [Nadam(tuple(group["betas"]), group["eps"], group["momentum_decay"])] * count
    if isinstance(optimizer, torch.optim.AdamW):
        return [adam(group["betas"], group["eps"])] * count
    if isinstance(optimizer, MuonAdamW):
        if not group["use_muon"]:
            return [adam(group["betas"], group["eps"])] * count
        return [Rule(muon(group))] * count
    if isinstance(optimizer, Pipeline):
        return [optimizer.rule_of(group)] * count
    if isinstance(optimizer, sgdf.FilterMuon | sgdf.FilterSOAP) and group["matrices"]:
        settings, interval = optimizer.matrix_settings(group), group["basis_interval"]
        return [Rule(settings, interval, turn) for turn in turns(settings, interval, params)]
    if isinstance(optimizer, sgdf.FilterAdamW | sgdf.FilterMuon | sgdf.FilterSOAP):
        return [filter_adam(group)] * count
    if name == "SOAP":  # pytorch_optimizer's
        basis = group["max_precondition_dim"] > 1
        if basis and any(p.dim() > 2 for p in params):
            raise UserError(
                "SOAP has a basis for every dimension of a kernel, which a stack does not: use "
                "filter-soap with gain_scale=0 and slow_weight=0, or another engine"
            )
        return [Rule(soap(group), group["precondition_frequency"]) if basis and p.dim() > 1
                else adam(group["betas"], group["eps"]) for p in params]  # fmt: skip
    raise UserError(
        f"{name} cannot be trained in a stack: use AdamW, NAdamW, FilterAdamW, Muon, SOAP, "
        "FilterMuon, FilterSOAP or pipeline, or another engine"
    )


def adam(betas: Sequence[float], eps: float) -> Elements:
    return Elements(
        FilterSettings((betas[0], betas[1]), 0.0, 0.0, 0.0), Denominator("separate", eps)
    )


def filter_adam(group: dict[str, Any]) -> Elements:
    settings = filter_settings(group)
    return Elements(
        settings._replace(betas=tuple(settings.betas)),  # type: ignore[arg-type]
        Denominator(group["second_moment"], group["eps"]),
    )


def muon(group: dict[str, Any]) -> MatrixSettings:
    """torch's: Nesterov's look ahead is a constant gain; the average is not corrected."""
    beta = group["momentum"]
    gain = 1 - beta if group["nesterov"] else 0.0
    settings = FilterSettings((beta, 0.95), 0.0, gain, 0.0, bias_correction=False)
    return MatrixSettings(
        settings, slow_weight=0.0, ns_steps=group["ns_steps"], adjust_lr_fn=group["adjust_lr_fn"]
    )


def soap(group: dict[str, Any]) -> MatrixSettings:
    return MatrixSettings(
        FilterSettings(tuple(group["betas"]), 0.0, 0.0, 0.0),
        slow_weight=0.0,
        eigenbasis=True,
        eps=group["eps"],
        basis_decay=group["betas"][1],
        max_basis_dim=group["max_precondition_dim"],
        turn_moments=False,
        orthogonalise=False,
    )


def turns(settings: MatrixSettings, interval: int, params: Sequence[Tensor]) -> list[int]:
    """When each basis is refreshed: spread over an interval, as the optimizers do."""
    costs = [
        float(sum(side**3 for side in (p.shape[0], p[0].numel()) if settings.has_basis(side)))
        for p in params
    ]
    return shares(costs, interval)


# --- the same rule with the numbers of every run -------------------------------------------------

#: Runs of a stack have these in common. Anything else may differ: with tensors, a constant gain is
#: K to the power 0, and one average is two of which the second has no weight.
STRUCTURAL = ("eps",)
NUMBER = object()  # stands for a number in a structure


def structure_of(rule: Any, name: str = "") -> tuple[Hashable, list[float]]:
    """What is common to all runs of a stack, and the numbers that may differ."""
    if isinstance(rule, tuple):
        names = getattr(rule, "_fields", (name,) * len(rule))
        parts = [structure_of(each, field) for each, field in zip(rule, names, strict=True)]
        shape = (type(rule), *(part for part, _ in parts))
        return shape, [number for _, numbers in parts for number in numbers]
    if isinstance(rule, float) and name not in STRUCTURAL:
        return NUMBER, [rule]
    return rule, []


def rebuilt(structure: Any, numbers: Iterator[Any]) -> Any:
    """The rule of a structure, with other numbers."""
    if structure is NUMBER:
        return next(numbers)
    if isinstance(structure, tuple):
        kind, *parts = structure
        values = [rebuilt(part, numbers) for part in parts]
        return tuple(values) if kind is tuple else kind(*values)
    return structure


def stacked_numbers(values: Sequence[float], shape: tuple[int, ...], device: Any) -> Any:
    """A number that all runs share, or a tensor along the runs."""
    if len(set(values)) == 1:
        return values[0]
    return torch.tensor(values, dtype=torch.float32, device=device).view(shape)


def stacked_rule(rules: Sequence[Any], shape: tuple[int, ...], device: Any) -> Any:
    structure, _ = structure_of(rules[0])
    columns = zip(*(structure_of(rule)[1] for rule in rules), strict=True)
    return rebuilt(structure, iter([stacked_numbers(c, shape, device) for c in columns]))


# --- parameters that are stepped together ---------------------------------------------------------


class Stack:
    """Parameters of many runs that have one rule: their weights, state and step.

    Args:
        weights: each parameter with a first dimension for the runs.
        rules: of every run.
        device: of the weights.
    """

    def __init__(
        self, weights: Sequence[Tensor], rules: Sequence[ParameterRule], device: torch.device
    ) -> None:
        self.runs, self.device = len(rules), device
        self.values = self.joined(list(weights))
        self.leaves = [x.detach().requires_grad_() for x in self.views(weights)]
        along = (self.runs,) + (1,) * (self.values.dim() - 1)
        self.rule = stacked_rule([rule.rule for rule in rules], along, device)
        self.lr = torch.tensor([rule.lr for rule in rules], device=device).view(along)
        decay = torch.tensor([rule.weight_decay for rule in rules], device=device).view(along)
        self.decay = self.lr * decay

    def joined(self, tensors: list[Tensor]) -> Tensor:
        """As one tensor: runs x elements."""
        return torch.cat([x.flatten(1) for x in tensors], 1)

    def views(self, like: Sequence[Tensor]) -> list[Tensor]:
        sizes = [x[0].numel() for x in like]
        parts = self.values.split(sizes, 1)
        return [part.view(x.shape) for part, x in zip(parts, like, strict=True)]

    def begin(self, grads: list[Tensor], count: Tensor, factor: Tensor, same: Tensor) -> None:
        """The first step; `same` numbers the first run with the same gradients."""
        self.step(grads, count, factor)

    def step(self, grads: list[Tensor], count: Tensor, factor: Tensor) -> None:
        """Step `count`, 1 at the first, with the rates times `factor`: tensors of no dimension."""
        update = self.update(self.joined(grads), count)
        self.values.mul_(1 - self.decay * factor).sub_(update * (self.lr * factor))

    def update(self, g: Tensor, count: Tensor) -> Tensor:
        raise NotImplementedError

    def refresh(self, step: int) -> None:
        """Refresh the bases whose turn it is in this step, counted from 0."""


class ElementStack(Stack):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        kept = moment_names(self.rule.settings, self.rule.denominator)
        names = ("exp_avg", "exp_var", "exp_avg_sq")
        self.moments = Moments(
            *(torch.zeros_like(self.values) if name in kept else None for name in names)
        )

    def update(self, g: Tensor, count: Tensor) -> Tensor:
        settings, denominator = self.rule
        update, moments = direction(
            g, self.moments, count, settings, denominator, numbers=FLOAT32, xp=torch
        )
        keep(self.moments, moments)
        return update


class NadamStack(Stack):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.m, self.v = torch.zeros_like(self.values), torch.zeros_like(self.values)
        self.product = torch.ones_like(self.lr)

    def update(self, g: Tensor, count: Tensor) -> Tensor:
        (beta1, beta2), eps, decay = self.rule
        now, then = (beta1 * (1 - 0.5 * 0.96 ** (t * decay)) for t in (count, count + 1))
        self.product.mul_(now)
        self.m.mul_(beta1).add_(g * (1 - beta1))
        self.v.mul_(beta2).add_(g * g * (1 - beta2))
        root = (self.v / (1 - beta2**count)).sqrt() + eps
        ahead = g * ((1 - now) / (1 - self.product)) + self.m * (then / (1 - self.product * then))
        return ahead / root


class MatrixStack(Stack):
    """Matrices of one shape: runs x matrices x rows x columns."""

    def __init__(
        self,
        weights: Sequence[Tensor],
        rules: Sequence[ParameterRule],
        device: torch.device,
        turns: Sequence[int] = (0,),
    ) -> None:
        super().__init__(weights, rules, device)
        self.turns = turns
        self.builds = has_basis(self.rule, tuple(self.values.shape))
        moments = start(self.values, self.rule.settings, torch)[:4]  # one tensor of zeros
        m, slow, s, v = (None if x is None else x.clone() for x in moments)
        self.state = MatrixState(m, slow, s, v)

    def joined(self, tensors: list[Tensor]) -> Tensor:
        return torch.stack([as_matrices(x, 1) for x in tensors], 1)

    def views(self, like: Sequence[Tensor]) -> list[Tensor]:
        return [x.view(y.shape) for x, y in zip(self.values.unbind(1), like, strict=True)]

    def begin(self, grads: list[Tensor], count: Tensor, factor: Tensor, same: Tensor) -> None:
        if not self.builds:
            self.step(grads, count, factor)
            return
        values, place = same.unique(return_inverse=True)
        first = [int((same == value).nonzero()[0]) for value in values]
        decay = self.rule.settings.basis_decay
        # Only the scale of the factors depends on their decay, and nothing on the betas.
        settings = self.rule.settings._replace(basis_decay=0.0, filter=FilterSettings())
        with full_precision():
            one = with_first_gradient(
                self.joined(grads)[first], MatrixState(None), settings, FLOAT32, torch
            )
        factors = [None if x is None else (1 - decay) * x[place] for x in one.factors]
        basis = [None if x is None else x[place].contiguous() for x in one.basis]
        self.state = self.state._replace(factors=Sides(*factors), basis=Sides(*basis))

    def update(self, g: Tensor, count: Tensor) -> Tensor:
        settings, t = self.rule.settings, count - 1 if self.builds else count
        with full_precision():
            update, state = matrix_direction(
                g, self.state, t, settings._replace(orthogonalise=False), numbers=FLOAT32, xp=torch
            )
        keep(self.state[:4], state[:4])
        keep(self.state.factors, state.factors)
        if settings.orthogonalise:  # in the precision of the network
            rows, columns = update.shape[-2:]
            update = newton_schulz(update, settings.ns_steps, settings.ns_coefficients, torch)
            update = update * lr_scale(settings.adjust_lr_fn, rows, columns)
        return update

    def refresh(self, step: int) -> None:
        due = [
            k for k, turn in enumerate(self.turns) if is_due(self.rule._replace(turn=turn), step)
        ]
        if not self.builds or not due or step == 0:
            return
        every = len(due) == self.values.shape[1]

        def part(x: Tensor | None) -> Tensor | None:
            return x if x is None or every else x[:, due]

        s, v, sides = self.state.s, self.state.v, (self.state.factors, self.state.basis)
        own = MatrixState(None, None, part(s), part(v), *(Sides(*map(part, x)) for x in sides))
        with full_precision():
            new = refreshed(own, self.rule.settings, FLOAT32, WITH_FAST_QR)
        for kept, value in zip((s, v, *self.state.basis), (new.s, new.v, *new.basis), strict=True):
            if kept is not None:
                kept[:, due] = value


def keep(old: Sequence[Tensor | None], new: Sequence[Tensor | None]) -> None:
    """Overwrite what is remembered: a captured step reads the same memory every time."""
    for before, after in zip(old, new, strict=True):
        if before is not None and after is not None:
            before.copy_(after)


# --- QR of large batches --------------------------------------------------------------------------

ROUNDS = 3
SHIFT = 1e-11  # beside the diagonal of 1
ORTHOGONAL = 1e-4  # the largest error that is left
CHUNK = 2**27  # entries at a time


def batched_qr(a: Tensor) -> tuple[Tensor, None]:
    """The Q of a QR decomposition, up to the signs of its columns.

    By three Cholesky decompositions of the shifted Gram matrix in float64, after the columns were
    scaled to length 1, which leaves Q as it is: batches of hundreds are far faster so on a GPU than
    by reflections. Where the result is not orthogonal, reflections are used.
    """
    flat = a.reshape(-1, *a.shape[-2:])
    size = max(1, CHUNK // flat[0].numel())
    parts = [cholesky_q(part) for part in flat.split(size)]
    return torch.cat(parts).view(a.shape), None


def cholesky_q(a: Tensor) -> Tensor:
    x = (a / torch.linalg.vector_norm(a, dim=-2, keepdim=True).clamp(min=FLOAT32.smallest)).double()
    one = torch.eye(a.shape[-1], dtype=x.dtype, device=a.device)
    for _ in range(ROUNDS):
        lower = torch.linalg.cholesky_ex(x.mT @ x + SHIFT * one)[0]
        x = torch.linalg.solve_triangular(lower.mT, x, upper=True, left=False)
    error = (x.mT @ x - one).abs().amax((-2, -1))
    q = x.to(a.dtype)
    wrong = ~(error < ORTHOGONAL)
    if wrong.any():
        q[wrong] = torch.linalg.qr(a[wrong].nan_to_num())[0]
    return q


class _TorchWithFastQr(SimpleNamespace):
    """torch, as `sgdf.matrix.refreshed` uses it, with another QR."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class _Linalg(SimpleNamespace):
    def __getattr__(self, name: str) -> Any:
        return getattr(torch.linalg, name)


WITH_FAST_QR = _TorchWithFastQr(linalg=_Linalg(qr=batched_qr))


# --- all parameters of a network ------------------------------------------------------------------


def stacks_of(
    weights: dict[str, Tensor], rules: dict[str, list[ParameterRule]], device: torch.device
) -> tuple[list[Stack], dict[str, Tensor]]:
    """The stacks of a network, and their leaves by the names of the parameters.

    Args:
        weights: by name, with a first dimension for the runs.
        rules: by name, of every run.
        device: of the weights.
    """
    together: dict[Hashable, list[str]] = {}
    for name, own in rules.items():
        rule = [each._replace(rule=without_turn(each.rule)) for each in own]
        is_matrix = isinstance(rule[0].rule, Rule)
        shape = as_matrices(weights[name], 1).shape if is_matrix else None
        together.setdefault((shape, tuple(rule)), []).append(name)
    stacks: list[Stack] = []
    leaves: dict[str, Tensor] = {}
    for names in together.values():
        parts, own = [weights[name] for name in names], rules[names[0]]
        first = own[0].rule
        if isinstance(first, Rule):
            of_each = [rules[name][0].rule for name in names]
            own = [each._replace(rule=without_turn(each.rule)) for each in own]
            stack: Stack = MatrixStack(parts, own, device, [rule.turn for rule in of_each])  # type: ignore[union-attr]
        else:
            stack = (NadamStack if isinstance(first, Nadam) else ElementStack)(parts, own, device)
        stacks.append(stack)
        leaves.update(zip(names, stack.leaves, strict=True))
    return stacks, leaves


def without_turn(rule: Any) -> Any:
    return rule._replace(turn=0) if isinstance(rule, Rule) else rule


def common_structure(rules: Sequence[ParameterRule]) -> Hashable:
    """Runs whose parameters have this in common can be in one stack."""
    return tuple(structure_of(rule.rule)[0] for rule in rules)
