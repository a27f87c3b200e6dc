"""The filter in front of other people's optimizers."""

import pytest
import torch

from reference import Reference, numpy
from sgdf import SGDF, WienerFilter
from stepping import assert_bitwise, normal, set_gradients

BASES = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "Adam, fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "AdamW, maximize": lambda p: torch.optim.AdamW(p, lr=0.01, maximize=True),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
}


def parameters(dtype=torch.float32):
    return normal([(4, 3), (5,), (), (0,)], dtype)


def run(optimizer, params, steps, first=0):
    for seed in range(first, first + steps):
        set_gradients(params, seed)
        optimizer.step()


@pytest.mark.parametrize("base", BASES)
def test_any_optimizer_steps_along_the_estimate(base):
    """The same optimizer, fed by hand with estimates of the float64 statement."""
    filtered, fed = parameters(torch.float64), parameters(torch.float64)
    optimizer, plain = BASES[base](filtered), BASES[base](fed)
    WienerFilter(optimizer)
    references = [Reference(SGDF([p]), numpy(p)) for p in fed]
    for seed in range(10):
        set_gradients(filtered, seed), set_gradients(fed, seed)
        for p, reference in zip(fed, references, strict=True):
            p.grad.copy_(torch.as_tensor(reference.direction(numpy(p.grad))))
        optimizer.step(), plain.step()
        for a, b in zip(filtered, fed, strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-12)
    for a, b in zip(filtered, fed, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


def test_a_closure_is_filtered_after_it_ran():
    ways = []
    for call in ("plain", "positional", "keyword"):
        params = parameters()
        optimizer = torch.optim.SGD(params, lr=0.1)
        WienerFilter(optimizer)
        for seed in range(5):

            def closure(params=params, seed=seed):
                set_gradients(params, seed)
                return torch.tensor(float(seed))

            if call == "plain":
                closure()
                assert optimizer.step() is None
            elif call == "positional":
                assert optimizer.step(closure) == seed
            else:
                assert optimizer.step(closure=closure) == seed
        ways.append(params)
    assert_bitwise(ways[0], ways[1])
    assert_bitwise(ways[0], ways[2])


def test_a_checkpoint_of_more_parameters_is_refused():
    params = parameters()
    optimizer = torch.optim.SGD(params, lr=0.1)
    wiener = WienerFilter(optimizer)
    run(optimizer, params, 1)
    other = torch.optim.SGD(params[:2], lr=0.1)
    with pytest.raises(ValueError, match="parameter 2, but the optimizer has 2"):
        WienerFilter(other).load_state_dict(wiener.state_dict())


def test_detached_the_optimizer_is_itself_again():
    params, twins = parameters(), parameters()
    optimizer, plain = torch.optim.SGD(params, lr=0.1), torch.optim.SGD(twins, lr=0.1)
    wiener = WienerFilter(optimizer)
    wiener.detach()
    wiener.detach()  # once is enough, twice does no harm
    run(optimizer, params, 3), run(plain, twins, 3)
    assert_bitwise(params, twins)


def test_parameters_without_gradient_and_groups_added_later():
    a, b, c = (torch.ones(2, requires_grad=True) for _ in range(3))
    optimizer = torch.optim.SGD([a, b], lr=0.1)
    wiener = WienerFilter(optimizer)
    a.grad = torch.ones(2)
    optimizer.step()
    assert list(wiener.state) == [a]
    optimizer.add_param_group({"params": [c]})
    c.grad = torch.ones(2)
    optimizer.step()
    assert set(wiener.state_dict()["state"]) == {0, 2}
    assert "SGD" in repr(wiener)


@pytest.mark.parametrize("wrong", [{"fused": "false"}, {"rounding_seed": "x"}], ids=str)
def test_wrong_flags_are_refused(wrong):
    optimizer = torch.optim.SGD([torch.ones(2, requires_grad=True)])
    with pytest.raises(ValueError, match=f"Invalid {next(iter(wrong))} value"):
        WienerFilter(optimizer, **wrong)


def without(saved, key):
    return {**saved, "state": {0: {k: v for k, v in saved["state"][0].items() if k != key}}}


FOREIGN = {
    "a list": lambda saved: [1],
    "no settings": lambda saved: {"state": saved["state"]},
    "settings of text": lambda saved: {**saved, "settings": "text"},
    "a setting more": lambda saved: {**saved, "settings": {**saved["settings"], "lr": 0.1}},
    "a list as state": lambda saved: {**saved, "state": [1]},
    "a name as an index": lambda saved: {**saved, "state": {"w": saved["state"][0]}},
    "an entry of text": lambda saved: {**saved, "state": {0: "text"}},
    "no variance": lambda saved: without(saved, "exp_var"),
    "no step": lambda saved: without(saved, "step"),
    "a negative eps": lambda saved: {**saved, "settings": {**saved["settings"], "eps": -1}},
}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_is_no_state_of_a_filter_is_refused_with_a_sentence(what):
    p = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=0.1)
    wiener = WienerFilter(optimizer)
    p.grad = torch.ones(3)
    optimizer.step()
    before = wiener.state_dict()
    with pytest.raises(ValueError, match=r"loaded state dict|Invalid epsilon value: -1"):
        wiener.load_state_dict(FOREIGN[what](wiener.state_dict()))
    torch.testing.assert_close(wiener.state_dict(), before, rtol=0, atol=0)
