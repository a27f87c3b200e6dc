"""The optimizers that are compared, each on one of its execution paths, and what they update.

Tables, which import no torch: the help of the command shows them.
"""

import importlib
import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from sgdf_lab.bench.products import REFRESH_INTERVAL

# --- lists of parameters: those of well-known networks --------------------------------------------

Shape = tuple[int, ...]


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
    """A weight and its bias."""
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


def matrices(shapes: Sequence[Shape]) -> list[Shape]:
    """The hidden matrices among these shapes, kernels as output channels by the rest: not the first
    and the last parameter with more than one dimension, an embedding or stem and the head.
    """
    found: list[Shape] = [(shape[0], math.prod(shape[1:])) for shape in shapes if len(shape) > 1]
    return found[1:-1]


def gpt_matrices(layers: int, width: int) -> list[Shape]:
    return matrices([(1, width), *transformer(layers, width), (1, width)])


@dataclass(frozen=True)
class ParameterList:
    """What one step updates; `on` names the devices where it is measured by default."""

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
    "resnet18-matrices": ParameterList(
        "matrices of ResNet-18", lambda: matrices(resnet((2, 2, 2, 2), False)), ()
    ),
    "gpt-11m-matrices": ParameterList(
        "matrices of a GPT of 11 M", partial(gpt_matrices, 6, 384), ("cpu",)
    ),
    "gpt-124m-matrices": ParameterList(
        "matrices of a GPT of 124 M", partial(gpt_matrices, 12, 768), ("cuda",)
    ),
    "tiny-matrices": ParameterList(
        "tiny matrices, to try the command", partial(gpt_matrices, 1, 16), ()
    ),
}
#: The lists on which only optimizers of matrices are measured.
MATRIX_LISTS = tuple(name for name in LISTS if name.endswith("-matrices"))


def default_lists(device: str) -> list[str]:
    return [name for name, parameter_list in LISTS.items() if device in parameter_list.on]


def elements(shapes: Sequence[Shape]) -> int:
    """The number of parameters of a list."""
    return sum(math.prod(shape) for shape in shapes)


# --- contestants ----------------------------------------------------------------------------------

OURS = ("sgdf", "sgdf_lab")
FILTER_ALONE = "sgdf_lab.bench.measure.FilterAlone"
LR = 1e-12  # too small to move a parameter; 0 might be skipped by an optimizer


class Stepper(Protocol):
    """What is measured of an optimizer: its step and its state."""

    @property
    def state(self) -> Any: ...

    def step(self) -> object: ...


