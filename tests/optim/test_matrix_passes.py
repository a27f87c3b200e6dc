"""The compiled passes of a matrix step on a CPU and who takes them; symmetric products."""

import contextlib
import math

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from sgdf import FilterMuon, FilterSOAP
from sgdf.kernels import cpu, exchange
from sgdf.kernels import matrix as kernel

FORMS = {
    "muon": (FilterMuon, {}),
    "muon, one average": (FilterMuon, {"slow_weight": 0.0, "bias_correction": False}),
    "muon, up": (FilterMuon, {"maximize": True, "weight_decay": 0.0}),
    "muon, K": (FilterMuon, {"gain_scale": 2.0, "gain_power": 1.0}),
    "muon, eigenbasis": (FilterMuon, {"eigenbasis": True, "basis_interval": 2}),
    "soap": (FilterSOAP, {"basis_interval": 2}),
    "soap, K": (FilterSOAP, {"gain_scale": 2.0, "gain_power": 1.0}),
}
BY_FORM = pytest.mark.parametrize("form", FORMS)
UNIT = 2.0**-24  # half a unit in the last place of float32, at 1

compiled = pytest.mark.skipif(cpu.library() is None, reason="no compiler")


@pytest.fixture
def calls(monkeypatch):
    """How often each pass was taken."""
    counts = dict.fromkeys(("average", "descend"), 0)

    def counted(name):
        function = getattr(cpu, name)

        def call(*args):
            counts[name] += 1
            function(*args)

        return call

    for name in counts:
        monkeypatch.setattr(cpu, name, counted(name))
    return counts


