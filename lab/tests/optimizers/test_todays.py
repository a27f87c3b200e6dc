"""Muon, weight decay of norms, and the filter in front of others."""

import tomllib
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sgdf
from optimizers.steps import build, problem, step_with
from sgdf import WienerFilter
from sgdf_lab import optimizers, paper
from sgdf_lab.models.language import build_gpt
from sgdf_lab.optimizers.muon import MuonAdamW, hidden_matrices
from sgdf_lab.runs import config as configs
from sgdf_lab.support.errors import UserError
from sgdf_lab.training.device import GroupRates

ROOT = Path(__file__).parents[3]


# --- Muon -----------------------------------------------------------------------------------------


class Words(nn.Module):
    """An embedding, a block with a norm, and a head, which may share the embedding's weights."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.mix = nn.Conv1d(4, 4, 1)
        self.hidden = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 7)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, words):
        x = self.mix(self.embedding(words).transpose(1, 2)).transpose(1, 2)
        return self.head(self.norm(self.hidden(x)))


def words_and_loss(model):
    words = torch.arange(21).view(3, 7) % 7
    return F.cross_entropy(model(words).flatten(0, 1), words.flatten())


@pytest.mark.parametrize("tied", [False, True])
def test_muon_gets_the_hidden_matrices_alone(tied):
    model = Words(tied)
    groups = hidden_matrices(model.parameters(), model)
    names = {id(p): name for name, p in model.named_parameters()}
    assert [[names[id(p)] for p in g["params"]] for g in groups if g["use_muon"]] == [
        ["hidden.weight"]
    ]
    assert sum(len(g["params"]) for g in groups) == len(list(model.parameters()))
    without = {id(p) for g in hidden_matrices(model.parameters(), None) for p in g["params"]}
    assert without == names.keys()


def test_the_embedding_of_a_language_model_is_its_head():
    model = build_gpt("gpt-tiny", vocabulary=8)
    (hidden,) = [g["params"] for g in hidden_matrices(model.parameters(), model) if g["use_muon"]]
    assert {id(p) for p in hidden} == {id(p) for p in model.blocks.parameters() if p.ndim == 2}


def test_muon_is_torchs_muon_and_adamw_side_by_side():
    torch.manual_seed(0)
    ours, theirs = Words(), Words()
    theirs.load_state_dict(ours.state_dict())
    optimizer = build("muon", ours.parameters(), ours, lr=0.02, adamw_lr=0.005)
    hidden = theirs.hidden.weight
    others = [p for p in theirs.parameters() if p is not hidden]
    muon = torch.optim.Muon([hidden], lr=0.02, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(others, lr=0.005, betas=(0.9, 0.95), weight_decay=0.1)
    rates = GroupRates([optimizer], 0.02)
    for factor in (1.0, 1.0, 0.5):
        rates.set(0.02 * factor)
        muon.param_groups[0]["lr"], adamw.param_groups[0]["lr"] = 0.02 * factor, 0.005 * factor
        for model, steppers in ((ours, [optimizer]), (theirs, [muon, adamw])):
            for stepper in steppers:
                stepper.zero_grad()
            words_and_loss(model).backward()
            for stepper in steppers:
                stepper.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)


def test_muon_without_matrices_is_adamw():
    p = nn.Parameter(torch.ones(3))
    optimizer = MuonAdamW([p], lr=0.1)
    p.grad = torch.ones(3)
    assert optimizer.step(lambda: 5.0) == 5.0
    assert p[0] < 1
    assert [g["use_muon"] for g in optimizer.param_groups] == [False]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -1.0}, "muon cannot be built with lr=-1.0: Learning rate should be >= 0"),
        ({"adjust_lr_fn": "none"}, "muon cannot be built .* none is not supported"),
        ({"adamw_betas": [0.9]}, "adamw_betas is 2 numbers"),
    ],
)
def test_muons_mistakes_are_one_sentence(settings, message):
    with pytest.raises(UserError, match=message):
        build("muon", Words().parameters(), **settings)


# --- weight decay of norms and biases -------------------------------------------------------------


@pytest.mark.parametrize("name", ["sgdf", "adamw", "msvag", "muon", "mars", "wiener-lion"])
def test_norms_and_biases_may_be_left_out_of_the_decay(name):
    """With gradients of zero, weight decay is all that moves a parameter (the L2 penalty too)."""

    def moved(**settings):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
        nn.init.ones_(model[0].bias)
        before = [p.detach().clone() for p in model.parameters()]
        optimizer = build(name, model.parameters(), lr=0.1, weight_decay=0.1, **settings)
        assert sum(len(g["params"]) for g in optimizer.param_groups) == 4
        step_with(optimizer, list(model.parameters()), [torch.zeros_like(p) for p in before])
        return [not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True)]

    assert moved() == moved(decay_norms=True) == [True, True, True, False]  # a bias of zeros
    assert moved(decay_norms=False) == [True, False, False, False]


@pytest.mark.parametrize("name", ["sgdf", "adamw", "muon", "filter-muon", "mars", "wiener-lion"])
def test_the_decay_may_follow_param_groups(name):
    """Norms and the embedding, which is the head too, keep their values."""
    model = build_gpt("gpt-tiny", vocabulary=16)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    params, settings = list(model.parameters()), {"lr": 0.1, "weight_decay": 0.1}
    optimizer = build(name, params, model=model, param_groups=True, **settings)
    step_with(optimizer, params, [torch.zeros_like(p) for p in params])
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    decayed, others = sgdf.param_groups(model, weight_decay=0.1, named=True)
    assert moved == {name for name, _ in decayed["params"]}
    assert "embedding.weight" in {name for name, _ in others["params"]}


def test_language_models_have_the_usual_groups_and_old_runs_theirs():
    def of(**overrides):
        return configs.make("text", model="gpt-tiny", optimizer="adamw", overrides=overrides)

    assert of().settings["param_groups"] is True
    before = of(param_groups=False)
    assert "param_groups" not in before.settings
    assert before.name == "text-gpt-tiny-adamw-s0-d1cc06bd"
    assert "param_groups" not in of(decay_norms=False).settings
    for task in ("digits", "images", "cifar10"):
        assert "param_groups" not in configs.make(task, optimizer="adamw").settings


def test_the_evidence_keeps_the_groups_that_it_was_made_with():
    files = [f for f in (ROOT / "benchmarks" / "evidence").rglob("*.toml")
             if 'task = "text"' in f.read_text()
             and f.parent.name not in ("map", "matrix") and f.stem != "gpt-11m-form"]  # fmt: skip
    assert len(files) > 10
    for file in files:
        assert tomllib.loads(file.read_text())["set"]["param_groups"] is False, file.name


def test_every_row_with_a_weight_decay_has_the_settings():
    for row in optimizers.OPTIMIZERS.values():
        for name in ("decay_norms", "param_groups"):
            assert (name in row.setting_names) == ("weight_decay" in row.setting_names)
    with pytest.raises(UserError, match="decay_norms is true or false, not 0"):
        build("adamw", Words().parameters(), decay_norms=0)


# --- the filter in front --------------------------------------------------------------------------


def test_the_filter_in_front_is_wiener_filter():
    settings = {"gain_scale": 1.0, "betas": (0.8, 0.99), "gain_eps": 0.0}
    weights, grads = problem(4, (4, 3), (3,))
    ours, theirs = ([nn.Parameter(w.clone()) for w in weights] for _ in range(2))
    optimizer = build(
        "wiener-lion", ours, lr=0.01, **{f"filter_{n}": v for n, v in settings.items()}
    )
    plain = build("lion", theirs, lr=0.01)
    WienerFilter(plain, **settings)
    for step_grads in grads:
        step_with(optimizer, ours, step_grads)
        step_with(plain, theirs, step_grads)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)
    saved = optimizer.state_dict()["state"]
    assert saved[0].keys() == {"exp_avg", "filter_step", "filter_exp_avg", "filter_exp_var"}


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("wiener-lino", {}, "no optimizer 'lino': did you mean lion"),
        ("wiener-wiener-sgd", {}, "the filter can be in front only once"),
        ("wiener-sgd", {"gain_scale": 1}, "no setting of wiener-sgd 'gain_scale': .*filter_gain_"),
        ("wiener-sgd", {"filter_gain_scale": "a"}, "^filter_gain_scale is a number, not 'a'$"),
        ("wiener-sgd", {"filter_state_dtype": "int3"}, "^filter_state_dtype is one of .*int8"),
        ("wiener-sgd", {"filter_gain_scale": -1}, "wiener-sgd cannot .*: Invalid gain_scale value"),
    ],
)
def test_mistakes_of_the_filter_are_one_sentence(name, settings, message):
    with pytest.raises(UserError, match=message):
        build(name, Words().parameters(), **settings)


def test_a_filtered_row_keeps_what_its_row_says():
    row = optimizers.find("wiener-sgd")
    assert (row.name, row.capturable, row.on_cuda) == ("wiener-sgd", True, {"fused": True})
    assert optimizers.style("wiener-sgd") == (optimizers.style("sgd").colour, "longdashdot")
    assert (row.colour, row.dash) == optimizers.style("wiener-sgd")
    config = configs.make("cifar10", optimizer="wiener-sgd", overrides={"filter_betas": [0.8, 0.9]})
    assert config.settings == {**paper.settings("cifar10", "sgd"), "filter_betas": [0.8, 0.9]}
    (group,) = build("wiener-torch.optim.SGD", Words().parameters(), lr=0.1).param_groups
    assert group["lr"] == 0.1
    (group,) = build(
        "wiener-sgdf", Words().parameters(), betas=[0.8, 0.9], state_dtype="bf16"
    ).param_groups
    assert (group["betas"], group["state_dtype"]) == ((0.8, 0.9), torch.bfloat16)


@pytest.mark.parametrize("name", ["filter-adam", "filter-adamw"])
@pytest.mark.parametrize("second_moment", ["separate", "derived", "fluctuation"])
@pytest.mark.parametrize("gain_power", [0, 0.5, 1])
def test_every_form_of_the_filter_is_a_setting(name, second_moment, gain_power):
    chosen = {"second_moment": second_moment, "gain_scale": 1, "gain_power": gain_power}
    config = configs.make("digits", optimizer=name, overrides={**chosen, "gain_eps": 0})
    p = nn.Parameter(torch.ones(4, 3))
    optimizer = build(name, [p], **config.settings)
    step_with(optimizer, [p], [torch.ones(4, 3)])
    assert chosen.items() <= optimizer.param_groups[0].items()
    assert ("exp_avg_sq" in optimizer.state[p]) == (second_moment == "separate")
    for other in ("sgdf", "wiener-sgd"):
        prefix = "filter_" if other == "wiener-sgd" else ""
        names = {f"{prefix}{n}": chosen[n] for n in ("gain_scale", "gain_power")}
        build(other, [p], **names, **{f"{prefix}gain_eps": 0.0})
