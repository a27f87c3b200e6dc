"""The step that SGDF and FilterAdam share: they differ in what the estimate is divided by."""

from typing import Any, ClassVar

from sgdf.filter import Denominator, moment_names
from sgdf.kernels import cpu, cuda, foreach, loop
from sgdf.kernels.plan import Columns
from sgdf.optim.base import FilterOptimizer
from sgdf.optim.settings import filter_settings


class FilteredOptimizer(FilterOptimizer):
    """Base class: descend along the filtered gradient, divided by `denominator`."""

    all_moments: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_var", "exp_avg_sq")

    def denominator(self, group: dict[str, Any]) -> Denominator | None:
        """What the estimate is divided by; None: nothing."""
        return None

    def moments_of(self, group: dict[str, Any]) -> tuple[str, ...]:
        return moment_names(filter_settings(group), self.denominator(group))

    def update(self, group: dict[str, Any], path: str, columns: Columns) -> None:
        names = ("lr", "weight_decay", "decoupled_weight_decay", "maximize")
        options = {name: group[name] for name in names}
        options["settings"] = filter_settings(group)
        options["denominator"] = self.denominator(group)
        if path == "foreach":
            foreach.filter_foreach(*columns, **options, capturable=group["capturable"])
            return
        options["stochastic_rounding"] = group["stochastic_rounding"]
        options["rounding_seed"] = group["rounding_seed"]
        if path == "fused":
            self.run_fused(group, columns, cpu.filter_fused, cuda.filter_fused, **options)
        else:
            loop.filter_loop(
                *columns,
                **options,
                capturable=group["capturable"],
                differentiable=group["differentiable"],
            )
