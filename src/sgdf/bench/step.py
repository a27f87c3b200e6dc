"""`sgdf bench step`: what one step of an optimizer costs, in time and memory, side by side.

All contestants of a list of parameters are timed in turns, with a plain copy of memory among
them, so that a machine that warms up or slows down does so to all alike. They share parameters
and gradients and differ in their state; the learning rate is too small to move anything.
"""

import contextlib
import gc
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from sgdf import SGDF, FilterAdam, Momentum
from sgdf.kernels import changes
from sgdf.support import provenance
from sgdf.support.files import write_atomically

LR = 1e-12  # not 0, which an optimizer might take a short cut for
REPEATS = 30
FEWEST = 3  # repeats of a contestant whose steps outlast its seconds
SECONDS = 2.0
WARM_UPS = 3  # steps, or fewer where they take long
# Seconds; shorter steps are timed several at once. A GPU's queue has to fill up first.
SHORTEST_TIMING = {"cpu": 5e-3, "cuda": 60e-3}
COPY_BYTES = {"cpu": 2**28, "cuda": 2**30}  # far more than any cache holds
USABLE = {"cpu": 0.8, "cuda": 0.92}  # of the free memory; the rest is fragments and other programs
DISTURBING = 0.25  # CPUs taken by others: threads that wait for one another wait for those too
GIB = 2**30

Shape = tuple[int, ...]


# --- lists of parameters ----------------------------------------------------------------------


def resnet(blocks: Sequence[int], bottleneck: bool) -> list[Shape]:
    """The shapes of torchvision's ResNets, in its order."""
    shapes = conv(3, 64, 7)
    inputs = 64
    for stage, depth in enumerate(blocks):
        width = 64 * 2**stage
        outputs = 4 * width if bottleneck else width
        for block in range(depth):
            if bottleneck:
                shapes += conv(inputs, width, 1) + conv(width, width, 3) + conv(width, outputs, 1)
            else:
                shapes += conv(inputs, width, 3) + conv(width, width, 3)
            if block == 0 and inputs != outputs:
                shapes += conv(inputs, outputs, 1)
            inputs = outputs
    return [*shapes, (1000, inputs), (1000,)]


def conv(inputs: int, outputs: int, size: int) -> list[Shape]:
    """A convolution and the two vectors of its batch norm."""
    return [(outputs, inputs, size, size), (outputs,), (outputs,)]


def transformer(layers: int, width: int) -> list[Shape]:
    """Blocks of layer norm, attention, layer norm and a perceptron, all with biases."""
    norm = linear(width)
    attention = linear(3 * width, width) + linear(width, width)
    perceptron = linear(4 * width, width) + linear(width, 4 * width)
    return (norm + attention + norm + perceptron) * layers + norm


def linear(outputs: int, *inputs: int) -> list[Shape]:
    return [(outputs, *inputs), (outputs,)]


def vit_large() -> list[Shape]:
    """torchvision's vit_l_16: a class token, patches of 16 x 16, 14 x 14 + 1 positions."""
    patches = linear(1024, 3, 16, 16)
    return [(1, 1, 1024), *patches, (1, 197, 1024), *transformer(24, 1024), *linear(1000, 1024)]


def gpt() -> list[Shape]:
    """GPT-2's blocks in the size of GPT-3 XL; the output layer is the token embedding."""
    return [(50257, 2048), (2048, 2048), *transformer(24, 2048)]


def tiny() -> list[Shape]:
    return [*conv(16, 32, 3), *linear(10, 32)]


@dataclass(frozen=True)
class ParameterList:
    """What is updated in one step; `on` are the devices where it is measured by default."""

    title: str
    shapes: Callable[[], list[Shape]]
    on: tuple[str, ...]


LISTS = {
    "one-tensor": ParameterList("one tensor of 25 M", lambda: [(5000, 5000)], ("cpu",)),
    "resnet18": ParameterList("ResNet-18", partial(resnet, (2, 2, 2, 2), False), ("cpu",)),
    "resnet50": ParameterList("ResNet-50", partial(resnet, (3, 4, 6, 3), True), ("cpu", "cuda")),
    "vit-l": ParameterList("ViT-L/16", vit_large, ("cuda",)),
    "gpt": ParameterList("GPT 1.3 B", gpt, ("cuda",)),
    "tiny": ParameterList("a tiny list, to try the command", tiny, ()),
}


