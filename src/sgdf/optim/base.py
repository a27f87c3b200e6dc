"""What all optimizers here share: a step over all groups, and checkpoints."""

import operator
import warnings
from collections.abc import Callable, Collection
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

from sgdf.kernels import cpu, cpu_library, cuda
from sgdf.kernels.consistency import check_consistent
from sgdf.kernels.plan import Columns, Plan, PlanCache, State
from sgdf.optim.conversion import made_moment
from sgdf.optim.foreign import converted
from sgdf.optim.loading import checked
from sgdf.optim.names import refuse_misspelt, refuse_settings_of_sgd
from sgdf.optim.settings import (
    check_settings,
    constructor_defaults,
    needs_the_loop,
    refuse_module,
)
from sgdf.optim.state import (
    PLAIN,
    is_fake,
    loaded_moment,
    local_row,
    moment_in,
    new_moment,
    new_step,
    only_creates_state,
    plan_for,
)


class FilterOptimizer(Optimizer):
    """Base class. A subclass names the moments it keeps and updates one group at a time."""

    all_moments: ClassVar[tuple[str, ...]]  #: that it may keep; see `moments_of`
    own_settings: ClassVar[tuple[str, ...]] = ("state_dtype",)  #: never taken from a checkpoint
    counts_steps: ClassVar[bool] = True
    _steps_in_backward: bool = False  # set by `step_in_backward`

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        check_settings(defaults)
        self._plans = PlanCache()
        refuse_module(params)
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if isinstance(param_group, dict):  # else torch's own error says what is wrong
            foreign = {key: param_group[key] for key in param_group if key not in self.defaults}
            refuse_settings_of_sgd(type(self), foreign)
            refuse_misspelt(type(self), foreign, {"params", "param_names", *self.defaults})
            refuse_module(param_group.get("params"))
            check_settings({**self.defaults, **param_group})
        super().add_param_group(param_group)

    @property
    def implementation(self) -> str:
        """How a step runs: "loop", "foreach" or "fused"; several if groups differ."""
        return ", ".join(dict.fromkeys(choose_path(group) for group in self.param_groups))

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

    def moments_of(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The names of the moments that a parameter of the group keeps in its state."""
        raise NotImplementedError

    def update(self, group: dict[str, Any], path: str, columns: Columns) -> None:
        """Update one group by the kernels of `path`."""
        raise NotImplementedError

    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform a single optimization step.

        Args:
            closure: reevaluates the model and returns the loss, which step then returns.
        """
        if "capturable" in self.defaults and not self._plans.groups:  # a plan can be captured
            _graph_capture_health_check(self)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()

        is_first = not torch.compiler.is_compiling() and not self.state
        # Check every gradient before the first parameter changes.
        pending = [(group, self._columns(group)) for group in self.param_groups]
        if is_first and only_creates_state(self.param_groups):
            return loss
        for group, columns in pending:
            if columns[0]:
                self._update_consistent(group, columns)
        return loss

    def _update_consistent(self, group: dict[str, Any], columns: Columns) -> None:
        """Update a group, or say which of its tensors do not fit their parameter.

        The fused kernels check by themselves. For foreach the check would take too long, and
        torch's functions refuse most such tensors: there it only explains their error.
        """
        path = choose_path(group, self._plans.groups)
        if path == "fused" or torch.compiler.is_compiling():
            self.update(group, path, columns)
            return
        params, grads, *state = columns
        moments = state[self.counts_steps :]
        tensors = (params, grads, moments, range(len(params)))
        # foreach functions accept meta tensors among others, and compute nothing.
        if path == "loop" or any(any(map(IS_META, column)) for column in moments):
            check_consistent(*tensors)
        try:
            self.update(group, path, columns)
        except RuntimeError:
            check_consistent(*tensors)
            raise

    def _columns(self, group: dict[str, Any]) -> Columns:
        """The tensors of a step: one row for every parameter of the group that has a gradient."""
        columns = self._columns_of_plan(group)
        if columns is None:
            moments = self.moments_of(group)
            columns = tuple([] for _ in range(2 + self.counts_steps + len(moments)))
            self._init_group(group, *columns)
        return columns

    def _columns_of_plan(self, group: dict[str, Any]) -> Columns | None:
        """The columns of a fused step on CUDA, if there is a plan that is still valid."""
        if not self._plans.groups:
            return None
        return self._plans.refresh(group["params"], settings_of_a_plan(group), self._states(group))

    def _plan(self, group: dict[str, Any], columns: Columns) -> Plan:
        """A plan for the columns: one from the cache, or a new one."""
        return plan_for(
            self._plans,
            group["params"],
            settings_of_a_plan(group),
            columns,
            self._states(group),
            counts_steps=self.counts_steps,
            seed=group.get("rounding_seed", 0),
        )

    def _states(self, group: dict[str, Any]) -> State:
        """The states that a plan compares from step to step.

        A plan of one parameter compares its own alone: with all of them, steps taken parameter
        by parameter would compare a number of states that is quadratic in that of parameters.
        """
        params = group["params"]
        return {p: self.state.get(p, {}) for p in params} if len(params) == 1 else self.state

    @_disable_dynamo
    def run_fused(
        self,
        group: dict[str, Any],
        columns: Columns,
        on_cpu: Callable[..., None],
        on_cuda: Callable[..., None],
        **options: Any,
    ) -> None:
        """Run the kernel of the parameters' device, with GradScaler's scale if there is one."""
        options["grad_scale"] = getattr(self, "grad_scale", None)
        options["found_inf"] = getattr(self, "found_inf", None)
        if runs_on_triton(columns[0][0]):
            plan = self._plan(group, columns)
            try:
                on_cuda(*plan.columns, **options, plan=plan)
            finally:
                plan.release()
        else:
            on_cpu(*columns, **options)

    # torch.compile runs a method of this name outside the graph, with empty lists to fill.
    def _init_group(self, group: dict[str, Any], *columns: list[Any]) -> None:
        moments = self.moments_of(group)
        for p in group["params"]:
            g = p.grad
            if g is None:
                continue
            if g.is_sparse:
                raise RuntimeError(f"{type(self).__name__} does not support sparse gradients")
            if group["fused"]:
                check_fused(p)
            state = self.state[p]
            row = [p, g]
            if self.counts_steps:
                if "step" not in state:
                    state["step"] = new_step(p, group["capturable"] or is_fused_on_cuda(group, p))
                elif p.is_cuda and not state["step"].is_cuda and is_fused_on_cuda(group, p):
                    state["step"] = state["step"].to(p.device, torch.float32)
                row.append(state["step"])
            for key in moments:
                if key not in state:
                    state.update(self._missing_moment(p, key, state, group))
                row.append(moment_in(state, key))
            if type(p) not in PLAIN:
                row = local_row(*row)
            for column, tensor in zip(columns, row, strict=True):
                column.append(tensor)

    def _missing_moment(
        self, p: Tensor, key: str, state: dict[str, Any], group: dict[str, Any]
    ) -> dict[str, Tensor]:
        """A moment to start with: made from the others if the settings have changed, else 0."""
        made = made_moment(key, state, group["betas"]) if "betas" in group else None
        if made is None:
            return new_moment(p, key, group["state_dtype"])
        return loaded_moment(p, key, {key: made}, group["state_dtype"])

    # --- checkpoints --------------------------------------------------------------------------

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

        Settings that `state_dict` lacks stay as they are, and so do `state_dtype` and
        `second_moment`. A missing moment is computed from the others if possible, so that one form
        of FilterAdam can continue another. A moment that is not needed is dropped. If anything does
        not fit, the optimizer is left as it was.

        The state of torch's SGD, Adam and AdamW, and of another class of this package, is
        converted as far as possible. A warning says what was converted, and which learning rate
        is used from now on.
        """
        as_saved: dict[str, Any] = {}
        said: list[str | None] = []

        def check(_: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
            keys = ("step",) * self.counts_steps + self.all_moments
            settings = {*self.defaults, *constructor_defaults(type(self))}
            state_dict, warning = converted(type(self).__name__, self.param_groups, state_dict)
            said.append(warning)
            as_saved.update(
                checked(state_dict, self.param_groups, keys, settings, self.own_settings)
            )
            return as_saved

        def restore(_: Optimizer) -> None:
            ids = [i for group in as_saved["param_groups"] for i in group["params"]]
            where = [(p, group) for group in self.param_groups for p in group["params"]]
            for i, (p, group) in zip(ids, where, strict=True):
                saved = as_saved["state"].get(i, {})
                if isinstance(saved.get("step"), Tensor):
                    self.state[p]["step"] = self.state[p]["step"].clone().reshape(())
                for key in self.all_moments:
                    if key in saved:
                        self.state[p].pop(f"{key}_scale", None)
                        del self.state[p][key]
                for key in self.moments_of(group) if saved else ():
                    if key in saved:
                        loaded = loaded_moment(p, key, saved, group["state_dtype"])
                    else:
                        loaded = self._missing_moment(p, key, saved, group)
                    self.state[p].update(loaded)

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
        for warning in filter(None, said):
            warnings.warn(warning, stacklevel=2)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Fill in settings that a checkpoint or a pickle of an older version lacks."""
        super().__setstate__(state)
        self._plans = PlanCache()
        missing = constructor_defaults(type(self))
        for group in self.param_groups:
            for name, default in missing.items():
                group.setdefault(name, default)
            for p in group["params"]:
                step = self.state[p].get("step") if p in self.state else None
                if step is not None and not isinstance(step, Tensor):
                    self.state[p]["step"] = new_step(p, group["capturable"]).fill_(float(step))


IS_META = operator.attrgetter("is_meta")
FLAGS = operator.itemgetter("fused", "foreach", "differentiable", "state_dtype")


def settings_of_a_plan(group: dict[str, Any]) -> tuple[Any, ...]:
    """The settings that a plan depends on; all others are read at each step."""
    return (*FLAGS(group), *map(group.get, ("rounding_seed", "gain_power", "second_moment")))


def choose_path(group: dict[str, Any], planned: Collection[int] = ()) -> str:
    """The kernels that update a group: those requested, or the fastest that suit every tensor."""
    if len(planned) and id(group["params"]) in planned:  # torch.compile cannot trace id()
        return "fused"
    if not group["params"] or is_fake(group["params"][0]):
        return "loop"
    if group["fused"]:
        if not group["params"][0].is_cpu or cpu_library.available():
            return "fused"
        return "loop" if needs_the_loop(group) else "foreach"
    if group["foreach"]:
        return "foreach"
    if group["foreach"] is None and group["fused"] is None:
        suits = cpu.suits if group["params"][0].is_cpu else cuda.suits
        if not group["differentiable"] and suits(group["params"]):
            return "fused"
        if not needs_the_loop(group):
            _, foreach = _default_to_fused_or_foreach(group["params"], group["differentiable"])
            return "foreach" if foreach else "loop"
    return "loop"


def _graph_capture_health_check(optimizer: Any) -> None:
    # Up to torch 2.10 the check had CUDA in its name.
    if hasattr(optimizer, "_accelerator_graph_capture_health_check"):
        optimizer._accelerator_graph_capture_health_check()
    else:
        optimizer._cuda_graph_capture_health_check()


def runs_on_triton(p: Tensor) -> bool:
    """Whether Triton updates p, and not C++; tests replace this to interpret Triton on the CPU."""
    return p.is_cuda


def is_fused_on_cuda(group: dict[str, Any], p: Tensor) -> bool:
    """Whether the step counter has to be on the device, even without `capturable`."""
    return p.is_cuda and choose_path(group) == "fused"


def check_fused(p: Tensor) -> None:
    """Refuse what no fused kernel can update, with torch's error message."""
    supported = p.is_cpu or (p.is_cuda and p.dtype in cuda.SUPPORTED)
    if not supported or not (p.is_floating_point() or p.is_complex()):
        raise RuntimeError(
            "`fused=True` requires all the params to be floating point Tensors of supported "
            f"devices: cpu and cuda (there float32, bfloat16, float16) but {p.dtype} and "
            f"{p.device.type}"
        )
