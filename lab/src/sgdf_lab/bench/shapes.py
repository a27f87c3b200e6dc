"""The lists of parameters that are updated: those of well-known networks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

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
}


def default_lists(device: str) -> list[str]:
    return [name for name, parameter_list in LISTS.items() if device in parameter_list.on]


def elements(shapes: Sequence[Shape]) -> int:
    """The number of parameters of a list."""
    return sum(math.prod(shape) for shape in shapes)


def random_parameters(shapes: Sequence[Shape], dtype: torch.dtype, device: str) -> list[Tensor]:
    """Parameters with gradients, as large as those of a network in training."""
    generator = torch.Generator(device).manual_seed(0)

    def noise(shape: Shape, scale: float) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device).normal_(0, scale, generator=generator)

    params = [noise(shape, 0.02).requires_grad_() for shape in shapes]
    for p in params:
        p.grad = noise(tuple(p.shape), 1e-3)
    return params