def parameters(shapes: Sequence[Shape], dtype: torch.dtype, device: str) -> list[Tensor]:
    """Parameters with gradients, of the sizes a network has in training."""
    generator = torch.Generator(device).manual_seed(0)

    def noise(shape: Shape, size: float) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device).normal_(0, size, generator=generator)

    params = [noise(shape, 0.02).requires_grad_() for shape in shapes]
    for p in params:
        p.grad = noise(tuple(p.shape), 1e-3)
    return params


def elements(shapes: Sequence[Shape]) -> int:
    return sum(math.prod(shape) for shape in shapes)


# --- contestants ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contestant:
    """An optimizer on one of its paths; `state` is about what it keeps, in bytes a parameter."""

    name: str
    optimizer: type[Optimizer]
    path: str
    settings: dict[str, Any] = field(hash=False)
    state: float
    dtype: torch.dtype = torch.float32

    def build(self, params: list[Tensor]) -> Optimizer:
        return self.optimizer(params, lr=LR, **self.settings)  # type: ignore[call-arg]

    @property
    def title(self) -> str:
        params = "" if self.dtype == torch.float32 else f", {short(self.dtype)} parameters"
        return f"{self.optimizer.__name__} {self.path}{params}"

    @property
    def ours(self) -> bool:
        return self.optimizer.__module__.startswith("sgdf")

    @property
    def fused(self) -> bool:
        return self.path.startswith("fused")

    def workspace(self, shapes: Sequence[Shape]) -> int:
        """Bytes that a step may take and give back, rather too many than too few."""
        if self.fused:
            return 0
        temporaries = 5 * 4
        if self.path == "foreach":
            return temporaries * elements(shapes)
        return 2 * temporaries * max(math.prod(shape) for shape in shapes)

    def enters(self, name: str, device: str) -> bool:
        """The loop takes minutes where the list is large, and CPUs have no fast bfloat16."""
        if device == "cuda":
            return not (self.path == "loop" and name == "gpt")
        return self.dtype == torch.float32


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.").replace("float", "fp").replace("bfp", "bf")


FUSED, FOREACH, LOOP = {"fused": True}, {"foreach": True}, {"foreach": False, "fused": False}
BF16_STATE: dict[str, Any] = {"fused": True, "state_dtype": torch.bfloat16}
INT8_STATE: dict[str, Any] = {"fused": True, "state_dtype": torch.int8}
RANDOMLY = {"fused": True, "stochastic_rounding": True}
HEAVY_BALL = {"momentum": 0.9}
BF16, BF16_KEPT, INT8_KEPT = torch.bfloat16, "fused, bf16 state", "fused, int8 state"

CONTESTANTS = (
    Contestant("sgd-fused", SGD, "fused", HEAVY_BALL | FUSED, 4),
    Contestant("sgd-foreach", SGD, "foreach", HEAVY_BALL | FOREACH, 4),
    Contestant("adamw-fused", AdamW, "fused", FUSED, 8),
    Contestant("adamw-foreach", AdamW, "foreach", FOREACH, 8),
    Contestant("sgdf-loop", SGDF, "loop", LOOP, 8),
    Contestant("sgdf-foreach", SGDF, "foreach", FOREACH, 8),
    Contestant("sgdf-fused", SGDF, "fused", FUSED, 8),
    Contestant("sgdf-fused-bf16-state", SGDF, BF16_KEPT, BF16_STATE, 4),
    Contestant("sgdf-fused-int8-state", SGDF, INT8_KEPT, INT8_STATE, 2.1),
    Contestant("filteradam-foreach", FilterAdam, "foreach", FOREACH, 12),
    Contestant("filteradam-fused", FilterAdam, "fused", FUSED, 12),
    Contestant("filteradam-fused-int8-state", FilterAdam, INT8_KEPT, INT8_STATE, 3.2),
    Contestant("momentum-fused", Momentum, "fused", FUSED, 4),
    Contestant("adamw-fused-bf16", AdamW, "fused", FUSED, 4, BF16),
    Contestant("sgdf-fused-bf16", SGDF, "fused", FUSED, 8, BF16),
    Contestant("sgdf-fused-bf16-random", SGDF, "fused, random rounding", RANDOMLY, 8, BF16),
)


