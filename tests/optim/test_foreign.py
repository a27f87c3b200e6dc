"""States of other optimizers: converted as far as they mean the same, and said."""

import functools
import inspect
import warnings
from copy import deepcopy

import pytest
import torch

from sgdf import SGDF, FilterAdam, FilterAdamW, Momentum
from sgdf.kernels.work import compute_dtype

SGD, Adam, AdamW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
SIZE = 50


def trained(make, steps=300, p=None, seed=0):
    """An optimizer in the middle of a descent along noisy gradients of a quadratic."""
    if p is None:
        p = torch.ones(SIZE, dtype=torch.float64, requires_grad=True)
    optimizer = make([p])
    advance(optimizer, steps, seed)
    return optimizer


def advance(optimizer, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    (p,) = optimizer.param_groups[0]["params"]
    curvature = torch.logspace(-2, 0, SIZE, dtype=p.dtype)
    for _ in range(steps):
        p.grad = curvature * p.detach() + 0.1 * torch.randn(SIZE, generator=generator).to(p.dtype)
        optimizer.step()
    return p


def continued(make, source):
    """An optimizer `make`, at the same point, after it has loaded the state of `source`."""
    (q,) = source.param_groups[0]["params"]
    optimizer = make([q.detach().clone().requires_grad_()])
    with pytest.warns(UserWarning, match="loaded a state dict of") as caught:
        optimizer.load_state_dict(deepcopy(source.state_dict()))
    (warning,) = caught  # one sentence
    assert warning.filename == __file__
    return optimizer, str(warning.message)


@pytest.mark.parametrize(("make", "coupled"), [(Adam, True), (AdamW, False)])
def test_that_weight_decay_is_no_longer_decoupled_is_said(make, coupled):
    source = trained(functools.partial(make, weight_decay=0.1), steps=3)
    optimizer, said = continued(FilterAdamW, source)
    assert optimizer.param_groups[0]["decoupled_weight_decay"] is not coupled
    assert ("L2 penalty" in said) is coupled


def assert_nothing_foreign(optimizer, make):
    group = dict(optimizer.param_groups[0])
    own = make([torch.ones(SIZE, requires_grad=True)])
    assert set(group) == set(own.param_groups[0])
    (p,) = group["params"]
    steps = {"step"} if optimizer.counts_steps else set()
    for state in optimizer.state.values():
        assert set(state) == steps | set(optimizer.moments_of(group))
        assert all(m.dtype == compute_dtype(p) for key, m in state.items() if key != "step")


make_momentum = functools.partial(SGD, lr=0.01, momentum=0.8, weight_decay=0.1)
closed = functools.partial(SGDF, lr=7.0, gain_scale=0, gain_power=0, bias_correction=False)


@pytest.mark.parametrize("dampening", [0.0, 0.5])
def test_sgdf_with_a_closed_gain_continues_sgd_exactly(dampening):
    """Its m, its rate, its decay: also where SGDF was made with other ones."""
    sgd = trained(functools.partial(make_momentum, dampening=dampening))
    make = functools.partial(closed, weight_decay=3.0, decoupled_weight_decay=True)
    optimizer, said = continued(make, sgd)
    group = optimizer.param_groups[0]
    rate = 0.01 * (1 - dampening) / (1 - 0.8)
    assert group["lr"] == pytest.approx(rate)
    assert group["betas"] == (0.8, 0.999)
    assert "SGD into SGDF" in said
    assert f"lr is now {rate:g}" in said
    assert_nothing_foreign(optimizer, make)
    torch.testing.assert_close(advance(optimizer, 20, 1), advance(sgd, 20, 1))


def test_sgdf_with_a_constant_gain_continues_nesterovs_momentum_exactly():
    sgd = trained(functools.partial(make_momentum, nesterov=True))
    make = functools.partial(SGDF, gain_scale=1 - 0.8, gain_power=0, bias_correction=False)
    optimizer, said = continued(make, sgd)
    assert "gain_scale=1 - momentum, gain_power=0, bias_correction=False" in said
    torch.testing.assert_close(advance(optimizer, 20, 1), advance(sgd, 20, 1))


@pytest.mark.parametrize("bias_correction", [True, False])
def test_the_filter_continues_where_momentum_left(bias_correction):
    """Its first step is as long as SGD's next, not ten times; the gain then opens."""
    sgd = trained(make_momentum)
    make = functools.partial(SGDF, bias_correction=bias_correction)
    optimizer, _ = continued(make, sgd)
    assert_nothing_foreign(optimizer, make)
    before = sgd.param_groups[0]["params"][0].detach().clone()
    ours, theirs = advance(optimizer, 1, 1) - before, advance(sgd, 1, 1) - before
    torch.testing.assert_close(ours, theirs, rtol=0.1, atol=0.05 * theirs.abs().max().item())
    ours, theirs = advance(optimizer, 500, 2), advance(sgd, 500, 2)
    assert ours.square().mean() < 2 * theirs.square().mean() < 0.1


def test_sgd_without_momentum_leaves_its_rate_to_a_fresh_filter():
    make = functools.partial(SGDF, lr=7.0, betas=(0.9, 0.99))
    optimizer, said = continued(make, trained(functools.partial(SGD, lr=0.01)))
    assert "(0.01)" in said
    group = optimizer.param_groups[0]
    assert (group["lr"], group["betas"]) == (0.01, (0.9, 0.99))
    assert not any(optimizer.state.values())
    advance(optimizer, 1)
    assert {float(state["step"]) for state in optimizer.state.values()} == {1.0}


@pytest.mark.parametrize("settings", [{"momentum": 0.0}, {"momentum": 0.8, "dampening": 0.5}])
def test_momentum_continues_sgd_exactly(settings):
    sgd = trained(functools.partial(SGD, lr=0.01, weight_decay=0.1, **settings))
    optimizer, _ = continued(Momentum, sgd)
    assert_nothing_foreign(optimizer, Momentum)
    torch.testing.assert_close(advance(optimizer, 20, 1), advance(sgd, 20, 1))


def test_momentum_has_no_nesterov():
    sgd = trained(functools.partial(make_momentum, nesterov=True))
    assert "Nesterov" in continued(Momentum, sgd)[1]


def test_sgdf_continues_our_momentum_exactly():
    source = trained(functools.partial(Momentum, lr=0.02, beta=0.8, mu=0.5, weight_decay=0.1))
    optimizer, said = continued(closed, source)
    assert "lr is now 0.05" in said
    assert_nothing_foreign(optimizer, closed)
    torch.testing.assert_close(advance(optimizer, 20, 1), advance(source, 20, 1))


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize(("theirs", "decoupled"), [(Adam, False), (AdamW, True)])
def test_filter_adam_continues_adam_exactly(theirs, decoupled, amsgrad):
    """All that Adam has: with a gain of 0 it is Adam."""
    rate = {"lr": 0.01, "weight_decay": 0.1, "betas": (0.8, 0.99), "eps": 1e-3}
    source = trained(functools.partial(theirs, **rate, amsgrad=amsgrad))
    make = functools.partial(FilterAdamW, gain_scale=0.0, rounding_seed=7)
    optimizer, said = continued(make, source)
    assert ("amsgrad" in said) == amsgrad
    assert optimizer.param_groups[0]["rounding_seed"] == 7
    group = optimizer.param_groups[0]
    assert {name: group[name] for name in rate} == rate
    assert group["decoupled_weight_decay"] == decoupled
    assert_nothing_foreign(optimizer, make)
    if not amsgrad:
        torch.testing.assert_close(advance(optimizer, 20, 1), advance(source, 20, 1))


OTHER_SCALE = [
    (SGDF, AdamW, "s is made from m and v"),
    (SGDF, FilterAdamW, "s is made from m and v"),
    (FilterAdam, SGDF, "v is made from m and s"),
]


@pytest.mark.parametrize(("make", "theirs", "made"), OTHER_SCALE)
def test_a_rate_of_another_scale_is_not_taken_over(make, theirs, made):
    source = trained(
        functools.partial(theirs, lr=0.03, eps=1e-4, weight_decay=0.3, betas=(0.8, 0.9))
    )
    source.param_groups[0]["initial_lr"] = 0.03  # a scheduler would start from it
    own = {"lr": 0.02, "eps": 1e-6, "weight_decay": 0.02, "decoupled_weight_decay": False}
    own |= {"gain_scale": 0.5, "gain_power": 0.5, "correction": False, "rounding_seed": 7}
    optimizer, said = continued(functools.partial(make, **own), source)
    assert made in said
    assert "lr (0.02), weight_decay and eps stay as they were" in said
    group = optimizer.param_groups[0]
    assert {name: group[name] for name in own} == own
    assert group["betas"] == (0.8, 0.9)
    assert_nothing_foreign(optimizer, make)
    (before,), (after,) = source.state.values(), optimizer.state.values()
    assert torch.equal(before["exp_avg"], after["exp_avg"])
    assert before["step"] == after["step"]
    start = optimizer.param_groups[0]["params"][0].square().mean()
    assert advance(optimizer, 200, 1).square().mean() < start + 0.1


def test_a_schedulers_rate_is_converted_with_the_rate():
    sgd = trained(make_momentum, 3)
    sgd.param_groups[0].update(initial_lr=0.1, max_lr=1.0)
    group = continued(SGDF, sgd)[0].param_groups[0]
    assert group["initial_lr"] == pytest.approx(0.1 / (1 - 0.8))
    assert "max_lr" not in group


def test_each_group_has_its_own_conversion():
    def groups(**second):
        return [
            {"params": [torch.ones(2, requires_grad=True)]},
            {"params": [torch.ones(3, requires_grad=True)], **second},
        ]

    sgd = SGD(groups(lr=0.2, momentum=0.5), lr=0.1, momentum=0.9)
    for group in sgd.param_groups:
        group["params"][0].grad = torch.ones_like(group["params"][0])
    sgd.step()
    optimizer = SGDF(groups(eps=0.5))
    with pytest.warns(UserWarning, match="lr is now 1, 0.4,"):
        optimizer.load_state_dict(sgd.state_dict())
    settings = [(group["lr"], group["betas"][0], group["eps"]) for group in optimizer.param_groups]
    assert settings == [(pytest.approx(1.0), 0.9, 1e-8), (0.4, 0.5, 0.5)]
    moments = [state["exp_avg"].unique().item() for state in optimizer.state.values()]
    assert moments == pytest.approx([0.1, 0.5])


def test_buffers_of_low_precision_become_float32_moments():
    p = torch.ones(SIZE, dtype=torch.bfloat16, requires_grad=True)
    sgd = trained(make_momentum, 3, p)
    (buffer,) = (state["momentum_buffer"] for state in sgd.state.values())
    optimizer, _ = continued(SGDF, sgd)
    (state,) = optimizer.state.values()
    assert torch.equal(state["exp_avg"], buffer.float() * ((1 - 0.8) / 1))


def test_own_checkpoints_load_without_a_word():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for ours, theirs in (
            (SGDF, SGDF),
            (Momentum, Momentum),
            (FilterAdam, FilterAdamW),
            (FilterAdamW, functools.partial(FilterAdam, second_moment="derived")),
        ):
            source = trained(theirs, 3)
            optimizer = ours([torch.ones(SIZE, dtype=torch.float64, requires_grad=True)], lr=7.0)
            optimizer.load_state_dict(source.state_dict())
            assert optimizer.param_groups[0]["lr"] == source.param_groups[0]["lr"]


REFUSED = [
    (SGDF, torch.optim.RMSprop, r"its settings \(.*\) and its state \(.*\) are not those"),
    (SGDF, torch.optim.RAdam, r"its settings \(.*\) and its state \(.*\) are not those"),
    (FilterAdam, torch.optim.NAdam, r"its settings \(.*\) and its state \(.*\) are not those"),
    (FilterAdamW, torch.optim.Adagrad, r"its settings \(.*\) and its state \(.*\) are not those"),
    (Momentum, torch.optim.Adamax, r"its settings \(.*\) and its state \(.*\) are not those"),
    (FilterAdam, make_momentum, "it is of torch's SGD, whose state and learning rate"),
    (FilterAdamW, Momentum, "it is of Momentum, whose state and learning rate"),
    (Momentum, AdamW, "it is of torch's Adam, whose state and learning rate"),
    (Momentum, SGDF, "it is of SGDF, whose state and learning rate"),
    (SGDF, functools.partial(SGD, lr=0.1, momentum=1.0), "momentum of 1.0 and dampening of 0"),
]


@pytest.mark.parametrize(("ours", "theirs", "message"), REFUSED)
def test_what_cannot_be_converted_is_refused(ours, theirs, message):
    source = trained(theirs, 2)
    optimizer = trained(ours, 2)
    before = deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=f"loaded state dict.*{message}"):
        optimizer.load_state_dict(source.state_dict())
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    torch.testing.assert_close(after["state"], before["state"], rtol=0, atol=0)


