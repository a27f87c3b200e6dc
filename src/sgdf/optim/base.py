"""What the optimizers share: checking settings, creating state, stepping, loading checkpoints."""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    ParamsT,
    _default_to_fused_or_foreach,
    _use_grad_for_differentiable,
)

from sgdf.kernels.eager import compute_dtype

STATE_DTYPES = (None, torch.float64, torch.float32, torch.bfloat16, torch.float16)


class FilterOptimizer(Optimizer):
    """An optimizer that says which moments it keeps and how one group is updated."""

    state_keys: ClassVar[tuple[str, ...]]
    counts_steps: ClassVar[bool] = True

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        check_settings(defaults)
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if isinstance(param_group, dict):  # else torch's own error says what is wrong
            check_settings({**self.defaults, **param_group})
        super().add_param_group(param_group)

    # --- one step -----------------------------------------------------------------------------

    def update(
        self, group: dict[str, Any], foreach: bool, columns: tuple[list[Tensor], ...]
    ) -> None:
        """Update one group; `columns` are parameters, gradients, steps (if counted), moments."""
        raise NotImplementedError

    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform a single optimization step.

        Args:
            closure: reevaluates the model and returns the loss, which step then returns.
        """
        if "capturable" in self.defaults:
            _graph_capture_health_check(self)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()

        # Every gradient is looked at before the first parameter moves.
        pending = []
        for group in self.param_groups:
            columns: tuple[list[Tensor], ...] = tuple(
                [] for _ in range(2 + self.counts_steps + len(self.state_keys))
            )
            self._init_group(group, *columns)
            pending.append((group, tuple(map(local_tensors, columns))))
        for group, columns in pending:
            foreach = group["foreach"]
            if foreach is None:
                _, foreach = _default_to_fused_or_foreach(columns[0], group["differentiable"])
            self.update(group, foreach, columns)
        return loss

    # torch.compile runs a method of this name outside the graph, with empty lists to fill.
    def _init_group(self, group: dict[str, Any], *columns: list[Tensor]) -> None:
        for p in group["params"]:
            if p.grad is None:
                continue
            if p.grad.is_sparse:
                raise RuntimeError(f"{type(self).__name__} does not support sparse gradients")
            state = self.state[p]
            row = [p, laid_out_like(p, p.grad)]
            if self.counts_steps:
                if "step" not in state:
                    state["step"] = new_step(p, group["capturable"])
                row.append(state["step"])
            for key in self.state_keys:
                if key not in state:
                    state[key] = new_moment(p, group["state_dtype"])
                row.append(state[key])
            for column, tensor in zip(columns, row, strict=True):
                column.append(tensor)

    # --- checkpoints --------------------------------------------------------------------------

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the optimizer state, in the dtype that this optimizer keeps it in.

        torch casts all floating state to the parameter's dtype, which would round the float32
        moments of a bfloat16 parameter (pytorch issues 43706 and 146542).
        """
        as_saved: dict[str, Any] = {}
        formats = [group["state_dtype"] for group in self.param_groups]

        def remember(_: Optimizer, state_dict: dict[str, Any]) -> None:
            as_saved.update(state_dict)

        def restore(_: Optimizer) -> None:
            ids = [i for group in as_saved["param_groups"] for i in group["params"]]
            where = [(p, group) for group in self.param_groups for p in group["params"]]
            for group, dtype in zip(self.param_groups, formats, strict=True):
                group["state_dtype"] = dtype  # how to keep state is not the checkpoint's to say
            for i, (p, group) in zip(ids, where, strict=True):
                for key, value in as_saved["state"].get(i, {}).items():
                    if key in self.state_keys:
                        dtype = state_dtype(p, group["state_dtype"])
                        self.state[p][key] = value.to(device=p.device, dtype=dtype)

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
        missing = constructor_defaults(type(self))
        for group in self.param_groups:
            for name, default in missing.items():
                group.setdefault(name, default)
            for p in group["params"]:
                step = self.state[p].get("step") if p in self.state else None
                if step is not None and not isinstance(step, Tensor):
                    self.state[p]["step"] = new_step(p, group["capturable"]).fill_(float(step))


