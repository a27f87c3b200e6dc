"""`Probe` watches any torch optimizer: distribution and norms of raw and estimated gradients, and
the filter's gain in every layer.

It reads a fixed, seeded choice of coordinates in float64. Its memory does not grow with the length
of the run.
"""

import copy
import functools
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from sgdf_lab.instruments.evaluation import Array
from sgdf_lab.instruments.sampling import (
    GroupSnapshot,
    Histogram,
    choose,
    estimate_of,
    estimated,
    snapshot,
)
from sgdf_lab.support.files import read_text, write_json

QUANTILES = (0.1, 0.5, 0.9)  # of the gain in a layer
ROWS = 512  # kept of a series; beyond that, every other one is dropped


# --- records --------------------------------------------------------------------------------------


@dataclass
class ProbedStep:
    """A sampled step. The gain of a layer is its mean, followed by its QUANTILES."""

    step: int
    raw_norm: float | None  # of the full gradient; None if it is not finite
    estimated_norm: float | None  # extrapolated from the chosen coordinates
    gain: list[list[float] | None] | None  # per layer; None if the layer had no gradient


@dataclass
class ProbeRecord:
    """What a probe measured, as plain numbers; its size is bounded."""

    optimizer: str
    estimate: str  # one of ESTIMATES
    every: int  # steps between samples at the beginning
    first: int  # the histograms cover this many first steps
    seed: int
    layers: list[dict[str, Any]]  # name, size, and number of sampled coordinates
    steps: int = 0
    raw: Histogram | None = None
    estimated: Histogram | None = None
    rows: list[ProbedStep] = field(default_factory=list)

    def save(self, path: str | Path) -> None:
        write_json(Path(path), asdict(self))

    @classmethod
    def load(cls, path: str | Path) -> "ProbeRecord":
        values = json.loads(read_text(Path(path)))
        try:
            for name in ("raw", "estimated"):
                values[name] = values[name] and Histogram(**values[name])
            values["rows"] = [ProbedStep(**row) for row in values["rows"]]
            return cls(**values)
        except (TypeError, KeyError) as error:
            raise ValueError(f"{path} is not the record of a probe: {error}") from None


def finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


# --- the probe ------------------------------------------------------------------------------------