def noise(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def run(optimizer, params, steps=4, change=lambda g: g, first=0):
    for k in range(first, first + steps):
        for i, p in enumerate(params):
            g = noise(*p.shape, seed=100 * k + i).to(p.device, p.dtype)
            p.grad = change(0.3 + g)
        optimizer.step()


def parameters(count=2, shape=(12, 20), dtype=torch.float32):
    return [noise(*shape, seed=k, dtype=dtype).requires_grad_() for k in range(count)]


# --- the passes ---------------------------------------------------------------------------------


@compiled
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("with_slow", [True, False])
@pytest.mark.parametrize("with_basis", [True, False])
@pytest.mark.parametrize("size", [1, 1023, 1025, 70_000])
def test_averages_in_one_pass(size, with_basis, with_slow, threads):
    g, m, slow = (noise(size, seed=k) for k in range(3))
    special = torch.tensor([math.nan, math.inf, -math.inf, 1e30, -1e30, 0.0])[:size]
    g[: len(special)] = special
    beta, slow_beta, weight, largest, sign, trend, gain = 0.85, 0.98, 0.56, 1e15, -1.0, 0.3, 0.1
    x = sign * g.double().clamp(-largest, largest)
    wanted_m = m.double() + (1 - beta) * (x - m)
    wanted_slow = slow.double() + (1 - slow_beta) * (x - slow)
    mean = (1 - weight) * wanted_m + weight * wanted_slow if with_slow else wanted_m
    wanted = mean if with_basis else mean / trend + gain * (x - mean / trend)
    out, clipped = torch.full_like(g, 7.0), torch.full_like(g, 7.0) if with_basis else None
    numbers = (beta, slow_beta, weight, largest, sign, trend, gain)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        cpu.average(g, m, slow if with_slow else None, clipped, out, numbers)
    finally:
        torch.set_num_threads(before)
    scale = 1 + x.abs() + mean.abs() / trend  # of the terms that are summed
    pairs = [(m, wanted_m), (out, wanted)]
    pairs += [(slow, wanted_slow)] if with_slow else []
    pairs += [(clipped, x)] if with_basis else []
    for found, exact in pairs:
        assert torch.equal(found.isnan(), g.isnan())
        assert not ((found - exact).abs() > 32 * UNIT * scale).any()
    assert found.isfinite().sum() >= size - 1


@compiled
@pytest.mark.parametrize("size", [1, 1025, 70_000])
def test_the_descent_is_that_of_torch(size):
    p, update = noise(size), noise(size, seed=1)
    wanted = p.double() * (1 - 0.1) - 0.02 * update.double()
    version = p._version
    cpu.descend(p, update, 1 - 0.1, 0.02)
    torch.testing.assert_close(p.double(), wanted, rtol=0, atol=16 * UNIT)
    assert p._version > version


@compiled
@BY_FORM
def test_with_and_without_the_passes_a_step_is_the_same(form, calls, monkeypatch):
    cls, options = FORMS[form]
    ends = []
    for allowed in (True, False):
        if not allowed:
            monkeypatch.setattr(cpu, "suits_passes", lambda _: False)
        params = parameters()
        optimizer = cls(params, lr=0.02, **options)
        run(optimizer, params)
        moments = [optimizer.state[p][key] for p in params for key in sorted(optimizer.state[p])
                   if key.startswith("exp_avg") and key != "exp_avg_sq"]  # fmt: skip
        ends.append([*moments, *(p.detach() for p in params)])
    with_basis, steps = "exp_avg_sq" in optimizer.state[params[0]], 4
    taken = 2 * (steps - with_basis)  # the first gradient only builds the basis
    assert calls["descend"] == taken
    assert calls["average"] == (0 if form == "muon, K" else taken)
    count = len(moments)
    torch.testing.assert_close(ends[0][:count], ends[1][:count], rtol=1e-6, atol=1e-6)
    for found, wanted, before in zip(ends[0][count:], ends[1][count:], parameters(), strict=True):
        assert (found - wanted).norm() < 0.05 * (wanted - before).norm()


@compiled
@settings(max_examples=30, deadline=None)
@given(
    form=st.sampled_from(sorted(FORMS)),
    shape=st.sampled_from([(1, 7), (7, 1), (1, 1), (5, 9), (9, 5), (6, 6), (3, 2, 2), (2, 600)]),
    special=st.sampled_from([0.0, math.inf, -math.inf, 1e38, 1e-40, math.nan]),
    seed=st.integers(0, 10**6),
)
def test_neither_changes_what_odd_gradients_do(form, shape, special, seed):
    """The clipped gradients and averages are those of torch's functions."""
    cls, options = FORMS[form]

    def change(g):
        g.view(-1)[seed % g.numel()] = special
        return g

    averages = []
    for allowed in (True, False):
        with contextlib.ExitStack() as stack:
            if not allowed:
                patch = stack.enter_context(pytest.MonkeyPatch.context())
                patch.setattr(cpu, "suits_passes", lambda _: False)
            params = parameters(1, shape)
            optimizer = cls(params, lr=0.02, **options)
            run(optimizer, params, 3, change, first=seed)
        averages.append(optimizer.state[params[0]]["exp_avg"])
        assert math.isnan(special) or params[0].isfinite().all()
    largest = averages[1].nan_to_num().abs().max().item()
    torch.testing.assert_close(*averages, rtol=1e-6, atol=1e-6 * min(1, largest), equal_nan=True)


# --- who takes them -----------------------------------------------------------------------------

WITHOUT = {
    "float64": {"dtype": torch.float64},
    "bfloat16": {"dtype": torch.bfloat16},
    "state in bfloat16": {"state_dtype": torch.bfloat16},
    "state in 8 bits": {"state_dtype": torch.int8},
    "counters on the device": {"capturable": True},
    "transposed gradients": {"change": lambda g: g.mT.contiguous().mT},
    "a transposed parameter": {"transposed": True},
}


@compiled
@pytest.mark.parametrize("kind", WITHOUT)
def test_what_is_not_plain_float32_is_left_to_torch(kind, calls):
    options = dict(WITHOUT[kind])
    dtype, change = options.pop("dtype", torch.float32), options.pop("change", lambda g: g)
    transposed = options.pop("transposed", False)
    params = parameters(2, (64, 128), dtype)
    if transposed:
        params = [p.detach().mT.contiguous().mT.requires_grad_() for p in params]
    plain = parameters(2, (64, 128), torch.float64)
    start = [p.detach().clone() for p in plain]
    optimizer = FilterMuon(params, lr=0.02, **options)
    run(optimizer, params, change=change)
    assert calls["average"] == 0
    assert calls["descend"] == (0 if kind in ("float64", "bfloat16", "a transposed parameter")
                                else 8)  # fmt: skip
    run(FilterMuon(plain, lr=0.02), plain)
    for p, q, before in zip(params, plain, start, strict=True):
        # Newton-Schulz may be in bfloat16, and parameters in it are rounded at every step.
        assert (p.double() - q).norm() < (0.4 if dtype is torch.bfloat16 else 0.15) * (
            q - before
        ).norm()


def test_without_a_compiler_it_is_left_to_torch(calls, monkeypatch):
    monkeypatch.setattr(cpu, "library", lambda: None)
    params = parameters()
    run(FilterMuon(params, lr=0.02), params)
    assert calls == {"average": 0, "descend": 0}


@compiled
@BY_FORM
def test_a_compiled_step_takes_the_same_passes(form, calls):
    cls, options = FORMS[form]
    ends, counts = [], []
    for compile_ in (False, True):
        calls.update(average=0, descend=0)
        params = parameters(1)
        optimizer = cls(params, lr=0.02, **options)
        step = torch.compile(optimizer.step, backend="eager") if compile_ else optimizer.step
        for k in range(3):
            params[0].grad = noise(12, 20, seed=k)
            step()
        ends.append(params[0].detach())
        counts.append(dict(calls))
    assert torch.equal(*ends)
    assert counts[0] == counts[1]


@compiled
def test_a_backward_pass_notices_that_parameters_have_changed():
    (p,) = parameters(1)
    loss = (p * p).sum()
    optimizer = FilterMuon([p])
    run(optimizer, [p], 1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@BY_FORM
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_fake_tensors(form, device, recwarn):
    """Their shapes take the steps, of a basis also its refresh; no kernel asks for addresses."""
    cls, options = FORMS[form]
    kernel.onednn_keeps_float32.cache_clear()  # its products are not to be fake
    with FakeTensorMode():
        params = [torch.ones(128, 64, device=device, requires_grad=True)]
        optimizer = cls(params, lr=0.1, **options)
        for _ in range(4):
            params[0].grad = torch.ones_like(params[0])
            optimizer.step()
    state = optimizer.state[params[0]]
    assert float(state["step"]) == 4 - ("basis_step" in state)
    assert float(state.get("basis_step", 4)) == 4
    assert state["exp_avg"].shape == (128, 64)
    assert not [w for w in recwarn if "data pointer" in str(w.message)]


@BY_FORM
def test_meta_tensors(form):
    cls, options = FORMS[form]
    params = [torch.ones(16, 8, device="meta", requires_grad=True)]
    optimizer = cls(params, lr=0.1, **options)
    for _ in range(3):
        params[0].grad = torch.ones_like(params[0])
        optimizer.step()
    assert optimizer.state[params[0]]["exp_avg"].is_meta


UNFIT = {
    "on another device": lambda t: t.to("meta"),
    "too small": lambda t: t[:1].clone(),
    "of another shape": lambda t: t.flatten(),
}


@pytest.mark.parametrize("unfit", UNFIT)
@pytest.mark.parametrize("options", [{}, {"state_dtype": torch.int8}])
@BY_FORM
def test_a_state_that_does_not_fit_changes_nothing(form, options, unfit):
    """A kernel that works with addresses would write where others have their numbers."""
    cls, form_options = FORMS[form]
    params = parameters(2, (64, 128))
    optimizer = cls(params, lr=0.1, **form_options, **options)
    run(optimizer, params, 2)
    before = [p.detach().clone() for p in params]
    state = optimizer.state[params[1]]
    for key in optimizer.moments_of(optimizer.param_groups[0]):
        kept = state[key]
        state[key] = UNFIT[unfit](kept)
        with pytest.raises(RuntimeError, match=r"shape \(64, 128\) on cpu .* found a moment of"):
            optimizer.step()
        state[key] = kept
    assert all(map(torch.equal, before, params))
    optimizer.step()


def test_a_parameter_that_has_grown_is_refused():
    (p,) = parameters(1, (4, 8))
    optimizer = FilterMuon([p])
    run(optimizer, [p], 1)
    p.data = noise(400, 800)
    with pytest.raises(RuntimeError, match="found a moment of shape"):
        run(optimizer, [p], 1)


# --- symmetric products -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("side", [1, 3, 4, 5, 8, 9, 30])
def test_a_symmetric_product_by_blocks(side, dtype, monkeypatch):
    monkeypatch.setattr(kernel, "BLOCK", 4)
    x, seen = noise(side, 7, dtype=dtype), noise(side, side, seed=1, dtype=dtype)
    seen = (seen + seen.mT) / 2
    tolerance = {torch.bfloat16: 0.05, torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    fresh = torch.full_like(seen, math.nan)  # as memory that is not initialised
    kernel.symmetric_product(x, x.mT, fresh)
    wanted = x.double() @ x.double().mT
    torch.testing.assert_close(fresh.double(), wanted, rtol=tolerance, atol=10 * tolerance)
    out = seen.clone()
    kernel.symmetric_product(x, x.mT, out, beta=0.9, alpha=0.1)
    wanted = 0.9 * seen.double() + 0.1 * wanted
    torch.testing.assert_close(out.double(), wanted, rtol=tolerance, atol=10 * tolerance)


def test_nan_in_a_symmetric_product_stays_in_its_row_and_column(monkeypatch):
    monkeypatch.setattr(kernel, "BLOCK", 4)
    x = noise(11, 6)
    x[9, 2] = math.nan
    out = torch.empty(11, 11)
    kernel.symmetric_product(x, x.mT, out)
    expected = torch.zeros(11, 11, dtype=torch.bool)
    expected[9], expected[:, 9] = True, True
    assert torch.equal(out.isnan(), expected)


@pytest.mark.parametrize("shape", [(3, 20, 12), (2, 12, 20), (1, 16, 16)])
def test_factors_by_blocks(shape, monkeypatch):
    x = noise(*shape, dtype=torch.float64)
    ends = []
    for block in (5, 1000):
        monkeypatch.setattr(kernel, "BLOCK", block)
        params = [one.clone().requires_grad_() for one in x]
        optimizer = FilterSOAP(params, lr=0.01, basis_interval=2)
        run(optimizer, params, 5)
        ends.append([optimizer.state[p][f"factor_{side}"] for p in params
                     for side in ("left", "right")])  # fmt: skip
    torch.testing.assert_close(*ends)


# --- what is exchanged --------------------------------------------------------------------------


@pytest.fixture
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture
def sent(monkeypatch):
    """How many numbers each exchange sends."""
    counts, exchange_ = [], dist.all_to_all_single

    def counted(received, out, *args, **options):
        counts.append(out.numel())
        return exchange_(received, out, *args, **options)

    monkeypatch.setattr(exchange.dist, "all_to_all_single", counted)
    return counts


@BY_FORM
@pytest.mark.parametrize("sharded", [False, True])
def test_a_team_of_one_takes_the_steps_of_none(form, sharded, one_process, sent):
    """In float32 to the last bit; without a basis only the estimate goes to the owner."""
    cls, options = FORMS[form]
    plain, shared = parameters(), parameters()
    alone = cls(plain, lr=0.02, **options)
    if sharded:
        mesh = init_device_mesh("cpu", (1,))
        shared = [distribute_tensor(p.detach(), mesh, [Shard(0)]).requires_grad_() for p in shared]
        team = cls(shared, lr=0.02, **options)
    else:
        team = cls(shared, lr=0.02, process_group=one_process, **options)
    for k in range(4):
        for i, (p, q) in enumerate(zip(plain, shared, strict=True)):
            p.grad = noise(12, 20, seed=10 * k + i)
            q.grad = distribute_tensor(p.grad, mesh, [Shard(0)]) if sharded else p.grad.clone()
        alone.step()
        sent.clear()
        team.step()
        entries, with_basis = 2 * 12 * 20, "eigen" in form or "soap" in form
        parts = 1 if k == 0 or not with_basis else 2
        to_owners = [parts * entries] if sharded else []
        back = [] if k == 0 and with_basis else [entries]
        assert sent == to_owners + back
    for p, q in zip(plain, shared, strict=True):
        assert torch.equal(p.detach(), (q.full_tensor() if sharded else q).detach())


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 3)])
def test_the_number_of_threads_changes_no_average(first, second):
    found = []
    before = torch.get_num_threads()
    for threads in (first, second):
        torch.set_num_threads(threads)
        try:
            params = parameters(1, (300, 200))
            optimizer = FilterMuon(params, lr=0.02)
            run(optimizer, params, 2)
        finally:
            torch.set_num_threads(before)
        found.append(optimizer.state[params[0]]["exp_avg_slow"])
    assert torch.equal(*found)
