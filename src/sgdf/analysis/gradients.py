"""Gradients, raw and estimated, as a training sees them.

    Probe               watches any torch optimizer: the distribution and the norms of raw and
                        estimated gradients, and the filter's gain in every layer
    overhead            what such a watch costs

Both look at a fixed, seeded choice of coordinates, in float64, in memory that does not grow
with the length of the training.
"""

import copy
import functools
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import SGD, Optimizer

from sgdf.filter import Corrections, bias_corrections, wiener_filter, wiener_gain
from sgdf.kernels.arithmetic import compute_dtype, positive_eps
from sgdf.kernels.quantized import Quantized, dequantize
from sgdf.optim import SGDF, Momentum
from sgdf.optim.state import moment_in
from sgdf.support.files import write_json
from sgdf.support.numerics import joint_norm

Array = NDArray[np.float64]

#: What the estimated gradient of an optimizer is taken to be.
ESTIMATES = {
    "filter": "the estimate of sgdf.filter, from gradient and state",
    "momentum": "the momentum buffer after the step (with Nesterov, what the step followed)",
    "direction": "what the step moved the parameters by, over the learning rate",
}
QUANTILES = (0.1, 0.5, 0.9)  # of the gain in a layer
LEAST = 16  # coordinates of every tensor that has them
ROWS = 512  # kept of a series; then every other one goes
BINS = 1024
KERNEL = 0.1  # standard deviation of a kernel, as a part of the value
REACH = math.asinh(1e6)  # bins go to a million times the scale, either way


# --- which coordinates ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Pick:
    """The coordinates of one parameter that are looked at, as indices into its elements."""

    name: str
    size: int
    index: Tensor
    repeats: Tensor  # how many, on the parameter's device

    @property
    def count(self) -> int:
        return len(self.index)

    def of(self, tensor: Tensor) -> Tensor:
        """These coordinates, whatever the tensor's layout."""
        return real(tensor).take(self.index)


def real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def gather(picks: Sequence[Pick], tensors: Sequence[Tensor]) -> Tensor:
    """The chosen coordinates of a tensor for each pick, in float64."""
    values = [pick.of(t) for pick, t in zip(picks, tensors, strict=True)]
    if values[0].is_cuda:
        return torch.cat(values).double()
    # NumPy has no threads, which cost more than they bring at these sizes.
    return torch.from_numpy(np.concatenate([value.double().numpy() for value in values]))


def choose(
    parameters: Sequence[tuple[str, Tensor]], coordinates: int, seed: int
) -> dict[Tensor, Pick]:
    """About so many coordinates in all, in proportion to the sizes, but some of every tensor."""
    if coordinates < 1:
        raise ValueError(f"coordinates is a number from 1 on, not {coordinates}")
    devices = {str(p.device) for _, p in parameters}
    if len(devices) > 1:
        raise ValueError(f"the parameters lie on several devices, {', '.join(sorted(devices))}")
    sizes = [p.numel() * (2 if p.is_complex() else 1) for _, p in parameters]
    picks = {}
    for i, ((name, p), size) in enumerate(zip(parameters, sizes, strict=True)):
        if hasattr(p, "placements"):
            raise ValueError(f"{name} is sharded: a probe looks at whole parameters only")
        count = min(size, max(LEAST, round(coordinates * size / sum(sizes))))
        if count:
            chosen = np.random.default_rng([seed, i]).choice(size, count, replace=False)
            index = torch.from_numpy(np.sort(chosen)).to(p.device)
            picks[p] = Pick(name, size, index, torch.tensor(count, device=p.device))
    return picks


def names_in(optimizer: Optimizer) -> list[str]:
    """As the optimizer was given them, or else by group and place."""
    return [
        name
        for i, group in enumerate(optimizer.param_groups)
        for name in group.get("param_names", [f"{i}.{j}" for j in range(len(group["params"]))])
    ]


# --- what is recorded ----------------------------------------------------------------------------


