"""The filter in front of any torch optimizer."""

import functools
import numbers
import operator
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from sgdf.filter import FilterSettings, moment_names
from sgdf.kernels.plan import PlanCache
from sgdf.kernels.work import ESTIMATE, PLAIN, Rule, Work
from sgdf.optim.checkpoints import check_state, lacks_steps, loaded_moment, not_finite
from sgdf.optim.closed_gain import CHECKED, warn_if_closed
from sgdf.optim.optimizer import COLUMNS, FUSED, KERNELS, fused_path
from sgdf.optim.settings import (
    check_filter,
    check_gain_eps,
    check_state_dtype,
    filter_settings,
    given_settings,
    is_number,
    require,
)
from sgdf.optim.state import local, moment_in, new_moment, new_step, only_creates_state


class WienerFilter:
    """Filter the gradients of `optimizer` just before each of its steps.

    ```text
    p.grad <- g^ = m^ + gain_scale K^gain_power (g - m^)
    ```

    with m^ and K as in `SGDF`, also for gradients that overflow.

    **It overwrites ``p.grad``** with the estimate g^ (nothing else in this package changes a
    gradient), so clip before the step as usual and read raw gradients before it. Weight decay
    that the optimizer adds itself is applied after the filter. In a step with a closure, the
    gradients that the closure computes are filtered.

    The filter has its own state: save and load it beside the optimizer's. Copying or pickling
    the optimizer does not include it.

    Args:
        optimizer: any torch optimizer with dense gradients.
        betas: decay rates of the average and of the variance.
        eps: term in the denominator of the gain, beside *squared* gradients.
        gain_scale: factor on the gain; 2 is the paper's, 1 the plain Wiener filter.
        gain_power: exponent of the gain; 1 is the paper's. 0 makes the gain the constant
            ``gain_scale``, and no variance is kept.
        gain_eps: overrides eps in the gain, as in FilterAdam. Default: eps. With 0 the gain does
            not depend on the magnitude of the gradients.
        correction: use the paper's ratio of the variance of an average to that of a gradient.
        bias_correction: divide the average by ``1 - betas[0] ** t``.
        fused: one kernel over all tensors, in place and without temporary memory: Triton on CUDA,
            C++ on the CPU. None: if it suits every parameter.
        state_dtype: dtype of the state. None: the parameter's, but at least float32.
            ``torch.int8``: 8-bit blocks, but float32 for small tensors, as in SGDF.
        rounding_seed: seed of the random rounding of 8-bit state.

    Examples:
        >>> model = torch.nn.Linear(10, 1)
        >>> optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
        >>> wiener = WienerFilter(optimizer)
        >>> model(torch.randn(8, 10)).square().mean().backward()
        >>> optimizer.step()
        >>> checkpoint = {"optimizer": optimizer.state_dict(), "filter": wiener.state_dict()}
        >>> wiener.load_state_dict(checkpoint["filter"])
        >>> wiener.detach()  # from here on the optimizer sees raw gradients again

    References:
        Yao et al., "Signal Processing Meets SGD: From Momentum to Filter", Algorithm 1.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        gain_scale: float = 2.0,
        gain_power: float = 1.0,
        gain_eps: float | None = None,
        correction: bool = True,
        bias_correction: bool = True,
        fused: bool | None = None,
        state_dtype: torch.dtype | None = None,
        rounding_seed: int = 0,
    ) -> None:
        settings = given_settings(locals())
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer, but got {optimizer!r}")
        require(is_number(eps) and eps >= 0.0, "epsilon value", eps)
        check_gain_eps(gain_eps)
        self.settings = filter_settings(settings)
        check_filter(self.settings)
        check_state_dtype(state_dtype)
        require(fused in (None, True, False), "fused value", fused)
        require(isinstance(rounding_seed, numbers.Integral), "rounding_seed value", rounding_seed)
        self.optimizer = optimizer
        self.fused = fused
        self.state_dtype = state_dtype
        self.rounding_seed = rounding_seed
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        self._steps_taken = 0
        self._plans = PlanCache()
        self._listed: list[Tensor] = []
        self._hook = optimizer.register_step_pre_hook(self._before_step)

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in self.settings._asdict().items())
        return f"WienerFilter({type(self.optimizer).__name__}, {settings})"

    def detach(self) -> None:
        """Stop filtering; the filter keeps its state."""
        self._hook.remove()

    @property
    def implementation(self) -> str:
        """How a step runs, as `FilterOptimizer.implementation`: "loop", "foreach" or "fused"."""
        path = self._path(self._params())
        return "fused" if path in FUSED else path

    # --- filtering ----------------------------------------------------------------------------

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        # A hook receives the arguments of step as they were passed: (optimizer, closure?, ...).
        if len(args) > 1 and args[1] is not None:
            return (args[0], self._filtering(args[1]), *args[2:]), kwargs
        if kwargs.get("closure") is not None:
            return args, {**kwargs, "closure": self._filtering(kwargs["closure"])}
        self.filter_gradients()
        return None

    def _filtering(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        @functools.wraps(closure)
        def filtered() -> Any:
            loss = closure()
            self.filter_gradients()
            return loss

        return filtered

    @torch.no_grad()
    def filter_gradients(self) -> None:
        """Overwrite the gradients of the optimizer's parameters with their estimates."""
        # torch's GradScaler sets these on an optimizer whose fused step unscales by itself.
        if getattr(self.optimizer, "grad_scale", None) is not None:
            raise RuntimeError(
                "WienerFilter needs unscaled gradients: call scaler.unscale_(optimizer) before "
                "scaler.step(optimizer)"
            )
        found_inf = getattr(self.optimizer, "found_inf", None)
        is_new = not self.state or not self.optimizer.state  # one of them may be restored already
        if is_new and only_creates_state(self.optimizer.param_groups):
            return
        params = self._params()
        path = self._path(params)
        if path != "cuda" and found_inf is not None and bool(found_inf):
            return  # the step is going to be skipped
        work = self._prepare(params, path, found_inf)
        if work is not None:
            KERNELS[path](work)
            self._steps_taken += 1
            if self._steps_taken in CHECKED:
                rules = [(self.settings, params)]
                if warn_if_closed("WienerFilter", rules, self.state, stacklevel=5):
                    self._steps_taken = CHECKED[-1]  # once

    def _path(self, params: list[Tensor]) -> str:
        """The kernels that filter: "cuda", "cpu", "foreach" or "loop"."""
        path = fused_path(params) if self.fused is not False and params else None
        return path or ("loop" if self.state_dtype == torch.int8 else "foreach")

    def _prepare(self, params: list[Tensor], path: str, found_inf: Tensor | None) -> Work | None:
        rule = Rule(ESTIMATE, self.settings, rounding_seed=self.rounding_seed)
        if path != "cuda":
            columns = self._columns(params, on_device=False)
            return Work(rule, path, columns[1], *columns[1:]) if columns[0] else None
        plan = self._plans.refresh(params, (), self.state)
        if plan is None:
            columns = self._columns(params, on_device=True)
            if not columns[0]:
                return None
            plan = self._plans.get(params, (), columns, self.state, self.rounding_seed)
        return Work(rule, path, *plan.columns, found_inf=found_inf, plan=plan)

    def _columns(self, params: list[Tensor], on_device: bool) -> Any:
        """Parameters, gradients, steps, m, s, v of all parameters that have a gradient."""
        names = moment_names(self.settings, None)
        columns: list[Any] = [[], [], [], [], [], []]
        kept = [0, 1, 2, *(3 + COLUMNS[name] for name in names)]
        for p in params:
            if p.grad is None:
                continue
            if p.grad.is_sparse:
                raise RuntimeError("WienerFilter does not support sparse gradients")
            state = self.state.setdefault(p, {})
            if "step" not in state:
                state["step"] = new_step(p, on_device)
            elif state["step"].is_cuda != (on_device and p.is_cuda):
                device = p.device if on_device else "cpu"
                state["step"] = state["step"].to(device, torch.float32)
            for name in names:
                if name not in state:
                    state.update(new_moment(p, name, self.state_dtype))
            row: list[Any] = [p, _matching_gradient(p), state["step"]]
            row += [moment_in(state, name) for name in names]
            for k, tensor in zip(kept, row, strict=True):
                columns[k].append(tensor if type(p) in PLAIN else local(tensor))
        return tuple(column or None for column in columns)

    # --- checkpoints --------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The settings, and the state by the parameter's index in the optimizer."""
        return {
            "settings": self.settings._asdict(),
            "state": {
                i: dict(self.state[p]) for i, p in enumerate(self._params()) if p in self.state
            },
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load settings and state, converted to the parameters' devices and `state_dtype`."""
        params = self._params()
        settings = FilterSettings(**{**self.settings._asdict(), **saved_settings(state_dict)})
        check_filter(settings)
        state: dict[Tensor, dict[str, Tensor]] = {}
        anew = 0
        for i, saved in state_dict["state"].items():
            if not isinstance(i, int) or not isinstance(saved, dict):
                raise ValueError(f"loaded state dict: the state of {i!r} is {saved!r}")
            if not 0 <= i < len(params):
                raise ValueError(
                    f"loaded state has parameter {i}, but the optimizer has {len(params)}"
                )
            p = params[i]
            names = moment_names(settings, None)
            check_state(i, p, saved, ("step", *names))
            for key in ("step", *names):
                if key not in saved:
                    raise ValueError(f"loaded state dict: parameter {i} has no {key}")
            if lacks_steps(saved):
                anew += 1
                continue
            state[p] = {"step": new_step(p, on_device=False).fill_(float(saved["step"]))}
            for key in names:
                state[p].update(loaded_moment(p, key, saved, self.state_dtype))
        self.settings, self.state, self._plans = settings, state, PlanCache()
        said = not_finite(state.values())
        if anew:
            said = f"{anew} of its parameters have moments without steps: both start anew"
        if said:
            warnings.warn(said, stacklevel=2)

    def _params(self) -> list[Tensor]:
        """The optimizer's parameters; the same list as long as they are the same."""
        params = [p for group in self.optimizer.param_groups for p in group["params"]]
        same = len(params) == len(self._listed) and all(map(operator.is_, params, self._listed))
        if not same:
            self._listed = params
        return self._listed


def saved_settings(state_dict: Any) -> dict[str, Any]:
    """The settings of a state dict of this class; a ValueError if it is none."""
    form = {"settings": dict, "state": dict}
    if not isinstance(state_dict, dict) or not all(
        isinstance(state_dict.get(name), kind) for name, kind in form.items()
    ):
        raise ValueError("loaded state dict is not that of a WienerFilter: no settings and state")
    settings: dict[str, Any] = state_dict["settings"]
    if unknown := settings.keys() - set(FilterSettings._fields):
        names = ", ".join(sorted(map(str, unknown)))
        raise ValueError(f"loaded state dict: a WienerFilter has no settings {names}")
    return settings


def _matching_gradient(p: Any) -> Tensor:
    """The gradient, sharded like its parameter: a DTensor's may still have to be summed."""
    if hasattr(p.grad, "placements") and p.grad.placements != p.placements:
        p.grad = p.grad.redistribute(placements=p.placements)
    return p.grad  # type: ignore[no-any-return]