def test_a_state_dict_without_settings_is_loaded_as_it_is():
    source = trained(SGDF, 3)
    checkpoint = {"state": source.state_dict()["state"], "param_groups": [{"params": [0]}]}
    optimizer = SGDF([torch.ones(SIZE, dtype=torch.float64, requires_grad=True)], lr=7.0)
    optimizer.load_state_dict(checkpoint)
    assert optimizer.param_groups[0]["lr"] == 7.0
    assert [float(state["step"]) for state in optimizer.state.values()] == [3.0]


@pytest.mark.parametrize(
    "change",
    [
        {"lr": None},
        {"lr": "fast"},
        {"betas": 3},
        {"momentum": "x"},
        {"dampening": None},
        {"params": [[0]]},
        {"params": [{}]},
    ],
    ids=str,
)
@pytest.mark.parametrize(("ours", "theirs"), [(SGDF, make_momentum), (FilterAdam, AdamW)])
def test_settings_of_theirs_that_are_none_are_refused_with_a_sentence(ours, theirs, change):
    source = trained(theirs, 2).state_dict()
    if not change.keys() & source["param_groups"][0].keys():
        return
    source["param_groups"][0] |= change
    optimizer = trained(ours, 2)
    before = deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=r"loaded state dict|Invalid"):
        optimizer.load_state_dict(source)
    torch.testing.assert_close(optimizer.state_dict()["state"], before["state"], rtol=0, atol=0)


