"""The Triton kernels: the float64 statement, the loop, and the tables.

In Triton's interpreter where there is no GPU; `make test-gpu` runs them compiled, with larger
tensors.
"""

import weakref

import numpy as np
import pytest
import torch

from agreement import assert_steps_round_the_statement
from reference import CASES, FORMS, OPTIMIZERS, Reference, noisy_run, numpy
from sgdf import SGDF, FilterAdam, Momentum, WienerFilter
from sgdf.kernels import plan as plans
from sgdf.kernels.plan import BLOCK, Launch
from stepping import (
    ON_GPU,
    TRITON_DEVICE,
    TRITON_MARKS,
    assert_bitwise,
    copies,
    filtered_sgd,
    normal,
    set_gradients,
)

pytest.importorskip("triton")
pytestmark = [
    # The interpreter computes both sides of a where.
    pytest.mark.filterwarnings(
        "ignore:divide by zero", "ignore:invalid value", "ignore:overflow encountered"
    ),
    pytest.mark.usefixtures("triton_on_the_cpu"),
    *TRITON_MARKS,
]
EDGE = BLOCK
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
#: A GPU rounds roots and quotients otherwise than the interpreter, and many more of them.
NEAR = {"rtol": 3e-5, "atol": 3e-5} if ON_GPU else {"rtol": 2e-5, "atol": 2e-5}
each_form = pytest.mark.parametrize(
    ("optimizer_class", "settings"), [(FilterAdam, {}), *FORMS.values()]
)


def drawn(shapes, dtype=torch.float32, seed=0):
    return normal(shapes, dtype, seed, TRITON_DEVICE)


def randn(*shape):
    return torch.randn(*shape, device=TRITON_DEVICE)


def assert_follows(parameters, references):
    for p in parameters:
        np.testing.assert_allclose(numpy(p), references[p].p, **NEAR)


def assert_near(ours, theirs):
    torch.testing.assert_close(list(ours), list(theirs), rtol=1e-5, atol=1e-5 if ON_GPU else 1e-6)


def twins(optimizer_class, parameters, steps=4, **kwargs):
    """The same run by the loop and by the kernels; returns both optimizers."""
    pair = [
        optimizer_class(parameters, foreach=False, **kwargs),
        optimizer_class(copies(parameters), fused=True, **kwargs),
    ]
    for seed in range(steps):
        for optimizer in pair:
            set_gradients(parameters_of(optimizer), seed)
            optimizer.step()
    return pair


def parameters_of(optimizer):
    return optimizer.param_groups[0]["params"]


