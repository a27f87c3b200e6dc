"""Generated gradients of all magnitudes through every path, beside the statement in float64."""

import contextlib
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

import numpy as np
import torch

from agreement import terms_of_a_step
from reference import Reference, numpy
from sgdf import SGDF, FilterAdam, FilterAdamW, Momentum
from sgdf.filter import FLOAT32, Moments
from sgdf.kernels import cpu, cuda
from sgdf.optim import read_moment
from torture.bench import Bench
from torture.outcome import CLOSE, DIFFERENT, Bug, Case, Outcome, joined

KIND = "gradients"
STEPS = 12
SHAPES = ((7,), (16, 33), (257,))
FEW = ((5,), (3, 16))  # for Triton's interpreter
LARGEST = 16.0  # distance that no path may exceed, in eps of the terms of a result
ONE_AT_A_TIME = threading.Lock()  # a path is chosen for the whole process
TOP = torch.finfo(torch.float32).max
KINDS: dict[str, Any] = {
    "SGDF": SGDF,
    "FilterAdam": FilterAdam,
    "FilterAdamW": FilterAdamW,
    "Momentum": Momentum,
    "SGDF constant": partial(SGDF, gain_scale=0.1, gain_power=0),
    "FilterAdamW derived": partial(FilterAdamW, second_moment="derived"),
    "FilterAdamW constant": partial(FilterAdamW, gain_scale=0.05, gain_power=0),
}
MOMENTS = {"exp_avg": "m", "exp_var": "s", "exp_avg_sq": "v", "momentum_buffer": "m"}
PATHS: dict[str, dict[str, Any]] = {
    "loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused on the CPU": {"fused": True},
    "Triton, interpreted": {"fused": True},
}


# --- gradients ------------------------------------------------------------------------------------


def uniform(chance: np.random.Generator, shape: Any, low: float, high: float) -> np.ndarray:
    """Any sign, and a decimal exponent anywhere between the two."""
    sign = chance.choice([-1.0, 1.0], size=shape)
    return np.asarray(sign * 10.0 ** chance.uniform(low, high, size=shape))


Pattern: TypeAlias = Callable[[np.random.Generator, Any], np.ndarray]
PATTERNS: dict[str, Pattern] = {
    "every magnitude": partial(uniform, low=-45, high=38.4),
    "denormal": partial(uniform, low=-45, high=-37),
    "small": partial(uniform, low=-30, high=-3),
    "moderate": partial(uniform, low=-6, high=6),
    "large": partial(uniform, low=3, high=18),
    "huge": partial(uniform, low=19, high=38.4),  # whose squares are beyond float32
    "zeros": lambda _, shape: np.zeros(shape),
    "mostly zero": lambda chance, shape: (
        uniform(chance, shape, -45, 38.4) * (chance.random(shape) < 0.1)
    ),
    # Another magnitude at every step, shared by all elements.
    "one magnitude": lambda chance, shape: (
        chance.normal(size=shape) * 10.0 ** chance.uniform(-40, 37)
    ),
}


def cases(round_: int, paths: tuple[str, ...] = tuple(PATHS)) -> Iterator[Case]:
    for path in paths:
        for kind, make in KINDS.items():
            for dtype in (torch.float32, torch.bfloat16):
                for pattern in PATTERNS:
                    short = str(dtype).removeprefix("torch.")
                    name = f"{path} {kind} {short} {pattern} {round_}"
                    yield Case(
                        KIND, path, name, partial(generated, path, make, dtype, pattern, name)
                    )


# --- comparing ------------------------------------------------------------------------------------


