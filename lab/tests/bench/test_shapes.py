"""The lists of parameters are those of the networks."""

import pytest
import torch

from sgdf_lab.bench.contestants import LISTS, elements


@pytest.mark.parametrize(
    ("name", "tensors", "count"),
    [
        ("one-tensor", 1, 25_000_000),
        ("resnet18", 62, 11_689_512),
        ("resnet50", 161, 25_557_032),
        ("vit-l", 296, 304_326_632),
        ("gpt", 292, 1_315_723_264),
    ],
)
def test_lists_have_the_tensors_of_the_networks(name, tensors, count):
    shapes = LISTS[name].shapes()
    assert len(shapes) == tensors
    assert elements(shapes) == count


def test_lists_are_in_the_order_of_the_networks():
    resnet = LISTS["resnet50"].shapes()
    assert resnet[:3] == [(64, 3, 7, 7), (64,), (64,)]
    assert resnet[9:15] == [(256, 64, 1, 1), (256,), (256,), (256, 64, 1, 1), (256,), (256,)]
    assert resnet[-2:] == [(1000, 2048), (1000,)]
    block = torch.nn.TransformerEncoderLayer(1024, 16, 4096)
    ours = LISTS["vit-l"].shapes()[4:16]
    assert sorted(ours) == sorted(tuple(p.shape) for p in block.parameters())