@dataclass(frozen=True)
class Contestant:
    """An optimizer on one of its paths.

    `optimizer` is the full name of a class in a package that may not be installed, or the class.
    `state` estimates what it allocates to keep, in bytes per parameter. `lists` names the only
    lists on which it is measured; empty: all.
    """

    name: str
    optimizer: str | Callable[..., Any]
    path: str
    settings: dict[str, Any] = field(hash=False)
    state: float
    dtype: str = "float32"
    lists: tuple[str, ...] = ()

    def create(self, params: list[Any]) -> Stepper:
        optimizer, settings = self.optimizer, dict(self.settings)
        if isinstance(optimizer, str):
            module, _, name = optimizer.rpartition(".")
            optimizer = getattr(importlib.import_module(module), name)
        if "state_dtype" in settings:
            import torch

            settings["state_dtype"] = getattr(torch, settings["state_dtype"])
        created: Stepper = optimizer(params, lr=LR, **settings)
        return created

    @property
    def place(self) -> str:
        if isinstance(self.optimizer, str):
            return self.optimizer
        return f"{self.optimizer.__module__}.{self.optimizer.__qualname__}"

    @property
    def package(self) -> str:
        return self.place.partition(".")[0]

    @property
    def is_missing(self) -> bool:
        """Whether its package would have to be installed."""
        named = isinstance(self.optimizer, str)
        return named and importlib.util.find_spec(self.package) is None

    @property
    def optimizer_name(self) -> str:
        return "WienerFilter" if self.filters_alone else self.place.rpartition(".")[2]

    @property
    def title(self) -> str:
        params = "" if self.dtype == "float32" else f", {dtype_name(self.dtype)} parameters"
        return f"{self.optimizer_name} {self.path}{params}"

    @property
    def ours(self) -> bool:
        return self.package in OURS

    @property
    def fused(self) -> bool:
        return self.path.startswith("fused")

    @property
    def fewest_timings(self) -> int:
        """The fewest timings of a contestant whose steps exceed its seconds."""
        return max(FEWEST_TIMINGS, 2 * self.period)

    @property
    def period(self) -> int:
        """After how many steps their work repeats: matrix steps refresh bases."""
        return REFRESH_INTERVAL if self.lists == MATRIX_LISTS else 1

    @property
    def filters_alone(self) -> bool:
        """Whether a step writes gradients, and neither reads nor writes parameters."""
        return self.optimizer == FILTER_ALONE

    def workspace(self, shapes: Sequence[Shape]) -> int:
        """An upper estimate of the bytes that a step allocates and frees."""
        if self.fused:
            return 0
        temporaries = 5 * 4
        if self.path == "foreach":
            return temporaries * elements(shapes)
        return 2 * temporaries * max(math.prod(shape) for shape in shapes)

    def runs_on(self, list_name: str, device: str) -> bool:
        """Exclude the loop over the largest list, which takes minutes.

        On CPUs, exclude bfloat16, and but for one tensor the optimizers of other packages, which
        are made for GPUs.
        """
        if (self.lists or list_name in MATRIX_LISTS) and list_name not in self.lists:
            return False
        if list_name in MATRIX_LISTS:
            return True
        if device == "cuda":
            return not (self.path == "loop" and list_name == "gpt")
        is_other = isinstance(self.optimizer, str) and self.package not in ("torch", *OURS)
        return self.dtype == "float32" and not (is_other and list_name != "one-tensor")


def dtype_name(dtype: str) -> str:
    """
    >>> dtype_name("float32"), dtype_name("bfloat16")
    ('fp32', 'bf16')
    """
    return dtype.replace("float", "fp").replace("bfp", "bf")


FUSED: dict[str, Any] = {"fused": True}
FOREACH: dict[str, Any] = {"foreach": True}
LOOP: dict[str, Any] = {"foreach": False, "fused": False}
BF16_STATE = FUSED | {"state_dtype": "bfloat16"}
INT8 = {"state_dtype": "int8"}
INT8_STATE = FUSED | INT8
RANDOM_ROUNDING = FUSED | {"stochastic_rounding": True}
HEAVY_BALL = {"momentum": 0.9}
DERIVED = {"second_moment": "derived"}
CONSTANT = FUSED | {"gain_power": 0.0, "gain_scale": 0.05}
BF16, BF16_PATH, INT8_PATH = "bfloat16", "fused, bf16 state", "fused, int8 state"
CONSTANT_PATH, DERIVED_PATH = "fused, constant gain", "fused, derived v"
RANDOM_PATH, DERIVED_INT8_PATH = "fused, random rounding", f"{DERIVED_PATH}, int8 state"
FEW_SHAPES = ("gpt", "one-tensor")  # torchao compiles for each, minutes on the other lists

SAME_SIDES = {"max_basis_dim": 10000}  # as pytorch_optimizer's SOAP by default
#: Bases of 4 d x d matrices need 34 d^2 numbers on both sides.
MATRIX_STEPS: tuple[tuple[str, str, str, dict[str, Any], float], ...] = (
    ("muon-loop", "torch.optim.Muon", "loop", {}, 4),
    ("filtermuon", "sgdf.FilterMuon", "matrix", {}, 8),
    ("filtermuon-one-average", "sgdf.FilterMuon", "matrix, one average", {"slow_weight": 0.0}, 4),
    ("filtermuon-int8-state", "sgdf.FilterMuon", "matrix, int8 state", INT8, 2.1),
    ("filtermuon-eigenbasis", "sgdf.FilterMuon", "matrix, eigenbasis", {"eigenbasis": True}, 24),
    ("soap-loop", "pytorch_optimizer.SOAP", "loop", {}, 42),
    ("filtersoap", "sgdf.FilterSOAP", "matrix", SAME_SIDES, 46),
    ("filtersoap-short-sides", "sgdf.FilterSOAP", "matrix, sides up to 1024", {}, 24),
)

