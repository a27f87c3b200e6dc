"""Loop, foreach and C++ against the float64 statement: settings, dtypes, layouts, sizes."""

import numpy as np
import pytest
import torch

from reference import CASES, OPTIMIZERS, Reference, noisy_run, numpy
from sgdf import SGDF, FilterAdam, Momentum

PATHS = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "loop, capturable": {"foreach": False, "capturable": True},
    "foreach, capturable": {"foreach": True, "capturable": True},
    "differentiable": {"differentiable": True},
    "C++": {"fused": True},
}
each_path = pytest.mark.parametrize("path", ["loop", "foreach", "C++"])


def build(optimizer, parameters, path, settings):
    flags = dict(PATHS[path])
    if optimizer is Momentum:
        flags.pop("capturable", None)
    return optimizer(parameters, **{"lr": 0.05, **settings, **flags})


def assert_close(parameters, references, rtol, atol):
    for p in parameters:
        np.testing.assert_allclose(numpy(p), references[p].p, rtol=rtol, atol=atol)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("optimizer", "settings"), CASES, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_float64_follows_the_statement(optimizer, settings, path):
    parameters = make(path, [(4, 3), (5,), ()], torch.float64)
    references = noisy_run(parameters, build(optimizer, parameters, path, settings), steps=30)
    assert_close(parameters, references, rtol=1e-10, atol=1e-11)


def make(path, shapes, dtype, seed=1):
    torch.manual_seed(seed)
    parameters = [torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes]
    # Under `differentiable` the step is part of the graph, so a leaf cannot take it in place.
    return [p if path == "differentiable" else p.requires_grad_() for p in parameters]


@each_path
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.complex64])
def test_lower_precision_rounds_once_a_step(optimizer, dtype, path):
    """State in float32 and one rounding a step: the error is that of storing the parameter."""
    parameters = make(path, [(7, 3), (5,), ()], torch.float64)
    if dtype.is_complex:
        parameters = [torch.complex(p.detach(), p.detach().flip(0)) for p in parameters[:2]]
    parameters = [p.detach().to(dtype).requires_grad_() for p in parameters]
    optimizer = build(optimizer, parameters, path, {"weight_decay": 0.1})
    steps = 20
    references = noisy_run(parameters, optimizer, steps)
    unit = torch.finfo(dtype).eps
    assert_close(parameters, references, rtol=steps * unit, atol=4 * steps * unit)
    for state in optimizer.state.values():
        for key, value in state.items():
            expected = torch.complex64 if dtype.is_complex and key != "step" else torch.float32
            assert value.dtype == expected, key


@pytest.mark.parametrize("scale", [1e-20, 1e-10, 1e-4, 1e4, 1e15])
@each_path
def test_magnitudes_in_float32(path, scale):
    parameters = [torch.zeros(50, requires_grad=True)]
    optimizer = SGDF(parameters, lr=1.0, **PATHS[path])
    references = noisy_run(parameters, optimizer, steps=20, scale=scale)
    assert_close(parameters, references, rtol=2e-4, atol=2e-4 * scale)
    assert torch.isfinite(parameters[0]).all()


@pytest.mark.parametrize("state_dtype", [torch.float64, torch.bfloat16])
@each_path
def test_state_dtype_is_kept_and_computed_through(path, state_dtype):
    parameters = make(path, [(6, 4)], torch.float32)
    optimizer = build(FilterAdam, parameters, path, {"state_dtype": state_dtype, "eps": 1e-4})
    references = noisy_run(parameters, optimizer, steps=20)
    state = optimizer.state[parameters[0]]
    assert all(state[key].dtype == state_dtype for key in ("exp_avg", "exp_var", "exp_avg_sq"))
    loose = 1e-5 if state_dtype == torch.float64 else 0.05
    assert_close(parameters, references, rtol=loose, atol=loose)


