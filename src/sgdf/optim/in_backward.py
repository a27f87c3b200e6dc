"""Update each parameter during backward, as soon as its gradient is complete."""

import gc
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer
from torch.utils.hooks import RemovableHandle

from sgdf.kernels.rounding import GOLDEN
from sgdf.optim.filter_matrix import MatrixOptimizer
from sgdf.optim.optimizer import FUSED, KERNELS, FilterOptimizer, choose_path
from sgdf.optim.state import only_creates_state
from sgdf.optim.wiener_filter import WienerFilter


def step_in_backward(optimizer: Optimizer) -> "StepInBackward":
    """Update each parameter as soon as backward has its gradient, then free the gradient.

    The gradients never exist all at once. That saves up to their size: 4 bytes per parameter in
    float32, 2 in bfloat16. The results are those of ordinary steps, bit by bit, unless the model
    does one of the things below that cannot be noticed. Keep calling
    ``optimizer.step()`` once after each backward, as learning rate schedulers expect: it ends the
    iteration, and updates the parameters that still have a gradient (normally none).

    For a part of a run only: ``with step_in_backward(optimizer): ...``.

    These raise an error:

    - gradient accumulation, that is a second backward that reaches a parameter before
      ``optimizer.step()`` was called;
    - ``GradScaler``. The first chance to notice it is ``scaler.step(optimizer)``, when the
      first backward has already updated the parameters with scaled gradients: start again from
      the initial parameters. A disabled scaler is accepted;
    - closures, ``differentiable=True``, ``backward(create_graph=True)``, and a
      `WienerFilter` on the optimizer;
    - parameters of a ``DistributedDataParallel`` module: they would be updated before their
      gradients are averaged over the processes;
    - optimizers of other packages. For these, create one optimizer per parameter and call its
      ``step`` and ``zero_grad`` in a hook of ``Tensor.register_post_accumulate_grad_hook``.

    These **cannot be noticed**, and do not work:

    - ``clip_grad_norm_`` and ``clip_grad_value_`` after backward: the gradients are gone, so they
      clip nothing (the norm is 0). To clip each gradient by itself, use ``p.register_hook``.
    - code that reads gradients after backward, or in post-accumulate hooks registered later;
    - a forward pass that reads a parameter as ``p.data``: backward may see the updated value.
      (With ``p.detach()``, torch raises its error about a modified variable.)
    - activation checkpointing of a segment that reads a parameter outside autograd, as ``p.data``,
      ``p.detach()`` or under ``no_grad``: the segment is computed a second time during backward,
      and if the parameter has its gradient by then, with the updated value. Parameters that a
      segment reads as usual are safe: they have no complete gradient before it is recomputed.

    ``fully_shard`` (FSDP2) calls the hooks with the reduced shards. That is tested with one process
    on a CPU only, not on several GPUs. A region compiled by ``torch.compile`` returns its
    gradients together, so they exist together until each has been used.

    Each parameter has a step of its own, which costs some tens of microseconds of Python: little
    compared with the backward of large layers, but small models become slower.

    With ``stochastic_rounding`` or 8-bit state, the random bits of a parameter depend on its index
    among those of its group that require a gradient. An ordinary step counts those that have one:
    if a parameter gets no gradient, those after it in the group draw other bits.

    Args:
        optimizer: SGDF, FilterAdam, FilterAdamW or Momentum.

    Returns:
        A handle: ``remove()``, or the end of a ``with`` block, undoes it.

    Examples:
        >>> from sgdf import SGDF
        >>> model = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.Linear(10, 1))
        >>> optimizer = SGDF(model.parameters(), lr=0.5)
        >>> handle = step_in_backward(optimizer)
        >>> for _ in range(3):
        ...     model(torch.randn(8, 10)).square().mean().backward()  # updates the parameters
        ...     optimizer.step()
        >>> print(model[0].weight.grad)
        None
        >>> handle.remove()  # from here on, step() updates all parameters at once again
    """
    if not isinstance(optimizer, FilterOptimizer) or isinstance(optimizer, MatrixOptimizer):
        raise TypeError(
            "step_in_backward needs SGDF, FilterAdam, FilterAdamW or Momentum, but got "
            f"{type(optimizer).__name__}; for other optimizers, create one per parameter and call "
            "its step in a hook of Tensor.register_post_accumulate_grad_hook"
        )
    if optimizer._steps_in_backward:
        raise RuntimeError("step_in_backward is already active for this optimizer")
    return StepInBackward(optimizer)


class Place(NamedTuple):
    """Where a parameter is in its optimizer, and what updates it."""

    group: dict[str, Any]
    path: str  # chosen for the complete group
    position: int  # among the parameters of the group that require a gradient


