"""The networks by name, without torch."""

from typing import NamedTuple


class ClassifierRow(NamedTuple):
    """Where a network's builder is, and the images that it can take, in pixels.

    The builder is called with the number of classes and the shape of an image.
    """

    builder: str
    smallest: int  # the shortest side
    multiple: int = 1  # divides both sides

    def takes(self, height: int, width: int) -> bool:
        divides = height % self.multiple == width % self.multiple == 0
        return divides and min(height, width) >= self.smallest


#: The lab's own classifiers of small images.
CLASSIFIERS = {
    "vgg11": ClassifierRow("sgdf_lab.models.convolutional:vgg11", 32),
    "resnet18": ClassifierRow("sgdf_lab.models.convolutional:resnet18", 8),
    "resnet34": ClassifierRow("sgdf_lab.models.convolutional:resnet34", 8),
    "densenet121": ClassifierRow("sgdf_lab.models.convolutional:densenet121", 8),
    "vit-small-cifar": ClassifierRow("sgdf_lab.models.vit:SmallViT", 4, 4),
    "vit-cifar": ClassifierRow("sgdf_lab.models.vit:vit_of_64_tokens", 4, 4),
    "vit-mini": ClassifierRow("sgdf_lab.models.vit:vit_of_16_tokens", 4, 4),
    "cnn": ClassifierRow("sgdf_lab.models.convolutional:cnn", 8),
    "cnn-bn": ClassifierRow("sgdf_lab.models.convolutional:cnn_with_batch_norm", 8),
    "mlp": ClassifierRow("sgdf_lab.models.convolutional:small_mlp", 1),
}

AIRBENCH = ("airbench", "airbench-tiny")


class GptSize(NamedTuple):
    """Numbers of layers, of heads and of features, and the usual length of a window."""

    layers: int
    heads: int
    width: int
    context: int


class LstmSize(NamedTuple):
    """Numbers of layers and of features of the embedding and the state; the usual window."""

    layers: int
    embedding: int
    width: int
    context: int


OWN_CONTEXT = 256  # tokens in a window of a user's own language model, unless a setting says else
GPTS = {
    "gpt-tiny": GptSize(2, 4, 64, 64),
    "gpt-mini": GptSize(4, 4, 128, 128),
    "gpt-3m": GptSize(4, 8, 256, 128),
    "gpt-11m": GptSize(6, 6, 384, 256),
    "gpt-124m": GptSize(12, 12, 768, 1024),
}
LSTMS = {"lstm-mini": LstmSize(2, 128, 192, 64)}
LANGUAGE_MODELS: dict[str, GptSize | LstmSize] = {**GPTS, **LSTMS}


def context_of(name: str) -> int:
    """The usual length of a window of a language model."""
    return LANGUAGE_MODELS[name].context if name in LANGUAGE_MODELS else OWN_CONTEXT
