"""Parameter groups with and without weight decay."""

import pytest
import torch
from torch import nn

from sgdf import SGDF, FilterAdamW, param_groups


class Tied(nn.Module):
    """A small language model whose output layer is its embedding."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.words = nn.Embedding(7, 4)
        self.place = nn.Parameter(torch.ones(1, 3, 4))
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm = nn.LayerNorm((3, 4))  # its weight has two dimensions
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.words.weight


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(4, 4)
        self.gate = nn.Linear(4, 4)
        self.skip_bias = nn.Parameter(torch.ones(2, 2))


def names(model, **options):
    """The names of the decayed parameters, and of the others."""
    groups = param_groups(model, 0.1, named=True, **options)
    by_decay = {group["weight_decay"]: [name for name, _ in group["params"]] for group in groups}
    return by_decay.get(0.1, []), by_decay.get(0.0, [])


MATRICES = [f"blocks.{i}.{name}.weight" for i in range(2) for name in ("mix", "gate")]


def test_matrices_are_decayed_and_norms_biases_embeddings_scalars_are_not():
    decayed, others = names(Tied())
    assert decayed == ["place", *MATRICES]
    biases = [f"blocks.{i}.{p}" for i in range(2) for p in ("skip_bias", "mix.bias", "gate.bias")]
    assert others == ["scale", "words.weight", *biases, "norm.weight", "norm.bias"]


def test_a_shared_parameter_is_there_once_in_the_order_of_the_model():
    model = Tied()
    groups = param_groups(model, 0.1)
    grouped = [p for group in groups for p in group["params"]]
    assert len(grouped) == len(set(grouped)) == len(list(model.parameters()))
    order = {p: i for i, p in enumerate(model.parameters())}
    assert all(
        [order[p] for p in group["params"]] == sorted(order[p] for p in group["params"])
        for group in groups
    )
    # Also where the embedding comes second.
    swapped = nn.Sequential(nn.Linear(4, 7, bias=False), nn.Embedding(7, 4))
    swapped[0].weight = swapped[1].weight
    assert names(swapped) == ([], ["0.weight"])


@pytest.mark.parametrize(
    ("no_decay", "left"),
    [
        (["place"], MATRICES),
        (["blocks.*.gate", "place"], MATRICES[::2]),
        (["blocks.0"], ["place", *MATRICES[2:]]),
        (["*.weight"], ["place"]),
        ("blocks", ["place"]),
        ([nn.Linear], ["place"]),
        (nn.Linear, ["place"]),
        ([nn.Linear, "place"], []),
    ],
)
def test_further_modules_and_patterns(no_decay, left):
    assert names(Tied(), no_decay=no_decay)[0] == left


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.RMSNorm((3, 4))])
def test_norms(norm):
    assert names(norm)[0] == []


def test_a_bag_of_embeddings_and_a_convolution():
    model = nn.Sequential(nn.EmbeddingBag(5, 4), nn.Conv2d(1, 2, 3))
    assert names(model) == (["1.weight"], ["0.weight", "1.bias"])


@pytest.mark.parametrize("optimizer_class", [SGDF, FilterAdamW, torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("named", [False, True])
def test_any_optimizer_decays_only_the_first_group(optimizer_class, named):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    nn.init.ones_(model[0].bias)
    model[0].weight.requires_grad_(False)  # frozen, but kept as `model.parameters()` keeps it
    optimizer = optimizer_class(param_groups(model, 0.1, named=named), lr=0.1)
    assert ("param_names" in optimizer.param_groups[0]) == named
    model[0].weight.requires_grad_(True)
    before = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    moved = [not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True)]
    assert moved == [True, False, False, False]


def test_a_group_that_would_be_empty_is_left_out():
    assert len(param_groups(nn.LayerNorm(3), 0.1)) == 1
    assert len(param_groups(nn.Linear(3, 3, bias=False), 0.1)) == 1
    with pytest.raises(ValueError, match="empty parameter list"):
        SGDF(param_groups(nn.ReLU(), 0.1))


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((nn.Linear(2, 2).parameters(), 0.1), {}, TypeError, "should be a torch.nn.Module"),
        ((nn.Linear(2, 2), -1.0), {}, ValueError, "Invalid weight_decay value: -1.0"),
        ((nn.Linear(2, 2), "0.1"), {}, ValueError, "Invalid weight_decay value: '0.1'"),
        ((Tied(), 0.1), {"no_decay": ["haed"]}, ValueError, "no parameter .* to 'haed'"),
        (
            (Tied(), 0.1),
            {"no_decay": [nn.Conv2d]},
            ValueError,
            "no parameter .* to <class .*Conv2d",
        ),
    ],
)
def test_mistakes(arguments, options, error, message):
    with pytest.raises(error, match=message):
        param_groups(*arguments, **options)
