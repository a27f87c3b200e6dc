"""The filter before matrix steps: FilterMuon and FilterSOAP."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from sgdf.filter import FilterSettings
from sgdf.kernels.exchange import Team
from sgdf.kernels.matrix import MatrixRule, MatrixWork, Row
from sgdf.kernels.work import check_consistent, compute_dtype
from sgdf.matrix import COEFFICIENTS, MatrixSettings, Sides, shares
from sgdf.optim.checkpoints import lacks_divisor, lacks_steps
from sgdf.optim.matrix_checkpoints import convert_matrix_state_dict, started_average
from sgdf.optim.optimizer import FilterOptimizer, implementation_of
from sgdf.optim.settings import (
    KINDS,
    check_settings,
    constructor_defaults,
    given_settings,
    require,
)
from sgdf.optim.state import local, local_row, moment_in, new_moment, new_step

Group = dict[str, Any]

AUX = "aux_"  #: before the settings of the parameters that are not matrices
SIDES = ("left", "right")
#: Settings of the element-wise part that only a group can change.
FIXED = {
    "correction": True,
    "second_moment": "separate",
    "decoupled_weight_decay": True,
    "differentiable": False,
}


def is_matrix(p: Tensor) -> bool:
    """Whether p is stepped as a matrix where nothing else is said: two dimensions or more."""
    return p.ndim >= 2 and not p.is_complex() and p.numel() > 0


class MatrixOptimizer(FilterOptimizer):
    """Base class. Groups of matrices and groups of other parameters are kept apart."""

    all_moments: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_slow", "exp_var", "exp_avg_sq")
    divides: ClassVar[bool] = True  # the element-wise part is FilterAdamW
    orthogonalises: ClassVar[bool]

    _process_group: Any = None  # a copy of an optimizer works by itself

    def __init__(self, params: ParamsT, settings: dict[str, Any]) -> None:
        self._process_group = settings.pop("process_group")
        self._teams: dict[Any, Team] = {}
        self._aux = {name: settings.pop(name) for name in list(settings) if name.startswith(AUX)}
        defaults = {**FIXED, "matrices": None, **settings}
        check_settings({**defaults, **self._of_elements(defaults, {}, self._aux)})
        super().__init__(params, defaults)

    # --- groups -------------------------------------------------------------------------------

    def add_param_group(self, param_group: Group) -> None:
        """Add a group; one with matrices and other parameters becomes two."""
        if not isinstance(param_group, dict):
            super().add_param_group(param_group)  # torch's error
            return
        group = dict(param_group)
        aux = {**self._aux, **{name: group.pop(name) for name in self._aux if name in group}}
        params, kind = group.get("params"), group.get("matrices")
        if isinstance(params, Tensor):
            params = [params]
        if not isinstance(params, Iterable) or isinstance(params, (set, torch.nn.Module)):
            super().add_param_group(group)
            return
        params = list(params)
        count = len(getattr(self, "_order", ()))
        order = group.pop("order", None) or range(count, count + len(params))
        require(kind in KINDS, "matrices value", kind)
        tensors = [p[1] if isinstance(p, tuple) else p for p in params]
        fits = [isinstance(p, Tensor) and is_matrix(p) for p in tensors]
        if kind and not all(fits):
            wrong = tensors[fits.index(False)]
            raise ValueError(
                f"a group of matrices has a parameter of shape {tuple(wrong.shape)} and dtype "
                f"{wrong.dtype}"
            )
        if kind is False or not any(fits):
            given = {**aux, **{AUX + k: v for k, v in group.items() if AUX + k in aux}}
            given |= {k: param_group[k] for k in aux if k in param_group}
            own = self._of_elements(self.defaults, group, given)
            self._add({**group, **own}, params, order)
        else:
            rows = list(zip(params, order, fits, strict=True))
            kind = True if kind is None else kind
            self._add({**group, "matrices": kind}, *_columns(row for row in rows if row[2]))
            if not all(fits):
                own = self._of_elements(self.defaults, group, aux)
                self._add({**group, **own}, *_columns(row for row in rows if not row[2]))
        self._assign_turns()

    def _add(self, group: Group, params: Sequence[Any], order: Sequence[int]) -> None:
        super().add_param_group({**group, "params": params})
        self._order = [*getattr(self, "_order", ()), *order]

    def in_given_order(self) -> list[Tensor]:
        """All parameters in the order in which they were given, or that of the model's."""
        params = [p for group in self.param_groups for p in group["params"]]
        return [params[k] for k in sorted(range(len(params)), key=self._order.__getitem__)]

    @staticmethod
    def _of_elements(defaults: Group, group: Group, aux: dict[str, Any]) -> Group:
        """The settings of a group that is stepped element by element; None: as the matrices."""
        of_matrices = {**defaults, **group}
        own = {
            name.removeprefix(AUX): of_matrices[name.removeprefix(AUX)] if value is None else value
            for name, value in aux.items()
        }
        return {**own, "bias_correction": True, "matrices": False}

    def own_settings(self, group: Group) -> tuple[str, ...]:
        return ("state_dtype", "second_moment", "matrices")

    def _defaults_of(self, group: Group) -> dict[str, Any]:
        known = {**FIXED, "matrices": None, **constructor_defaults(type(self))}
        known.pop("process_group")  # of this optimizer, not of a group
        own = {name: value for name, value in known.items() if not name.startswith(AUX)}
        if group.get("matrices") is False:
            own |= self._of_elements(own, {}, self._aux)
        return own

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_aux": self._aux, "_order": self._order}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._teams = {}
        self._assign_turns()

    def _assign_turns(self) -> None:
        """Spread the refreshes of bases over the steps of an interval, matrices over processes."""
        self._turns: dict[Tensor, int] = {}
        self._owners: dict[Tensor, int] = {}
        self._agreed: set[Tensor] = set()  # with the other processes, on the state of its basis
        rows = [
            (p, group, sum(side**3 for side in self._sides(p, group) if side))
            for group in self.param_groups
            if group["matrices"] is not False
            for p in group["params"]
        ]
        for interval in dict.fromkeys(group["basis_interval"] for _, group, _ in rows):
            some = [(cost, p) for p, group, cost in rows if group["basis_interval"] == interval]
            self._turns.update(
                zip((p for _, p in some), shares([cost for cost, _ in some], interval), strict=True)
            )
        self._team_of = {p: self._find_team(p) for p, _, _ in rows}
        for team in dict.fromkeys(team for team in self._team_of.values() if team is not None):
            own = [(p, p.numel() * min(shape_of(p, g)) + cost) for p, g, cost in rows
                   if self._team_of[p] is team]  # fmt: skip
            owners = shares([cost for _, cost in own], team.size)
            self._owners.update(zip((p for p, _ in own), owners, strict=True))

    def _find_team(self, p: Tensor) -> Team | None:
        """The processes that divide the work on p, if there are any."""
        group, sharded = self._process_group, False
        if hasattr(p, "device_mesh"):
            mesh, placements = p.device_mesh, p.placements  # type: ignore[attr-defined]
            at = [k for k, placement in enumerate(placements) if not placement.is_replicate()]
            if any(not placements[k].is_shard(0) for k in at) or len(at) > 1:
                raise RuntimeError(
                    f"{type(self).__name__} supports matrices that are sharded by rows, over one "
                    f"dimension of a mesh, but got {placements}"
                )
            if at:
                group, sharded = mesh.get_group(at[0]), True
        if group is None:
            return None
        return self._teams.setdefault((group, sharded), Team(group, sharded))

    def _is_owner(self, p: Tensor) -> bool:
        team = self._team_of[p]
        return team is None or self._owners[p] == team.rank

    # --- one step -----------------------------------------------------------------------------

    @property
    def implementation(self) -> str:
        """How a step runs: "matrix" for matrices; "loop", "foreach" or "fused" for the others."""
        matrices = [group for group in self.param_groups if group["matrices"] is not False]
        others = [group for group in self.param_groups if group["matrices"] is False]
        names = ["matrix"] if matrices else []
        if others:
            names.append(implementation_of(others))
        return ", ".join(names)

    def matrix_settings(self, group: Group) -> MatrixSettings:
        """What a step of a group of matrices computes."""
        return MatrixSettings(
            FilterSettings(
                group["betas"],
                group["gain_eps"],
                group["gain_scale"],
                group["gain_power"],
                True,
                group["bias_correction"],
            ),
            group["slow_beta"],
            group["slow_weight"],
            group["eigenbasis"],
            group["eps"],
            group["basis_decay"],
            group["max_basis_dim"],
            group["turn_moments"],
            self.orthogonalises,
            group["ns_steps"],
            group["ns_coefficients"],
            group["adjust_lr_fn"],
        )

    def moments_of(self, group: Group) -> tuple[str, ...]:
        if group["matrices"] is False:
            return super().moments_of(group)
        settings = self.matrix_settings(group)
        kept = {
            "exp_avg": True,
            "exp_avg_slow": settings.has_slow,
            "exp_var": not settings.filter.constant_gain,
            "exp_avg_sq": settings.eigenbasis,
        }
        return tuple(name for name, keep in kept.items() if keep)

    def _update(self) -> None:
        if torch.compiler.is_compiling():
            self._update_outside_graph()
        else:
            super()._update()

    def _prepare(self, group: Group, path: str | None = None) -> Any:
        if group["matrices"] is False:
            return super()._prepare(group, path)
        rule = MatrixRule(
            self.matrix_settings(group),
            group["basis_interval"],
            group["lr"],
            group["weight_decay"],
            group["maximize"],
            group["capturable"],
            group["stochastic_rounding"],
            group["rounding_seed"],
            group["matrices"] == "stacked",
        )
        params = [(k, p) for k, p in enumerate(group["params"]) if p.grad is not None]
        names = self.moments_of(group)
        rows = [self._row(p, group, place, names) for place, p in params]
        check_state(rows)
        if any(row.team for row in rows) and not self._agreed.issuperset(p for _, p in params):
            self._agree_on_bases(rows)
            self._agreed.update(p for _, p in params)
        return MatrixWork(rule, rows) if rows else None

    def _row(self, p: Tensor, group: Group, place: int, names: tuple[str, ...]) -> Row:
        """A parameter with its state, which is created where it is missing."""
        assert p.grad is not None
        if p.grad.is_sparse:
            raise RuntimeError(f"{type(self).__name__} does not support sparse gradients")
        if p.grad.shape != p.shape or p.grad.device != p.device:
            raise RuntimeError(
                f"Expected the gradient of a parameter of shape {tuple(p.shape)} on {p.device} to "
                f"match it, but found {tuple(p.grad.shape)} on {p.grad.device}"
            )
        state = self.state[p]
        if "step" not in state:
            state["step"] = new_step(p, group["capturable"])
        kept = [name for name in names if self._has(p, name, group)]
        for name in kept:
            if name not in state:
                state.update(self._missing_moment(p, name, state, group))
        if group["eigenbasis"] and "basis_step" not in state:
            self._start_basis(p, group, state)
        m, slow, s, v = (moment_in(state, x) if x in kept else None for x in self.all_moments)
        assert m is not None
        factors, basis = (
            Sides(*(state.get(f"{kind}_{side}") for side in SIDES)) for kind in ("factor", "basis")
        )
        own, g, m, slow, s, v = local_row(p, p.grad, m, slow, s, v)
        return Row(
            own,
            g,
            state["step"],
            m,
            slow,
            s,
            v,
            state["basis_step"] if group["eigenbasis"] else None,
            factors,
            basis,
            place,
            self._turns.get(p, 0),
            tuple(p.shape),
            self._team_of[p],
            self._owners.get(p, 0),
        )

    def _has(self, p: Tensor, name: str, group: Group) -> bool:
        """Whether this process keeps a part of p's state: a basis has only its owner."""
        of_basis = name.startswith(("factor_", "basis_", "exp_var", "exp_avg_sq"))
        if group["matrices"] is False or not group["eigenbasis"] or not of_basis:
            return True
        return name == "basis_step" or self._is_owner(p)

    def _home(self, p: Tensor, key: str, group: Group) -> Tensor:
        """s and v of a basis are whole, where p may be a shard."""
        whole = key in ("exp_var", "exp_avg_sq") and group["matrices"] is not False
        if not (whole and group["eigenbasis"] and hasattr(p, "to_local")):
            return p
        return torch.empty(p.shape, dtype=p.dtype, device=p.to_local().device)

    @staticmethod
    def _agree_on_bases(rows: list[Row]) -> None:
        """Begin a basis anew in all processes if its owner has lost it: not every checkpoint has
        the bases of all.
        """
        for team in dict.fromkeys(row.team for row in rows if row.team is not None):
            some = [row for row in rows if row.team is team and row.basis_step is not None]
            counts = [row.basis_step for row in some if row.basis_step is not None]
            if counts:
                least = torch.stack(counts).to(some[0].p.device)
                minimum = torch.distributed.ReduceOp.MIN
                torch.distributed.all_reduce(least, minimum, group=team.group)
                for count, value in zip(counts, least.tolist(), strict=True):
                    count.fill_(value)

    def _sides(self, p: Tensor, group: Group) -> tuple[int | None, int | None]:
        """The lengths of the sides of p that have a basis."""
        has_basis = self.matrix_settings(group).has_basis
        rows, columns = shape_of(p, group)
        return rows if has_basis(rows) else None, columns if has_basis(columns) else None

    def basis_shapes(self, p: Tensor, group: Group) -> dict[str, tuple[int, ...]]:
        """The shapes of the entries of p's state that belong to its basis, beside s and v."""
        if not group["eigenbasis"]:
            return {}
        batch = tuple(p.shape[:-2]) if group["matrices"] == "stacked" else ()
        sides = dict(zip(SIDES, self._sides(p, group), strict=True))
        factors = {
            f"{kind}_{name}": (*batch, side, side)
            for kind in ("factor", "basis")
            for name, side in sides.items()
            if side is not None
        }
        return {"basis_step": (), **factors}

    def _start_basis(self, p: Tensor, group: Group, state: dict[str, Any]) -> None:
        """Room for the factors and the basis, which the first gradient fills."""
        shapes, dtype = self.basis_shapes(p, group), compute_dtype(p)
        if len(shapes) == 1 and min(shape_of(p, group)) > 1:
            warnings.warn(
                f"both sides of a matrix of shape {tuple(p.shape)} are longer than max_basis_dim="
                f"{group['max_basis_dim']}: it keeps its own coordinates",
                stacklevel=2,
            )
        for name, shape in shapes.items():
            if name == "basis_step":
                state[name] = new_step(p, False)
            elif self._has(p, name, group):
                state[name] = torch.zeros(shape, dtype=dtype, device=local(p).device)

    # --- checkpoints --------------------------------------------------------------------------

    def _missing_moment(
        self, p: Tensor, key: str, state: dict[str, Any], group: Group
    ) -> dict[str, Tensor]:
        """A second average starts where the first one is; s and v of a basis start at 0."""
        if group["matrices"] is False:
            return super()._missing_moment(p, key, state, group)
        if key == "exp_avg_slow":
            return started_average(p, state, group)
        return new_moment(self._home(p, key, group), key, group["state_dtype"])

    def _convert(self, state_dict: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
        return convert_matrix_state_dict(self, state_dict)

    def _starts_anew(self, saved: dict[str, Any], group: Group) -> bool:
        # A first gradient only counts for the basis.
        return lacks_steps(saved) or (group["matrices"] is False and lacks_divisor(saved, group))

    def _restore(self, p: Tensor, group: Group, saved: dict[str, Any]) -> bool:
        restored = super()._restore(p, group, saved)
        if group["matrices"] is False or not restored:
            return restored
        self._agreed, state = set(), self.state[p]
        for name in self.basis_shapes(p, group):
            if name in saved:
                dtype = new_step(p, False).dtype if name == "basis_step" else compute_dtype(p)
                device = "cpu" if name == "basis_step" else local(p).device
                loaded = torch.as_tensor(saved[name]).to(device, dtype, copy=True)
                state[name] = loaded.contiguous()  # a step writes into views of it
        for name in [name for name in state if not self._has(p, name, group)]:
            del state[name]
        return restored


def shape_of(p: Tensor, group: Group) -> tuple[int, int]:
    """The sides of a matrix: of a kernel the output channels and the rest."""
    if group["matrices"] == "stacked":
        return p.shape[-2], p.shape[-1]
    return p.shape[0], p.numel() // p.shape[0]


def check_state(rows: list[Row]) -> None:
    """Raise an error if an average or a moment has not the device and shape of its parameter."""
    names = ["m", "slow"] if any(row.team for row in rows) else ["m", "slow", "s", "v"]
    columns = [[getattr(row, name) for row in rows] for name in names]
    kept = [column for column in columns if column and column[0] is not None]
    check_consistent([row.p for row in rows], [row.g for row in rows], kept, range(len(rows)))


def _columns(rows: Iterable[tuple[Any, int, bool]]) -> tuple[list[Any], list[int]]:
    """The parameters and the places of some rows."""
    kept = list(rows)
    return [row[0] for row in kept], [row[1] for row in kept]


class FilterMuon(MatrixOptimizer):
    """Muon with a filter in front: orthogonal steps along an estimate of the gradient.

    ```text
    m1 <- b1 m1 + (1-b1) G                        average
    m2 <- c m2 + (1-c) G                          slow_beta = c
    m   = (1-w) m1 + w m2,  m^ = m / bias         slow_weight = w
    G^  = m^ + gain_scale K^gain_power (G - m^)   a constant gain by default
    O   = NewtonSchulz(G^)                        all singular values near 1
    W  <- W - lr weight_decay W
    W  <- W - lr 0.2 sqrt(max(rows, columns)) O
    ```

    With ``eigenbasis=True`` the gradient is scaled by Adam's rule in the eigenbasis of
    L = E[G G^T] and R = E[G^T G], as in `FilterSOAP`, before it is orthogonalised.

    It trains a whole network: hidden matrices by this step, everything else (embeddings, output
    head, norms, biases) element by element by `FilterAdamW` with the settings ``aux_...``.
    `param_groups` tells them apart by module; it is all that is needed for most networks. Without
    it, every parameter of two dimensions and more counts as a matrix, embeddings and the head
    included, which is not what one wants for a language model. Weights of convolutions are
    matrices of output channels by the rest.

    The parts are groups of their own, so a scheduler moves both rates. A group that mixes both
    kinds is split: ``lr``, ``betas``, ``weight_decay`` and the gain of the group are those of its
    matrices, ``aux_lr`` and so on those of the rest.

    Args:
        params: `param_groups` of the model, or parameters and groups as for any torch optimizer.
            A group may say ``matrices``: True, False, or "stacked" if the last two dimensions are
            the matrix and those before number them, as in stacked experts.
        lr: learning rate of matrices; a number or a 1-element tensor.
        betas: decay rates of the average m1, and of s and v.
        eps: term in Adam's denominator, beside the root of v.
        weight_decay: how much of a matrix a step removes, in units of lr.
        gain_scale: the gain, if it is constant, else the factor on K. ``1 - betas[0]`` with
            ``slow_weight=0`` is Muon's Nesterov momentum.
        gain_power: exponent of K. 0: a constant gain, which is QHM's momentum and needs no s.
        gain_eps: term in the denominator of K; see `FilterAdam`.
        slow_beta: decay rate of the second average m2.
        slow_weight: its part of the trend; 0: there is none.
        eigenbasis: divide in the eigenbasis first.
        basis_decay: decay rate of L and R.
        basis_interval: steps between two refreshes of a basis, by a step of power iteration and a
            QR decomposition. Matrices take turns, so that no step has all the work.
        max_basis_dim: a longer side keeps its own coordinates. The cost of QR grows with the cube.
        turn_moments: let s and v turn with the basis. False: only their columns are sorted with it,
            as in SOAP.
        bias_correction: divide m by the sum of its weights.
        ns_steps: Newton-Schulz steps.
        ns_coefficients: of their polynomial.
        adjust_lr_fn: "match_rms_adamw": steps as large as AdamW's, whose rates carry over.
            "original": as long as Muon's. "spectral_unclamped": sqrt(rows / columns).
        aux_lr: learning rate of the other parameters. None: lr.
        aux_betas: decay rates of their m, and of their s and v.
        aux_weight_decay: their weight decay.
        aux_gain_scale: factor on their gain K, 2 in the paper; 0 is AdamW.
        aux_gain_power: exponent of their gain.
        maximize: ascend instead of descend.
        foreach: for the other parameters; see `FilterAdamW`.
        fused: for the other parameters; see `FilterAdamW`.
        capturable: keep the step counters on the device, for CUDA graphs; not with an eigenbasis.
        state_dtype: dtype of averages and moments; L, R and the basis stay in float32. None: the
            parameter's, but at least float32. ``torch.int8``: 8-bit blocks, see `FilterAdam`.
        stochastic_rounding: round bfloat16 parameters up or down at random.
        rounding_seed: seed of the random rounding, of parameters and of 8-bit state.
        process_group: processes that have the same gradients, as with DDP, and divide the work on
            the matrices; as ``torch.distributed.group.WORLD``. With FSDP2 they always do.

    Examples:
        >>> import sgdf
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(),
        ...                             torch.nn.Linear(16, 4))
        >>> optimizer = FilterMuon(sgdf.param_groups(model), lr=1e-2, aux_lr=3e-3)
        >>> [(g["matrices"], len(g["params"]), g["lr"]) for g in optimizer.param_groups]
        [(True, 1, 0.01), (False, 3, 0.003)]
        >>> model(torch.randn(5, 8)).square().mean().backward()
        >>> optimizer.step()

    References:
        Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024.
        Liu et al., "Muon is Scalable for LLM Training", 2025: the scale of the step.
        Ma and Yarats, "Quasi-hyperbolic momentum and Adam for deep learning", 2019: the constant
            gain.
    """

    orthogonalises: ClassVar[bool] = True

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.85, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        *,
        gain_scale: float = 0.1,
        gain_power: float = 0.0,
        gain_eps: float = 0.0,
        slow_beta: float = 0.98,
        slow_weight: float = 0.56,
        eigenbasis: bool = False,
        basis_decay: float = 0.95,
        basis_interval: int = 10,
        max_basis_dim: int = 1024,
        turn_moments: bool = True,
        bias_correction: bool = True,
        ns_steps: int = 5,
        ns_coefficients: tuple[float, float, float] = COEFFICIENTS,
        adjust_lr_fn: str | None = "match_rms_adamw",
        aux_lr: float | Tensor | None = None,
        aux_betas: tuple[float, float] = (0.9, 0.95),
        aux_weight_decay: float = 0.0,
        aux_gain_scale: float = 2.0,
        aux_gain_power: float = 1.0,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        state_dtype: torch.dtype | None = None,
        stochastic_rounding: bool = False,
        rounding_seed: int = 0,
        process_group: Any = None,
    ) -> None:
        super().__init__(params, given_settings(locals()))


