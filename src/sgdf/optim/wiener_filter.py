"""The filter in front of any torch optimizer."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from sgdf.filter import FilterSettings
from sgdf.kernels import foreach
from sgdf.optim.loading import check_state
from sgdf.optim.settings import check_filter, check_state_dtype
from sgdf.optim.state import local, new_moment, new_step

MOMENTS = ("exp_avg", "exp_var")


class WienerFilter:
    """Filter the gradients of `optimizer` just before each of its steps.

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
        gain_power: exponent of the gain; 1 is the paper's.
        correction: use the paper's ratio of the variance of an average to that of a gradient.
        state_dtype: dtype of the state, but not ``torch.int8``. None: the parameter's, but at
            least float32.

    >>> model = torch.nn.Linear(10, 1)
    >>> optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    >>> wiener = WienerFilter(optimizer)
    >>> model(torch.randn(8, 10)).square().mean().backward()
    >>> optimizer.step()
    >>> checkpoint = {"optimizer": optimizer.state_dict(), "filter": wiener.state_dict()}
    >>> wiener.load_state_dict(checkpoint["filter"])
    >>> wiener.detach()  # from here on the optimizer sees raw gradients again
    """

    def __init__(
        self,
        optimizer: Optimizer,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        gain_scale: float = 2.0,
        gain_power: float = 1.0,
        correction: bool = True,
        state_dtype: torch.dtype | None = None,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer, but got {optimizer!r}")
        self.settings = FilterSettings(betas, eps, gain_scale, gain_power, correction)
        check_filter(self.settings)
        check_state_dtype(state_dtype, but=(torch.int8,))
        self.optimizer = optimizer
        self.state_dtype = state_dtype
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        self._hook = optimizer.register_step_pre_hook(self._before_step)

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in self.settings._asdict().items())
        return f"WienerFilter({type(self.optimizer).__name__}, {settings})"

    def detach(self) -> None:
        """Stop filtering; the filter keeps its state."""
        self._hook.remove()

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
        if self._step_will_be_skipped():
            return
        params = [p for p in self._params() if p.grad is not None]
        grads = [p.grad for p in params if p.grad is not None]
        if any(g.is_sparse for g in grads):
            raise RuntimeError("WienerFilter does not support sparse gradients")
        for p in params:
            if p not in self.state:
                self.state[p] = {"step": new_step(p, on_device=False), **self._new_moments(p)}
        states = [self.state[p] for p in params]
        foreach.estimate_foreach(
            [local(g) for g in grads],
            *([local(state[key]) for state in states] for key in ("step", *MOMENTS)),
            settings=self.settings,
        )

    def _step_will_be_skipped(self) -> bool:
        # torch's GradScaler sets these on an optimizer whose fused step unscales by itself.
        if getattr(self.optimizer, "grad_scale", None) is not None:
            raise RuntimeError(
                "WienerFilter needs unscaled gradients: call scaler.unscale_(optimizer) before "
                "scaler.step(optimizer)"
            )
        found_inf = getattr(self.optimizer, "found_inf", None)
        return found_inf is not None and bool(found_inf)

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
        settings = FilterSettings(**{**self.settings._asdict(), **state_dict["settings"]})
        check_filter(settings)
        state = {}
        for i, saved in state_dict["state"].items():
            if not 0 <= i < len(params):
                raise ValueError(
                    f"loaded state has parameter {i}, but the optimizer has {len(params)}"
                )
            p = params[i]
            check_state(i, p, saved, ("step", *MOMENTS))
            state[p] = {"step": saved["step"].detach().clone().cpu(), **self._new_moments(p)}
            for key in MOMENTS:
                state[p][key].copy_(saved[key])
        self.settings, self.state = settings, state

    def _new_moments(self, p: Tensor) -> dict[str, Tensor]:
        return new_moment(p, "exp_avg", self.state_dtype) | new_moment(
            p, "exp_var", self.state_dtype
        )

    def _params(self) -> list[Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]