class StepInBackward:
    """What `step_in_backward` returns: ``remove()`` or the end of a ``with`` block undoes it."""

    def __init__(self, optimizer: FilterOptimizer) -> None:
        self._optimizer = optimizer
        self._places: dict[Tensor, Place] = {}  # empty before the first gradient of an iteration
        self._updated: set[Tensor] = set()  # in this iteration
        self._own_lists: dict[Tensor, list[Tensor]] = {}  # a plan is found by its list's id
        self._hooks: dict[Tensor, RemovableHandle] = {}
        self._find_places()
        refuse_data_parallel(self._params())
        self._checked_parallel = False  # the model may be wrapped after this
        self._hook_parameters()
        # The optimizer holds this object by the hook, so that the handle may be thrown away.
        self._step_hook = optimizer.register_step_pre_hook(self._before_step)
        optimizer._steps_in_backward = True

    def remove(self) -> None:
        """Give ordinary behaviour back: `step()` updates all parameters at once."""
        self._step_hook.remove()
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()
        plans = self._optimizer._plans.groups
        for params in self._own_lists.values():
            # A captured CUDA graph still reads the tables of its plans.
            if id(params) in plans and not any(p.captured for p in plans[id(params)].plans):
                del plans[id(params)]
        self._optimizer._steps_in_backward = False

    def __enter__(self) -> "StepInBackward":
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _params(self) -> list[Tensor]:
        return [p for group in self._optimizer.param_groups for p in group["params"]]

    def _hook_parameters(self) -> None:
        """Add hooks to parameters that have none: at the start, and once they are unfrozen."""
        # A parameter must not keep the optimizer alive: it may outlive it.
        this = weakref.ref(self)

        def on_gradient(p: Tensor) -> None:
            owner = this()
            if owner is not None:
                owner._on_gradient(p)

        for p in self._params():
            if p.requires_grad and p not in self._hooks:
                self._hooks[p] = p.register_post_accumulate_grad_hook(on_gradient)

    def _find_places(self) -> None:
        """Look up all parameters, once per iteration: groups change, as by load_state_dict."""
        hooks = self._optimizer._optimizer_step_pre_hooks.values()
        if any(isinstance(getattr(hook, "__self__", None), WienerFilter) for hook in hooks):
            raise RuntimeError("step_in_backward does not support a WienerFilter on the optimizer")
        places = {}
        for group in self._optimizer.param_groups:
            if group["differentiable"]:
                raise RuntimeError("step_in_backward does not support `differentiable`")
            path, index = choose_path(group), 0
            for p in group["params"]:
                places[p] = Place(group, path, index)
                index += p.requires_grad
        self._places = places

    def _on_gradient(self, p: Tensor) -> None:
        if p.grad is None:  # another hook has taken it
            return
        if p in self._updated:
            p.grad = None
            raise RuntimeError(
                "step_in_backward does not support gradient accumulation: a second backward "
                "reached a parameter that is already updated; call optimizer.step() once after "
                "each backward"
            )
        if p.grad.requires_grad:
            raise RuntimeError("step_in_backward does not support backward(create_graph=True)")
        if not self._checked_parallel:
            refuse_data_parallel(self._params())
            self._checked_parallel = True
        self._update(p)

    @torch.no_grad()
    def _update(self, p: Tensor) -> None:
        """Update one parameter as a group of its own, and free its gradient."""
        if not self._places:
            self._find_places()
        place = self._places.get(p)
        if place is None:  # no longer in the optimizer
            return
        group = {
            **place.group,
            "params": self._own_lists.setdefault(p, [p]),
            "fused": place.path in FUSED,
            "foreach": place.path == "foreach",
        }
        if "rounding_seed" in group:
            # In a group of its own it is tensor 0; it has to draw the bits of its own index.
            group["rounding_seed"] += place.position * GOLDEN
        work = self._optimizer._prepare(group, place.path)
        assert work is not None  # p has a gradient
        KERNELS[work.path](work)
        # If a later part of this backward needs the old value, torch has to notice.
        torch.autograd.graph.increment_version(p)
        p.grad = None
        self._updated.add(p)

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        # A hook receives the arguments of step as they were passed: (optimizer, closure?, ...).
        if (args[1] if len(args) > 1 else kwargs.get("closure")) is not None:
            raise RuntimeError(
                "step_in_backward does not support closures: call backward before optimizer.step()"
            )
        is_new = not self._updated and not any(optimizer.state.values())
        if is_new and only_creates_state(optimizer.param_groups):
            return  # step() leaves it out as well
        for p in self._params():
            if p.grad is not None:
                self._update(p)
        self._hook_parameters()
        self._updated.clear()
        self._places = {}


def refuse_data_parallel(params: Iterable[Tensor]) -> None:
    """Refuse parameters of DistributedDataParallel, which averages gradients after the hooks.

    It leaves no mark on them, so search for such modules; without a process group there is none.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    modules = [m for m in gc.get_objects() if issubclass(type(m), DistributedDataParallel)]
    parallel = {p for module in modules for p in module.parameters()}
    if not parallel.isdisjoint(params):
        raise RuntimeError(
            "step_in_backward does not support DistributedDataParallel, which averages the "
            "gradients after the parameters would be updated"
        )
