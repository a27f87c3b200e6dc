"""A user's own network: what the function `package.module:function` returns."""

import contextlib
import os
import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from sgdf_lab import plugins
from sgdf_lab.models.convolutional import ImageShape
from sgdf_lab.support.errors import UserError, reason_of

HINT = "its module is looked for in the current folder, on PYTHONPATH and among installed packages"


def is_own(name: str) -> bool:
    """
    >>> is_own("mypackage.networks:tiny"), is_own("resnet18")
    (True, False)
    """
    return ":" in name


def build_own(name: str, *, classes: int, shape: ImageShape) -> nn.Module:
    """A classifier: called with ``num_classes``, it gives each image a number per class."""
    model = call(name, num_classes=classes)
    check_outputs(name, model, classes=classes, shape=shape)
    return model


def build_own_language_model(name: str, *, vocabulary: int, context: int) -> nn.Module:
    """A language model: called with ``vocabulary`` and ``context``, its module takes N x T tokens.

    It gives N x T x vocabulary logits, those at a position from the tokens up to it.
    """
    model = call(name, vocabulary=vocabulary, context=context)
    windows = torch.zeros(2, context, dtype=torch.int64)
    windows[1, context // 2 :] = 1
    output = try_out(name, model, windows, f"windows of {context} tokens")
    check_shape(name, output, (2, context, vocabulary), "for 2 windows")
    # Both windows begin with the same tokens.
    before, other = output[:, : context // 2]
    if not torch.allclose(before, other, rtol=1e-3, atol=1e-4):
        raise UserError(
            f"{name} sees the future: its logits at a position change with the tokens after it"
        )
    return model


def call(name: str, **arguments: int) -> nn.Module:
    """The module that the function returns; a module in the current folder is found."""
    with current_folder_first():
        function = plugins.load_object("model", name, HINT)
        try:
            model = function(**arguments)
        except (Exception, SystemExit) as error:  # the function is not ours
            given = ", ".join(f"{key}={value}" for key, value in arguments.items())
            raise UserError(f"{name} cannot be called with {given}: {reason_of(error)}") from error
    if not isinstance(model, nn.Module):
        raise UserError(
            f"{name} returned a value of type {type(model).__name__}, not a torch.nn.Module"
        )
    return model


def check_outputs(name: str, model: nn.Module, *, classes: int, shape: ImageShape) -> None:
    """Refuse a network that does not give each image a number per class."""
    size = "x".join(map(str, shape))
    output = try_out(name, model, torch.zeros(2, *shape), f"images of {size}")
    check_shape(name, output, (2, classes), "for 2 images")


def check_shape(name: str, output: Tensor, expected: tuple[int, ...], inputs: str) -> None:
    if tuple(output.shape) != expected:
        found, wanted = (" x ".join(map(str, shape)) for shape in (output.shape, expected))
        raise UserError(f"{name} returns {found} outputs {inputs}, not {wanted}")


@torch.no_grad()
def try_out(name: str, model: nn.Module, example: Tensor, words: str) -> Tensor:
    """The output for an example, in evaluation mode; leaves the model and torch's RNG alone."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    device = next(model.parameters(), torch.zeros(0)).device
    try:
        with torch.random.fork_rng(devices=[]), current_folder_first():
            output = model(example.to(device))
    except (Exception, SystemExit) as error:
        raise UserError(f"{name} fails on {words}: {reason_of(error)}") from error
    finally:
        for module, mode in training.items():
            module.training = mode
    if not isinstance(output, Tensor):
        raise UserError(
            f"{name} returns a value of type {type(output).__name__}, not a tensor of logits"
        )
    return output


@contextlib.contextmanager
def current_folder_first() -> Iterator[None]:
    """As in a script there; afterwards the folder's files hide no package."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)