@each_path
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_layouts_and_sizes(optimizer, path):
    """channels_last, transposed, strided, views side by side, 0-dim, empty, one element, odd."""
    torch.manual_seed(0)
    base = torch.randn(4100)
    tensors = [
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(3, 1, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(6, 4).t(),
        torch.randn(6, 4, dtype=torch.complex64).t(),
        torch.randn(20)[::3],
        torch.randn(8, 8)[1:7, 2:5],
        torch.randn(()),
        torch.empty(0),
        torch.empty(3, 0, 2),
        torch.randn(1),
        base[1:1026],
        base[1027:4099],
    ]
    parameters = [t.detach().requires_grad_() for t in tensors]
    edges = base[[0, 1026, 4099]].clone()
    layouts = [p.stride() for p in parameters]
    optimizer = build(optimizer, parameters, path, {"weight_decay": 0.01})
    references = noisy_run(parameters, optimizer, steps=5)
    assert_close(parameters, references, rtol=1e-5, atol=1e-5)
    assert [p.stride() for p in parameters] == layouts
    first = optimizer.state[parameters[0]]
    for key in optimizer.moments_of(optimizer.param_groups[0]):
        assert first[key].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(base[[0, 1026, 4099]], edges), "written beside a view"


def test_foreach_equals_the_loop_on_hundreds_of_mixed_tensors():
    torch.manual_seed(0)
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.complex64]
    loop = [torch.randn(i % 5, i % 3 + 1).to(dtypes[i % 4]).requires_grad_() for i in range(200)]
    foreach = [p.detach().clone().requires_grad_() for p in loop]
    optimizers = [SGDF(loop, foreach=False), SGDF(foreach, foreach=True)]
    for seed in range(5):
        for parameters, optimizer in zip((loop, foreach), optimizers, strict=True):
            torch.manual_seed(seed)
            for p in parameters:
                p.grad = torch.randn_like(p)
            optimizer.step()
    for a, b in zip(loop, foreach, strict=True):
        torch.testing.assert_close(
            a, b, rtol=2e-2 if a.dtype == torch.bfloat16 else 1e-5, atol=1e-5
        )


@each_path
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_autograd_notices_that_a_parameter_has_changed(optimizer, path):
    p = torch.ones(5, requires_grad=True)
    loss = p.square().sum()
    p.grad = torch.ones(5)
    optimizer([p], **PATHS[path]).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@each_path
def test_gradients_of_another_dtype_than_the_parameter(path):
    p = torch.randn(5, dtype=torch.bfloat16, requires_grad=True)
    p.grad_dtype = torch.float32
    optimizer = SGDF([p], lr=0.5, **PATHS[path])
    reference = Reference(optimizer, numpy(p))
    for _ in range(3):
        p.grad = torch.randn(5)
        optimizer.step()
        reference.step(numpy(p.grad))
    np.testing.assert_allclose(numpy(p), reference.p, rtol=0.02, atol=0.02)


@each_path
def test_an_always_zero_gradient_leaves_the_parameter_alone(path):
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        for settings in ({}, {"eps": 0.0}, {"eps": 0.0, "gain_scale": 1.0, "gain_power": 0.5}):
            p = torch.randn(5, dtype=dtype)
            before = p.clone()
            p.grad = torch.zeros_like(p)
            optimizer = SGDF([p], **PATHS[path], **settings)
            for _ in range(3):
                optimizer.step()
            assert torch.equal(p, before)
            assert all(torch.isfinite(value).all() for value in optimizer.state[p].values())


class Comparisons(torch.overrides.TorchFunctionMode):
    """Counts comparisons of tensors, which cost more than all the rest of a small one's step."""

    count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += getattr(function, "__name__", "") in ("__eq__", "eq", "__ne__", "ne")
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_no_tensor_is_compared_to_find_one_that_is_missing(optimizer):
    """`state.count(None)` asks every tensor whether it equals None."""
    parameters = [torch.nn.Parameter(torch.randn(4, 5)) for _ in range(3)]
    optimizer = optimizer(parameters, fused=True)
    for p in parameters:
        p.grad = torch.randn(4, 5)
    with Comparisons() as comparisons:
        optimizer.step()
    assert comparisons.count == 0
