"""State keeps its dtype, finds its device, and survives what checkpoints go through."""

import io
from copy import deepcopy

import pytest
import torch

from reference import OPTIMIZERS
from sgdf import SGDF, FilterAdam


def trained(optimizer_class, dtype=torch.float32, steps=3, shapes=((4, 3), (5,)), **kwargs):
    torch.manual_seed(0)
    parameters = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]
    optimizer = optimizer_class(parameters, lr=0.1, **kwargs)
    advance(optimizer, steps)
    return optimizer


def advance(optimizer, steps, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
        optimizer.step()


def parameters(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def moments(optimizer):
    return [
        state[key]
        for state in optimizer.state.values()
        for key in optimizer.moments_of(optimizer.param_groups[0])
    ]


def saved(optimizer):
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_float32_state_of_low_precision_parameters_survives_loading(optimizer_class, dtype):
    optimizer = trained(optimizer_class, dtype)
    assert {m.dtype for m in moments(optimizer)} == {torch.float32}
    twin = trained(optimizer_class, dtype, steps=0)
    for p, q in zip(parameters(twin), parameters(optimizer), strict=True):
        p.data.copy_(q)
    twin.load_state_dict(saved(optimizer))
    for a, b in zip(moments(optimizer), moments(twin), strict=True):
        assert b.dtype == torch.float32
        assert torch.equal(a, b)  # not rounded through the parameter's dtype on the way
    advance(optimizer, 3), advance(twin, 3)
    for p, q in zip(parameters(optimizer), parameters(twin), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("requested", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_state_dtype_is_the_optimizers_choice_not_the_checkpoints(requested):
    checkpoint = saved(trained(SGDF, torch.bfloat16))
    optimizer = trained(SGDF, torch.bfloat16, steps=0, state_dtype=requested)
    optimizer.load_state_dict(checkpoint)
    assert {m.dtype for m in moments(optimizer)} == {requested}
    assert optimizer.param_groups[0]["state_dtype"] == requested
    advance(optimizer, 2)
    assert {m.dtype for m in moments(optimizer)} == {requested}


def test_a_checkpoint_of_another_parameter_dtype_follows_the_parameter():
    checkpoint = saved(trained(SGDF, torch.float64))
    optimizer = trained(SGDF, torch.float32, steps=0)
    optimizer.load_state_dict(checkpoint)
    assert {m.dtype for m in moments(optimizer)} == {torch.float32}
    advance(optimizer, 1)


def test_state_follows_the_parameter_to_its_device():
    checkpoint = saved(trained(FilterAdam))
    elsewhere = [torch.empty(4, 3, device="meta"), torch.empty(5, device="meta")]
    optimizer = FilterAdam(elsewhere)
    optimizer.load_state_dict(checkpoint)
    assert {m.device.type for m in moments(optimizer)} == {"meta"}
    assert {state["step"].device.type for state in optimizer.state.values()} == {"cpu"}
    capturable = FilterAdam([p.clone() for p in elsewhere], capturable=True)
    for group in checkpoint["param_groups"]:
        group["capturable"] = True
    capturable.load_state_dict(checkpoint)
    assert {state["step"].device.type for state in capturable.state.values()} == {"meta"}


def test_a_group_keeps_its_own_state_dtype():
    p, q = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    groups = [{"params": [p]}, {"params": [q], "state_dtype": torch.bfloat16}]
    optimizer = SGDF(groups)
    advance(optimizer, 2)
    optimizer.load_state_dict(saved(optimizer))
    assert optimizer.state[p]["exp_avg"].dtype == torch.float32
    assert optimizer.state[q]["exp_avg"].dtype == torch.bfloat16


def test_state_put_there_by_a_wrapper_is_left_alone():
    p = torch.randn(3, requires_grad=True)
    optimizer = SGDF([p])
    optimizer.state[p]["shadow"] = torch.ones(3)
    advance(optimizer, 1)
    assert torch.equal(optimizer.state[p]["shadow"], torch.ones(3))
    assert set(optimizer.state[p]) == {"shadow", "step", "exp_avg", "exp_var"}


def test_a_moment_missing_from_an_older_checkpoint_starts_at_zero():
    optimizer = trained(FilterAdam)
    checkpoint = saved(optimizer)
    for state in checkpoint["state"].values():
        del state["exp_avg_sq"]
    optimizer.load_state_dict(checkpoint)
    advance(optimizer, 1)
    assert all("exp_avg_sq" in state for state in optimizer.state.values())


def test_an_older_pickle_gets_the_settings_it_lacks():
    optimizer = trained(SGDF)
    old = deepcopy(optimizer.__getstate__())
    for settings in (old["defaults"], *old["param_groups"]):
        del settings["gain_power"], settings["state_dtype"]
    revived = SGDF.__new__(SGDF)
    revived.__setstate__(old)
    assert revived.param_groups[0]["gain_power"] == 1.0
    advance(revived, 1)


def test_a_failed_load_leaves_the_optimizer_as_it_was():
    optimizer = trained(SGDF)
    before = deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict({"state": {}, "param_groups": []})
    with pytest.raises(ValueError, match="doesn't match the size"):
        optimizer.load_state_dict(trained(SGDF, shapes=((2,),)).state_dict())
    torch.testing.assert_close(optimizer.state_dict()["state"], before["state"], rtol=0, atol=0)
    assert not optimizer._optimizer_load_state_dict_pre_hooks
    assert not optimizer._optimizer_load_state_dict_post_hooks