def generated(
    path: str,
    kind: Any,
    dtype: torch.dtype,
    pattern: str,
    name: str,
    bench: Bench | None,
    folder: Path | None,
) -> Outcome:
    chance = np.random.default_rng(random.Random(name).getrandbits(63))
    interpreted = path.startswith("Triton")
    numbers: dict[str, float] = {}
    with ONE_AT_A_TIME, as_triton(interpreted), quiet():
        start = torch.Generator().manual_seed(int(chance.integers(2**31)))
        params = [torch.randn(s, generator=start).to(dtype).requires_grad_()
                  for s in (FEW if interpreted else SHAPES)]  # fmt: skip
        optimizer = kind(params, lr=1e-3, **PATHS[path])
        references = [Statement(optimizer, numpy(p)) for p in params]
        whole_units = interpreted  # which truncates to bfloat16 instead of rounding
        for _ in range(4 if interpreted else STEPS):
            for p in params:
                g = np.clip(PATTERNS[pattern](chance, p.shape), -TOP, TOP)
                p.grad = torch.from_numpy(g).to(torch.float32).to(dtype)
                p.grad = p.grad.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max)
            for p, reference in zip(params, references, strict=True):
                reference.step(numpy(p.grad))
            before = [row_of(optimizer, p) for p in params]
            optimizer.step()
            for p, row, reference in zip(params, before, references, strict=True):
                found = measured(optimizer, p, row, reference, whole_units)
                numbers = joined(numbers, found)
            numbers["steps"] = numbers.get("steps", 0) + 1
    steps = int(numbers["steps"])
    if numbers["not finite"]:
        detail = f"{numbers['not finite']:.0f} elements are not finite, and float64 is"
        return Outcome(DIFFERENT, steps, detail, numbers)
    if numbers["largest distance"] > LARGEST:
        detail = f"{numbers['largest distance']:.3g} eps from the statement"
        return Outcome(DIFFERENT, steps, detail, numbers)
    return Outcome(CLOSE, steps, numbers=numbers)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without numpy's warnings: the interpreter computes both sides of a where."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def as_triton(interpreted: bool) -> Any:
    """Let Triton's interpreter update tensors of the CPU."""
    if not interpreted and not cpu.available():
        raise Bug(DIFFERENT, "the kernels cannot be compiled here")
    return mock.patch.object(cuda, "DEVICES", ("cuda", "cpu") if interpreted else ("cuda",))


def row_of(optimizer: Any, p: torch.Tensor) -> list[Any]:
    """The parameter, its step and its moments before a step."""
    state = optimizer.state.get(p, {})
    zero = torch.zeros(p.shape, dtype=torch.float32)
    keys = optimizer.moments_of(optimizer.param_groups[0])
    moments = [read_moment(state, key).clone() if key in state else zero for key in keys]
    step = float(state["step"]) if "step" in state else 0.0
    return [p.detach().clone(), step, moments]


class Statement(Reference):
    """The statement in float64, and where float32 could hold its trend, direction and result."""

    def __init__(self, optimizer: Any, p: Any) -> None:
        super().__init__(optimizer, p, numbers=FLOAT32)
        self.in_range = np.ones(self.p.shape, bool)

    def direction(self, g: Any) -> Any:
        direction = super().direction(g)
        for value in (self.filter.moments.m, direction):
            self.in_range &= np.abs(value) < TOP
        return direction


def measured(
    optimizer: Any, p: torch.Tensor, row: list[Any], reference: Statement, whole_units: bool
) -> dict[str, float]:
    """Elements, those that are wrongly not finite, and the largest distance of one step."""
    stored = numpy(p)
    top = torch.finfo(p.dtype).max
    should_be_finite = reference.in_range & (np.abs(reference.p) < top / 4)
    numbers = {
        "elements": int(stored.size),
        "not finite": int((should_be_finite & ~np.isfinite(stored)).sum()),
        "largest distance": 0.0,
    }
    exact, terms, valid = one_step(optimizer, p, row)
    rounding = np.finfo(np.float32).eps
    if p.dtype == torch.bfloat16:  # stored with a rounding of its own
        own = (2.0**-7 if whole_units else 2.0**-8) * np.abs(exact) + 1e-40
    else:
        own = 4 * 2.0**-149
    valid &= np.isfinite(stored) & (np.abs(exact) < top / 4)
    distance = np.maximum(np.abs(stored - exact) - own, 0) / (rounding * terms + 1e-45)
    if valid.any():
        numbers["largest distance"] = float(distance[valid].max())
    return numbers


def one_step(optimizer: Any, p: torch.Tensor, row: list[Any]) -> tuple[Any, Any, Any]:
    """In float64 from the stored state: the result, its terms, and where float32 has all of it."""
    before, step, moments = row
    one = Reference(optimizer, numpy(before), numbers=FLOAT32)
    keys = optimizer.moments_of(optimizer.param_groups[0])
    one.filter.t = int(step)
    one.filter.moments = Moments(
        **{MOMENTS[key]: numpy(moment) for key, moment in zip(keys, moments, strict=True)}
    )
    g = numpy(p.grad)
    one.step(g)
    representable = (np.abs(g) < 1e18) & np.isfinite(numpy(before))
    for moment in moments:
        representable &= np.abs(numpy(moment)) < 1e34  # also when divided by 1 - 0.999
    lr = float(one.settings["lr"])
    if isinstance(optimizer, Momentum):
        terms = np.abs(numpy(before)) + lr * (np.abs(numpy(moments[0])) + np.abs(g))
    else:
        options = dict(optimizer.param_groups[0])
        exact_terms = terms_of_a_step(before, p.grad, step + 1, moments, options)
        terms = exact_terms.p.numpy()
    return one.p, terms, representable & np.isfinite(one.p)
