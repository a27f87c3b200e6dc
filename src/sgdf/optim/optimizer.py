"""What all optimizers here share: parameter group -> `Work` -> kernel, and checkpoints.

A step makes one `Work` for every group, then gives each to the kernel of its path:

    step -> _update -> _prepare(group) -> Work -> kernels.cpu.step(work) -> C++
"""

import warnings
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim.optimizer import (
    Optimizer,
    ParamsT,
    _default_to_fused_or_foreach,
    _use_grad_for_differentiable,
)

from sgdf.filter import Denominator
from sgdf.kernels import cpu, cuda, exchange, foreach, loop
from sgdf.kernels.matrix import MATRIX
from sgdf.kernels.plan import PlanCache, State
from sgdf.kernels.quantized import Quantized
from sgdf.kernels.work import FILTER, PLAIN, Rule, Work, is_fake
from sgdf.optim.checkpoints import (
    BEFORE,
    changed_memory,
    check_form,
    convert_state_dict,
    derive_moment,
    lacks_divisor,
    lacks_steps,
    loaded_moment,
    not_finite,
    validate_state_dict,
)
from sgdf.optim.closed_gain import CHECKED, warn_if_closed
from sgdf.optim.settings import (
    check_settings,
    constructor_defaults,
    drop_amsgrad,
    explain_rounding,
    explain_settings,
    filter_settings,
    refuse_misspelt,
    refuse_module,
    refuse_settings_of_torch,
    rounds_at_random,
    unsupported_by_foreach,
)
from sgdf.optim.state import (
    ORDER,
    local_row,
    new_moment,
    new_step,
    only_creates_state,
)

KERNELS: dict[str, Callable[[Any], None]] = {
    "loop": loop.step,
    "foreach": foreach.step,
    "cpu": cpu.step,
    "cuda": cuda.step,
    MATRIX: exchange.step,
}
FUSED = ("cpu", "cuda")
#: The column of a `Work` for every moment.
COLUMNS = {"exp_avg": 0, "momentum_buffer": 0, "exp_var": 1, "exp_avg_sq": 2}


