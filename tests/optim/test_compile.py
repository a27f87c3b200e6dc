"""`torch.compile(optimizer.step)`: the same numbers, and no recompilation per step."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from reference import FORMS, OPTIMIZERS
from sgdf import FilterAdam

STEPS = 8


def run(optimizer_class, lr, compiled, foreach, **settings):
    torch.manual_seed(0)
    parameters = [torch.randn(shape, requires_grad=True) for shape in ((4, 3), (5,))]
    optimizer = optimizer_class(parameters, lr=lr, weight_decay=0.01, foreach=foreach, **settings)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
    compilations = CompileCounter()  # counts frames, runs them eagerly
    torch._dynamo.reset()
    step = torch.compile(optimizer.step, backend=compilations) if compiled else optimizer.step
    counts = []
    for _ in range(STEPS):
        for p in parameters:
            p.grad = torch.randn_like(p)
        step()
        scheduler.step()
        counts.append(compilations.frame_count)
    return parameters, counts


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_a_schedule_does_not_recompile_the_step(optimizer_class, lr, foreach):
    fresh = lr.clone if isinstance(lr, torch.Tensor) else lambda: lr
    expected, _ = run(optimizer_class, fresh(), compiled=False, foreach=foreach)
    actual, counts = run(optimizer_class, fresh(), compiled=True, foreach=foreach)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b)
    # A number as lr becomes an input of the graph when it first changes; a tensor is one from the
    # start. Either way the whole step is one graph.
    assert counts[0] == 1
    assert counts[-1] == (1 if isinstance(lr, torch.Tensor) else 2)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(("optimizer_class", "settings"), FORMS.values(), ids=FORMS)
def test_every_form_is_one_graph(optimizer_class, settings, foreach):
    expected, _ = run(optimizer_class, torch.tensor(0.1), False, foreach, **settings)
    actual, counts = run(optimizer_class, torch.tensor(0.1), True, foreach, **settings)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b)
    assert counts == [1] * STEPS


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (OPTIMIZERS[0], 33),
        (
            lambda p, lr: FilterAdam(p, lr, second_moment="derived", gain_scale=0.05, gain_power=0),
            33,
        ),
        (lambda p, lr: FilterAdam(p, lr, state_dtype=torch.int8), (32, 128)),
    ],
    ids=["SGDF", "FilterAdam, derived", "FilterAdam, 8 bits"],
)
def test_the_compiled_kernel_computes_the_same(build, shape):
    """Through the real compiler once: inductor's own code, not eager ops."""
    torch._dynamo.reset()
    results = []
    for wrap in (lambda step: step, torch.compile):
        torch.manual_seed(0)
        p = torch.randn(shape, requires_grad=True)
        optimizer = build([p], lr=torch.tensor(0.1))
        step = wrap(optimizer.step)
        for _ in range(4):
            p.grad = torch.randn_like(p)
            step()
        results.append(p.detach())
    torch.testing.assert_close(*results)
