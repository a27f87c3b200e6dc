"""One look in C++ sees whatever a fused step depends on."""

import subprocess

import pytest
import torch

from sgdf.kernels import build, changes


@pytest.fixture
def seen():
    if not changes.wait():
        pytest.skip("it cannot be compiled here")
    params = [torch.zeros(shape, requires_grad=True) for shape in [(4,), (2, 3), ()]]
    for p in params:
        p.grad = torch.ones_like(p)
    states = [
        {"step": torch.tensor(1.0), "exp_avg": torch.zeros_like(p), "note": object()}
        for p in params
    ]
    return changes.of(params, states)


def test_nothing_has_changed(seen):
    assert seen.look() == changes.SAME
    seen.params[0].grad.mul_(2)  # values do not matter
    seen.states[0]["step"].add_(1)
    assert seen.look() == changes.SAME


def test_gradients_elsewhere(seen):
    before = [p.grad for p in seen.params]
    for p in seen.params:
        p.grad = torch.ones_like(p)
    assert seen.look() == changes.MOVED
    assert seen.grads_now.tolist() == [p.grad.data_ptr() for p in seen.params]
    seen.note()
    assert seen.look() == changes.SAME
    assert before[0].data_ptr() not in seen.grads_now


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
    "a new entry": lambda p, s: s.update(more=1),
    "an entry less": lambda p, s: s.pop("note"),
    "another object": lambda p, s: s.update(note=object()),
    "an object for a tensor": lambda p, s: s.update(exp_avg=None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(seen, change):
    kept = [list(state.values()) for state in seen.states]  # so that no address comes back
    CHANGES[change](seen.params[1], seen.states[1])
    assert seen.look() == changes.CHANGED
    assert seen.look() == changes.CHANGED, "until it is noted"
    del kept


def test_what_cannot_be_looked_at_is_never_the_same(seen):
    seen.params[1].grad = None
    seen.note()
    assert seen.look() == changes.CHANGED
    seen.params[1].grad = torch.ones(2, 3)
    assert seen.look() == changes.CHANGED
    seen.note()
    assert seen.look() == changes.SAME


def test_a_tensor_without_memory_does_no_harm():
    if not changes.wait():
        pytest.skip("it cannot be compiled here")
    p = torch.zeros(3, device="meta", requires_grad=True)
    p.grad = torch.zeros(3, device="meta")
    assert changes.of([p], [{}]).look() in (changes.SAME, changes.CHANGED)
    assert changes.of([3], [{}]).look() == changes.CHANGED
    assert changes.of([torch.ones(2)], [[]]).look() == changes.CHANGED


def test_without_a_compiler_python_looks(monkeypatch, tmp_path):
    monkeypatch.setattr(changes, "_library", None)
    monkeypatch.setattr(changes, "_thread", None)
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    assert not changes.wait()
    assert changes.of([], []) is None


def test_it_is_compiled_once(monkeypatch):
    if not changes.wait():
        pytest.skip("it cannot be compiled here")

    def never(*_):
        raise AssertionError("compiled again")

    monkeypatch.setattr(changes, "_compile", never)
    assert changes._load().sgdf_facts


def test_a_compiler_that_refuses(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    script = tmp_path / "c++"
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    with pytest.raises(RuntimeError, match="refuses"):
        changes._compile([str(script)], tmp_path / "watch.so")
    monkeypatch.setattr(build, "compiler", lambda: [str(script)])
    with pytest.raises((RuntimeError, subprocess.SubprocessError)):
        changes._load()
