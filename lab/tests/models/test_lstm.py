"""The recurrent language model: the equations of torch's LSTM, from a zero state."""

import torch
from torch import nn

import sgdf
from sgdf_lab.models import build_language_model
from sgdf_lab.models.lstm import LSTM, Layer
from sgdf_lab.registry.models import LstmSize


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


def test_a_token_changes_nothing_before_it_nor_in_other_windows():
    torch.manual_seed(0)
    model = LSTM(LstmSize(2, 8, 12, 20), vocabulary=32).double()
    tokens = torch.randint(32, (2, 20))
    changed = tokens.clone()
    changed[0, 12] = (changed[0, 12] + 1) % 32
    difference = (model(tokens) - model(changed)).abs().amax(2)
    assert (difference[0, :12] == 0).all()
    assert (difference[0, 12:] > 0).all()
    assert (difference[1] == 0).all()


def test_gates_do_not_forget_at_first():
    layer = Layer(8, 400)
    assert abs(layer.inputs.bias[400:800].mean() - 1) < 0.1
    assert abs(layer.inputs.bias[:400].mean()) < 0.1