def state_bytes(optimizer: Optimizer) -> int:
    """What the optimizer keeps beside the parameters; step counters are next to nothing."""
    return sum(
        value.numel() * value.element_size()
        for state in optimizer.state.values()
        for key, value in state.items()
        if key != "step" and isinstance(value, Tensor)
    )


# --- timing -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """Milliseconds a step, of one batch of steps.

    `ms` is from the device's start to its end, waits for the host included; `wall_ms` the same
    by the host's clock; `host_ms` until the host had handed over its last step.
    """

    ms: float
    wall_ms: float
    host_ms: float


@dataclass
class Series:
    """Something done over and over, `batch` times in each of `rounds` timings."""

    step: Callable[[], object]
    batch: int
    rounds: int
    timings: list[Timing] = field(default_factory=list)

    def takes_part(self, turn: int, turns: int) -> bool:
        """Its rounds lie evenly among all the turns."""
        return (turn + 1) * self.rounds // turns > turn * self.rounds // turns

    @property
    def ms(self) -> float:
        return median(timing.ms for timing in self.timings)


def timed(step: Callable[[], object], count: int, device: str) -> Timing:
    if device == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
    start = time.perf_counter()
    if device == "cuda":
        begin.record()
    for _ in range(count):
        step()
    if device == "cuda":
        end.record()
    handed_over = time.perf_counter()
    if device == "cuda":
        torch.cuda.synchronize()
    wall = 1e3 * (time.perf_counter() - start) / count
    ms = begin.elapsed_time(end) / count if device == "cuda" else wall
    return Timing(ms, wall, 1e3 * (handed_over - start) / count)


def others_seconds() -> float:
    """CPU time that all other programs have had; NaN where the system does not say."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        times = [int(ticks) for ticks in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        busy = sum(times) - times[3] - times[4]  # less the time spent idle or waiting for disks
        return busy / os.sysconf("SC_CLK_TCK") - time.process_time()
    return math.nan


def interquartile(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    first, _, third = quantiles(values, n=4, method="inclusive")
    return third - first


@dataclass(frozen=True)
class Effort:
    """How long to measure, where, and with how much memory."""

    device: str
    repeats: int
    seconds: float
    memory: float

    def series(self, step: Callable[[], object]) -> Series:
        """Steps as many as make a timing, timings as many as fit the time; warms up as it goes."""
        trials: list[float] = []
        while len(trials) < WARM_UPS and sum(trials) <= self.seconds / 4:
            trials.append(timed(step, 1, self.device).wall_ms / 1e3)
        one = min(trials)
        batch = max(1, math.ceil(SHORTEST_TIMING[self.device] / max(one, 1e-6)))
        rounds = max(min(FEWEST, self.repeats), int(self.seconds / max(one * batch, 1e-6)))
        return Series(step, batch, min(self.repeats, rounds))


def extra_memory(step: Callable[[], object], device: str) -> int | None:
    """Bytes that a step takes for itself while it runs; torch counts them on GPUs alone."""
    if device != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


# --- one list ---------------------------------------------------------------------------------


@dataclass
class Row:
    """What was measured of one contestant; bytes are per parameter unless they say otherwise."""

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
    others_cpus: float | None = None  # that other programs kept busy meanwhile
    together: int | None = None  # rows with the same number were timed in turns with one another
    timings: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, contestant: Contestant, error: str | None = None) -> "Row":
        optimizer, dtype = contestant.optimizer.__name__, short(contestant.dtype)
        return cls(contestant.name, optimizer, contestant.path, dtype, error)

    def summarize(self, series: Series, count: int, copy_rate: float) -> None:
        assert self.moved_bytes is not None
        self.ms, self.ms_iqr = series.ms, interquartile([t.ms for t in series.timings])
        self.gb_per_s = self.moved_bytes * count / series.ms / 1e6
        self.of_copy = self.gb_per_s / copy_rate
        self.steps_per_timing = series.batch
        self.timings = columns(series.timings)


def columns(timings: Sequence[Timing]) -> dict[str, list[float]]:
    names = ("ms", "wall_ms", "host_ms")
    return {name: [float(f"{getattr(t, name):.6g}") for t in timings] for name in names}