class FilterSOAP(MatrixOptimizer):
    """SOAP with a filter in front: Adam of an estimate of the gradient, in a slow eigenbasis.

    ```text
    G'  = Q_L^T G Q_R,  m' = Q_L^T m Q_R           Q: eigenvectors of L and R
    s  <- b2 s + (1-b2) (G' - m')^2                if gain_power is not 0
    v  <- b2 v + (1-b2) G'^2
    G^  = m^' + gain_scale K^gain_power (G' - m^')
    W  <- W - lr weight_decay W
    W  <- W - lr Q_L (G^ / (sqrt(v^) + eps)) Q_R^T
    L  <- d L + (1-d) G G^T,  R <- d R + (1-d) G^T G      basis_decay = d
    ```

    with the averages m of `FilterMuon`, in the parameters' own coordinates. Every
    ``basis_interval`` steps the columns of Q are sorted and turned by a step of power iteration; s
    and v follow them. The first gradient only builds the basis: the first step is the second one.

    Which parameters are matrices, and what happens to the others, is as in `FilterMuon`.

    Args:
        params: `param_groups` of the model, or parameters and groups as for any torch optimizer.
        lr: learning rate of matrices; a number or a 1-element tensor.
        betas: decay rates of the average m1, and of s and v.
        eps: term in Adam's denominator, beside the root of v.
        weight_decay: how much of a matrix a step removes, in units of lr.
        gain_scale: the gain, if it is constant, else the factor on K; 0 is SOAP.
        gain_power: exponent of K. 0: a constant gain, which needs no s. 1 with ``gain_scale=2`` is
            the paper's gain, in the eigenbasis.
        gain_eps: term in the denominator of K; see `FilterAdam`.
        slow_beta: decay rate of the second average m2.
        slow_weight: its part of the trend; 0: there is none.
        basis_decay: decay rate of L and R.
        basis_interval: steps between two refreshes of a basis.
        max_basis_dim: a longer side keeps its own coordinates.
        turn_moments: let s and v turn with the basis. False: only their columns are sorted with it,
            as in SOAP.
        aux_lr: learning rate of the other parameters. None: lr.
        aux_betas: decay rates of their m, and of their s and v.
        aux_weight_decay: their weight decay.
        aux_gain_scale: factor on their gain K, 2 in the paper; 0 is AdamW.
        aux_gain_power: exponent of their gain.
        maximize: ascend instead of descend.
        foreach: for the other parameters; see `FilterAdamW`.
        fused: for the other parameters; see `FilterAdamW`.
        state_dtype: dtype of averages and moments: see `FilterMuon`.
        stochastic_rounding: round bfloat16 parameters up or down at random.
        rounding_seed: seed of the random rounding, of parameters and of 8-bit state.
        process_group: processes that have the same gradients, as with DDP, and divide the work on
            the matrices; as ``torch.distributed.group.WORLD``. With FSDP2 they always do.

    Examples:
        >>> import sgdf
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(),
        ...                             torch.nn.Linear(16, 4))
        >>> optimizer = FilterSOAP(sgdf.param_groups(model), lr=3e-3)
        >>> for _ in range(2):
        ...     optimizer.zero_grad()
        ...     model(torch.randn(5, 8)).square().mean().backward()
        ...     optimizer.step()

    References:
        Vyas et al., "SOAP: Improving and Stabilizing Shampoo using Adam", 2024.
    """

    orthogonalises: ClassVar[bool] = False

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 3e-3,
        betas: tuple[float, float] = (0.85, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        gain_scale: float = 0.1,
        gain_power: float = 0.0,
        gain_eps: float = 0.0,
        slow_beta: float = 0.98,
        slow_weight: float = 0.56,
        basis_decay: float = 0.95,
        basis_interval: int = 10,
        max_basis_dim: int = 1024,
        turn_moments: bool = True,
        aux_lr: float | Tensor | None = None,
        aux_betas: tuple[float, float] = (0.9, 0.95),
        aux_weight_decay: float = 0.0,
        aux_gain_scale: float = 2.0,
        aux_gain_power: float = 1.0,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        state_dtype: torch.dtype | None = None,
        stochastic_rounding: bool = False,
        rounding_seed: int = 0,
        process_group: Any = None,
    ) -> None:
        super().__init__(params, {**OF_SOAP, **given_settings(locals())})


#: Settings of `FilterMuon` that `FilterSOAP` has not.
OF_SOAP = {
    "eigenbasis": True,
    "bias_correction": True,
    "capturable": False,
    "ns_steps": 5,
    "ns_coefficients": COEFFICIENTS,
    "adjust_lr_fn": None,
}