@pytest.mark.parametrize("tensors", [False, True] if ON_GPU else [False])
@pytest.mark.parametrize(
    ("optimizer", "settings"), CASES, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_it_follows_the_statement(optimizer, settings, tensors):
    """On a GPU also with a learning rate there."""
    if tensors:
        settings = {k: v.cuda() if torch.is_tensor(v) else v for k, v in settings.items()}
    parameters = drawn([(4, 3), (EDGE + 1,), (), (0,), *([(300, 70)] if ON_GPU else [])])
    optimizer = optimizer(parameters, **{"lr": 0.05, **settings}, fused=True)
    assert optimizer.implementation == "fused"
    assert_follows(parameters, noisy_run(parameters, optimizer, steps=3))


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS if ON_GPU else [SGDF])
@pytest.mark.parametrize("gradients", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtype_pairings_round_once_a_step(dtype, gradients, optimizer_class):
    (p,) = drawn([(5000 if ON_GPU else 40,)], dtype)
    p.grad_dtype = gradients
    optimizer = optimizer_class([p], lr=0.01 if ON_GPU else 0.1, weight_decay=0.1, fused=True)
    reference = Reference(optimizer, numpy(p))
    for _ in range(4):
        p.grad = randn(*p.shape).to(gradients)
        optimizer.step()
        reference.step(numpy(p.grad))
    unit = 4 * torch.finfo(dtype).eps
    np.testing.assert_allclose(numpy(p), reference.p, rtol=unit, atol=4 * unit)
    key = optimizer.moments_of(optimizer.param_groups[0])[0]
    assert optimizer.state[p][key].dtype == torch.float32


@each_form
def test_bfloat16_state_is_rounded_with_the_bits_of_rounding_py(optimizer_class, settings):
    parameters = drawn([(5000 if ON_GPU else 50,), (7, 9)], torch.bfloat16)
    options = {"state_dtype": torch.bfloat16, "rounding_seed": 3, "weight_decay": 0.0}
    options |= {"stochastic_rounding": True, **settings}  # parameters too: the interpreter cuts off
    optimizer = optimizer_class(parameters, lr=0.01, fused=True, **options)
    assert_steps_round_the_statement(optimizer, set_gradients, steps=3)
    assert optimizer.state[parameters[0]]["exp_avg"].dtype == torch.bfloat16


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize(
    ("optimizer_class", "settings"), [*((cls, {}) for cls in OPTIMIZERS), *FORMS.values()]
)
def test_sizes_around_the_edges_of_blocks_and_unaligned_views(optimizer_class, settings, shift):
    sizes = (0, 1, 3, EDGE - 1, EDGE, EDGE + 1, 2 * EDGE)
    parameters = [randn(size + shift)[shift:].requires_grad_() for size in sizes]
    before = [p.detach().clone() for p in parameters]
    loop, kernels = twins(optimizer_class, parameters, steps=2, lr=0.1, **settings)
    assert_near(parameters_of(loop), parameters_of(kernels))
    moved = [not torch.equal(p, start) for p, start in zip(parameters, before, strict=True)]
    assert moved == [p.numel() > 0 for p in parameters]


def test_hundreds_of_tensors_of_several_kinds():
    dtypes = (torch.float32, torch.bfloat16)
    parameters = [randn(i % 7, 3).to(dtypes[i % 2]).requires_grad_() for i in range(200)]
    loop, kernels = twins(SGDF, parameters, steps=1)
    ours, theirs = parameters_of(loop), parameters_of(kernels)
    torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)
    (plan,) = kernels._plans.groups[id(theirs)].plans
    assert sorted(launch.n for launch in plan.launches) == [85, 86]  # the empty ones need none


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_layouts(optimizer_class):
    """channels_last and transposed in memory order; what has gaps goes to the loop."""
    parameters = [
        randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        randn(6, 4).t(),
        randn(41)[1:],
        randn(40)[::3],
    ]
    parameters = [p.detach().requires_grad_() for p in parameters]
    optimizer = optimizer_class(parameters, lr=0.1, weight_decay=0.1, fused=True)
    assert_follows(parameters, noisy_run(parameters, optimizer, steps=3))


