"""A row of the registry: how an optimizer is built, set, drawn and trained with."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from sgdf_lab.optimizers import annotations
from sgdf_lab.optimizers.groups import without_decay
from sgdf_lab.support.errors import unknown


@dataclass(frozen=True, kw_only=True)
class OptimizerRow:
    """An optimizer of the lab.

    Args:
        name: for --optimizer and in the names of runs.
        builder: a class or function; its arguments after the parameters are the settings.
        about: what it does, in a phrase.
        source: the package that its class comes from.
        colour, dash: of its curves, the dash from `palette.DASHES`. No two rows share both; those
            that are often compared differ in colour. Filtered rows have the dash "longdashdot".
        settings: defaults for training with it where the paper has none; needs `lr` at least.
        capturable: a CUDA graph can hold step(), with lr a tensor on the device.
        on_cuda: settings for a CUDA device.
        needs_hessian: is a `HessianOptimizer`.
        any_setting: accepts settings under any name.
        groups: splits the parameters, given the model they belong to (or None), into groups.
        shardable: step() works on weights that FSDP2 shares among processes (`--shard`); an
            optimizer that needs the Hessian does not.
        typed: the annotations of the builder hold; those of a user's class may be wrong.

    Rows with a weight decay have one more setting: `decay_norms`, see `groups.without_decay`.
    """

    name: str
    builder: Callable[..., Optimizer]
    about: str
    source: str
    colour: str
    dash: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    capturable: bool = True
    on_cuda: Mapping[str, Any] = field(default_factory=dict)
    needs_hessian: bool = False
    any_setting: bool = False
    groups: Callable[[Iterable[Any], nn.Module | None], ParamsT] | None = None
    shardable: bool = True
    typed: bool = True

    @property
    def published_as(self) -> str:
        """The name under which the paper may have settings."""
        return self.name

    @property
    def kinds(self) -> dict[str, Any]:
        """The annotation of every setting."""
        kinds = annotations.of(self.builder)
        if self.typed and "weight_decay" in kinds:
            kinds["decay_norms"] = bool
        return kinds

    @property
    def setting_names(self) -> tuple[str, ...]:
        return tuple(self.kinds)

    def checked(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings as a run records them; refuses wrong names, and values of a wrong type."""
        self.check_names(settings)
        if not self.typed:
            return dict(settings)
        kinds = self.kinds
        return {
            name: annotations.checked(name, value, kinds[name]) if name in kinds else value
            for name, value in settings.items()
        }

    def check_names(self, settings: Mapping[str, Any]) -> None:
        kinds = self.kinds
        for setting in settings:
            if setting not in kinds and not self.any_setting:
                raise unknown(f"setting of {self.name}", setting, tuple(kinds))

    def arguments(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings, checked, as `build` takes them."""
        return annotations.as_arguments(self.checked(settings), dtypes=self.typed)

    def build(
        self, params: ParamsT, arguments: Mapping[str, Any], model: nn.Module | None
    ) -> Optimizer:
        arguments = dict(arguments)
        decays_norms = not self.typed or arguments.pop("decay_norms", True)
        if self.groups is not None:
            params = self.groups(params, model)
        return self.builder(params if decays_norms else without_decay(params), **arguments)


class HessianOptimizer(Protocol):
    """An optimizer that needs a second backward pass now and then, as SophiaG describes."""

    hessian_every: int  # steps between two calls of update_hessian; 0: never

    def update_hessian(self, batch_size: int) -> None: ...