class Probe:
    """Watches an optimizer's steps without changing them: weights and random numbers stay the same.

    On every `every`-th step it reads the raw gradient ``p.grad`` at some coordinates, and what the
    optimizer makes of it there (``sampling.ESTIMATES`` lists the three ways;
    ``record().estimate`` names the one used). An L2 penalty is part of the estimate, as it is for
    the optimizer, but not of the raw gradient. If the optimizer maximizes, the estimate is negated
    so that it compares with the raw gradient.

    The gradient is that at the time of ``step()``: after clipping, and after `WienerFilter` if that
    was attached before. With a closure it is that of the closure's first call. Gradients that a
    fused step unscales for a GradScaler are read unscaled; steps that it skips are left out.
    Parameter groups that are added later are not watched, and steps in a CUDA graph cannot be.

    Args:
        optimizer: any torch optimizer with dense gradients.
        every: steps between samples. After 512 samples every other one is dropped and the
            distance doubled, so that the record stays bounded.
        first: the histograms cover this many first steps.
        coordinates: about how many are read, in proportion to the sizes of the parameters but at
            least 16 of each.
        names: of all parameters in the optimizer's order. None: those that it was given with
            ``named_parameters()``, or else numbers.
        seed: of the choice of coordinates.

    Examples:
        >>> model = torch.nn.Linear(10, 1)
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> with Probe(optimizer, every=1) as probe:
        ...     model(torch.ones(8, 10)).square().mean().backward()
        ...     _ = optimizer.step()
        >>> probe.record().estimate, len(probe.record().rows)
        ('direction', 1)
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        every: int = 10,
        first: int = 100,
        coordinates: int = 65536,
        names: Iterable[str] | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer, but got {optimizer!r}")
        if every < 1 or first < 0:
            raise ValueError(f"every must be at least 1 and first at least 0, not {every}, {first}")
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        named = list(names) if names is not None else names_in(optimizer)
        if len(named) != len(parameters):
            raise ValueError(f"{len(named)} names for {len(parameters)} parameters")
        self.optimizer = optimizer
        self.picks = choose(list(zip(named, parameters, strict=True)), coordinates, seed)
        self.place = {p: i for i, p in enumerate(self.picks)}
        self.stride = every
        self.pending: list[GroupSnapshot] = []  # of the step under way
        self.in_transit: Callable[[], None] | None = None  # takes the last sample from the device
        layers = [{"name": k.name, "size": k.size, "sampled": k.count} for k in self.picks.values()]
        kind = estimate_of(optimizer)
        self._record = ProbeRecord(type(optimizer).__name__, kind, every, first, seed, layers)
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def detach(self) -> None:
        """Remove the probe from the optimizer; the record stays available."""
        for hook in self._hooks:
            hook.remove()

    def __enter__(self) -> "Probe":
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def record(self) -> ProbeRecord:
        """A copy of what was measured so far."""
        self._receive()
        return copy.deepcopy(self._record)

    # --- before a step ----------------------------------------------------------------------------

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self.pending = []
        step = self._record.steps
        self._record.steps += 1
        if step % self.stride and not self._fills_histogram(step):
            return None
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("a Probe cannot watch a CUDA graph: detach it before the capture")
        # Hooks get the arguments of step as they were passed: (optimizer, closure?, ...).
        if len(args) > 1 and args[1] is not None:
            return (args[0], self._watched(args[1]), *args[2:]), kwargs
        if kwargs.get("closure") is not None:
            return args, {**kwargs, "closure": self._watched(kwargs["closure"])}
        self._look()
        return None

    def _fills_histogram(self, step: int) -> bool:
        return step < self._record.first and step % self._record.every == 0

    def _watched(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        @functools.wraps(closure)
        def watched() -> Any:
            loss = closure()
            if not self.pending:
                self._look()
            return loss

        return watched

    @torch.no_grad()
    def _look(self) -> None:
        for group in self.optimizer.param_groups:
            parameters = [p for p in group["params"] if p in self.picks and p.grad is not None]
            if parameters:
                picks = [self.picks[p] for p in parameters]
                kind = self._record.estimate
                self.pending.append(snapshot(self.optimizer, kind, group, parameters, picks))

    # --- after a step -----------------------------------------------------------------------------

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if not self.pending:
            return
        self._receive()  # the previous sample: by now a GPU has sent it
        seen, self.pending = self.pending, []
        pairs = [estimated(optimizer, self._record.estimate, group) for group in seen]
        estimates, gains = zip(*pairs, strict=True)
        norm = torch.linalg.vector_norm(torch.stack([s.norm for s in seen]))
        skipped = getattr(optimizer, "found_inf", None)
        skip = norm.new_zeros(1) if skipped is None else skipped.double().reshape(1)
        flat = [norm.reshape(1), skip, *(s.raw for s in seen), *estimates]
        places = [self.place[p] for s in seen for p in s.parameters]
        self._send(torch.cat([*flat, *(gain for gain in gains if gain is not None)]), places)

    def _send(self, values: Tensor, places: list[int]) -> None:
        """Start the copy to the host. On a GPU nobody waits for it before the next sample."""
        on_host = values.to("cpu", non_blocking=True)
        event = torch.cuda.Event() if values.is_cuda else None  # type: ignore[no-untyped-call]
        if event is not None:
            event.record()
        step = self._record.steps - 1

        def receive() -> None:
            if event is not None:
                event.synchronize()
            self._take(step, places, on_host.numpy())

        self.in_transit = receive
        if event is None:
            self._receive()

    # --- on the host ------------------------------------------------------------------------------

    def _receive(self) -> None:
        if self.in_transit is not None:
            receive, self.in_transit = self.in_transit, None
            receive()

    def _take(self, step: int, places: list[int], sent: Array) -> None:
        norm, skipped, values = float(sent[0]), bool(sent[1]), sent[2:]
        if skipped:
            return
        picks = list(self.picks.values())
        counts = np.array([picks[i].count for i in places])
        raw, estimate, *gain = np.split(values, len(values) // counts.sum())
        if self._fills_histogram(step):
            self._fill(raw, estimate)
        if step % self.stride:
            return
        weights = np.repeat([picks[i].size / picks[i].count for i in places], counts)
        size = finite_or_none(float(np.sqrt(np.sum(weights * estimate**2))))
        layers = None
        if gain and np.isfinite(gain[0]).all():
            by_place = dict(zip(places, summaries(gain[0], counts), strict=True))
            layers = [by_place.get(i) for i in range(len(picks))]
        self._add(ProbedStep(step, finite_or_none(norm), size, layers))

    def _fill(self, raw: Array, estimate: Array) -> None:
        record = self._record
        if record.raw is None or record.estimated is None:
            record.raw = Histogram.for_values_like(raw)
            record.estimated = Histogram.for_values_like(raw)
        record.raw.add(raw)
        record.estimated.add(estimate)

    def _add(self, row: ProbedStep) -> None:
        record = self._record
        record.rows.append(row)
        if len(record.rows) > ROWS:
            self.stride *= 2
            record.rows = [row for row in record.rows if row.step % self.stride == 0]


def names_in(optimizer: Optimizer) -> list[str]:
    """The names that the optimizer was given, or else group and position."""
    return [
        name
        for i, group in enumerate(optimizer.param_groups)
        for name in group.get("param_names", [f"{i}.{j}" for j in range(len(group["params"]))])
    ]


def summaries(values: Array, counts: NDArray[np.int64]) -> list[list[float]]:
    """Mean and QUANTILES of consecutive runs of values in [0, 1], with one sort for all."""
    start = np.concatenate([[0], np.cumsum(counts)[:-1]])
    offsets = 2.0 * np.repeat(np.arange(len(counts)), counts)
    ordered = np.sort(values + offsets) - offsets
    columns = [np.add.reduceat(values, start) / counts]
    columns += [ordered[start + np.round(q * (counts - 1)).astype(int)] for q in QUANTILES]
    return [[float(v) for v in row] for row in np.stack(columns, axis=1)]