def laid_out_like(p: Tensor, g: Tensor) -> Tensor:
    """The gradient of a sharded parameter in the parameter's own sharding."""
    if hasattr(g, "placements") and g.placements != p.placements:  # type: ignore[attr-defined]
        return g.redistribute(placements=p.placements)  # type: ignore[attr-defined]
    return g


def local_tensors(tensors: list[Tensor]) -> list[Tensor]:
    """This process's shards: the update is element-wise, so they need nothing from the others."""
    return [t.to_local() if hasattr(t, "to_local") else t for t in tensors]


def constructor_defaults(cls: type) -> dict[str, Any]:
    """The default of every setting, as the class or the classes it hands them on to declare it."""
    defaults: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, parameter in inspect.signature(base.__init__).parameters.items():  # type: ignore[misc]
            if parameter.default is not parameter.empty:
                defaults[name] = parameter.default
    return defaults


def new_step(p: Tensor, capturable: bool) -> Tensor:
    """A step counter at 0: on the CPU, where reading it is free, unless a graph will capture it."""
    dtype = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
    return torch.zeros((), dtype=dtype, device=p.device if capturable else "cpu")


def new_moment(p: Tensor, wanted: torch.dtype | None) -> Tensor:
    """Zeros for a moment of p, laid out like p."""
    dtype = state_dtype(p, wanted)
    return torch.zeros_like(p, dtype=dtype, memory_format=torch.preserve_format)


def state_dtype(p: Tensor, wanted: torch.dtype | None) -> torch.dtype:
    """The dtype of the moments of p: `wanted`, or p's own but never less than float32."""
    dtype = wanted or compute_dtype(p)
    return dtype.to_complex() if p.is_complex() else dtype


def _graph_capture_health_check(optimizer: Any) -> None:
    # torch 2.10 and before know the check under CUDA's name only.
    if hasattr(optimizer, "_accelerator_graph_capture_health_check"):
        optimizer._accelerator_graph_capture_health_check()
    else:
        optimizer._cuda_graph_capture_health_check()


def check_settings(settings: dict[str, Any]) -> None:
    """Raise torch.optim's kind of error for the first setting that cannot be meant."""
    lr = settings["lr"]
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    require(lr >= 0.0, "learning rate", lr)
    if "betas" in settings:
        check_filter(settings)
    else:
        require(0.0 <= settings["beta"] < 1.0, "beta value", settings["beta"])
        require(settings["mu"] > 0.0, "mu value", settings["mu"])
    require(settings["weight_decay"] >= 0.0, "weight_decay value", settings["weight_decay"])
    check_state_dtype(settings["state_dtype"])
    if settings["fused"]:
        if settings["differentiable"]:
            raise RuntimeError("`fused` does not support `differentiable`")
        if settings["foreach"]:
            raise RuntimeError("`fused` and `foreach` cannot be `True` together.")
        raise RuntimeError("`fused=True` is not available yet: leave it None, or set foreach=True")
    if settings["foreach"] and settings["differentiable"]:
        raise RuntimeError("`foreach` does not support `differentiable`")


def check_filter(settings: dict[str, Any]) -> None:
    """The settings of the filter itself, which WienerFilter has too."""
    require(len(settings["betas"]) == 2, "betas value", settings["betas"])
    for index, beta in enumerate(settings["betas"]):
        require(0.0 <= beta < 1.0, f"beta parameter at index {index}", beta)
    require(settings["eps"] >= 0.0, "epsilon value", settings["eps"])
    require(settings["gain_scale"] >= 0.0, "gain_scale value", settings["gain_scale"])
    require(settings["gain_power"] > 0.0, "gain_power value", settings["gain_power"])


def check_state_dtype(dtype: Any) -> None:
    known = ", ".join(str(dtype) for dtype in STATE_DTYPES)
    require(dtype in STATE_DTYPES, f"state_dtype value (not one of {known})", repr(dtype))


def require(meant: Any, what: str, value: Any) -> None:
    if not meant:
        raise ValueError(f"Invalid {what}: {value}")
