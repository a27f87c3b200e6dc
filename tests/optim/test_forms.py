"""The forms that keep fewer moments: what is kept, how many bytes it takes, and that it resumes."""

import copy
import warnings

import pytest
import torch

from reference import FORMS
from sgdf import SGDF, FilterAdam, FilterAdamW, WienerFilter
from stepping import PATHS, advance, each_path, through_a_file

ALL = {"SGDF": (SGDF, {}), "FilterAdam": (FilterAdam, {}), **FORMS}
each_form = pytest.mark.parametrize(("optimizer_class", "settings"), ALL.values(), ids=ALL)

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


@pytest.mark.parametrize("state_dtype", [None, torch.bfloat16, torch.int8], ids=str)
@each_path
@each_form
def test_a_checkpoint_resumes_exactly(optimizer_class, settings, path, state_dtype):
    if path == "foreach" and state_dtype == torch.int8:
        path = "loop"  # foreach has no 8-bit state
    options = {"lr": 0.01, "state_dtype": state_dtype, **settings, **PATHS[path]}
    params = [large(torch.bfloat16), torch.ones(7, requires_grad=True)]
    optimizer = optimizer_class(params, **options)
    advance(optimizer, 3)
    twins = [p.detach().clone().requires_grad_() for p in params]
    loaded = optimizer_class(twins, **options)
    loaded.load_state_dict(through_a_file(optimizer.state_dict()))
    advance(optimizer, 3, first=3), advance(loaded, 3, first=3)
    for p, q in zip(params, twins, strict=True):
        assert torch.equal(p, q)
        for key, value in optimizer.state[p].items():
            assert torch.equal(value, loaded.state[q][key]), key
            assert value.dtype == loaded.state[q][key].dtype


def test_a_checkpoint_of_an_older_version_is_of_the_papers_form():
    p, q = large(), large()
    optimizer = FilterAdam([p])
    advance(optimizer, 2)
    old = through_a_file(optimizer.state_dict())
    for group in old["param_groups"]:
        for name in ("second_moment", "gain_eps", "bias_correction"):
            del group[name]
    revived = FilterAdam([q])
    with torch.no_grad():
        q.copy_(p)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        revived.load_state_dict(old)
    group = revived.param_groups[0]
    found = (group["second_moment"], group["gain_eps"], group["bias_correction"])
    assert found == ("separate", None, True)
    advance(optimizer, 2, first=2), advance(revived, 2, first=2)
    assert torch.equal(p, q)


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
        for p, q in zip(together, apart, strict=True):
            generator = torch.Generator().manual_seed(seed)
            p.grad = torch.randn(p.shape, generator=generator)
            q.grad = p.grad.clone()
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
@pytest.mark.parametrize("state_dtype", [torch.int8, torch.bfloat16], ids=str)
def test_the_filters_state_in_few_bits_resumes_exactly(state_dtype, gain_power, fused):
    options = {"gain_power": gain_power, "gain_scale": 1.0, "fused": fused}
    options |= {"state_dtype": state_dtype, "rounding_seed": 5}
    params = [large(), torch.ones(7, requires_grad=True)]
    optimizer = torch.optim.SGD(params, lr=0.1)
    wiener = WienerFilter(optimizer, **options)
    advance(optimizer, 3)
    state, moments = wiener.state[params[0]], 2 if gain_power else 1
    size = 1 + 4 / 256 if state_dtype == torch.int8 else 2
    assert bytes_per_element(state, params[0]) == size * moments
    assert ("exp_var" in state) == (gain_power != 0)

    twins = [p.detach().clone().requires_grad_() for p in params]
    other = torch.optim.SGD(twins, lr=0.1)
    loaded = WienerFilter(other, **options)
    loaded.load_state_dict(through_a_file(wiener.state_dict()))
    advance(optimizer, 3, first=3), advance(other, 3, first=3)
    for p, q in zip(params, twins, strict=True):
        assert torch.equal(p, q)
        for key, value in wiener.state[p].items():
            assert torch.equal(value, loaded.state[q][key]), key


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
    for p, q in zip(together, apart, strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("fused", [None, False])
def test_a_sparse_gradient_is_refused_before_a_dense_one_is_filtered(fused):
    dense, sparse = large(), torch.ones(2, 2, requires_grad=True)
    dense.grad, sparse.grad = torch.ones_like(dense), torch.eye(2).to_sparse()
    optimizer = torch.optim.SGD([dense, sparse], lr=0.1)
    wiener = WienerFilter(optimizer, fused=fused, gain_power=0, gain_scale=0.5)
    with pytest.raises(RuntimeError, match="WienerFilter does not support sparse gradients"):
        optimizer.step()
    assert torch.equal(dense.grad, torch.ones_like(dense))
    assert wiener.state[dense]["step"] == 0