def test_a_gradient_in_another_layout_than_its_parameter():
    p = randn(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    optimizer = SGDF([p], lr=0.1, fused=True)
    reference = Reference(optimizer, numpy(p))
    for layout in (torch.contiguous_format, torch.channels_last, torch.contiguous_format):
        p.grad = randn(2, 3, 4, 5).to(memory_format=layout)
        optimizer.step()
        reference.step(numpy(p.grad))
    assert_follows([p], {p: reference})


def test_offsets_past_2_to_the_31():
    """A block that starts at element 2^31, by an address that many elements before the tensor."""
    from sgdf.kernels import triton_filter as device

    (p,) = drawn([(EDGE,)])
    optimizer = SGDF([p], lr=0.1, fused=True)
    reference = Reference(optimizer, numpy(p))
    set_gradients([p], 0)
    optimizer.step()
    reference.step(numpy(p.grad))
    (plan,) = optimizer._plans.groups[id(parameters_of(optimizer))].plans
    (launch,) = plan.launches
    far = 2**31
    launch.table[device.NUMEL.value] += far
    launch.table[device.FIRST_BLOCK.value] -= far // EDGE
    for row in (device.PARAM.value, device.MOMENTS.value, device.MOMENTS.value + 1):
        launch.table[row] -= 4 * far
    launch.grad_table -= 4 * far
    optimizer.step()
    reference.step(numpy(p.grad))
    assert_follows([p], {p: reference})


# --- 8 bits and stochastic rounding -------------------------------------------------------------


@pytest.mark.parametrize("optimizer_class", [SGDF, FilterAdam])
@pytest.mark.parametrize(
    "shape", [(32, 128), (14, 300), *([(64, 512), (32, 16, 3, 3)] if ON_GPU else [])], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_8_bit_state_is_rounded_with_the_bits_of_rounding_py(dtype, shape, optimizer_class):
    parameters = drawn([shape, (5,)], dtype)
    optimizer = optimizer_class(
        parameters, state_dtype=torch.int8, stochastic_rounding=True, lr=0.01, fused=True
    )
    assert_steps_round_the_statement(optimizer, set_gradients, steps=3)
    large, small = (optimizer.state[p] for p in parameters)
    names = optimizer.moments_of(optimizer.param_groups[0])
    assert all(large[name].dtype in (torch.int8, torch.uint8) for name in names)
    assert small["exp_avg"].dtype == torch.float32


@each_form
def test_8_bit_state_of_every_form(optimizer_class, settings):
    """A program works on 16 blocks: what it keeps from one must not reach the next."""
    parameters = drawn([(16, 300), (5,)], torch.bfloat16)
    options = {"state_dtype": torch.int8, "stochastic_rounding": True, "rounding_seed": 7}
    options |= {"lr": 0.01, "weight_decay": 0.0, **settings}
    optimizer = optimizer_class(parameters, **options, fused=True)

    def growing(params, seed):
        set_gradients(params, seed)
        size = torch.logspace(-2, 2, 16, device=TRITON_DEVICE)
        params[0].grad *= size[:, None]  # the blocks' scales differ

    assert_steps_round_the_statement(optimizer, growing, steps=3)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.9, 0.81), (0.99, 0.9801), (0.5, 0.0)], ids=str)
def test_the_derived_second_moment_at_any_step(betas):
    """Its weights are computed on the device in float32, for b2 = b1^2 by a limit."""
    (p,) = drawn([(4000 if ON_GPU else 40,)])
    optimizer = FilterAdam([p], lr=1.0, betas=betas, second_moment="derived", fused=True)
    reference = Reference(optimizer, numpy(p))
    for t in (1, 2, 3, 10, 100, 5000, 10**6):
        if t > 1:
            optimizer.state[p]["step"].fill_(t - 1)
        reference.filter.t = t - 1
        before, expected = numpy(p), reference.p
        set_gradients([p], t)
        optimizer.step()
        reference.step(numpy(p.grad))
        ours, theirs = numpy(p) - before, reference.p - expected
        np.testing.assert_allclose(ours, theirs, rtol=3e-4, atol=1e-4, err_msg=str(t))


@pytest.mark.parametrize("optimizer_class", [SGDF, FilterAdam])
def test_stochastic_rounding_has_the_bits_of_rounding_py(optimizer_class):
    parameters = drawn([(300,), (5, 7)], torch.bfloat16)
    options = {"stochastic_rounding": True, "rounding_seed": 3, "fused": True}
    optimizer = optimizer_class(parameters, lr=1e-3, **options)
    assert_steps_round_the_statement(optimizer, set_gradients)


# --- what stays from step to step ---------------------------------------------------------------


@pytest.fixture
def built(monkeypatch):
    """How many tables of launches, and how many tables of gradients, were built."""
    count = {"launches": 0, "gradients": 0}
    original = Launch._to_device

    def counted(self, values):
        count["launches" if values.ndim == 2 else "gradients"] += values.dtype != np.int32
        return original(self, values)

    monkeypatch.setattr(Launch, "_to_device", counted)
    return count


@pytest.fixture(params=["in Python", "in C++"])
def detection(request, monkeypatch):
    """The two ways to tell whether a plan is still valid."""
    if request.param == "in Python":
        monkeypatch.setattr(plans, "_library", None)
    elif not plans.wait_until_compiled():
        pytest.skip("it cannot be compiled here")
    return request.param


