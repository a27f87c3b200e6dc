"""What the optimizers share: a step over all groups, and checkpoints."""

import operator
from collections.abc import Callable, Collection
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim.optimizer import (
    Optimizer,
    ParamsT,
    _default_to_fused_or_foreach,
    _use_grad_for_differentiable,
)

from sgdf.kernels import cpu, cuda
from sgdf.optim.settings import check_settings, constructor_defaults, needs_the_loop
from sgdf.optim.state import (
    PLAIN,
    loaded_moment,
    local_row,
    moment_in,
    new_moment,
    new_step,
    side_by_side,
)

PLANS = 4  # kept for a group, for gradients that come and go

#: Lists with an entry for each parameter: tensors, or the codes and scales of an 8-bit moment.
Columns: TypeAlias = tuple[list[Any], ...]


class FilterOptimizer(Optimizer):
    """An optimizer that says which moments it keeps and how one group is updated."""

    state_keys: ClassVar[tuple[str, ...]]
    counts_steps: ClassVar[bool] = True

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        check_settings(defaults)
        self._plans: dict[int, list[cuda.Plan]] = {}  # of the fused kernels, by group
        self._captured: list[cuda.Plan] = []
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if isinstance(param_group, dict):  # else torch's own error says what is wrong
            check_settings({**self.defaults, **param_group})
        super().add_param_group(param_group)

    @property
    def implementation(self) -> str:
        """How a step runs: "loop", "foreach" or "fused"; several where groups differ."""
        return ", ".join(dict.fromkeys(choose_path(group) for group in self.param_groups))

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Asked by torch's GradScaler: whether the step unscales gradients and skips infinities."""
        return self.implementation == "fused"

    # --- one step -----------------------------------------------------------------------------

    def update(self, group: dict[str, Any], path: str, columns: Columns) -> None:
        """Update one group; `columns` are parameters, gradients, steps (if counted), moments."""
        raise NotImplementedError

    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform a single optimization step.

        Args:
            closure: reevaluates the model and returns the loss, which step then returns.
        """
        if "capturable" in self.defaults and not self._plans:  # a planned step can be captured
            _graph_capture_health_check(self)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()

        # Every gradient is looked at before the first parameter moves.
        pending = []
        for group in self.param_groups:
            columns = self._planned_columns(group)
            if columns is None:
                columns = tuple([] for _ in range(2 + self.counts_steps + len(self.state_keys)))
                self._init_group(group, *columns)
            pending.append((group, columns))
        for group, columns in pending:
            if columns[0]:
                self.update(group, choose_path(group, self._plans), columns)
        return loss

    def _planned_columns(self, group: dict[str, Any]) -> Columns | None:
        """The columns of a fused step on CUDA, if there is a plan for it that still holds."""
        plans = self._plans.get(id(group["params"])) if self._plans else None
        if not plans:
            return None
        if plans[0].made_for != what_plans_depend_on(group):
            del self._plans[id(group["params"])]
            return None
        try:
            return plans[0].renewed(self.state, group["params"])
        except (TypeError, RuntimeError):  # a gradient is None or sparse: _init_group knows
            return None

    def _plan(self, group: dict[str, Any], columns: Columns) -> cuda.Plan:
        """A plan for the columns: the last one, one of those before, or a new one."""
        plans = self._plans.setdefault(id(group["params"]), [])
        if plans and plans[0].columns is columns:
            return plans[0]
        for i, plan in enumerate(plans):
            if plan.suits(columns):
                plans.insert(0, plans.pop(i))
                return plan
        whole = len(columns[0]) == len(group["params"]) and type(group["params"][0]) in PLAIN
        if whole and self.counts_steps:
            steps = side_by_side(columns[2])
            for p, step in zip(group["params"], steps, strict=True):
                self.state[p]["step"] = step
            columns = (*columns[:2], steps, *columns[3:])
        plan = cuda.Plan(columns, self.counts_steps, group.get("rounding_seed", 0))
        plan.made_for = what_plans_depend_on(group)
        plan.params = group["params"]  # alive, so that no other list gets its id
        if whole:
            plan.remember(self.state)
        plans.insert(0, plan)
        self._captured += [old for old in plans[PLANS:] if old.captured]  # a graph may need it
        del plans[PLANS:]
        return plan

    @_disable_dynamo
    def run_fused(
        self, group: dict[str, Any], name: str, columns: Columns, settings: dict[str, Any]
    ) -> None:
        """Run the kernel `name` of the parameters' device."""
        grad_scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        settings = {**settings, "grad_scale": grad_scale, "found_inf": found_inf}
        if runs_on_triton(columns[0][0]):
            plan = self._plan(group, columns)
            try:
                getattr(cuda, name)(*plan.columns, **settings, plan=plan)
            finally:
                plan.release()
        else:
            getattr(cpu, name)(*columns, **settings)

    # torch.compile runs a method of this name outside the graph, with empty lists to fill.
    def _init_group(self, group: dict[str, Any], *columns: list[Any]) -> None:
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
            for key in self.state_keys:
                if key not in state:
                    state.update(new_moment(p, key, group["state_dtype"]))
                row.append(moment_in(state, key))
            if type(p) not in PLAIN:
                row = local_row(*row)
            for column, tensor in zip(columns, row, strict=True):
                column.append(tensor)

    # --- checkpoints --------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state and the settings, but for `state_dtype`: it says how this optimizer keeps its
        state, not what the state is, and torch's distributed checkpoints cannot hold a dtype.
        """
        state_dict = super().state_dict()
        for group in state_dict["param_groups"]:
            group.pop("state_dtype", None)
        return state_dict

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the optimizer state, in the dtype that this optimizer keeps it in.

        torch casts all floating state to the parameter's dtype, which would round the float32
        moments of a bfloat16 parameter (pytorch issues 43706 and 146542). It also keeps tensors
        that need no cast, and so shares them with the optimizer they came from; this copies.
        """
        as_saved: dict[str, Any] = {}
        formats = [group["state_dtype"] for group in self.param_groups]

        def remember(_: Optimizer, state_dict: dict[str, Any]) -> None:
            as_saved.update(state_dict)

        def restore(_: Optimizer) -> None:
            ids = [i for group in as_saved["param_groups"] for i in group["params"]]
            where = [(p, group) for group in self.param_groups for p in group["params"]]
            for group, dtype in zip(self.param_groups, formats, strict=True):
                group["state_dtype"] = dtype
            for i, (p, group) in zip(ids, where, strict=True):
                saved = as_saved["state"].get(i, {})
                if isinstance(saved.get("step"), Tensor):
                    self.state[p]["step"] = self.state[p]["step"].clone()
                for key in self.state_keys:
                    if key in saved:
                        self.state[p].pop(f"{key}_scale", None)
                        loaded = loaded_moment(p, key, saved, group["state_dtype"])
                        self.state[p].update(loaded)

        # After the user's own pre-hooks, before their post-hooks.
        hooks = [
            self.register_load_state_dict_pre_hook(remember),
            self.register_load_state_dict_post_hook(restore, prepend=True),
        ]
        try:
            super().load_state_dict(state_dict)
        finally:
            for hook in hooks:
                hook.remove()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Fill in what a checkpoint or a pickle of an older version does not have."""
        super().__setstate__(state)
        self._plans, self._captured = {}, []
        missing = constructor_defaults(type(self))
        for group in self.param_groups:
            for name, default in missing.items():
                group.setdefault(name, default)
            for p in group["params"]:
                step = self.state[p].get("step") if p in self.state else None
                if step is not None and not isinstance(step, Tensor):
                    self.state[p]["step"] = new_step(p, group["capturable"]).fill_(float(step))


FLAGS = operator.itemgetter("fused", "foreach", "differentiable", "state_dtype")


def what_plans_depend_on(group: dict[str, Any]) -> tuple[Any, ...]:
    """The settings that a plan of the fused kernels is made for; all others are read each step."""
    return (*FLAGS(group), group.get("rounding_seed"))


def choose_path(group: dict[str, Any], planned: Collection[int] = ()) -> str:
    """The kernels that update a group: those asked for, or the fastest that suit every tensor."""
    if len(planned) and id(group["params"]) in planned:  # torch.compile cannot trace id()
        return "fused"
    if not group["params"]:
        return "loop"
    if group["fused"]:
        if not group["params"][0].is_cpu or cpu.available():
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
    # torch 2.10 and before know the check under CUDA's name only.
    if hasattr(optimizer, "_accelerator_graph_capture_health_check"):
        optimizer._accelerator_graph_capture_health_check()
    else:
        optimizer._cuda_graph_capture_health_check()


def runs_on_triton(p: Tensor) -> bool:
    """Which of the fused kernels a parameter's device has (tests interpret Triton's on the CPU)."""
    return p.is_cuda


def is_fused_on_cuda(group: dict[str, Any], p: Tensor) -> bool:
    """Where the step counter has to be on the device, captured or not."""
    return p.is_cuda and choose_path(group) == "fused"


def check_fused(p: Tensor) -> None:
    """Refuse, in torch's words, what no fused kernel can update."""
    supported = p.is_cpu or (p.is_cuda and p.dtype in cuda.SUPPORTED)
    if not supported or not (p.is_floating_point() or p.is_complex()):
        raise RuntimeError(
            "`fused=True` requires all the params to be floating point Tensors of supported "
            f"devices: cpu and cuda (there float32, bfloat16, float16) but {p.dtype} and "
            f"{p.device.type}"
        )
