"""Which kernels run: those requested, or the fastest that suit; `implementation` says which."""

import warnings

import pytest
import torch

from reference import OPTIMIZERS
from sgdf import SGDF
from sgdf.kernels import cpu


def one(**kwargs):
    return SGDF([torch.ones(3, requires_grad=True)], **kwargs)


@pytest.fixture
def no_compiler(monkeypatch):
    monkeypatch.setattr(cpu, "_library_or_reason", lambda: (None, "there is no compiler"))
    cpu._warn_unavailable.cache_clear()
    yield
    cpu._warn_unavailable.cache_clear()


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_the_default_on_the_cpu_is_the_compiled_kernel(optimizer_class):
    assert cpu.available()
    optimizer = optimizer_class([torch.ones(3), torch.ones(2, dtype=torch.complex64)])
    assert optimizer.implementation == "fused"


def test_the_requested_kernels_run():
    assert one(foreach=True).implementation == "foreach"
    assert one(foreach=False).implementation == "loop"
    assert one(fused=False).implementation == "loop"
    assert one(fused=True).implementation == "fused"
    assert one(differentiable=True).implementation == "loop"
    groups = [{"params": [torch.ones(1)]}, {"params": [torch.ones(1)], "foreach": True}]
    assert SGDF([*groups, {"params": []}]).implementation == "fused, foreach, loop"


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_the_default_is_quiet_and_fused_warns_once():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert one().implementation == "loop"
        assert one(state_dtype=torch.int8).implementation == "loop"
    optimizer = one(fused=True)
    with pytest.warns(UserWarning, match="there is no compiler"):
        assert optimizer.implementation == "foreach"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert one(fused=True, state_dtype=torch.int8).implementation == "loop"
        optimizer.param_groups[0]["params"][0].grad = torch.ones(3)
        optimizer.step()


def test_what_no_fused_kernel_can_update_is_refused_before_anything_moves():
    p, q = torch.ones(3), torch.empty(3, device="meta")
    p.grad, q.grad = torch.ones(3), torch.empty(3, device="meta")
    optimizer = SGDF([{"params": [p]}, {"params": [q]}], fused=True)
    with pytest.raises(RuntimeError, match="`fused=True` requires all the params to be"):
        optimizer.step()
    assert torch.equal(p, torch.ones(3))
