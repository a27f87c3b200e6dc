"""A user's own network: `package.module:function`, which is called with ``num_classes=...``."""

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
    """Call the function and check what it returns; a module in the current folder is found."""
    with current_folder_first():
        function = plugins.load_object("model", name, HINT)
        try:
            model = function(num_classes=classes)
        except (Exception, SystemExit) as error:  # the function is not ours
            raise UserError(
                f"{name} cannot be called with num_classes={classes}: {reason_of(error)}"
            ) from error
        if not isinstance(model, nn.Module):
            raise UserError(
                f"{name} returned a value of type {type(model).__name__}, not a torch.nn.Module"
            )
        check_outputs(name, model, classes=classes, shape=shape)
    return model


def check_outputs(name: str, model: nn.Module, *, classes: int, shape: ImageShape) -> None:
    """Refuse a network that does not give each image a number per class."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    example = next(model.parameters(), torch.zeros(0))
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            output = model(torch.zeros(2, *shape, device=example.device))
    except (Exception, SystemExit) as error:
        size = "x".join(map(str, shape))
        raise UserError(f"{name} fails on images of {size}: {reason_of(error)}") from error
    finally:
        for module, mode in training.items():
            module.training = mode
    if not isinstance(output, Tensor):
        raise UserError(
            f"{name} returns a value of type {type(output).__name__}, not a tensor of logits"
        )
    if tuple(output.shape) != (2, classes):
        found = " x ".join(map(str, output.shape))
        raise UserError(
            f"{name} returns {found} outputs for 2 images, not 2 x {classes}: one per class"
        )


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
