"""The C++ detector notices every change that a fused step depends on."""

import subprocess

import pytest
import torch

from sgdf.kernels import build, plan


@pytest.fixture
def detector():
    if not plan.wait_until_compiled():
        pytest.skip("it cannot be compiled here")
    params = [torch.zeros(shape, requires_grad=True) for shape in [(4,), (2, 3), ()]]
    for p in params:
        p.grad = torch.ones_like(p)
    states = [
        {"step": torch.tensor(1.0), "exp_avg": torch.zeros_like(p), "other": object()}
        for p in params
    ]
    return plan.new_detector(params, states)


def test_nothing_has_changed(detector):
    assert detector.compare() == plan.UNCHANGED
    detector.params[0].grad.mul_(2)  # values do not matter
    detector.states[0]["step"].add_(1)
    assert detector.compare() == plan.UNCHANGED


def test_gradients_elsewhere(detector):
    before = [p.grad for p in detector.params]
    for p in detector.params:
        p.grad = torch.ones_like(p)
    assert detector.compare() == plan.GRADIENTS_MOVED
    assert detector.gradient_addresses() == [p.grad.data_ptr() for p in detector.params]
    detector.take_snapshot()
    assert detector.compare() == plan.UNCHANGED
    assert before[0].data_ptr() not in detector.gradient_addresses()


CHANGES = {
    "no gradient": lambda p, s: setattr(p, "grad", None),
    "a sparse gradient": lambda p, s: setattr(p, "grad", torch.ones(2, 3).to_sparse()),
    "a gradient in another layout": lambda p, s: setattr(p, "grad", torch.ones(3, 2).t()),
    "a gradient cut short": lambda p, s: p.grad.resize_(1, 3),
    "a gradient of another dtype": lambda p, s: setattr(p.grad, "data", p.grad.double()),
    "a parameter elsewhere": lambda p, s: setattr(p, "data", p.data.clone()),
    "a parameter of another dtype": lambda p, s: setattr(p, "data", p.data.double()),
    "a moment elsewhere": lambda p, s: s["exp_avg"].set_(torch.zeros(2, 3)),
    "another moment": lambda p, s: s.update(exp_avg=torch.zeros(2, 3)),
    "a moment of another dtype": lambda p, s: s.update(exp_avg=s["exp_avg"].view(torch.int32)),
    "a moment cut short": lambda p, s: s.update(exp_avg=s["exp_avg"][:1]),
    "a moment without memory": lambda p, s: s.update(exp_avg=s["exp_avg"].to("meta")),
    "a new entry": lambda p, s: s.update(more=1),
    "an entry less": lambda p, s: s.pop("other"),
    "another object": lambda p, s: s.update(other=object()),
    "an object for a tensor": lambda p, s: s.update(exp_avg=None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed(detector, change):
    kept = [list(state.values()) for state in detector.states]  # so that no address comes back
    CHANGES[change](detector.params[1], detector.states[1])
    assert detector.compare() == plan.CHANGED
    assert detector.compare() == plan.CHANGED, "until the next snapshot"
    del kept


def test_without_a_snapshot_everything_has_changed(detector):
    detector.params[1].grad = None
    detector.take_snapshot()
    assert detector.compare() == plan.CHANGED
    detector.params[1].grad = torch.ones(2, 3)
    assert detector.compare() == plan.CHANGED
    detector.take_snapshot()
    assert detector.compare() == plan.UNCHANGED


def test_a_tensor_without_memory_does_no_harm():
    if not plan.wait_until_compiled():
        pytest.skip("it cannot be compiled here")
    p = torch.zeros(3, device="meta", requires_grad=True)
    p.grad = torch.zeros(3, device="meta")
    assert plan.new_detector([p], [{}]).compare() == plan.CHANGED
    p = torch.zeros(3, requires_grad=True)
    p.grad = torch.zeros(3)
    assert plan.new_detector([p], [{}]).compare() == plan.UNCHANGED
    state = {"exp_avg": torch.zeros(3, device="meta")}
    assert plan.new_detector([p], [state]).compare() == plan.CHANGED
    assert plan.new_detector([3], [{}]).compare() == plan.CHANGED
    assert plan.new_detector([torch.ones(2)], [[]]).compare() == plan.CHANGED


def test_without_a_compiler_there_is_no_detector(monkeypatch, tmp_path):
    monkeypatch.setattr(plan, "_library", None)
    monkeypatch.setattr(plan, "_thread", None)
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    assert not plan.wait_until_compiled()
    assert plan.new_detector([], []) is None


def test_a_compiler_that_refuses(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    script = tmp_path / "c++"
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    with pytest.raises(RuntimeError, match="cannot compile"):
        plan._compile([str(script)], tmp_path / "plan.so")
    monkeypatch.setattr(build, "find_compiler", lambda: [str(script)])
    with pytest.raises((RuntimeError, subprocess.SubprocessError)):
        plan._load()
