"""The networks are the published ones: sizes, layers, initial weights."""

import pytest
import torch
from torch import nn

from sgdf_lab import models
from sgdf_lab.support.errors import UserError

CIFAR = (3, 32, 32)


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "classes", "expected"),
    [
        ("vgg11", 10, 9_750_922),
        ("vgg11", 100, 9_797_092),
        ("resnet18", 10, 11_173_962),
        ("resnet18", 100, 11_220_132),
        ("resnet34", 10, 21_282_122),
        ("resnet34", 100, 21_328_292),
        ("densenet121", 10, 6_956_298),
        ("densenet121", 100, 7_048_548),
    ],
)
def test_sizes_are_the_published_ones(name, classes, expected):
    with torch.device("meta"):
        assert parameters(models.build_classifier(name, classes=classes, shape=CIFAR)) == expected


@pytest.mark.parametrize("name", models.NAMES)
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28)])
def test_every_model_trains_on_what_it_accepts(name, shape):
    if name == "vgg11" and shape[1] < 32:
        shape = (1, 64, 40)  # larger and not square
    torch.manual_seed(0)
    model = models.build_classifier(name, classes=7, shape=shape)
    images = torch.randn(2, *shape)
    scores = model(images)
    assert scores.shape == (2, 7)
    nn.functional.cross_entropy(scores, torch.tensor([0, 1])).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
    model.eval()
    with torch.no_grad():
        plain = model(images)
        last = model.to(memory_format=torch.channels_last)
        again = last(images.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(again, plain, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["resnet18", "densenet121", "cnn"])
def test_the_smallest_images_fit(name):
    model = models.build_classifier(name, classes=3, shape=(1, 8, 8))
    assert model(torch.randn(2, 1, 8, 8)).shape == (2, 3)


def test_the_global_seed_decides_the_weights():
    def weights(seed):
        torch.manual_seed(seed)
        return models.build_classifier("vgg11", classes=10, shape=CIFAR).state_dict()

    first, again, other = weights(0), weights(0), weights(1)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["features.0.weight"], other["features.0.weight"])


@pytest.mark.parametrize(
    ("classes", "dropouts", "std", "biased"),
    [(10, [0, 3], 1 / (3 * 512) ** 0.5, True), (100, [2, 5], 0.01, False)],
)
def test_vgg11_has_the_head_and_weights_of_its_dataset(classes, dropouts, std, biased):
    torch.manual_seed(0)
    model = models.build_classifier("vgg11", classes=classes, shape=CIFAR)
    assert [i for i, layer in enumerate(model.head) if isinstance(layer, nn.Dropout)] == dropouts
    convs = [layer for layer in model.features if isinstance(layer, nn.Conv2d)]
    assert [conv.out_channels for conv in convs] == [64, 128, 256, 256, 512, 512, 512, 512]
    assert sum(isinstance(layer, nn.MaxPool2d) for layer in model.features) == 5
    for conv in convs:
        expected = (2 / (9 * conv.out_channels)) ** 0.5
        assert conv.weight.std().item() == pytest.approx(expected, rel=0.1)
        assert not conv.bias.any()
    linear = [layer for layer in model.head if isinstance(layer, nn.Linear)]
    assert [layer.out_features for layer in linear] == [512, 512, classes]
    for layer in linear:
        assert layer.weight.std().item() == pytest.approx(std, rel=0.05)
        assert bool(layer.bias.any()) is biased


def test_vgg11_sees_one_pixel_of_512_features():
    model = models.build_classifier("vgg11", classes=10, shape=CIFAR)
    assert model.features(torch.randn(1, *CIFAR)).shape == (1, 512, 1, 1)


def test_resnet_halves_the_image_three_times():
    model = models.build_classifier("resnet18", classes=10, shape=CIFAR)
    assert model.blocks(torch.randn(1, 64, 32, 32)).shape == (1, 512, 4, 4)
    assert not any(conv.bias is not None for conv in model.modules() if isinstance(conv, nn.Conv2d))


def test_densenet_normalises_before_it_convolves():
    model = models.build_classifier("densenet121", classes=10, shape=CIFAR)
    assert model.features(torch.randn(1, *CIFAR)).shape == (1, 1024, 4, 4)
    layer = model.features[1]
    nn.init.zeros_(layer.bn1.weight)  # a first norm that says nothing: nothing comes out
    x = torch.randn(2, 64, 4, 4)
    added, kept = layer(x).split([32, 64], 1)
    assert not added.any()
    assert torch.equal(kept, x)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("vgg11", (1, 28, 28), r"vgg11 takes images from 32x32 .* have 28x28: .* choose resnet18,"),
        ("cnn", (1, 8, 7), r"cnn takes images from 8x8 .* have 8x7: enlarge them, or choose mlp"),
        ("resnet43", (3, 32, 32), "no model 'resnet43': did you mean resnet34"),
    ],
)
def test_mistakes_are_one_sentence(name, shape, message):
    with pytest.raises(UserError, match=message):
        models.build_classifier(name, classes=10, shape=shape)