class CautiousAdam(Adam):
    """Another rule in the entries of torch's, and all of its flags."""

    def __init__(self, params, lr=1e-3):
        super().__init__(params, lr)
        for group in self.param_groups:
            group["caution"] = True


def test_a_subclass_with_a_setting_more_is_refused():
    source = trained(CautiousAdam, 2)
    with pytest.raises(ValueError, match="caution"):
        trained(FilterAdam, 0).load_state_dict(source.state_dict())


def test_what_a_user_adds_on_both_sides_is_no_setting():
    source, target = trained(Adam, 2), trained(FilterAdam, 0)
    for optimizer in (source, target):
        optimizer.param_groups[0]["is_head"] = True
    with pytest.warns(UserWarning, match="loaded a state dict of torch's Adam"):
        target.load_state_dict(source.state_dict())


#: Classes whose groups or states look like ours or torch's, but have another rule.
LOOKALIKES = {
    "pytorch_optimizer": "A2Grad AccSGD AdaBelief AdaGC AdamP AggMo Amos ApolloDQN BCOS FTRL "
    "Gravity LARS MSVAG Nero QHM RACS SGDP SGDW SM3 SRMM SignSGD SpectralSphere Tiger",
    "timm.optim": "AdaBelief AdafactorBigVision AdamP AdamWLegacy Adopt NAdamW NvNovoGrad RAdam "
    "SGDW",
    "torch.optim": "Muon",
}
CLASSES = [(module, name) for module, names in LOOKALIKES.items() for name in names.split()]