CONTESTANTS = (
    Contestant("sgd-fused", "torch.optim.SGD", "fused", HEAVY_BALL | FUSED, 4),
    Contestant("sgd-foreach", "torch.optim.SGD", "foreach", HEAVY_BALL | FOREACH, 4),
    Contestant("adamw-fused", "torch.optim.AdamW", "fused", FUSED, 8),
    Contestant("adamw-foreach", "torch.optim.AdamW", "foreach", FOREACH, 8),
    Contestant(
        "torchao-adamw8bit", "torchao.optim.AdamW8bit", "torchao", {}, 2.1, lists=FEW_SHAPES
    ),
    Contestant("bitsandbytes-adamw8bit", "bitsandbytes.optim.AdamW8bit", "bitsandbytes", {}, 2.1),
    Contestant("sgdf-loop", "sgdf.SGDF", "loop", LOOP, 8),
    Contestant("sgdf-foreach", "sgdf.SGDF", "foreach", FOREACH, 8),
    Contestant("sgdf-fused", "sgdf.SGDF", "fused", FUSED, 8),
    Contestant("sgdf-fused-constant", "sgdf.SGDF", CONSTANT_PATH, CONSTANT, 4),
    Contestant("sgdf-fused-bf16-state", "sgdf.SGDF", BF16_PATH, BF16_STATE, 4),
    Contestant("sgdf-fused-int8-state", "sgdf.SGDF", INT8_PATH, INT8_STATE, 2.1),
    Contestant("filteradam-foreach", "sgdf.FilterAdam", "foreach", FOREACH, 12),
    Contestant("filteradam-fused", "sgdf.FilterAdam", "fused", FUSED, 12),
    Contestant("filteradam-fused-int8-state", "sgdf.FilterAdam", INT8_PATH, INT8_STATE, 3.2),
    Contestant("filteradamw-fused-derived", "sgdf.FilterAdamW", DERIVED_PATH, FUSED | DERIVED, 8),
    Contestant(
        "filteradamw-fused-derived-int8-state",
        "sgdf.FilterAdamW",
        DERIVED_INT8_PATH,
        INT8_STATE | DERIVED,
        2.1,
    ),
    Contestant("filteradamw-fused-constant", "sgdf.FilterAdamW", CONSTANT_PATH, CONSTANT, 8),
    # Its state and its copy of the gradients.
    Contestant("wienerfilter-fused", FILTER_ALONE, "fused, filter alone", FUSED, 8 + 4),
    Contestant("momentum-fused", "sgdf.Momentum", "fused", FUSED, 4),
    Contestant("adamw-fused-bf16", "torch.optim.AdamW", "fused", FUSED, 4, BF16),
    Contestant("sgdf-fused-bf16", "sgdf.SGDF", "fused", FUSED, 8, BF16),
    Contestant("sgdf-fused-bf16-random", "sgdf.SGDF", RANDOM_PATH, RANDOM_ROUNDING, 8, BF16),
    Contestant(
        "filteradamw-fused-derived-bf16-int8-state-random",
        "sgdf.FilterAdamW",
        f"{DERIVED_INT8_PATH}, random rounding",
        INT8_STATE | DERIVED | RANDOM_ROUNDING,
        2.1,
        BF16,
    ),
    *(
        Contestant(name, optimizer, path, settings, state, lists=MATRIX_LISTS)
        for name, optimizer, path, settings, state in MATRIX_STEPS
    ),
)


WITH_TARGETS = "targets"  # among names: all contestants that the targets of a list compare
REPEATS = 30
FEWEST_TIMINGS = 3
SECONDS = 2.0


def selectable() -> list[str]:
    """The words that choose contestants."""
    return [contestant.name for contestant in CONTESTANTS] + [WITH_TARGETS]
