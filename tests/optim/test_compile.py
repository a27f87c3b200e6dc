"""`torch.compile(optimizer.step)`: the same numbers, and no recompilation per step."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from reference import FORMS, OPTIMIZERS
from sgdf import FilterAdam

STEPS = 4


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


NUMBER = [(OPTIMIZERS[0], {}, 0.1)]
TENSOR = [(cls, {}, torch.tensor(0.1)) for cls in OPTIMIZERS]
TENSOR += [(cls, settings, torch.tensor(0.1)) for cls, settings in FORMS.values()]


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(("optimizer_class", "settings", "lr"), NUMBER + TENSOR)
def test_a_schedule_does_not_recompile_the_step(optimizer_class, settings, lr, foreach):
    fresh = lr.clone if isinstance(lr, torch.Tensor) else lambda: lr
    expected, _ = run(optimizer_class, fresh(), False, foreach, **settings)
    actual, counts = run(optimizer_class, fresh(), True, foreach, **settings)
    torch.testing.assert_close(actual, expected)
    # A number as lr becomes an input of the graph when it first changes; a tensor is one from the
    # start. Either way the whole step is one graph.
    assert counts[0] == 1
    assert counts[-1] == (1 if isinstance(lr, torch.Tensor) else 2)


def test_the_compiled_kernel_computes_the_same():
    """Through the real compiler once: inductor's own code, not eager ops."""
    torch._dynamo.reset()
    results = []
    for wrap in (lambda step: step, torch.compile):
        torch.manual_seed(0)
        p = torch.randn(33, requires_grad=True)
        optimizer = FilterAdam([p], lr=torch.tensor(0.1), second_moment="derived")
        step = wrap(optimizer.step)
        for _ in range(3):
            p.grad = torch.randn_like(p)
            step()
        results.append(p.detach())
    torch.testing.assert_close(*results)