@dataclass
class Histogram:
    """Counts in bins that are evenly wide below `scale` and evenly wide in the logarithm above.

    Bin edges are scale * sinh(u) for evenly spaced u. Exact zeros, which units that are switched
    off give, are counted apart, as is what no bin holds.
    """

    scale: float
    counts: list[int] = field(default_factory=lambda: [0] * BINS)
    zeros: int = 0
    below: int = 0
    above: int = 0
    not_finite: int = 0
    sum: float = 0.0
    sum_of_squares: float = 0.0

    @property
    def edges(self) -> Array:
        return self.scale * np.sinh(np.linspace(-REACH, REACH, BINS + 1))

    @property
    def total(self) -> int:
        """Of the finite values."""
        return sum(self.counts) + self.zeros + self.below + self.above

    @property
    def mean(self) -> float:
        return self.sum / self.total if self.total else 0.0

    @property
    def std(self) -> float:
        mean_square = self.sum_of_squares / self.total if self.total else 0.0
        return math.sqrt(max(0.0, mean_square - self.mean**2))

    def add(self, values: Array) -> None:
        finite = values[np.isfinite(values)]
        self.sum += float(finite.sum())
        self.sum_of_squares += float((finite**2).sum())
        rest = finite[finite != 0]
        bins = np.floor((np.arcsinh(rest / self.scale) / REACH + 1) * (BINS / 2)).astype(np.int64)
        counts = np.bincount(np.clip(bins, -1, BINS) + 1, minlength=BINS + 2)
        self.counts = (np.asarray(self.counts) + counts[1:-1]).tolist()
        self.below += int(counts[0])
        self.above += int(counts[-1])
        self.zeros += len(finite) - len(rest)
        self.not_finite += len(values) - len(finite)

    def cumulative(self, at: Array) -> Array:
        """How many values lie below each of the places, evenly spread inside a bin."""
        sums = self.below + np.concatenate([[0], np.cumsum(self.counts)])
        return np.asarray(np.interp(at, self.edges, sums) + self.zeros * (at > 0))

    def density(self, at: Array) -> Array:
        """A kernel density of the values, but for zeros.

        With x = scale * sinh(u) the kernels have the same width in u: narrow in x where values are
        small, a tenth of the value in the tails.
        """
        centres = np.linspace(-REACH, REACH, 2 * BINS + 1)[1::2]
        apart = (np.arcsinh(at / self.scale)[:, None] - centres) / KERNEL
        kernels = np.exp(-(apart**2) / 2) / (KERNEL * math.sqrt(2 * math.pi))
        heights = kernels @ np.asarray(self.counts, dtype=np.float64) / max(self.total, 1)
        return np.asarray(heights / np.hypot(at, self.scale))


def first_histogram(values: Array) -> Histogram:
    """Empty, with bins for values like these."""
    sizes = np.abs(values[np.isfinite(values) & (values != 0)])
    return Histogram(float(np.median(sizes)) if len(sizes) else 1.0)


@dataclass
class Row:
    """A sampled step. The gain of a layer is its mean, then its quantiles of QUANTILES."""

    step: int
    raw_norm: float | None  # of the whole gradient; None where it is not finite
    estimated_norm: float | None  # from the chosen coordinates, each standing for its like
    gain: list[list[float] | None] | None  # by layer; None where there was no gradient


@dataclass
class Record:
    """What a probe saw; plain numbers, the same size however long it looked."""

    optimizer: str
    estimate: str  # one of ESTIMATES
    every: int  # steps between two samples in the beginning
    first: int  # steps that the histograms are about
    seed: int
    layers: list[dict[str, Any]]  # name, size, and how many coordinates were looked at
    steps: int = 0
    raw: Histogram | None = None
    estimated: Histogram | None = None
    rows: list[Row] = field(default_factory=list)

    def save(self, path: str | Path) -> None:
        write_json(Path(path), asdict(self))

    @classmethod
    def load(cls, path: str | Path) -> "Record":
        values = json.loads(Path(path).read_text(encoding="utf-8"))
        try:
            for name in ("raw", "estimated"):
                values[name] = values[name] and Histogram(**values[name])
            values["rows"] = [Row(**row) for row in values["rows"]]
            return cls(**values)
        except (TypeError, KeyError) as error:
            raise ValueError(f"{path} is not the record of a probe: {error}") from None


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# --- the probe -----------------------------------------------------------------------------------


@dataclass
class Seen:
    """One parameter group just before a step, at the chosen coordinates."""

    group: dict[str, Any]
    parameters: list[Tensor]
    picks: list[Pick]
    raw: Tensor
    norm: Tensor  # of the group's whole gradient
    before: Tensor | None = None  # the parameters, where the estimate needs them
    moments: tuple[Tensor, Tensor, Tensor] | None = None  # steps, m and s of the filter

    def spread(self, numbers: Tensor) -> Tensor:
        """A number for each parameter, at each of its coordinates."""
        counts = torch.stack([pick.repeats for pick in self.picks])
        there = numbers.to(self.raw.device, non_blocking=True)
        return there.repeat_interleave(counts, output_size=len(self.raw))

    @property
    def gradient(self) -> Tensor:
        """As the optimizer takes it: turned round to maximize, with an L2 penalty if it has one."""
        g = -self.raw if self.group.get("maximize") else self.raw
        return g if self.before is None else g + self.group["weight_decay"] * self.before