def stepped(optimizer, fresh):
    """A step; `fresh` gradients have new addresses, others are written in place."""
    for p in parameters_of(optimizer):
        if fresh or p.grad is None:
            p.grad = torch.randn_like(p)
        else:
            p.grad.normal_()
    optimizer.step()


@pytest.mark.parametrize("optimizer_class", [*OPTIMIZERS, filtered_sgd])
def test_tables_are_made_once(optimizer_class, built, detection):
    flags = {} if optimizer_class is filtered_sgd else {"fused": True}
    optimizer = optimizer_class(drawn([(5,), (3, 4)]), **flags)
    for _ in range(5):
        stepped(optimizer, fresh=False)
    assert built == {"launches": 1, "gradients": 1}
    kept = []
    for _ in range(3):
        kept += [p.grad for p in parameters_of(optimizer)]  # so that no address comes back
        stepped(optimizer, fresh=True)
    assert built == {"launches": 1, "gradients": 4}


CHANGES = {
    "a parameter elsewhere": lambda p, o: setattr(p, "data", p.data.clone()),
    "a moment elsewhere": lambda p, o: o.state[p]["exp_avg"].set_(o.state[p]["exp_avg"].clone()),
    "another moment": lambda p, o: o.state[p].update(exp_var=o.state[p]["exp_var"] * 0 + 1),
    "another counter": lambda p, o: o.state[p].update(step=o.state[p]["step"].clone()),
    "no state": lambda p, o: o.state.clear(),
    "another state": lambda p, o: o.state.update({p: {}}),
    "a checkpoint": lambda p, o: o.load_state_dict(o.state_dict()),
    "another parameter": lambda p, o: o.param_groups[0]["params"].__setitem__(
        0, torch.ones(6, device=TRITON_DEVICE, requires_grad=True)
    ),
    "another list": lambda p, o: o.param_groups[0].update(params=o.param_groups[0]["params"][::-1]),
    "another seed": lambda p, o: o.param_groups[0].update(rounding_seed=1),
    "a smaller parameter": lambda p, o: (setattr(p, "grad", None), setattr(p, "data", p.data[:3])),
}


def loop_and_kernels(shapes):
    return [SGDF(drawn(shapes), **flags) for flags in ({"foreach": False}, {"fused": True})]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed(change, detection):
    """After it, the kernels still do what the loop does from the same situation."""
    optimizers = loop_and_kernels([(6,), (4,)])
    for optimizer in optimizers:
        for step in range(4):
            torch.manual_seed(step)
            if step == 2:
                p = parameters_of(optimizer)[0]
                CHANGES[change](p, optimizer)
                if change == "a smaller parameter":
                    for key in ("exp_avg", "exp_var"):
                        optimizer.state[p][key] = optimizer.state[p][key][:3].clone()
            stepped(optimizer, fresh=True)
    assert_near(*map(parameters_of, optimizers))
    steps = [[float(s["step"]) for s in optimizer.state.values()] for optimizer in optimizers]
    assert steps[0] == steps[1]


def test_gradients_that_come_and_go(built, detection):
    optimizers = loop_and_kernels([(6,), (4,), (2,)])
    for optimizer in optimizers:
        for step in range(9):
            torch.manual_seed(step)
            for i, p in enumerate(parameters_of(optimizer)):
                p.grad = None if step % 3 == i else torch.randn_like(p)
            optimizer.step()
    assert_near(*map(parameters_of, optimizers))
    assert built["launches"] == 3  # one for each set of gradients, kept


