"""Any row with the Wiener filter in front of it: ``wiener-lion``, ``wiener-mypkg.MyOptimizer``.

The settings of the filter have the prefix ``filter_`` (``filter_gain_scale=1``); all others are the
optimizer's. Both are in one state dict: the filter's entries of a parameter have the same prefix.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from sgdf import WienerFilter
from sgdf_lab.optimizers import annotations
from sgdf_lab.optimizers.row import OptimizerRow

NAME = "wiener-"
PREFIX = "filter_"
#: `fused` is left out: without it the filter could not be captured in a CUDA graph.
KINDS = {PREFIX + n: kind for n, kind in annotations.of(WienerFilter).items() if n != "fused"}


@dataclass(frozen=True, kw_only=True)
class FilteredRow(OptimizerRow):
    """A row whose optimizer sees filtered gradients."""

    inner: OptimizerRow

    @property
    def published_as(self) -> str:
        return self.inner.published_as

    @property
    def kinds(self) -> dict[str, Any]:
        return self.inner.kinds | KINDS

    def checked(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        self.check_names(settings)
        others = self.inner.checked({n: v for n, v in settings.items() if n not in KINDS})
        return {
            name: annotations.checked(name, value, KINDS[name]) if name in KINDS else others[name]
            for name, value in settings.items()
        }

    def arguments(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        checked = self.checked(settings)
        others = self.inner.arguments({n: v for n, v in checked.items() if n not in KINDS})
        of_filter = {n: v for n, v in checked.items() if n in KINDS}
        return {**others, **annotations.as_arguments(of_filter)}

    def build(
        self, params: ParamsT, arguments: Mapping[str, Any], model: nn.Module | None
    ) -> Optimizer:
        others = {n: v for n, v in arguments.items() if n not in KINDS}
        optimizer = self.inner.build(params, others, model)
        if isinstance(optimizer, Optimizer):
            settings = {n.removeprefix(PREFIX): v for n, v in arguments.items() if n in KINDS}
            keep_together(optimizer, WienerFilter(optimizer, **settings))
        return optimizer


def filtered(row: OptimizerRow) -> FilteredRow:
    """The row with the filter in front; its curves have the row's colour."""
    values = {f.name: getattr(row, f.name) for f in fields(OptimizerRow)}
    values["name"] = NAME + row.name
    values["about"] = f"the Wiener filter in front of {row.name}: {row.about}"
    values["dash"] = "longdashdot"
    return FilteredRow(**values, inner=row)


def keep_together(optimizer: Optimizer, wiener: WienerFilter) -> None:
    """Save and load the filter's state in the optimizer's state dict.

    By the two methods, not by torch's hooks: some classes read the state dict that was given to
    them again after torch has loaded it.
    """
    save, load = optimizer.state_dict, optimizer.load_state_dict

    @functools.wraps(save)
    def with_filter() -> dict[str, Any]:
        saved = save()
        state = {i: dict(moments) for i, moments in saved["state"].items()}
        for i, moments in wiener.state_dict()["state"].items():
            state.setdefault(i, {}).update({PREFIX + key: v for key, v in moments.items()})
        return {**saved, "state": state}

    @functools.wraps(load)
    def load_state_dict(state_dict: dict[str, Any]) -> None:
        own: dict[int, Any] = {}
        of_filter: dict[int, Any] = {}
        for i, moments in state_dict["state"].items():
            for key, value in moments.items():
                place = of_filter if key.startswith(PREFIX) else own
                place.setdefault(i, {})[key.removeprefix(PREFIX)] = value
        load({**state_dict, "state": own})
        wiener.load_state_dict({"settings": {}, "state": of_filter})

    optimizer.state_dict = with_filter  # type: ignore[method-assign]
    optimizer.load_state_dict = load_state_dict  # type: ignore[method-assign]
