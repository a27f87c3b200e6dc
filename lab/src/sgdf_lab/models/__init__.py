"""Networks by name: classifiers of small images, and language models."""

from torch import nn

from sgdf_lab import plugins
from sgdf_lab.models.convolutional import ImageShape
from sgdf_lab.models.language import LSTM, build_gpt
from sgdf_lab.models.own import build_own, build_own_language_model, is_own
from sgdf_lab.registry.models import CLASSIFIERS, LSTMS
from sgdf_lab.support.errors import UserError, unknown

NAMES = tuple(CLASSIFIERS)


def build_classifier(name: str, *, classes: int, shape: ImageShape) -> nn.Module:
    """The named network for images of `shape`, with weights from torch's global RNG.

    A name is one of `NAMES`, or `package.module:function` of a user's own.

    >>> import torch
    >>> model = build_classifier("cnn", classes=10, shape=(1, 28, 28))
    >>> model(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    if is_own(name):
        return build_own(name, classes=classes, shape=shape)
    if name not in CLASSIFIERS:
        raise unknown("model", name, NAMES)
    row = CLASSIFIERS[name]
    _, height, width = shape
    if not row.takes(height, width):
        sides = f" with sides that {row.multiple} divides" if row.multiple > 1 else ""
        fitting = ", ".join(n for n in NAMES if CLASSIFIERS[n].takes(height, width))
        raise UserError(
            f"{name} takes images from {row.smallest}x{row.smallest} pixels{sides}, and these have "
            f"{height}x{width}: enlarge them, or choose {fitting}"
        )
    model: nn.Module = plugins.load_own(row.builder)(classes, shape)
    return model


def build_language_model(name: str, *, vocabulary: int, context: int) -> nn.Module:
    """The named network for windows of `context` tokens, with weights from torch's global RNG.

    >>> import torch
    >>> model = build_language_model("lstm-mini", vocabulary=256, context=64)
    >>> model(torch.zeros(2, 64, dtype=torch.int64)).shape
    torch.Size([2, 64, 256])
    """
    if is_own(name):
        return build_own_language_model(name, vocabulary=vocabulary, context=context)
    if name in LSTMS:
        return LSTM(LSTMS[name], vocabulary)
    return build_gpt(name, vocabulary=vocabulary, context=context)
