"""The forms that keep fewer moments: what is kept, how many bytes it takes, and that it resumes."""

import copy

import pytest
import torch

from sgdf import SGDF, FilterAdam, FilterAdamW, WienerFilter
from stepping import PATHS, advance, assert_bitwise, each_path, set_gradients, through_a_file

CONSTANT = {"gain_power": 0, "gain_scale": 0.1}
KEPT = [
    (SGDF, {}, {"exp_avg", "exp_var"}),
    (SGDF, CONSTANT, {"exp_avg"}),
    (FilterAdam, {}, {"exp_avg", "exp_var", "exp_avg_sq"}),
    (FilterAdam, CONSTANT, {"exp_avg", "exp_avg_sq"}),
    (FilterAdamW, {"second_moment": "derived"}, {"exp_avg", "exp_var"}),
    (FilterAdamW, {"second_moment": "derived", **CONSTANT}, {"exp_avg", "exp_var"}),
    (FilterAdam, {"second_moment": "fluctuation"}, {"exp_avg", "exp_var"}),
]


def large(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(64, 512, generator=generator).to(dtype).requires_grad_()


def bytes_per_element(state, p):
    kept = (t for key, t in state.items() if key not in ("step", "memory_order"))
    return sum(t.nbytes for t in kept) / p.numel()


@each_path
@pytest.mark.parametrize(("optimizer_class", "settings", "kept"), KEPT)
def test_what_is_kept_and_how_many_bytes_it_takes(optimizer_class, settings, kept, path):
    """4 bytes per parameter and moment; in 8 bits 1, and 4 for the scale of 256."""
    p = large()
    optimizer = optimizer_class([p], **settings, **PATHS[path])
    advance(optimizer, 2)
    assert set(optimizer.state[p]) == {"step", *kept}
    assert bytes_per_element(optimizer.state[p], p) == 4 * len(kept)
    if path == "foreach":
        return
    small = torch.ones(7, requires_grad=True)
    optimizer = optimizer_class([p, small], **settings, **PATHS[path], state_dtype=torch.int8)
    advance(optimizer, 2)
    assert optimizer.state[small]["exp_avg"].dtype == torch.float32
    scales = {f"{key}_scale" for key in kept}
    assert set(optimizer.state[p]) == {"step", "memory_order", *kept, *scales}
    exact = len(kept) * (1 + 4 / 256)  # 2.03 for two
    assert bytes_per_element(optimizer.state[p], p) == exact


def test_groups_may_have_different_forms():
    forms = [
        {},
        {"second_moment": "derived"},
        {"second_moment": "fluctuation", "gain_eps": 1e-6},
        {"gain_power": 0, "gain_scale": 0.1, "bias_correction": False},
    ]
    together, apart = [large() for _ in forms], [large() for _ in forms]
    joint = FilterAdam([{"params": [p], **form} for p, form in zip(together, forms, strict=True)])
    single = [FilterAdam([p], **form) for p, form in zip(apart, forms, strict=True)]
    for seed in range(3):
        set_gradients(together, seed), set_gradients(apart, seed)
        joint.step()
        for optimizer in single:
            optimizer.step()
    for p, q, optimizer in zip(together, apart, single, strict=True):
        assert torch.equal(p, q)
        assert set(joint.state[p]) == set(optimizer.state[q])


def test_a_constant_gain_can_become_the_filters_and_back():
    """The variance starts at 0 when it is first needed, and is kept."""
    p = large()
    optimizer = SGDF([p], gain_power=0, gain_scale=0.1)
    advance(optimizer, 2)
    optimizer.param_groups[0].update(gain_power=1.0, gain_scale=1.0)
    advance(optimizer, 2, first=2)
    assert optimizer.state[p]["exp_var"].any()
    before = optimizer.state[p]["exp_var"].clone()
    optimizer.param_groups[0].update(gain_power=0.0, gain_scale=0.1)
    advance(optimizer, 1, first=4)
    assert torch.equal(optimizer.state[p]["exp_var"], before)
    assert p.isfinite().all()


# --- the filter in front of another optimizer -----------------------------------------------------


@pytest.mark.parametrize("gain_power", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_the_fused_filter_equals_the_others_in_place(dtype, gain_power):
    """Fused, loop and foreach within rounding; the gradient's memory is the one that is written."""
    settings = {"gain_power": gain_power, "gain_scale": 1.0}
    results = {}
    for path in ("cpu", "foreach", "loop"):
        params = [large(dtype), torch.ones(7, dtype=dtype, requires_grad=True)]
        params.append(torch.ones(6, 4, dtype=dtype).t().detach().requires_grad_())
        optimizer = torch.optim.SGD(params, lr=0.1)
        wiener = WienerFilter(optimizer, fused=None if path == "cpu" else False, **settings)
        wiener._path = lambda params, path=path: path
        for seed in range(4):
            generator = torch.Generator().manual_seed(seed)
            for p in params:
                p.grad = torch.empty_like(p).copy_(torch.randn(p.shape, generator=generator))
            addresses = [p.grad.data_ptr() for p in params]
            optimizer.step()
            assert [p.grad.data_ptr() for p in params] == addresses
        results[path] = [(p.grad.clone(), *wiener.state[p].values()) for p in params]
    unit = 4 * torch.finfo(dtype).eps
    for path in ("foreach", "loop"):
        for a, b in zip(results["cpu"], results[path], strict=True):
            torch.testing.assert_close(a[0], b[0], rtol=unit, atol=unit)
            torch.testing.assert_close(a[1:], b[1:], rtol=1e-5, atol=1e-6)


def test_the_fused_path_is_the_default_of_the_filter():
    wiener = WienerFilter(torch.optim.SGD([large()], lr=0.1))
    assert wiener._path(wiener._params()) == "cpu"
    plain = WienerFilter(torch.optim.SGD([large()], lr=0.1), fused=False)
    assert plain._path(plain._params()) == "foreach"
    plain.state_dtype = torch.int8
    assert plain._path(plain._params()) == "loop"


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("gain_power", [1.0, 0.0])
@pytest.mark.parametrize(("state_dtype", "size"), [(torch.int8, 1 + 4 / 256), (torch.bfloat16, 2)])
def test_the_filters_state_in_few_bits(state_dtype, size, gain_power, fused):
    p = large()
    optimizer = torch.optim.SGD([p], lr=0.1)
    wiener = WienerFilter(optimizer, gain_power=gain_power, fused=fused, state_dtype=state_dtype)
    advance(optimizer, 1)
    assert ("exp_var" in wiener.state[p]) == (gain_power != 0)
    assert bytes_per_element(wiener.state[p], p) == size * (2 if gain_power else 1)


def test_the_filters_checkpoint_converts_between_formats():
    p = large()
    optimizer = torch.optim.SGD([p], lr=0.0)
    eight = WienerFilter(optimizer, state_dtype=torch.int8)
    advance(optimizer, 3)
    wide = WienerFilter(torch.optim.SGD([p], lr=0.0))
    wide.load_state_dict(through_a_file(eight.state_dict()))
    assert set(wide.state[p]) == {"step", "exp_avg", "exp_var"}
    back = WienerFilter(torch.optim.SGD([p], lr=0.0), state_dtype=torch.int8)
    back.load_state_dict(through_a_file(wide.state_dict()))
    for key in ("exp_avg", "exp_var"):
        apart = (back.state[p][key].int() - eight.state[p][key].int()).abs().max()
        assert apart <= 1  # a level lies on the border between two codes
    assert back.state[p]["step"] == 3


def test_an_older_checkpoint_of_the_filter_is_read():
    """It has no bias_correction among its settings."""
    p = large()
    optimizer = torch.optim.SGD([p], lr=0.1)
    wiener = WienerFilter(optimizer, gain_scale=1.0)
    advance(optimizer, 2)
    old = copy.deepcopy(wiener.state_dict())
    del old["settings"]["bias_correction"]
    loaded = WienerFilter(torch.optim.SGD([p], lr=0.1))
    loaded.load_state_dict(through_a_file(old))
    assert loaded.settings == wiener.settings


@pytest.mark.parametrize("fused", [None, False])
def test_a_gradient_laid_out_otherwise_than_its_parameter(fused):
    """The moments are laid out like the parameter; the estimate ends up where the gradient is."""
    settings = {"gain_scale": 1.0, "fused": fused, "state_dtype": torch.int8}
    shape, outcomes = (32, 16, 3, 3), []
    for layout in (torch.channels_last, torch.contiguous_format):
        generator = torch.Generator().manual_seed(0)
        p = torch.randn(shape, generator=generator).to(memory_format=torch.channels_last)
        p, first = p.requires_grad_(), torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([first, p], lr=0.1)
        wiener = WienerFilter(optimizer, **settings)
        for _ in range(3):
            first.grad = torch.ones(3)
            g = torch.randn(shape, generator=generator)
            p.grad = g.to(memory_format=layout)
            before = p.grad
            optimizer.step()
            assert p.grad is before
            assert p.grad.is_contiguous(memory_format=layout)
        assert wiener.state[p]["exp_avg"].is_contiguous(memory_format=torch.channels_last)
        outcomes.append(p.detach())
    assert torch.equal(*outcomes)


def test_gradients_that_come_and_go_and_groups_added_later():
    """Each parameter has its own counter, so its state is that of an optimizer of its own."""
    together, apart = [large() for _ in range(3)], [large() for _ in range(3)]
    optimizer = torch.optim.SGD(together[:2], lr=0.1)
    WienerFilter(optimizer, gain_scale=1.0)
    single = [torch.optim.SGD([p], lr=0.1) for p in apart]
    for other in single:
        WienerFilter(other, gain_scale=1.0)
    for step in range(6):
        if step == 2:
            optimizer.add_param_group({"params": [together[2]]})
        for i, (p, q) in enumerate(zip(together, apart, strict=True)):
            present = step % 3 != i and (i < 2 or step >= 2)
            generator = torch.Generator().manual_seed(10 * step + i)
            p.grad = torch.randn(p.shape, generator=generator) if present else None
            q.grad = p.grad.clone() if present else None
        optimizer.step()
        for other in single:
            other.step()
    assert_bitwise(together, apart)