class Probe:
    """Watches an optimizer's steps and changes nothing: weights and random numbers stay the same.

    On every `every`-th step it reads the raw gradient ``p.grad`` at some coordinates, and what the
    optimizer makes of it there (`ESTIMATES` has the three ways; ``record().estimate`` says which).
    An L2 penalty is part of the estimate, as it is for the optimizer, but not of the raw gradient.
    Where the optimizer maximizes, the estimate is turned back to the side of the raw gradient.

    What a gradient is at the time of ``step()`` counts: after clipping, and after `WienerFilter` if
    that was attached before. With a closure it is the one of the closure's first call. Gradients
    that a fused step would unscale for a GradScaler are read unscaled, and steps that it skips are
    left out. Parameter groups that are added later are not seen. A step in a CUDA graph cannot be
    watched.

    Args:
        optimizer: any torch optimizer with dense gradients.
        every: steps between two samples. After 512 samples every other one is dropped and the
            distance doubled, so that the record stays bounded.
        first: the histograms are about so many first steps.
        coordinates: about how many are looked at, in proportion to the sizes of the parameters but
            at least 16 of each.
        names: of all parameters in the optimizer's order. None: those that it was given with
            ``named_parameters()``, or else numbers.
        seed: of the choice of coordinates.

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
            raise ValueError(f"every is from 1 and first from 0 on, not {every} and {first}")
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        named = list(names) if names is not None else names_in(optimizer)
        if len(named) != len(parameters):
            raise ValueError(f"{len(named)} names for {len(parameters)} parameters")
        self.optimizer = optimizer
        self.picks = choose(list(zip(named, parameters, strict=True)), coordinates, seed)
        self.place = {p: i for i, p in enumerate(self.picks)}
        self.stride = every
        self.pending: list[Seen] = []
        self.waiting: Callable[[], None] | None = None
        layers = [{"name": k.name, "size": k.size, "sampled": k.count} for k in self.picks.values()]
        kind = estimate_of(optimizer)
        self._record = Record(type(optimizer).__name__, kind, every, first, seed, layers)
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def detach(self) -> None:
        """Leave the optimizer as it was before the probe; the record stays here."""
        for hook in self._hooks:
            hook.remove()

    def __enter__(self) -> "Probe":
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def record(self) -> Record:
        """What was seen so far, as a copy."""
        self._note()
        return copy.deepcopy(self._record)

    # --- before a step --------------------------------------------------------------------------

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
        scale = getattr(self.optimizer, "grad_scale", None)  # left there by torch's GradScaler
        for group in self.optimizer.param_groups:
            parameters = [p for p in group["params"] if p in self.picks and p.grad is not None]
            if not parameters:
                continue
            if any(p.grad.is_sparse for p in parameters):
                raise RuntimeError("a Probe does not support sparse gradients")
            picks = [self.picks[p] for p in parameters]
            grads: list[Any] = [p.grad for p in parameters]
            raw = gather(picks, grads)
            norm = joint_norm(grads)
            if scale is not None:
                raw, norm = raw / scale, norm / scale.squeeze()
            seen = Seen(group, parameters, picks, raw, norm)
            if needs_parameters(self._record.estimate, group):
                seen.before = gather(picks, parameters)
            if self._record.estimate == "filter":
                seen.moments = filter_state(self.optimizer, seen)
            self.pending.append(seen)

    # --- after a step ---------------------------------------------------------------------------

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if not self.pending:
            return
        self._note()  # the sample before this one: a GPU has long sent it
        seen, self.pending = self.pending, []
        estimates, gains = zip(*(self._estimate(s) for s in seen), strict=True)
        norm = torch.linalg.vector_norm(torch.stack([s.norm for s in seen]))
        skipped = getattr(optimizer, "found_inf", None)
        skip = norm.new_zeros(1) if skipped is None else skipped.double().reshape(1)
        flat = [norm.reshape(1), skip, *(s.raw for s in seen), *estimates]
        sent = torch.cat([*flat, *(gain for gain in gains if gain is not None)])
        places = [self.place[p] for s in seen for p in s.parameters]
        arrives = sent.to("cpu", non_blocking=True)
        event = torch.cuda.Event() if sent.is_cuda else None  # type: ignore[no-untyped-call]
        if event is not None:
            event.record()
        step = self._record.steps - 1

        def note() -> None:
            if event is not None:
                event.synchronize()
            self._take(step, places, arrives.numpy())

        self.waiting = note
        if event is None:
            self._note()

    def _estimate(self, seen: Seen) -> tuple[Tensor, Tensor | None]:
        """The estimated gradient, and where there is a filter its gain."""
        gain = None
        if self._record.estimate == "filter":
            estimate, gain = filtered(seen)
        elif self._record.estimate == "momentum":
            estimate = momentum(self.optimizer, seen)
        else:
            assert seen.before is not None
            estimate = (seen.before - gather(seen.picks, seen.parameters)) / seen.group["lr"]
        return (-estimate if seen.group.get("maximize") else estimate), gain

    # --- on the host ----------------------------------------------------------------------------

    def _note(self) -> None:
        if self.waiting is not None:
            waiting, self.waiting = self.waiting, None
            waiting()

    def _take(self, step: int, places: list[int], sent: Array) -> None:
        norm, skipped, values = float(sent[0]), bool(sent[1]), sent[2:]
        if skipped:
            return
        picks = list(self.picks.values())
        counts = np.array([picks[i].count for i in places])
        raw, estimated, *gain = np.split(values, len(values) // counts.sum())
        if self._fills_histogram(step):
            self._fill(raw, estimated)
        if step % self.stride:
            return
        each = np.repeat([picks[i].size / picks[i].count for i in places], counts)
        size = finite(float(np.sqrt(np.sum(each * estimated**2))))
        layers = None
        if gain and np.isfinite(gain[0]).all():
            layers = self._by_layer(places, summaries(gain[0], counts))
        self._add(Row(step, finite(norm), size, layers))

    def _by_layer(self, places: list[int], values: list[list[float]]) -> list[list[float] | None]:
        found = dict(zip(places, values, strict=True))
        return [found.get(i) for i in range(len(self.picks))]

    def _fill(self, raw: Array, estimated: Array) -> None:
        record = self._record
        if record.raw is None or record.estimated is None:
            record.raw, record.estimated = first_histogram(raw), first_histogram(raw)
        record.raw.add(raw)
        record.estimated.add(estimated)

    def _add(self, row: Row) -> None:
        record = self._record
        record.rows.append(row)
        if len(record.rows) > ROWS:
            self.stride *= 2
            record.rows = [row for row in record.rows if row.step % self.stride == 0]


def summaries(values: Array, counts: NDArray[np.int64]) -> list[list[float]]:
    """Mean and QUANTILES of each stretch of values in [0, 1], by one sort for all of them."""
    start = np.concatenate([[0], np.cumsum(counts)[:-1]])
    apart = 2.0 * np.repeat(np.arange(len(counts)), counts)
    ordered = np.sort(values + apart) - apart
    columns = [np.add.reduceat(values, start) / counts]
    columns += [ordered[start + np.round(q * (counts - 1)).astype(int)] for q in QUANTILES]
    return [[float(v) for v in row] for row in np.stack(columns, axis=1)]


# --- what an optimizer makes of a gradient -------------------------------------------------------


def estimate_of(optimizer: Optimizer) -> str:
    if isinstance(optimizer, SGDF):
        return "filter"
    return "momentum" if isinstance(optimizer, Momentum | SGD) else "direction"


def needs_parameters(estimate: str, group: dict[str, Any]) -> bool:
    """Whether parameters enter the estimate: what they moved, or an L2 penalty."""
    if estimate == "direction":
        return True
    return bool(group.get("weight_decay")) and not group.get("decoupled_weight_decay")


def filter_state(optimizer: Optimizer, seen: Seen) -> tuple[Tensor, Tensor, Tensor]:
    """Steps, m and s before a step. After it, low-precision state would have been rounded."""
    states = [optimizer.state.get(p, {}) for p in seen.parameters]
    steps = [state.get("step", torch.zeros(())).double() for state in states]
    if any(step.is_cuda for step in steps):  # the host need not wait for these
        steps = [step.to(seen.raw.device, non_blocking=True) for step in steps]
    pairs = list(zip(seen.parameters, states, strict=True))
    m, s = (
        gather(seen.picks, [whole(state, key) if key in state else zeros(p) for p, state in pairs])
        for key in ("exp_avg", "exp_var")
    )
    return torch.stack(steps), m, s


def zeros(p: Tensor) -> Tensor:
    return p.new_zeros(()).expand_as(p)


def whole(state: dict[str, Any], key: str) -> Tensor:
    moment = moment_in(state, key)
    return dequantize(moment) if isinstance(moment, Quantized) else moment


def filtered(seen: Seen) -> tuple[Tensor, Tensor]:
    """g^ and K by sgdf.filter, in float64."""
    assert seen.moments is not None
    group, g = seen.group, seen.gradient
    steps, m, s = seen.moments
    beta1, beta2 = group["betas"]
    eps = positive_eps(group["eps"], compute_dtype(seen.parameters[0]))
    by_parameter = bias_corrections(steps + 1, beta1, beta2, group["correction"], torch)
    corrections = Corrections(*(seen.spread(numbers) for numbers in by_parameter))
    scale, power = group["gain_scale"], group["gain_power"]
    settings = {"eps": eps, "gain_scale": scale, "gain_power": power}
    values: list[Any] = [g, m, s, *corrections]
    if not g.is_cuda:  # as in `gather`
        values = [value.numpy() for value in values]
    g, m, s, *scalars = values
    corrections = Corrections(*scalars)
    with np.errstate(all="ignore"):  # gradients that are not finite are counted as such
        g_hat, m, s = wiener_filter(g, m, s, corrections, beta1=beta1, beta2=beta2, **settings)
        gain = wiener_gain(s * corrections.fluctuation, g - m / corrections.trend, eps)
    return torch.as_tensor(g_hat), torch.as_tensor(gain)


def momentum(optimizer: Optimizer, seen: Seen) -> Tensor:
    if "momentum" in seen.group and not seen.group["momentum"]:
        return seen.gradient  # torch's SGD then keeps no buffer
    buffers = [whole(optimizer.state[p], "momentum_buffer") for p in seen.parameters]
    buffer = gather(seen.picks, buffers)
    if seen.group.get("nesterov"):
        buffer = seen.gradient + buffer * float(seen.group["momentum"])
    return buffer


# --- what watching costs -------------------------------------------------------------------------


@dataclass(frozen=True)
class Overhead:
    """Milliseconds of a step without a probe, between two samples of one, and with a sample."""

    plain_ms: float
    between_ms: float
    sampled_ms: float
    every: int

    @property
    def share(self) -> float:
        """What the probe adds to the time of a step, on average."""
        return self.share_at(self.every)

    def share_at(self, every: int) -> float:
        mean = ((every - 1) * self.between_ms + self.sampled_ms) / every
        return mean / self.plain_ms - 1

    def every_for(self, share: float) -> int | None:
        """How rarely to sample for no more than this share; None where no distance will do."""
        steps = (2**i for i in range(16))
        return next((every for every in steps if self.share_at(every) <= share), None)


def overhead(
    optimizer: Optimizer,
    step: Callable[[], object],
    *,
    every: int = 10,
    coordinates: int = 65536,
    rounds: int = 30,
) -> Overhead:
    """Time steps without a probe, with a sample and between samples, in turns.

    A probe acts inside ``optimizer.step()`` alone, so that is where its time is taken, away from
    the noise of forward and backward. Other programs only ever make a step slower, so the fastest
    of each kind counts.

    Args:
        optimizer: the one that `step` uses.
        step: a whole training step: gradients and one ``optimizer.step()``.
        every, coordinates: as for `Probe`.
        rounds: of three steps; one more goes before them to warm up.
    """
    if rounds < 1 or every < 1:
        raise ValueError(f"rounds and every are from 1 on, not {rounds} and {every}")
    marks: list[float] = []

    def mark(*_: Any) -> None:
        synchronize(optimizer)
        marks.append(time.perf_counter() * 1000)

    def timed() -> tuple[float, float]:
        """The milliseconds of a step, and those of them inside the optimizer and its hooks."""
        marks.clear()
        last = optimizer.register_step_post_hook(mark)
        try:
            mark()
            step()
            mark()
        finally:
            last.remove()
        if len(marks) != 4:
            raise ValueError("step has to call optimizer.step() once")
        start, entered, left, end = marks
        return end - start, left - entered

    def one_round() -> tuple[float, float, float, float]:
        whole, plain = timed()
        with Probe(optimizer, every=max(every, 2), coordinates=coordinates):
            sampled = timed()[1]
            return whole, plain, timed()[1], sampled

    first = optimizer.register_step_pre_hook(mark)  # before those of all probes to come
    try:
        one_round()
        kinds = zip(*(one_round() for _ in range(rounds)), strict=True)
        whole, plain, between, sampled = (min(times) for times in kinds)
    finally:
        first.remove()
    return Overhead(whole, whole + between - plain, whole + sampled - plain, every)


def synchronize(optimizer: Optimizer) -> None:
    if any(p.is_cuda for group in optimizer.param_groups for p in group["params"]):
        torch.cuda.synchronize()