def prepare(
    contestant: Contestant, params: list[Tensor], effort: Effort
) -> tuple[Row, Series, Optimizer]:
    """Build the optimizer, take its first steps, and look at what it keeps."""
    row = Row.of(contestant)
    optimizer = contestant.build(params)
    row.first_step_s = timed(optimizer.step, 1, effort.device).wall_ms / 1e3
    series = effort.series(optimizer.step)
    row.implementation = getattr(optimizer, "implementation", None)
    count, width = sum(p.numel() for p in params), params[0].element_size()
    row.state_bytes = state_bytes(optimizer) / count
    row.moved_bytes = 3 * width + 2 * row.state_bytes  # p and the state both ways, g one way
    row.extra_memory_bytes_in_all = extra_memory(optimizer.step, effort.device)
    if row.extra_memory_bytes_in_all is not None:
        row.extra_memory_percent = 100 * row.extra_memory_bytes_in_all / (count * width)
    return row, series, optimizer


def copier(effort: Effort) -> Series:
    source = torch.ones(COPY_BYTES[effort.device] // 4, device=effort.device)
    target = torch.empty_like(source)
    series = effort.series(lambda: target.copy_(source))
    series.rounds = effort.repeats
    return series


def rate_of(copy_ms: float, device: str) -> float:
    """GB/s of a copy, which reads and writes."""
    return 2 * COPY_BYTES[device] / copy_ms / 1e6


def measure_together(
    contestants: Sequence[Contestant],
    shapes: Sequence[Shape],
    effort: Effort,
    tick: Callable[[str], None],
) -> tuple[list[Row], Series]:
    """Time contestants in turns with one another and with a copy."""
    sets = {d: parameters(shapes, d, effort.device) for d in {c.dtype for c in contestants}}
    rows, entered, copy = [], [], copier(effort)
    for contestant in contestants:
        tick(f"warming up {contestant.title}")
        try:
            entered.append(prepare(contestant, sets[contestant.dtype], effort))
            rows.append(entered[-1][0])
        except Exception as error:  # one that cannot run here must not stop the others
            rows.append(Row.of(contestant, describe(error)))
        if rows[-1].error:
            let_go(effort.device)
    others, since = others_seconds(), time.perf_counter()
    for turn in range(effort.repeats):
        tick("measuring")
        for series in (copy, *(series for _, series, _ in entered)):
            if series.takes_part(turn, effort.repeats):
                series.timings.append(timed(series.step, series.batch, effort.device))
    busy = (others_seconds() - others) / (time.perf_counter() - since)
    for row, series, _ in entered:
        row.others_cpus = None if math.isnan(busy) else max(0.0, busy)
        row.summarize(series, elements(shapes), rate_of(copy.ms, effort.device))
    copy.step = lambda: None  # lets go of its tensors
    return rows, copy


def describe(error: Exception) -> str:
    """The first line of what went wrong; compilers write pages."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def measure_list(
    name: str, contestants: Sequence[Contestant], effort: Effort, screen: "Screen"
) -> dict[str, Any]:
    """All contestants, together where memory allows, one after the other where it does not."""
    shapes = LISTS[name].shapes()
    alone = {c: need([c], shapes, effort.device) for c in contestants}
    seen = {c.name: Row.of(c, lacking(alone[c], effort)) for c in contestants}
    copies: list[Timing] = []
    queue = groups(contestants, shapes, effort)
    for number, group in enumerate(queue):
        with screen.progress(name, len(group) + effort.repeats) as tick:
            measured, copy = measure_together(group, shapes, effort, tick)
        copies += copy.timings
        for contestant, row in zip(group, measured, strict=True):
            row.together = number
            seen[contestant.name] = row
            if len(group) > 1 and (row.error or "").startswith("OutOfMemoryError"):
                queue.append([contestant])  # the estimate was too low: once more, alone
        let_go(effort.device)
    rows = list(seen.values())
    compare(rows)
    return {
        "title": LISTS[name].title,
        "tensors": len(shapes),
        "parameters": elements(shapes),
        "copy": copy_summary(copies, effort.device),
        "rows": [asdict(row) for row in rows],
    }


def compare(rows: Sequence[Row]) -> None:
    """Ratios to torch's fused optimizers on parameters of the same dtype."""
    for row in rows:
        for rival, ratio in (("SGD", "times_sgd_fused"), ("AdamW", "times_adamw_fused")):
            for other in rows:
                same = (other.optimizer, other.path) == (rival, "fused")
                if same and other.params_dtype == row.params_dtype and row.ms and other.ms:
                    setattr(row, ratio, row.ms / other.ms)


def disturbed(device: str, rows: Sequence[dict[str, Any]]) -> bool:
    """Whether other programs got in the way; a GPU minds them little."""
    return device == "cpu" and any((row["others_cpus"] or 0) > DISTURBING for row in rows)


def copy_summary(timings: Sequence[Timing], device: str) -> dict[str, Any]:
    rates = [rate_of(timing.ms, device) for timing in timings]
    return {
        "bytes": COPY_BYTES[device],
        "gb_per_s": rate_of(median(timing.ms for timing in timings), device),
        "gb_per_s_iqr": interquartile(rates),
        "timings": columns(timings),
    }


# --- memory -----------------------------------------------------------------------------------


def need(contestants: Sequence[Contestant], shapes: Sequence[Shape], device: str) -> float:
    """Bytes, by estimate, of contestants that are alive at once."""
    per_parameter = sum(2 * dtype.itemsize for dtype in {c.dtype for c in contestants})
    per_parameter_kept = per_parameter + sum(c.state for c in contestants)
    workspace = max(c.workspace(shapes) for c in contestants)
    return per_parameter_kept * elements(shapes) + workspace + 2 * COPY_BYTES[device]


def groups(
    contestants: Sequence[Contestant], shapes: Sequence[Shape], effort: Effort
) -> list[list[Contestant]]:
    """Contestants that fit into memory together, in as few groups as come easily.

    The fused ones come first, so that those most worth comparing are measured together.
    """
    found: list[list[Contestant]] = []
    for contestant in sorted(contestants, key=lambda contestant: not contestant.fused):
        for group in (*found, []):
            if need([*group, contestant], shapes, effort.device) <= effort.memory:
                if not group:
                    found.append(group)
                group.append(contestant)
                break
    return found


def free_memory(device: str) -> float:
    """Bytes that may be used; infinite where the system does not say."""
    if device == "cuda":
        return USABLE[device] * torch.cuda.mem_get_info()[0]
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return USABLE[device] * 1024 * int(line.split()[1])
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return USABLE[device] * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return math.inf


def let_go(device: str) -> None:
    """Give back the memory of optimizers that are no longer needed."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def lacking(needed: float, effort: Effort) -> str:
    return f"needs about {needed / GIB:.1f} GiB, {effort.memory / GIB:.1f} GiB may be used"


# --- bars -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bar:
    """What a list has to show on a device; without a contestant, the worst fused path of ours."""

    device: str
    parameters: str
    contestant: str | None
    quantity: str
    limit: float
    says: str

    @property
    def at_least(self) -> bool:
        return self.quantity == "of_copy"

    def judge(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        names = {c.name for c in CONTESTANTS if c.ours and c.fused}
        chosen = names if self.contestant is None else {self.contestant}
        values = [row[self.quantity] for row in rows if row["name"] in chosen]
        measured = max((value for value in values if value is not None), default=None)
        met, verdict = None, "not measured"
        if measured is not None and disturbed(self.device, rows):
            verdict = f"measured {measured:.3g} on a busy machine, which decides nothing"
        elif measured is not None:
            met = measured >= self.limit if self.at_least else measured <= self.limit
            missed = f"missed by {abs(measured / self.limit - 1):.1%}"
            verdict = f"measured {measured:.3g}: {'met' if met else missed}"
        sentence = f"bar: {LISTS[self.parameters].title}: {self.says}: {verdict}"
        return {**asdict(self), "measured": measured, "met": met, "sentence": sentence}


SGDF_FUSED, SGDF_INT8 = "sgdf-fused", "sgdf-fused-int8-state"
BARS = (
    Bar("cuda", "resnet50", SGDF_FUSED, "times_sgd_fused", 0.5, "SGDF fused <= 0.5 x SGD fused"),
    Bar("cuda", "vit-l", SGDF_FUSED, "times_adamw_fused", 0.6, "SGDF fused <= 0.6 x AdamW fused"),
    Bar("cuda", "gpt", SGDF_FUSED, "of_copy", 0.95, "SGDF fused >= 0.95 of the copy bandwidth"),
    Bar("cuda", "gpt", SGDF_FUSED, "times_adamw_fused", 0.76, "SGDF fused <= 0.76 x AdamW fused"),
    Bar("cuda", "gpt", SGDF_INT8, "times_sgd_fused", 0.75, "SGDF int8 state <= 0.75 x SGD fused"),
    Bar("cuda", "gpt", SGDF_INT8, "state_bytes", 2.1, "SGDF int8 state <= 2.1 bytes a parameter"),
    *(
        Bar("cuda", name, None, "extra_memory_percent", 1, "extra memory of fused steps <= 1 %")
        for name in ("resnet50", "vit-l", "gpt")
    ),
    Bar("cpu", "one-tensor", SGDF_FUSED, "times_adamw_fused", 1.15, "SGDF <= 1.15 x AdamW fused"),
    Bar("cpu", "resnet18", SGDF_FUSED, "times_adamw_fused", 1.5, "SGDF <= 1.5 x AdamW fused"),
)


# --- showing ----------------------------------------------------------------------------------

HEADER = (
    *("optimizer", "path", "params", "state B/param", "ms", "± IQR/2"),
    *("GB/s", "% of copy", "x SGD fused", "x AdamW fused", "extra mem %"),
)
WORDS = 3  # columns of HEADER that are no numbers


class Screen:
    """Plain lines, for where rich is not installed."""

    def line(self, text: str) -> None:
        print(text, flush=True)

    def table(self, title: str, cells: Sequence[Sequence[str]]) -> None:
        widths = [max(map(len, column)) for column in zip(HEADER, *cells, strict=True)]
        self.line(f"\n{title}")
        for row in (HEADER, *cells):
            padded = [
                cell.ljust(width) if index < WORDS else cell.rjust(width)
                for index, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            self.line("  ".join(padded).rstrip())

    @contextlib.contextmanager
    def progress(self, name: str, _total: int) -> Iterator[Callable[[str], None]]:
        last = ""

        def tick(doing: str) -> None:
            nonlocal last
            if doing != last:
                print(f"{name}: {doing}", file=sys.stderr, flush=True)
            last = doing

        yield tick


class RichScreen(Screen):
    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(highlight=False)
        if not self.console.is_terminal:
            self.console.width = 160  # a file has no edge to wrap at

    def line(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def table(self, title: str, cells: Sequence[Sequence[str]]) -> None:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for index, name in enumerate(HEADER):
            shown.add_column(name, justify="left" if index < WORDS else "right")
        for row in cells:
            shown.add_row(*row, style="bold" if row[:2] == ["SGDF", "fused"] else None)
        self.console.print(shown)

    @contextlib.contextmanager
    def progress(self, name: str, total: int) -> Iterator[Callable[[str], None]]:
        from rich.progress import Progress

        with Progress(console=self.console, transient=True) as progress:
            bar = progress.add_task(name, total=total)
            yield lambda doing: progress.update(bar, advance=1, description=f"{name}: {doing}")


def screen_here() -> Screen:
    try:
        return RichScreen()
    except ModuleNotFoundError:
        return Screen()


def show_list(measured: dict[str, Any], device: str, screen: Screen) -> None:
    """The table of one list, and why those failed that did."""
    copy = measured["copy"]
    tensors = f"{measured['tensors']} tensor" + "s" * (measured["tensors"] > 1)
    title = f"{measured['title']}: {tensors}, {measured['parameters']:,} parameters"
    title += f"; a copy moves {copy['gb_per_s']:,.1f} ± {copy['gb_per_s_iqr'] / 2:.1f} GB/s"
    reasons: list[str] = []
    cells = []
    for row in measured["rows"]:
        if row["error"] and row["error"] not in reasons:
            reasons.append(row["error"])
        failed = f"failed ({reasons.index(row['error']) + 1})" if row["error"] else None
        cells.append(cells_of(row, failed))
    screen.table(title, cells)
    if disturbed(device, measured["rows"]):
        screen.line("Other programs kept CPUs busy meanwhile: these times can be far too long.")
    for number, reason in enumerate(reasons, 1):
        screen.line(f"({number}) {reason}")


def cells_of(row: dict[str, Any], failed: str | None) -> list[str]:
    def number(value: float | None, form: str = ".2f") -> str:
        return "-" if value is None else format(value, form)

    ms, half_iqr = row["ms"], None if row["ms_iqr"] is None else row["ms_iqr"] / 2
    places = 3 if ms is None or ms < 10 else 2 if ms < 100 else 1
    fraction = row["of_copy"]
    return [
        row["optimizer"],
        row["path"],
        row["params_dtype"],
        number(row["state_bytes"]),
        failed or number(ms, f".{places}f"),
        number(half_iqr, f".{places}f"),
        number(row["gb_per_s"], ",.1f"),
        number(None if fraction is None else 100 * fraction, ".1f"),
        number(row["times_sgd_fused"]),
        number(row["times_adamw_fused"]),
        number(row["extra_memory_percent"]),
    ]


# --- the record -------------------------------------------------------------------------------


def write(record: dict[str, Any], target: Path) -> None:
    """The whole file or the old one, never a part; series of numbers on a line each."""
    text = json.dumps(record, indent=1, allow_nan=False)
    text = re.sub(r"\[\n[-+.,\s\de]+\]", lambda found: " ".join(found[0].split()), text)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, text + "\n")


# --- the command ------------------------------------------------------------------------------


def default_lists(device: str) -> list[str]:
    return [name for name, parameter_list in LISTS.items() if device in parameter_list.on]


def run(
    *,
    device: str | None = None,
    lists: Sequence[str] | None = None,
    only: Sequence[str] | None = None,
    repeats: int = REPEATS,
    seconds: float = SECONDS,
    memory_gib: float | None = None,
    out: Path | None = None,
    command: str = "",
) -> dict[str, Any]:
    """Measure, show and record; the record is on disk after each list."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("there is no CUDA device here: --device cpu")
    memory = math.inf if memory_gib is None else memory_gib * GIB
    effort = Effort(device, repeats, seconds, min(memory, free_memory(device)))
    names = list(dict.fromkeys(lists or default_lists(device)))
    target = out or Path("results") / f"bench-step-{device}.json"
    record: dict[str, Any] = {
        "command": command,
        "commit": provenance.commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "complete": False,
        "machine": provenance.machine(device),
        "settings": {"device": device, "repeats": effort.repeats, "seconds": effort.seconds},
        # Compiled in the background of a training's first seconds; here before it.
        "looks_in_c++": changes.wait_until_compiled() if device == "cuda" else None,
        "copy": None,
        "lists": {},
        "skipped": {},
        "bars": [],
    }
    screen = screen_here()
    for name in names:
        bench_list(name, only, effort, record, screen)
        record["complete"] = name == names[-1]
        write(record, target)
    for bar in record["bars"]:
        screen.line(bar["sentence"])
    screen.line(f"wrote {target}")
    return record


def bench_list(
    name: str, only: Sequence[str] | None, effort: Effort, record: dict[str, Any], screen: Screen
) -> None:
    """Measure one list into the record, or say why not."""
    shapes = LISTS[name].shapes()
    entered = [
        c for c in CONTESTANTS if c.enters(name, effort.device) and (not only or c.name in only)
    ]
    if not entered:
        record["skipped"][name] = f"none of {', '.join(only or ())} runs on {effort.device}"
    elif not groups(entered, shapes, effort):
        least = min(need([contestant], shapes, effort.device) for contestant in entered)
        record["skipped"][name] = lacking(least, effort)
    if name in record["skipped"]:
        screen.line(f"{LISTS[name].title} skipped: {record['skipped'][name]}")
        return
    measured = measure_list(name, entered, effort, screen)
    show_list(measured, effort.device, screen)
    record["lists"][name] = measured
    bars = [bar for bar in BARS if (bar.device, bar.parameters) == (effort.device, name)]
    record["bars"] += [bar.judge(measured["rows"]) for bar in bars]
    copies = [one["copy"]["gb_per_s"] for one in record["lists"].values()]
    record["copy"] = {"gb_per_s": median(copies), "gb_per_s_of_lists": copies}
