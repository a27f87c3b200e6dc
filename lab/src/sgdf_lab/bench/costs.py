"""The measured cost of one contestant's step, and comparisons between contestants."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sgdf_lab.bench.contestants import Contestant, dtype_name
from sgdf_lab.bench.timing import TimedSeries, columns, interquartile_range

DISTURBING_CPUS = 0.25  # busy with other programs: our threads wait for one another, so for those


@dataclass
class StepCost:
    """What was measured of one contestant; bytes are per parameter unless named otherwise.

    The fields are the keys of a row in the JSON record.
    """

    name: str
    optimizer: str
    path: str
    params_dtype: str
    error: str | None = None
    implementation: str | None = None
    state_bytes: float | None = None
    moved_bytes: float | None = None
    ms: float | None = None
    ms_iqr: float | None = None
    gb_per_s: float | None = None
    of_copy: float | None = None
    times_sgd_fused: float | None = None
    times_adamw_fused: float | None = None
    extra_memory_bytes_in_all: int | None = None
    extra_memory_percent: float | None = None
    first_step_s: float | None = None
    steps_per_timing: int | None = None
    others_cpus: float | None = None  # CPUs that other programs kept busy meanwhile
    together: int | None = None  # rows with the same number were timed in turns
    timings: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, contestant: Contestant, error: str | None = None) -> "StepCost":
        dtype = dtype_name(contestant.dtype)
        return cls(contestant.name, contestant.optimizer_name, contestant.path, dtype, error)

    def summarize(self, series: TimedSeries, parameters: int, copy_gb_per_s: float) -> None:
        """Fill in the times, and the rate at which memory is read and written."""
        assert self.moved_bytes is not None
        self.ms, self.ms_iqr = series.ms, interquartile_range([t.ms for t in series.timings])
        self.gb_per_s = self.moved_bytes * parameters / series.ms / 1e6
        self.of_copy = self.gb_per_s / copy_gb_per_s
        self.steps_per_timing = series.batch
        self.timings = columns(series.timings)


def moved_bytes(contestant: Contestant, width: int, state_bytes: float) -> float:
    """Bytes that a step has to read and write per parameter, which has `width` bytes itself.

    A step reads g, p and the state, and writes p and the state. A filter alone reads and writes g
    in the place of p.
    """
    tensors = 2 if contestant.filters_alone else 3
    return tensors * width + 2 * state_bytes


def compare_with_torch(costs: Sequence[StepCost]) -> None:
    """Fill in the ratios to torch's fused optimizers on parameters of the same dtype."""
    for cost in costs:
        for rival, ratio in (("SGD", "times_sgd_fused"), ("AdamW", "times_adamw_fused")):
            for other in costs:
                same = (other.optimizer, other.path) == (rival, "fused")
                if same and other.params_dtype == cost.params_dtype and cost.ms and other.ms:
                    setattr(cost, ratio, cost.ms / other.ms)


def disturbed(device: str, rows: Sequence[dict[str, Any]]) -> bool:
    """Whether other programs kept CPUs busy, which slows down a CPU's steps but hardly a GPU's."""
    return device == "cpu" and any((row["others_cpus"] or 0) > DISTURBING_CPUS for row in rows)