class FilterOptimizer(Optimizer):
    """Base class. A subclass says what its groups mean: see `rule`."""

    all_moments: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_var", "exp_avg_sq")  #: it may keep
    counts_steps: ClassVar[bool] = True
    divides: ClassVar[bool] = False  #: by the root of a second moment, as Adam does
    _steps_in_backward: bool = False  # set by `step_in_backward`
    _steps_taken: int = 0  # by this object
    _is_built: bool = False  # whether its first groups were explained

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        check_settings(defaults)
        self._plans = PlanCache()
        refuse_module(params)
        super().__init__(params, defaults)
        explain_settings(type(self).__name__, self.param_groups, stacklevel=4)
        self._is_built = True

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if isinstance(param_group, dict):  # else torch's own error says what is wrong
            drop_amsgrad(type(self), param_group)
            foreign = {key: param_group[key] for key in param_group if key not in self.defaults}
            refuse_settings_of_torch(type(self), foreign)
            refuse_misspelt(type(self), foreign, {"params", "param_names", *self.defaults})
            refuse_module(param_group.get("params"))
            check_settings({**self.defaults, **param_group})
        super().add_param_group(param_group)
        if self._is_built:
            explain_rounding(type(self).__name__, self.param_groups[-1:], stacklevel=2)

    @property
    def implementation(self) -> str:
        """How a step runs: "loop", "foreach" or "fused"; several if groups differ."""
        return implementation_of(self.param_groups)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Read by torch's GradScaler: whether the step unscales gradients and skips infinities."""
        if self._steps_in_backward:
            raise RuntimeError(
                "step_in_backward does not support GradScaler, because parameters are updated "
                "before their gradients can be unscaled: train in bfloat16, which needs no scaler"
            )
        return self.implementation == "fused"

    # --- one step -----------------------------------------------------------------------------

    def rule(self, group: dict[str, Any]) -> Rule:
        """What a step of the group computes."""
        return Rule(
            FILTER,
            filter_settings(group),
            Denominator(group["second_moment"], group["eps"]) if self.divides else None,
            group["lr"],
            group["weight_decay"],
            group["decoupled_weight_decay"],
            group["maximize"],
            group["capturable"],
            group["differentiable"],
            group["stochastic_rounding"],
            group["rounding_seed"],
        )

    def moments_of(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The names of the moments that a parameter of the group keeps in its state."""
        return self.rule(group).moments

    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform a single optimization step.

        Args:
            closure: reevaluates the model and returns the loss, which step then returns.
        """
        if self.counts_steps and not self._plans.groups:  # a plan can be captured
            _graph_capture_health_check(self)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if torch.compiler.is_compiling():
            # A graph can neither hold the fused kernels nor draw the bits that they draw.
            outside = any(group["fused"] or rounds_at_random(group) for group in self.param_groups)
            self._update_outside_graph() if outside else self._update()
            return loss
        self._update()
        if self.counts_steps and self._steps_taken < CHECKED[-1]:
            self._steps_taken += 1
            if self._steps_taken in CHECKED:
                rules = [(self.rule(each).settings, each["params"]) for each in self.param_groups]
                if warn_if_closed(type(self).__name__, rules, self.state, stacklevel=4):
                    self._steps_taken = CHECKED[-1]  # once
        return loss

    def _update(self) -> None:
        is_first = not torch.compiler.is_compiling() and not self.state
        # Check every gradient before the first parameter changes.
        work = [self._prepare(group) for group in self.param_groups]
        if is_first and only_creates_state(self.param_groups):
            for each in work:
                if each is not None and each.plan is not None:
                    each.plan.release()
            return
        for each in work:
            if each is not None:
                KERNELS[each.path](each)

    _update_outside_graph = _disable_dynamo(_update)

    def _prepare(self, group: dict[str, Any], path: str | None = None) -> Any:
        """The work of a step on one group; None if no parameter has a gradient."""
        rule = self.rule(group)
        plan = None
        if not torch.compiler.is_compiling() and self._plans.groups:
            settings = settings_of_a_plan(group, rule)
            plan = self._plans.refresh(group["params"], settings, self._states(group))
        columns: Any
        if plan is not None:
            path, columns = "cuda", plan.columns
        else:
            path = path or choose_path(group)
            columns = ([], [], [], [], [], [])
            if torch.compiler.is_compiling():
                self._init_group(group, path, *columns)
            else:
                self._collect(group, path, rule.moments, columns)
            params, grads, steps, m, s, v = columns
            if not params:
                return None
            columns = params, grads, steps or None, m, s or None, v or None
        if path == "cuda" and plan is None:
            settings, states = settings_of_a_plan(group, rule), self._states(group)
            plan = self._plans.get(group["params"], settings, columns, states, rule.rounding_seed)
            columns = plan.columns
        params, grads, steps, m, s, v = columns
        scale = found_inf = None
        if path in FUSED:  # GradScaler sets these on an optimizer that unscales by itself
            scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        return Work(rule, path, params, grads, steps, m, s, v, scale, found_inf, plan)

    # torch.compile runs a method of this name outside the graph, with empty lists to fill.
    def _init_group(self, group: dict[str, Any], path: str, *columns: list[Any]) -> None:
        self._collect(group, path, self.moments_of(group), columns)

    def _collect(
        self, group: dict[str, Any], path: str, names: tuple[str, ...], columns: Any
    ) -> None:
        """Append a row to the columns for every parameter with a gradient; create its state."""
        params, grads, steps, *moments = columns
        kept = [(name, f"{name}_scale", moments[COLUMNS[name]]) for name in names]
        for p in group["params"]:
            g = p.grad
            if g is None:
                continue
            if g.is_sparse:
                raise RuntimeError(f"{type(self).__name__} does not support sparse gradients")
            if group["fused"]:
                check_fused(p)
            state = self.state[p]
            step = None
            if self.counts_steps:
                step = state.get("step")
                if step is None:
                    on_device = group["capturable"] or (path == "cuda" and p.is_cuda)
                    step = state["step"] = new_step(p, on_device)
                elif path == "cuda" and p.is_cuda and not step.is_cuda:
                    step = state["step"] = step.to(p.device, torch.float32)
            row = [p, g, step]
            for name, scale_name, _ in kept:
                if name not in state:
                    state.update(self._missing_moment(p, name, state, group))
                scale = state.get(scale_name)
                row.append(state[name] if scale is None else Quantized(state[name], scale))
            if type(p) not in PLAIN:
                row = local_row(*row)
            params.append(row[0])
            grads.append(row[1])
            if step is not None:
                steps.append(row[2])
            for k, (_, _, column) in enumerate(kept, start=3):
                column.append(row[k])

    def _missing_moment(
        self, p: Tensor, key: str, state: dict[str, Any], group: dict[str, Any]
    ) -> dict[str, Tensor]:
        """A moment to start with: made from the others if the settings have changed, else 0."""
        made = derive_moment(key, state, group["betas"]) if "betas" in group else None
        if made is None:
            if (
                key == "exp_var"
                and state is self.state.get(p)
                and not torch.compiler.is_compiling()
            ):
                warn_late(type(self).__name__, state, group["betas"][1])
            return new_moment(p, key, group["state_dtype"])
        return loaded_moment(p, key, {key: made}, group["state_dtype"])

    def _states(self, group: dict[str, Any]) -> State:
        """The states that a plan compares from step to step.

        A plan of one parameter compares only its own: with all of them, steps taken parameter
        by parameter would compare a number of states that is quadratic in that of parameters.
        """
        params = group["params"]
        return {p: self.state.get(p, {}) for p in params} if len(params) == 1 else self.state

    # --- checkpoints --------------------------------------------------------------------------

    def own_settings(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The settings of a group that no checkpoint changes."""
        return ("state_dtype",)

    def state_dict(self) -> dict[str, Any]:
        """Return the state and the settings, without `state_dtype`.

        That setting says how this optimizer stores its state, not what the state is, and torch's
        distributed checkpoints cannot hold a dtype.
        """
        state_dict = super().state_dict()
        for group in state_dict["param_groups"]:
            group.pop("state_dtype", None)
        return state_dict

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the optimizer state, converted to this optimizer's `state_dtype`.

        torch casts all floating-point state to the parameter's dtype, which would round the
        float32 moments of a bfloat16 parameter (pytorch issues 43706 and 146542). It also shares
        tensors that need no cast with the optimizer they came from; this copies them.

        Settings that `state_dict` lacks stay as they are, and so do `state_dtype` and a
        `second_moment` that was named. A missing moment is computed from the others if possible,
        so that one form of FilterAdam can continue another. A moment that is not needed is
        dropped. If anything does not fit, the optimizer is left as it was.

        The state of torch's SGD, Adam and AdamW, and of another class of this package, is
        converted as far as possible. A warning says what was converted, and which learning rate
        is used from now on; or, for a state of this class, that it takes more or less memory now.
        """
        as_saved: dict[str, Any] = {}
        said: list[str | None] = []
        anew: list[Any] = []

        def check(_: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
            keys = ("step",) * self.counts_steps + self.all_moments
            settings = {*self.defaults, *constructor_defaults(type(self))}
            check_form(state_dict)
            groups = self.param_groups
            try:
                state_dict, warning = self._convert(state_dict)
                valid = validate_state_dict(state_dict, groups, keys, settings, self.own_settings)
            except (TypeError, AttributeError, LookupError, OverflowError) as error:
                raise ValueError(f"loaded state dict: no optimizer saves this: {error}") from error
            said.append(warning)
            as_saved.update(valid)
            return as_saved

        def restore(_: Optimizer) -> None:
            ids = [i for group in as_saved["param_groups"] for i in group["params"]]
            where = [(p, group) for group in self.param_groups for p in group["params"]]
            for i, (p, group) in zip(ids, where, strict=True):
                if not self._restore(p, group, as_saved["state"].get(i, {})):
                    anew.append(i)
            said.append(not_finite(self.state.get(p, {}) for p, _ in where))
            if anew:
                said.append(
                    f"{len(anew)} of its parameters have no steps behind their moments, or nothing "
                    "to make the second moment from: their moments and steps start anew"
                )
            elif not any(said):
                before = [as_saved["state"].get(i, {}) for i in ids]
                after = [self.state.get(p, {}) for p, _ in where]
                said.append(changed_memory(type(self).__name__, where, before, after))

        # After the user's own pre-hooks, before their post-hooks.
        hooks = [
            self.register_load_state_dict_pre_hook(check),
            self.register_load_state_dict_post_hook(restore, prepend=True),
        ]
        try:
            super().load_state_dict(state_dict)
        finally:
            for hook in hooks:
                hook.remove()
        if any(said):
            warnings.warn("; ".join(filter(None, said)), stacklevel=2)
        explain_rounding(type(self).__name__, self.param_groups, stacklevel=2)

    def _convert(self, state_dict: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
        """A state dict that this optimizer can load, and a sentence on what was converted."""
        return convert_state_dict(type(self).__name__, self.param_groups, state_dict)

    def _restore(self, p: Tensor, group: dict[str, Any], saved: dict[str, Any]) -> bool:
        """Replace what torch has loaded for p, and rounded, by what was saved.

        False if the state starts anew, because the moments say nothing.
        """
        if not saved:
            return True
        step = self.state[p].get("step")
        if isinstance(step, Tensor):
            dtype = step.dtype if step.is_floating_point() else torch.float32
            self.state[p]["step"] = step.to(dtype, copy=True).reshape(())
        for key in self.all_moments:
            if key in saved:
                self.state[p].pop(f"{key}_scale", None)
                self.state[p].pop(ORDER, None)
                del self.state[p][key]
        if self._starts_anew(saved, group):
            del self.state[p]
            return False
        for key in self.moments_of(group):
            if key in saved:
                home = self._home(p, key, group)
                loaded = loaded_moment(home, key, saved, group["state_dtype"])
            else:
                loaded = self._missing_moment(p, key, saved, group)
            self.state[p].update(loaded)
        return True

    def _starts_anew(self, saved: dict[str, Any], group: dict[str, Any]) -> bool:
        return lacks_steps(saved) or lacks_divisor(saved, group)

    def _home(self, p: Tensor, key: str, group: dict[str, Any]) -> Tensor:
        """A tensor like which a moment of p is laid out, and divided among processes."""
        return p

    def _defaults_of(self, group: dict[str, Any]) -> dict[str, Any]:
        """The default of every setting of the group."""
        return constructor_defaults(type(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Fill in settings that a checkpoint or a pickle of an older version lacks."""
        super().__setstate__(state)
        self._plans, self._is_built = PlanCache(), True
        for group in self.param_groups:
            defaults = self._defaults_of(group)
            older = {name: BEFORE[name] for name in BEFORE.keys() & defaults}
            for name, default in {**defaults, **older}.items():
                group.setdefault(name, default)
            for p in group["params"]:
                step = self.state[p].get("step") if p in self.state else None
                if step is not None and not isinstance(step, Tensor):
                    self.state[p]["step"] = new_step(p, group["capturable"]).fill_(float(step))


def warn_late(name: str, state: dict[str, Any], beta2: float) -> None:
    """Say that s starts at 0 in the middle of a run, where nothing is there to make it from."""
    if "exp_avg" in state and float(state.get("step", 0)) >= 1:
        warnings.warn(
            f"{name}: the gain was constant until now, so its variance s starts at 0 and the gain "
            f"opens over the next {1 / (1 - beta2):.0f} steps",
            stacklevel=2,
        )


def settings_of_a_plan(group: dict[str, Any], rule: Rule) -> tuple[Any, ...]:
    """What a plan depends on: how the group is stepped and what it keeps, not how it computes."""
    path = (group["fused"], group["foreach"], group["differentiable"])
    return (*path, group["state_dtype"], rule.moments, rule.rounding_seed)


def fused_path(params: list[Tensor]) -> str | None:
    """The fused kernels that suit all of these parameters, if any."""
    if params[0].device.type in cuda.DEVICES:
        return "cuda" if cuda.suits(params) else None
    return "cpu" if cpu.suits(params) else None


def implementation_of(groups: Iterable[dict[str, Any]]) -> str:
    """How the groups run, each name once."""
    paths = map(choose_path, groups)
    return ", ".join(dict.fromkeys("fused" if path in FUSED else path for path in paths))


def choose_path(group: dict[str, Any]) -> str:
    """The kernels that update a group: those requested, or the fastest that suit every tensor."""
    params = group["params"]
    if not params or (type(params[0]) not in PLAIN and is_fake(params[0])):
        return "loop"
    if group["fused"]:
        if params[0].device.type in cuda.DEVICES:
            return "cuda"
        if not params[0].is_cpu or cpu.available():
            return "cpu"
        return "loop" if unsupported_by_foreach(group) else "foreach"
    if group["foreach"]:
        return "foreach"
    if group["foreach"] is None and group["fused"] is None:
        path = None if group["differentiable"] else fused_path(params)
        if path is not None:
            return path
        if not unsupported_by_foreach(group):
            _, suits = _default_to_fused_or_foreach(params, group["differentiable"])
            return "foreach" if suits else "loop"
    return "loop"


def _graph_capture_health_check(optimizer: Any) -> None:
    # Up to torch 2.10 the check had CUDA in its name.
    if hasattr(optimizer, "_accelerator_graph_capture_health_check"):
        optimizer._accelerator_graph_capture_health_check()
    else:
        optimizer._cuda_graph_capture_health_check()


def check_fused(p: Tensor) -> None:
    """Refuse what no fused kernel can update, with torch's error message."""
    supported = p.is_cpu or (p.is_cuda and p.dtype in cuda.SUPPORTED)
    if not supported or not (p.is_floating_point() or p.is_complex()):
        raise RuntimeError(
            "`fused=True` requires all the params to be floating point Tensors of supported "
            f"devices: cpu and cuda (there float32, bfloat16, float16) but {p.dtype} and "
            f"{p.device.type}"
        )
