"""What FilterMuon and FilterSOAP load from each other and from others, and who loads theirs."""

import functools
import warnings
from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgdf import SGDF, FilterAdam, FilterAdamW, FilterMuon, FilterSOAP, Momentum

SHAPE = (16, 24)
EIGEN = functools.partial(FilterMuon, eigenbasis=True)
MATRIX = {"FilterMuon": FilterMuon, "with eigenbasis": EIGEN, "FilterSOAP": FilterSOAP}
OTHERS = {
    "AdamW": torch.optim.AdamW,
    "FilterAdam": FilterAdam,
    "FilterAdamW derived": functools.partial(FilterAdamW, second_moment="derived"),
    "Muon": torch.optim.Muon,
}


def advance(optimizer, steps, generator, mean=0.0, scale=1.0):
    """Step along noise about a mean; the longest move of an element, in lr."""
    (p,) = optimizer.param_groups[0]["params"]
    longest = 0.0
    for _ in range(steps):
        before = p.detach().clone()
        p.grad = scale * (mean + torch.randn(SHAPE, generator=generator))
        optimizer.step()
        move = (p.detach() - before).abs().max().item()
        longest = max(longest, move / optimizer.param_groups[0]["lr"])
    return longest


def trained(make, steps=5, seed=0, **gradients):
    p = torch.nn.Parameter(torch.zeros(SHAPE))
    optimizer = make([p])
    generator = torch.Generator().manual_seed(seed)
    return optimizer, advance(optimizer, steps, generator, **gradients)


@pytest.mark.parametrize("target", MATRIX)
@pytest.mark.parametrize("source", OTHERS)
@settings(max_examples=3, deadline=None)
@given(st.sampled_from([0.0, 0.3, 3.0]), st.sampled_from([1, 2, 25]), st.integers(0, 99))
def test_no_step_after_a_conversion_is_longer_than_one_from_scratch(
    source, target, mean, steps, seed
):
    old, _ = trained(OTHERS[source], steps, seed, mean=mean)
    new, _ = trained(MATRIX[target], 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        new.load_state_dict(deepcopy(old.state_dict()))
    generator = torch.Generator().manual_seed(seed + 100)
    _, usual = trained(MATRIX[target], 20, seed, mean=mean)
    assert advance(new, 20, generator, mean=mean) < max(6, 2 * usual)


@pytest.mark.parametrize("target", MATRIX)
@pytest.mark.parametrize("source", MATRIX)
def test_each_loads_its_own_and_refuses_the_other_by_name(source, target):
    old, _ = trained(MATRIX[source], scale=1e-3)
    new, _ = trained(MATRIX[target], scale=1e-3)
    before = deepcopy(new.state_dict())
    if (source == "FilterSOAP") == (target == "FilterSOAP"):
        new.load_state_dict(deepcopy(old.state_dict()))
        assert new.param_groups[0]["eigenbasis"] == old.param_groups[0]["eigenbasis"]
        return
    name = "FilterSOAP" if source == "FilterSOAP" else "FilterMuon"
    with pytest.raises(ValueError, match=f"can continue: it is of {name}"):
        new.load_state_dict(deepcopy(old.state_dict()))
    after = new.state_dict()
    assert after["param_groups"] == before["param_groups"]
    torch.testing.assert_close(after["state"], before["state"], rtol=0, atol=0)


def test_a_filter_muon_that_is_made_like_soap_loads_its_own():
    make = functools.partial(FilterMuon, eigenbasis=True, adjust_lr_fn=None)
    old, _ = trained(make)
    new, _ = trained(make, 0)
    new.load_state_dict(deepcopy(old.state_dict()))
    for key, value in old.state_dict()["state"][0].items():
        assert torch.equal(value, new.state_dict()["state"][0][key]), key


@pytest.mark.parametrize("target", [SGDF, FilterAdam, FilterAdamW, Momentum])
@pytest.mark.parametrize("source", MATRIX)
def test_state_in_an_eigenbasis_is_refused_element_by_element(source, target):
    """Entry by entry, s and v of a basis belong to no element of the matrix."""
    old, _ = trained(MATRIX[source])
    new, _ = trained(target)
    before = deepcopy(new.state_dict())
    with pytest.raises(ValueError, match="it is of FilterMuon or FilterSOAP"):
        new.load_state_dict(deepcopy(old.state_dict()))
    after = new.state_dict()
    assert after["param_groups"] == before["param_groups"]
    torch.testing.assert_close(after["state"], before["state"], rtol=0, atol=0)


@pytest.mark.parametrize("name", MATRIX)
def test_no_step_is_long_whatever_entry_a_checkpoint_lacks(name):
    source, usual = trained(MATRIX[name], 40)
    for key in source.state_dict()["state"][0]:
        saved = deepcopy(source.state_dict())
        del saved["state"][0][key]
        new, _ = trained(MATRIX[name], 0)
        if key == "step":
            with pytest.raises(ValueError, match="no step"):
                new.load_state_dict(saved)
            continue
        of_basis = key.startswith(("basis", "factor")) or key == "exp_avg_sq"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            new.load_state_dict(saved)
        assert of_basis == any("basis of 1 param" in str(each.message) for each in caught), key
        assert advance(new, 20, torch.Generator().manual_seed(1)) < max(6, 2 * usual), key


@pytest.mark.parametrize("target", MATRIX)
def test_another_muon_is_refused(target):
    """timm's has betas and an algorithm among its settings."""
    theirs, _ = trained(torch.optim.Muon)
    saved = deepcopy(theirs.state_dict())
    saved["param_groups"][0] |= {"algo": "muon", "betas": (0.9, 0.95)}
    new, _ = trained(MATRIX[target])
    with pytest.raises(ValueError, match="is not one that"):
        new.load_state_dict(saved)
    for group in theirs.param_groups:  # what a scheduler or a later torch adds is no other Muon
        group |= {"initial_lr": group["lr"], "maximize": False}
    with pytest.warns(UserWarning, match="torch's Muon"):
        new.load_state_dict(deepcopy(theirs.state_dict()))


@pytest.mark.parametrize("target", MATRIX)
def test_a_group_without_a_rate_is_not_ours(target):
    """As those of pytorch_optimizer's A2Grad."""
    new, _ = trained(MATRIX[target])
    group = {"beta": 10.0, "lips": 10.0, "params": [0]}
    with pytest.raises(ValueError, match="is not one that"):
        new.load_state_dict({"state": {0: {"v_kk": torch.zeros(1)}}, "param_groups": [group]})


@pytest.mark.parametrize("target", ["with eigenbasis", "FilterSOAP"])
def test_a_basis_in_another_memory_order_is_continued(target):
    """As some formats store it: stacks of stacks, of which no view is a batch."""
    shape = (2, 3, 6, 5)
    ends = []
    for transposed in (False, True):
        generator = torch.Generator().manual_seed(0)
        p = torch.nn.Parameter(torch.zeros(shape))
        group = {"params": [p], "matrices": "stacked"}
        optimizer = MATRIX[target]([group], basis_interval=2)
        for step in range(6):
            if step == 3 and transposed:
                saved = deepcopy(optimizer.state_dict())
                state = saved["state"][0]
                for key in [key for key in state if state[key].ndim == 4]:
                    state[key] = state[key].permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0)
                optimizer = MATRIX[target]([group], basis_interval=2)
                optimizer.load_state_dict(saved)
            p.grad = torch.randn(shape, generator=generator)
            optimizer.step()
        ends.append({"p": p.detach(), **optimizer.state_dict()["state"][0]})
    torch.testing.assert_close(*ends)