@pytest.mark.parametrize("optimizer_class", [SGDF, filtered_sgd])
def test_no_gradient_is_kept_after_its_step(optimizer_class, detection):
    """Otherwise two sets of gradients would be in memory at once."""
    parameters = drawn([(2, 3, 4, 5), (2, 2, 2, 2)])
    flags = {} if optimizer_class is filtered_sgd else {"fused": True}
    optimizer = optimizer_class(parameters, **flags)
    for layout in [torch.contiguous_format] * 2 + [torch.channels_last] * 2:
        for p in parameters:
            p.grad = torch.ones_like(p).to(memory_format=layout)
        optimizer.step()
        kept = [weakref.ref(p.grad) for p in parameters]
        optimizer.zero_grad()
        assert [reference() for reference in kept] == [None, None]


def test_a_changed_flag_changes_the_path():
    optimizer = SGDF(drawn([(6,)]), fused=True)
    stepped(optimizer, fresh=False)
    optimizer.param_groups[0].update(fused=False, foreach=True)
    stepped(optimizer, fresh=False)
    assert optimizer.implementation == "foreach"
    assert not optimizer._plans.groups


def on_device(value):
    return torch.tensor(value, device=TRITON_DEVICE)


@pytest.mark.parametrize(
    ("optimizer_class", "settings"), [*((cls, {}) for cls in OPTIMIZERS), *FORMS.values()]
)
def test_grad_scale_and_found_inf(optimizer_class, settings):
    """The scale is divided out inside; an infinity stops parameters, state and counters."""
    plain, scaled = drawn([(6,), (300,)]), drawn([(6,), (300,)])
    reference = optimizer_class(plain, fused=True, **settings)
    optimizer = optimizer_class(scaled, fused=True, **settings)
    for step in range(2):
        torch.manual_seed(step)
        stepped(reference, fresh=True)
        for p, q in zip(scaled, plain, strict=True):
            p.grad = 8 * q.grad
        optimizer.grad_scale, optimizer.found_inf = on_device([8.0]), on_device(0.0)
        optimizer.step()
        before = [t.clone() for p in scaled for t in (p, *optimizer.state[p].values())]
        optimizer.found_inf = on_device(1.0)
        scaled[0].grad[0] = torch.inf
        optimizer.step()
        after = [t for p in scaled for t in (p, *optimizer.state[p].values())]
        assert all(map(torch.equal, before, after))
    assert_near(scaled, plain)


# --- the filter in front of another optimizer -------------------------------------------------


FILTERS = [
    {},
    {"gain_scale": 1.0, "gain_power": 0.5, "bias_correction": False},
    {"gain_scale": 0.1, "gain_power": 0},
]


def layouts():
    """Parameters in every layout, the last of them for gradients laid out otherwise."""
    parameters = [
        *drawn([(4, 3), (EDGE + 1,), (), (0,)]),
        randn(40)[::3],
        randn(6, 4).t(),
        randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    ]
    return [p.detach().requires_grad_() for p in parameters]


@pytest.mark.parametrize("settings", FILTERS, ids=str)
def test_the_filter_follows_the_statement_in_place(settings):
    torch.manual_seed(0)
    parameters = layouts()
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    wiener = WienerFilter(optimizer, **settings)
    assert wiener._path(wiener._params()) == "cuda"
    references = [Reference(SGDF([p], **settings), numpy(p)) for p in parameters]
    for step in range(4):
        set_gradients(parameters, step)  # contiguous, so the last two are not as their parameters
        if step == 2:
            parameters[-1].grad = parameters[-1].grad.to(memory_format=torch.channels_last)
        given = [(p.grad, p.grad.data_ptr(), p.grad.stride()) for p in parameters]
        raw = [numpy(p.grad).copy() for p in parameters]
        optimizer.step()
        for p, g, reference, (grad, pointer, stride) in zip(
            parameters, raw, references, given, strict=True
        ):
            assert p.grad is grad
            assert (p.grad.data_ptr(), p.grad.stride()) == (pointer, stride)
            np.testing.assert_allclose(numpy(p.grad), reference.direction(g), **NEAR)
            assert wiener.state[p]["step"] == step + 1