@pytest.mark.parametrize(("module", "name"), CLASSES)
def test_a_lookalike_is_refused_by_the_names_of_what_it_has(module, name):
    """Also with a momentum, where it has the setting."""
    theirs = getattr(pytest.importorskip(module), name, None)
    if theirs is None:
        pytest.skip(f"{module} has no {name} here")
    has_momentum = "momentum" in inspect.signature(theirs).parameters
    for momentum in (None, 0.9)[: 1 + has_momentum]:
        p = torch.nn.Parameter(torch.randn(8, 8))
        source = theirs([p], **({"lr": 1e-3} if name in ("NvNovoGrad",) else {}))
        if momentum is not None:
            source.param_groups[0]["momentum"] = momentum
        for _ in range(2):
            p.grad = torch.randn(8, 8)
            source.step()
        for ours in (SGDF, FilterAdam, FilterAdamW, Momentum):
            optimizer = ours([torch.nn.Parameter(torch.randn(8, 8))])
            before = deepcopy(optimizer.state_dict())
            with pytest.raises(ValueError, match="are not those of SGDF"):
                optimizer.load_state_dict(source.state_dict())
            assert optimizer.state_dict() == before


@pytest.mark.parametrize("theirs", [SGD, Adam, AdamW])
def test_a_checkpoint_of_an_old_torch_is_known_and_one_with_a_setting_more_is_not(theirs):
    source = trained(theirs, 2)
    old = deepcopy(source.state_dict())
    (group,) = old["param_groups"]
    for name in ("foreach", "differentiable", "fused", "capturable", "decoupled_weight_decay"):
        group.pop(name, None)
    group["initial_lr"] = group["lr"]
    target = SGDF([torch.ones(SIZE, dtype=torch.float64, requires_grad=True)])
    with pytest.warns(UserWarning, match="loaded a state dict of torch's"):
        target.load_state_dict(old)
    group["caution"] = True
    with pytest.raises(ValueError, match="caution"):
        target.load_state_dict(old)
