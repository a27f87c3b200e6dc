"""Language models: causal, of the sizes that their names say; GPT with rotary positions, and the
equations of torch's LSTM.
"""

import math

import pytest
import torch
from torch import nn

import sgdf
from sgdf_lab.models import build_language_model, language
from sgdf_lab.models.language import LSTM, Layer
from sgdf_lab.registry.models import LstmSize


def tiny(vocabulary: int = 32, context: int = 0) -> language.GPT:
    torch.manual_seed(0)
    model = language.build_gpt("gpt-tiny", vocabulary=vocabulary, context=context)
    with torch.no_grad():  # far from the start, where everything is nearly equal
        for parameter in model.parameters():
            parameter.mul_(4).add_(torch.randn_like(parameter), alpha=0.05)
    return model.double()


def test_attention_is_the_plain_statement():
    """Softmax over earlier positions of products of rotated queries and keys, head by head."""
    model = tiny()
    attention, size = model.blocks[0].attention, model.size
    x = torch.randn(2, 9, size.width, dtype=torch.float64)
    query, key, value = (attention.qkv.weight @ x.mT).mT.split(size.width, dim=2)
    features = size.width // size.heads
    heads = []
    for i in range(size.heads):
        part = slice(i * features, (i + 1) * features)
        turned = [by_complex_numbers(z[..., part]) for z in (query, key)]
        scores = turned[0] @ turned[1].mT / math.sqrt(features)
        hidden = torch.ones(9, 9, dtype=torch.bool).triu(1)
        heads.append(scores.masked_fill(hidden, -math.inf).softmax(2) @ value[..., part])
    expected = torch.cat(heads, 2) @ attention.out.weight.mT
    found = attention(x, model.cosine[:9], model.sine[:9])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)  # angles are float32


def by_complex_numbers(x: torch.Tensor) -> torch.Tensor:
    """Features i and i + n/2 as a number of the plane, turned by position / 10000^(2i/n)."""
    half = x.shape[-1] // 2
    positions = torch.arange(x.shape[-2], dtype=torch.float64)[:, None]
    angles = positions * 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(
        torch.ones_like(angles), angles
    )
    return torch.cat((turned.real, turned.imag), dim=-1)


def test_products_of_queries_and_keys_depend_on_their_distance():
    cosine, sine = language.rotary_angles(50, 16)
    query, key = torch.randn(2, 1, 16)
    products = (
        language.rotated(query.expand(50, 16), cosine, sine)
        @ language.rotated(key.expand(50, 16), cosine, sine).mT
    )
    for distance in (0, 1, 7):
        along = products.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), rtol=1e-4, atol=1e-4)
    assert products.diagonal(0)[0] != pytest.approx(float(products.diagonal(7)[0]), rel=1e-3)


@pytest.mark.parametrize(
    ("name", "vocabulary", "millions"),
    [
        ("gpt-tiny", 256, 0.1),
        ("gpt-mini", 256, 0.82),
        ("gpt-3m", 256, 3.21),
        ("gpt-11m", 256, 10.7),
        ("gpt-124m", 50257, 123.6),
    ],
)
def test_the_sizes(name, vocabulary, millions):
    with torch.device("meta"):
        model = language.build_gpt(name, vocabulary=vocabulary)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count / 1e6 == pytest.approx(millions, abs=0.06)
    assert not any(parameter.dim() == 1 for n, parameter in model.named_parameters() if "bias" in n)


def test_the_loss_of_a_new_network_is_that_of_guessing():
    torch.manual_seed(0)
    model = language.build_gpt("gpt-tiny", vocabulary=256)
    tokens = torch.randint(256, (8, 65))
    logits = model(tokens[:, :-1]).flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(256), rel=0.02)


def test_its_size_and_its_hidden_matrices():
    model = build_language_model("lstm-mini", vocabulary=256, context=64)
    of_layers = 128 * 768 + 192 * 768 + 768 + 2 * 192 * 768 + 768
    expected = 256 * 128 + of_layers + 192 * 256 + 256
    assert sum(p.numel() for p in model.parameters()) == expected == 624_384
    names = {
        group["matrices"]: [name for name, _ in group["params"]]
        for group in sgdf.param_groups(model, named=True)
    }
    assert names[True] == [
        f"layers.{i}.{part}.weight" for i in (0, 1) for part in ("inputs", "recurrent")
    ]
    assert names[False][0] == "embedding.weight"
    assert names[False][-2:] == ["head.weight", "head.bias"]


def test_a_layer_is_that_of_torch():
    torch.manual_seed(0)
    ours, theirs = Layer(5, 7).double(), nn.LSTM(5, 7, batch_first=True).double()
    for mine, other in (("inputs.weight", "weight_ih_l0"), ("recurrent.weight", "weight_hh_l0"),
                        ("inputs.bias", "bias_ih_l0")):  # fmt: skip
        into, forget, out, candidate = ours.get_parameter(mine).data.chunk(4)
        theirs.get_parameter(other).data = torch.cat((into, forget, candidate, out))
    nn.init.zeros_(theirs.bias_hh_l0)
    x = torch.randn(3, 11, 5, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x)[0])


@pytest.mark.parametrize("kind", ["gpt", "lstm"])
def test_a_token_changes_nothing_before_it_nor_in_other_windows(kind):
    torch.manual_seed(0)
    model = tiny() if kind == "gpt" else LSTM(LstmSize(2, 8, 12, 20), vocabulary=32).double()
    tokens = torch.randint(32, (2, 20))
    changed = tokens.clone()
    changed[0, 12] = (changed[0, 12] + 1) % 32
    difference = (model(tokens) - model(changed)).abs().amax(2)
    assert difference[0, :12].max() < 1e-12
    assert difference[0, 12:].min() > 1e-7
    assert difference[1].max() < 1e-12


def test_gates_do_not_forget_at_first():
    layer = Layer(8, 400)
    assert abs(layer.inputs.bias[400:800].mean() - 1) < 0.1
    assert abs(layer.inputs.bias[:400].mean()) < 0.1