@pytest.mark.parametrize("gain_power", [1.0, 0.0])
def test_8_bit_state_of_the_filter_is_that_of_sgdf(gain_power):
    """With the same bits: SGDF's is tested against rounding.py above."""
    shapes = [(14, 300), (5,), (32, 16, 3, 3)]
    ours, theirs = drawn(shapes), drawn(shapes)
    settings = {"gain_scale": 1.0, "gain_power": gain_power, "state_dtype": torch.int8}
    filtered = torch.optim.SGD(ours, lr=0.1)
    wiener = WienerFilter(filtered, **settings, rounding_seed=3)
    descent = SGDF(theirs, lr=0.1, **settings, rounding_seed=3, fused=True)
    for seed in range(2):
        set_gradients(ours, seed), set_gradients(theirs, seed)
        if seed == 1:
            ours[2].grad = ours[2].grad.to(memory_format=torch.channels_last)
        filtered.step(), descent.step()
    assert_near(ours, theirs)
    for p, q in zip(ours, theirs, strict=True):
        assert_bitwise(wiener.state[p], descent.state[q])


@pytest.mark.parametrize("settings", FILTERS[1:], ids=str)
def test_found_inf_stops_the_filter(settings):
    """Gradients, state and counters stay as they are, also of what the loop filters."""
    torch.manual_seed(0)
    parameters = layouts()
    optimizer = torch.optim.SGD(parameters, lr=0.0)
    wiener = WienerFilter(optimizer, **settings)
    for step in range(4):
        set_gradients(parameters, step)
        optimizer.found_inf = on_device(0.0)
        wiener.filter_gradients()
        before = [t.clone() for p in parameters for t in (p, *wiener.state[p].values())]
        set_gradients(parameters, step + 10)
        parameters[1].grad[7] = torch.inf
        raw = [p.grad.clone() for p in parameters]
        optimizer.found_inf = on_device(1.0)
        wiener.filter_gradients()
        after = [t for p in parameters for t in (p, *wiener.state[p].values())]
        assert all(map(torch.equal, before, after))
        assert all(torch.equal(p.grad, g) for p, g in zip(parameters, raw, strict=True))


def test_changes_around_the_filter_are_noticed(detection):
    """Gradients that come and go, a checkpoint, a group added later, a gradient of another dtype:
    the kernels do what foreach does."""

    def run(fused):
        parameters = drawn([(6,), (4,), (2,)])
        optimizer = torch.optim.SGD(parameters[:2], lr=0.1)
        wiener = WienerFilter(optimizer, gain_scale=1.0)
        if not fused:
            wiener._path = lambda params: "foreach"
        for step in range(9):
            torch.manual_seed(step)
            if step == 3:
                wiener.load_state_dict(wiener.state_dict())
            if step == 5:
                optimizer.add_param_group({"params": [parameters[2]]})
            if step == 7:
                parameters[0].data = parameters[0].data.clone()
                wiener.state[parameters[1]]["exp_avg"] = torch.ones_like(parameters[1])
            for i, p in enumerate(parameters):
                p.grad = None if step % 4 == i else torch.randn_like(p)
            optimizer.step()
        steps = [wiener.state[p]["step"].item() for p in parameters]
        return parameters, steps

    (ours, steps), (theirs, expected) = run(True), run(False)
    assert steps == expected
    assert_near(ours, theirs)


def test_momentum_has_no_counter_to_count():
    optimizer = Momentum(drawn([(6,)]), fused=True)
    stepped(optimizer, fresh=False)
    assert set(optimizer.state[parameters_of(optimizer)[0]]) == {"momentum_buffer"}


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_autograd_notices_that_a_parameter_has_changed(optimizer_class):
    (p,) = drawn([(5,)])
    optimizer = optimizer_class([p], fused=True)
    loss = p.square().sum()
    set_gradients([p], 0)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_autograd_notices_that_a_gradient_has_changed():
    (p,) = drawn([(5,)])
    set_gradients([p], 0)
    wiener = WienerFilter(torch.optim.SGD([p]))
    before = p.grad._version
    wiener.filter_gradients()
    assert p.grad._version > before
