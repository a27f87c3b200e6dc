"""FilterMuon and FilterSOAP: the float64 rule, torch's Muon, SOAP, a whole network, its state."""

import itertools
import math
import warnings
from copy import deepcopy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import sgdf
from sgdf import FilterAdamW, FilterMuon, FilterSOAP
from sgdf.filter import FLOAT64
from sgdf.kernels import matrix as kernel
from sgdf.matrix import direction, refreshed, start, with_first_gradient
from sgdf.optim import read_moment

F64 = torch.float64
#: One of each form: constant gain and K, one average and two, with and without basis.
FORMS = {
    "muon": (FilterMuon, {}),
    "muon, one average": (FilterMuon, {"slow_weight": 0.0, "bias_correction": False}),
    "muon, K": (FilterMuon, {"gain_scale": 2.0, "gain_power": 1.0}),
    "muon, eigenbasis": (FilterMuon, {"eigenbasis": True}),
    "muon, eigenbasis, K": (
        FilterMuon,
        {"eigenbasis": True, "gain_scale": 2.0, "gain_power": 0.5, "turn_moments": False},
    ),
    "muon, one side": (FilterMuon, {"eigenbasis": True, "max_basis_dim": 6}),
    "muon, original": (FilterMuon, {"adjust_lr_fn": "original", "maximize": True}),
    "soap": (FilterSOAP, {}),
    "soap, K": (FilterSOAP, {"gain_scale": 2.0, "gain_power": 1.0, "betas": (0.9, 0.99)}),
}
BY_FORM = pytest.mark.parametrize("form", FORMS)


def gradients(shape, count, seed=0, dtype=F64, drift=0.3):
    generator = torch.Generator().manual_seed(seed)
    fixed = drift * torch.randn(shape, generator=generator, dtype=F64)
    return [
        (fixed + torch.randn(shape, generator=generator, dtype=F64)).to(dtype) for _ in range(count)
    ]


def parameter(shape, seed=1, dtype=F64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=F64).to(dtype).requires_grad_()


def run(optimizer, steps):
    """Take steps with the gradients of each parameter, given as a list per step."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for grads in steps:
        for p, g in zip(params, grads, strict=True):
            p.grad = None if g is None else g.clone()
        optimizer.step()


def by_the_rule(p, grads, optimizer, turn=0):
    """The parameter after these gradients by the functions of `sgdf.matrix`.

    As a batch of one: the eigenvectors of a first factor that is not of full rank are any of many,
    and the same bits have to choose them.
    """
    group = optimizer.param_groups[0]
    rule, lr = optimizer.matrix_settings(group), group["lr"]
    sign = -1 if group["maximize"] else 1
    p, grads = p.detach()[None], [g[None] for g in grads]
    state, t = start(torch.zeros_like(p), rule, torch), 0
    for k, g in enumerate(grads):
        g = sign * g
        if k == 0 and rule.eigenbasis:
            state = with_first_gradient(g, state, rule, FLOAT64, torch)
            continue
        t += 1
        update, state = direction(g, state, t, rule, xp=torch)
        p = p * (1 - lr * group["weight_decay"]) - lr * update
        if rule.eigenbasis and (t + turn) % group["basis_interval"] == 0:
            state = refreshed(state, rule, FLOAT64, torch)
    return p[0], state


@BY_FORM
@pytest.mark.parametrize("shape", [(5, 8), (8, 5), (6, 6)])
def test_the_optimizer_is_the_rule(form, shape):
    cls, options = FORMS[form]
    grads, p = gradients(shape, 12), parameter(shape)
    optimizer = cls([p], lr=0.02, weight_decay=0.1, basis_interval=3, **options)
    wanted, state = by_the_rule(p, grads, optimizer)
    run(optimizer, [[g] for g in grads])
    torch.testing.assert_close(p.detach(), wanted, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(optimizer.state[p]["exp_avg"], state.m[0])
    for key, value in (("exp_avg_slow", state.slow), ("exp_var", state.s), ("exp_avg_sq", state.v)):
        assert (key in optimizer.state[p]) == (value is not None)
        if value is not None:
            found = optimizer.state[p][key]
            torch.testing.assert_close(found, value[0], rtol=1e-7, atol=1e-11)


@BY_FORM
def test_matrices_of_one_shape_together_are_those_one_by_one(form, monkeypatch):
    cls, options = FORMS[form]
    monkeypatch.setattr(kernel, "SMALL_CHUNK", 100)  # two of 40 entries at a time
    together = [parameter((5, 8), seed) for seed in range(5)]
    alone = deepcopy(together)
    grads = [gradients((5, 8), 7, seed) for seed in range(5)]
    joint = cls(together, lr=0.02, basis_interval=3, **options)
    turns = [joint._turns.get(p, 0) for p in together]
    sizes, made = [], kernel.direction
    monkeypatch.setattr(
        kernel, "direction", lambda rule, rows, *a: sizes.append(len(rows)) or made(rule, rows, *a)
    )
    run(joint, zip(*grads, strict=True))
    assert sizes == [2, 2, 1] * (7 - joint.param_groups[0]["eigenbasis"])
    for p, q, own, turn in zip(together, alone, grads, turns, strict=True):
        wanted, _ = by_the_rule(q, own, cls([q], lr=0.02, basis_interval=3, **options), turn)
        torch.testing.assert_close(p.detach(), wanted, rtol=1e-9, atol=1e-11)
    if "eigen" in form:
        assert sorted(turns) == [0, 0, 1, 1, 2]


# --- Muon ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (8, 8)])
@pytest.mark.parametrize("adjust", [None, "match_rms_adamw", "spectral_unclamped"])
def test_a_constant_gain_is_torchs_muon(shape, adjust, monkeypatch):
    """200 steps after its checkpoint is loaded; Newton-Schulz in float64 in both."""
    muon = __import__("torch.optim._muon", fromlist=["_muon"])
    monkeypatch.setattr(
        muon,
        "_zeropower_via_newtonschulz",
        lambda g, coefficients, steps, eps: sgdf.matrix.newton_schulz(
            g, steps, coefficients, torch
        ),
    )
    grads, p = gradients(shape, 230), parameter(shape)
    q = deepcopy(p)
    settings = {"lr": 0.02, "weight_decay": 0.1, "adjust_lr_fn": adjust}
    theirs = torch.optim.Muon([p], momentum=0.95, **settings)
    run(theirs, [[g] for g in grads[:30]])
    ours = FilterMuon([q], lr=1.0, betas=(0.95, 0.95), gain_scale=1 - 0.95, slow_weight=0.0)
    with torch.no_grad():
        q.copy_(p)
    with pytest.warns(UserWarning, match="torch's Muon into FilterMuon"):
        ours.load_state_dict(deepcopy(theirs.state_dict()))
    assert ours.param_groups[0]["adjust_lr_fn"] == adjust
    run(theirs, [[g] for g in grads[30:]])
    run(ours, [[g] for g in grads[30:]])
    torch.testing.assert_close(q, p, rtol=1e-9, atol=1e-10)


def test_without_bias_correction_it_is_torchs_muon_from_the_start():
    """With torch's own Newton-Schulz, in bfloat16: that close, relative to the way it went."""
    shape = (16, 32)
    grads, p = gradients(shape, 200, dtype=torch.float32), parameter(shape, dtype=torch.float32)
    q, before = deepcopy(p), p.detach().clone()
    theirs = torch.optim.Muon([p], lr=0.02, weight_decay=0.1, momentum=0.9)
    ours = FilterMuon(
        [q], lr=0.02, weight_decay=0.1, betas=(0.9, 0.95), gain_scale=0.1, slow_weight=0.0,
        bias_correction=False, adjust_lr_fn="original",
    )  # fmt: skip
    run(theirs, [[g] for g in grads])
    run(ours, [[g] for g in grads])
    assert (q - p).norm() < 0.01 * (p - before).norm()


@pytest.mark.parametrize("shape", [(3, 4, 4), (4, 9), (9, 4), (5, 5), (1, 1)])
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 6])
def test_the_batched_newton_schulz_is_the_plain_one(shape, steps):
    x = torch.randn(3, *shape[-2:], dtype=F64, generator=torch.Generator().manual_seed(0))
    coefficients = sgdf.matrix.COEFFICIENTS
    plain = sgdf.matrix.newton_schulz(x, steps, coefficients, torch)
    torch.testing.assert_close(kernel.newton_schulz(x.clone(), steps, coefficients), plain)
    in_32 = kernel.newton_schulz(x.float(), steps, coefficients, torch.float32)
    torch.testing.assert_close(in_32.double(), plain, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("decay", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("shape", [(32, 96), (48, 48)])
def test_newton_schulz_in_bfloat16_makes_no_singular_value_explode(shape, decay):
    """Some steps at a time round about as little as one at a time, whatever the spread."""
    generator = torch.Generator().manual_seed(0)
    u, s, v = torch.linalg.svd(torch.randn(shape, dtype=F64, generator=generator), False)
    x = u * torch.arange(1, len(s) + 1, dtype=F64) ** -decay @ v
    exact = sgdf.matrix.newton_schulz(x[None], 5, sgdf.matrix.COEFFICIENTS, torch)
    rough = kernel.newton_schulz(x[None].float(), 5, sgdf.matrix.COEFFICIENTS, torch.bfloat16)
    theirs = torch.optim._muon._zeropower_via_newtonschulz(
        x, sgdf.matrix.COEFFICIENTS, 5, sgdf.matrix.SMALLEST_NORM
    )
    assert torch.linalg.matrix_norm(rough, 2) < 1.3
    # With all five steps on the small products it is more than 10.
    assert (rough - exact).norm() < max(2 * (theirs - exact).norm(), 0.1 * exact.norm())


@pytest.mark.parametrize("shape", [(16, 24), (8, 128), (64, 256)])
def test_nor_where_a_few_singular_values_dominate(shape):
    """As in gradients with a large mean, which are close to a matrix of rank 1."""
    coefficients, largest = sgdf.matrix.COEFFICIENTS, 0.0
    for seed, ratio, few in itertools.product(range(3), (6, 14, 20, 23, 27, 40, 70), (1, 2)):
        generator = torch.Generator().manual_seed(seed)
        u, s, v = torch.linalg.svd(torch.randn(shape, generator=generator), False)
        sizes = torch.ones_like(s)
        sizes[:few] = ratio
        sizes *= (1 + 0.4 * torch.randn(len(s), generator=generator)).abs()
        x = ((u * sizes) @ v)[None]
        rough = kernel.newton_schulz(x, 5, coefficients, torch.bfloat16)
        largest = max(largest, torch.linalg.matrix_norm(rough, 2).item())
    assert largest < 1.3


@pytest.mark.parametrize("without", [(), (0,), (1,), (0, 1)])
@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (5, 5)])
@pytest.mark.parametrize("steps", [1, 3, 4, 5])
def test_newton_schulz_in_a_basis_is_turned_back(steps, shape, without):
    """With a basis for either side, both or none."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, *shape, dtype=F64, generator=generator)
    basis = sgdf.matrix.Sides(*(
        None if side in without
        else torch.linalg.qr(torch.randn(3, n, n, dtype=F64, generator=generator))[0]
        for side, n in enumerate(shape)
    ))  # fmt: skip
    coefficients = sgdf.matrix.COEFFICIENTS
    plain = sgdf.matrix.newton_schulz(x, steps, coefficients, torch)
    wanted = sgdf.matrix.rotate_back(plain, basis, torch)
    torch.testing.assert_close(kernel.newton_schulz(x, steps, coefficients, basis=basis), wanted)


@pytest.fixture
def allowed_bfloat16():
    """A user who lets products of the model round to bfloat16."""
    matmul = torch.backends.mkldnn.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "bf16"
    yield matmul
    matmul.fp32_precision = before


@pytest.mark.parametrize("keeps", [True, False])
def test_products_on_a_cpu_are_in_full_float32(keeps, allowed_bfloat16, monkeypatch):
    seen = []

    def precision(*_):
        seen.append(allowed_bfloat16.fp32_precision)
        raise ZeroDivisionError

    monkeypatch.setattr(kernel, "onednn_keeps_float32", lambda: keeps)
    monkeypatch.setattr(kernel, "gradients", precision)
    p = parameter((4, 6), dtype=torch.float32)
    with pytest.raises(ZeroDivisionError):
        run(FilterSOAP([p]), [[torch.ones(4, 6)]])
    # Where oneDNN does not round, the permission only sends it the products.
    assert seen == ["bf16" if keeps else "ieee"]
    assert allowed_bfloat16.fp32_precision == "bf16"


def test_onednn_is_asked_only_where_it_keeps_float32(allowed_bfloat16, monkeypatch):
    fresh = kernel.onednn_keeps_float32.__wrapped__
    if fresh():
        x, y = (torch.randn(100, 300, generator=torch.Generator().manual_seed(k)) for k in (0, 1))
        torch.testing.assert_close((x @ y.T).double(), x.double() @ y.T.double(), rtol=0, atol=1e-4)
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: True)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    assert not fresh()
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(torch, "addmm", lambda _, x, y, beta: (x.bfloat16() @ y.bfloat16()).float())
    assert not fresh()  # a product that rounds shows it


# --- SOAP ---------------------------------------------------------------------------------------


def reference_soap(
    p, grads, lr, b1, b2, decay_of_factors, interval, weight_decay, eps, longest=math.inf
):
    """SOAP of one matrix in float64 NumPy, from its description."""
    p = p.copy()
    with_basis = [side for side in (0, 1) if p.shape[side] <= longest]
    m, v, bases = np.zeros_like(p), np.zeros_like(p), None
    factors = [np.zeros((n, n)) for n in p.shape]
    for t, g in enumerate(grads):
        products = [g @ g.T, g.T @ g]
        if t == 0:
            factors = [(1 - decay_of_factors) * x for x in products]
            bases = [
                np.linalg.eigh(x)[1][:, ::-1] if side in with_basis else np.eye(len(x))
                for side, x in enumerate(factors)
            ]
            continue
        left, right = bases
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * (left.T @ g @ right) ** 2
        scaled = left.T @ (m / (1 - b1**t)) @ right / (np.sqrt(v / (1 - b2**t)) + eps)
        p = p * (1 - lr * weight_decay) - lr * left @ scaled @ right.T
        factors = [
            decay_of_factors * x + (1 - decay_of_factors) * y
            for x, y in zip(factors, products, strict=True)
        ]
        if t % interval == 0:
            for side in with_basis:
                image = factors[side] @ bases[side]
                order = np.argsort(-np.sum(bases[side] * image, axis=0))
                v = np.take(v, order, axis=side)
                bases[side] = np.linalg.qr(image[:, order])[0]
    return p


@pytest.mark.parametrize("interval", [1, 4])
@pytest.mark.parametrize("shape", [(5, 8), (8, 5), (6, 6)])
def test_without_a_gain_it_is_soap(shape, interval):
    """On the shorter side: for the longer one a first gradient leaves the eigenvectors open."""
    grads, p = gradients(shape, 60), parameter(shape)
    wanted = reference_soap(
        p.detach().numpy(), [g.numpy() for g in grads], 0.02, 0.9, 0.95, 0.8, interval, 0.1, 1e-8,
        min(shape),
    )  # fmt: skip
    optimizer = FilterSOAP(
        [p], lr=0.02, betas=(0.9, 0.95), weight_decay=0.1, gain_scale=0.0, slow_weight=0.0,
        basis_decay=0.8, basis_interval=interval, turn_moments=False, max_basis_dim=min(shape),
    )  # fmt: skip
    run(optimizer, [[g] for g in grads])
    np.testing.assert_allclose(p.detach().numpy(), wanted, rtol=1e-8, atol=1e-10)


def test_the_reference_soap_is_pytorch_optimizers():
    package = pytest.importorskip("pytorch_optimizer")
    grads, p = gradients((6, 6), 40), parameter((6, 6))
    wanted = reference_soap(
        p.detach().numpy(), [g.numpy() for g in grads], 0.02, 0.9, 0.95, 0.95, 3, 0.0, 1e-30
    )
    theirs = package.SOAP(
        [p], lr=0.02, betas=(0.9, 0.95), weight_decay=0.0, precondition_frequency=3, eps=1e-30
    )
    run(theirs, [[g] for g in grads])
    # It turns the basis in float32 whatever the dtype.
    np.testing.assert_allclose(p.detach().numpy(), wanted, rtol=1e-3, atol=1e-4)


# --- the basis ----------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [FilterMuon, FilterSOAP])
def test_the_first_gradient_only_builds_the_basis(cls):
    options = {"eigenbasis": True} if cls is FilterMuon else {}
    p = parameter((5, 8))
    before = p.detach().clone()
    optimizer = cls([p], lr=0.1, weight_decay=0.5, **options)
    (g,) = gradients((5, 8), 1)
    run(optimizer, [[g]])
    state = optimizer.state[p]
    torch.testing.assert_close(p.detach(), before, rtol=0, atol=0)
    assert float(state["step"]) == 0
    assert not state["exp_avg"].any()
    assert not state["exp_avg_sq"].any()
    for basis, product in ((state["basis_left"], g @ g.T), (state["basis_right"], g.T @ g)):
        diagonal = basis.T @ product @ basis
        torch.testing.assert_close(diagonal, torch.diag(torch.diag(diagonal)), rtol=0, atol=1e-9)
        assert (torch.diag(diagonal).diff() <= 1e-9).all()  # largest first


def test_s_and_v_follow_the_basis():
    """After a refresh, v is what it would be had the gradients been seen in the new basis."""
    shape, rule = (4, 6), FilterSOAP([parameter((4, 6))], gain_power=1.0, gain_scale=1.0)
    rule = rule.matrix_settings(rule.param_groups[0])
    # Gradients with independent entries of different sizes in one fixed basis.
    generator = torch.Generator().manual_seed(0)
    q = [torch.linalg.qr(torch.randn(n, n, dtype=F64, generator=generator))[0] for n in shape]
    sizes = torch.outer(torch.logspace(0, -1, 4, dtype=F64), torch.logspace(0, -1, 6, dtype=F64))
    order = torch.randperm(4, generator=generator), torch.randperm(6, generator=generator)
    permuted = sgdf.matrix.Sides(q[0][:, order[0]], q[1][:, order[1]])
    factors = sgdf.matrix.Sides(
        q[0] @ torch.diag((sizes**2).sum(1)) @ q[0].T, q[1] @ torch.diag((sizes**2).sum(0)) @ q[1].T
    )
    v = (sizes**2)[order[0]][:, order[1]]
    state = start(torch.zeros(shape, dtype=F64), rule, torch)
    state = state._replace(v=v, s=v / 2, factors=factors, basis=permuted)
    for settings_ in (rule, rule._replace(turn_moments=False)):
        new = refreshed(state, settings_, FLOAT64, torch)
        torch.testing.assert_close(new.v, sizes**2, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(new.s, new.v / 2)
    # A basis that is turned by an angle: v mixes as squares of cosine and sine.
    angle = torch.tensor(0.3, dtype=F64)
    turn = torch.eye(4, dtype=F64)
    turn[:2, :2] = torch.stack([torch.stack([angle.cos(), -angle.sin()]),
                                torch.stack([angle.sin(), angle.cos()])])  # fmt: skip
    turned = state._replace(basis=sgdf.matrix.Sides(q[0] @ turn, q[1]), v=sizes**2)
    for _ in range(60):  # power iteration ends in the eigenvectors
        turned = refreshed(turned, rule, FLOAT64, torch)
    assert (turned.basis.left.T @ q[0]).abs().diagonal().min() > 1 - 1e-6
    kept = (sizes**2).sum(0)
    torch.testing.assert_close(turned.v.sum(0), kept)
    one = refreshed(state._replace(basis=sgdf.matrix.Sides(q[0] @ turn, q[1]), v=sizes**2), rule,
                    FLOAT64, torch)  # fmt: skip
    between = (q[0] @ turn).T @ one.basis.left
    torch.testing.assert_close(one.v, (between**2).T @ sizes**2, rtol=1e-6, atol=1e-9)


def test_no_step_refreshes_more_than_its_share():
    params = [parameter((4, 4), seed) for seed in range(20)]
    optimizer = FilterSOAP(params, basis_interval=10)
    counts = np.bincount([optimizer._turns[p] for p in params], minlength=10)
    assert list(counts) == [2] * 10
    other = FilterSOAP([parameter((64, 64)), *params], basis_interval=2)
    assert len({other._turns[p] for p in params}) == 1  # the large one has a turn of its own


# --- a whole network ----------------------------------------------------------------------------


class Small(nn.Module):
    """Everything a network has: embedding, convolution, experts, attention, norms, a head."""

    def __init__(self, tied=False):
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.pos_embed = nn.Parameter(torch.randn(1, 3, 8))
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.experts = nn.Parameter(torch.randn(4, 8, 8) / 3)
        self.hidden = nn.Linear(8, 8)
        self.norm = nn.LayerNorm((3, 8))
        self.head = nn.Linear(8, 11, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, words):
        x = self.words(words) + self.pos_embed
        x = x + self.conv(x.mT).mT
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = x + torch.einsum("bti,eij->btj", x, self.experts)
        return self.head(self.norm(x + self.hidden(x).tanh()))


def names_of(groups):
    return {group["matrices"]: [name for name, _ in group["params"]] for group in groups}


@pytest.mark.parametrize("tied", [False, True])
def test_param_groups_tells_hidden_matrices_from_the_rest(tied):
    found = names_of(sgdf.param_groups(Small(tied), named=True))
    assert found[True] == [
        "conv.weight", "attention.in_proj_weight", "attention.out_proj.weight", "hidden.weight"
    ]  # fmt: skip
    assert found["stacked"] == ["experts"]
    assert {"words.weight", "pos_embed", "norm.weight", "hidden.bias"} <= set(found[False])
    assert ("head.weight" in found[False]) == (not tied)
    more = names_of(sgdf.param_groups(Small(), no_matrix=["conv", nn.MultiheadAttention],
                                      named=True))  # fmt: skip
    assert more[True] == ["attention.out_proj.weight", "hidden.weight"] or more[True] == [
        "hidden.weight"
    ]
    with pytest.raises(ValueError, match="no_matrix: no parameter of the model belongs to 'cnov'"):
        sgdf.param_groups(Small(), no_matrix="cnov")
    with pytest.raises(ValueError, match="no_decay needs a weight_decay"):
        sgdf.param_groups(Small(), no_decay="conv")


class Tied(nn.Module):
    """Its output layer is the embedding, by function; no module says so."""

    def __init__(self):
        super().__init__()
        self.words, self.hidden = nn.Embedding(11, 8), nn.Linear(8, 8)

    def forward(self, words):
        return nn.functional.linear(self.hidden(self.words(words)), self.words.weight)


def test_a_model_may_have_no_head():
    assert names_of(sgdf.param_groups(Tied(), named=True, has_head=False)) == {
        True: ["hidden.weight"], False: ["words.weight", "hidden.bias"]
    }  # fmt: skip
    assert True not in names_of(sgdf.param_groups(Tied(), named=True))
    with pytest.raises(ValueError, match="has_head are for groups without a weight_decay"):
        sgdf.param_groups(Tied(), 0.1, has_head=False)


def test_settings_are_read_once_for_all_matrices_of_a_group(monkeypatch):
    calls, read = [], FilterMuon.matrix_settings
    optimizer = FilterMuon([parameter((3, 4), k) for k in range(9)], eigenbasis=True)
    grads = [gradients((3, 4), 1) * 9]
    run(optimizer, grads)
    monkeypatch.setattr(
        FilterMuon, "matrix_settings", lambda self, group: calls.append(1) or read(self, group)
    )
    monkeypatch.setattr(FilterMuon, "_find_team", None)
    run(optimizer, grads)
    assert len(calls) == 2  # the rule, and which moments there are


@pytest.mark.parametrize("form", ["muon", "muon, eigenbasis", "soap"])
@pytest.mark.parametrize("grouped", [True, False])
def test_a_whole_network_learns(form, grouped):
    cls, options = FORMS[form]
    torch.manual_seed(0)
    model = Small()
    words = torch.randint(11, (16, 3))
    optimizer = cls(sgdf.param_groups(model) if grouped else model.parameters(), lr=1e-2, **options)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < (0.5 if grouped else 0.7) * losses[0]


def test_the_rest_is_stepped_by_filter_adamw():
    p, q = (parameter((5,)) for _ in range(2))
    matrix = parameter((4, 4))
    ours = FilterMuon(
        [matrix, p], lr=0.1, aux_lr=0.01, aux_betas=(0.8, 0.9), aux_weight_decay=0.3,
        aux_gain_scale=1.0, aux_gain_power=0.5,
    )  # fmt: skip
    theirs = FilterAdamW(
        [q], lr=0.01, betas=(0.8, 0.9), weight_decay=0.3, gain_scale=1.0, gain_power=0.5,
        gain_eps=0.0,
    )  # fmt: skip
    grads = gradients((5,), 20)
    run(ours, zip(gradients((4, 4), 20), grads, strict=True))
    run(theirs, [[g] for g in grads])
    torch.testing.assert_close(p, q, rtol=0, atol=0)


def test_a_complex_matrix_is_stepped_by_filter_adamw():
    start = torch.complex(parameter((3, 4), 1), parameter((3, 4), 2)).detach()
    p, q = (start.clone().requires_grad_() for _ in range(2))
    grads = [torch.complex(*pair) for pair in zip(gradients((3, 4), 9, 3), gradients((3, 4), 9, 4),
                                                  strict=True)]  # fmt: skip
    ours = FilterMuon([parameter((2, 2)), p], lr=0.1, aux_lr=0.01)
    theirs = FilterAdamW([q], lr=0.01, betas=(0.9, 0.95), weight_decay=0.0, gain_scale=2.0,
                         gain_power=1.0, gain_eps=0.0)  # fmt: skip
    run(ours, [[None, g] for g in grads])
    run(theirs, [[g] for g in grads])
    torch.testing.assert_close(p, q, rtol=0, atol=0)


@BY_FORM
def test_a_compiled_step_is_the_step(form):
    cls, options = FORMS[form]
    found = []
    for compiled in (False, True):
        params = [parameter((4, 6)), parameter((6,))]
        optimizer = cls(params, lr=0.01, basis_interval=2, **options)
        step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        for pair in zip(gradients((4, 6), 5), gradients((6,), 5), strict=True):
            for p, g in zip(params, pair, strict=True):
                p.grad = g
            step()
        found.append([p.detach() for p in params])
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-12)


def test_with_counters_on_the_device_it_takes_the_same_steps():
    """`capturable`: the corrections are of tensors, one for every matrix."""
    ends = []
    for capturable in (False, True):
        params = [parameter((4, 6), seed) for seed in range(3)]
        optimizer = FilterMuon(params, lr=0.01, capturable=capturable, gain_power=1.0)
        rows = zip(*(gradients((4, 6), 6, seed) for seed in range(3)), strict=True)
        run(optimizer, [[*row[:2], row[2] if k else None] for k, row in enumerate(rows)])
        ends.append([p.detach() for p in params])
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-9, atol=1e-12)


def test_a_group_of_both_kinds_is_split_and_schedulers_move_both_rates():
    params = [parameter((4,)), parameter((4, 4)), parameter(())]
    optimizer = FilterMuon([{"params": params, "lr": 0.2}], aux_lr=0.02)
    assert [(g["matrices"], len(g["params"]), g["lr"]) for g in optimizer.param_groups] == [
        (True, 1, 0.2), (False, 2, 0.02)
    ]  # fmt: skip
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    run(optimizer, [[None, None, None]])
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.01]
    own = FilterMuon([{"params": [params[0]], "lr": 0.3}], lr=0.1, aux_lr=0.2)
    assert own.param_groups[0]["lr"] == 0.3
    assert FilterMuon([params[0]], lr=0.1).param_groups[0]["lr"] == 0.1


def test_stacked_matrices_are_as_many_matrices():
    stack = parameter((3, 4, 6))
    apart = [stack.detach()[k].clone().requires_grad_() for k in range(3)]
    grads = gradients((3, 4, 6), 8)
    for options in ({}, {"eigenbasis": True, "basis_interval": 1}):
        q, single = deepcopy(stack), deepcopy(apart)
        run(FilterMuon([{"params": [q], "matrices": "stacked"}], lr=0.1, **options),
            [[g] for g in grads])  # fmt: skip
        run(FilterMuon(single, lr=0.1, **options), [list(g) for g in grads])
        torch.testing.assert_close(q.detach(), torch.stack([p.detach() for p in single]))


def test_convolutions_are_matrices_of_output_channels_by_the_rest():
    kernel_ = parameter((4, 3, 2, 2))
    flat = kernel_.detach().flatten(1).clone().requires_grad_()
    wide = kernel_.detach().clone(memory_format=torch.channels_last).requires_grad_()
    grads = gradients((4, 3, 2, 2), 8)
    for p, shape in ((kernel_, None), (flat, (4, 12)), (wide, None)):
        optimizer = FilterMuon([p], lr=0.1, eigenbasis=True, basis_interval=2)
        run(optimizer, [[g if shape is None else g.reshape(shape)] for g in grads])
    torch.testing.assert_close(kernel_.flatten(1), flat)
    torch.testing.assert_close(wide, kernel_)


def test_a_matrix_group_refuses_what_is_none():
    for p in (torch.zeros(3), torch.zeros(2, 2, dtype=torch.complex64)):
        with pytest.raises(ValueError, match="group of matrices has a parameter of shape"):
            FilterMuon([{"params": [p.requires_grad_()], "matrices": True}])
    for name, value in (("slow_weight", 1.5), ("basis_interval", 0), ("ns_steps", 2.5),
                        ("adjust_lr_fn", "rms"), ("aux_lr", -1.0), ("slow_beta", 1.0)):  # fmt: skip
        with pytest.raises(ValueError, match="Invalid"):
            FilterMuon([parameter((2, 2))], **{name: value})
    with pytest.raises(RuntimeError, match="`eigenbasis` does not support `capturable`"):
        FilterMuon([parameter((2, 2))], eigenbasis=True, capturable=True)
    with pytest.raises(TypeError, match="step_in_backward"):
        sgdf.step_in_backward(FilterMuon([parameter((2, 2))]))


# --- what gradients may be ----------------------------------------------------------------------

ODD = {
    "zeros": lambda g, k: torch.zeros_like(g),
    "zeros at first": lambda g, k: g * (k > 2),
    "rank one": lambda g, k: torch.outer(g[:, 0], g[0]),
    "one row": lambda g, k: g * (torch.arange(len(g)) == 1)[:, None],
    "tiny": lambda g, k: g * 1e-25,
    "huge": lambda g, k: g * 1e30,
    "infinite": lambda g, k: torch.where(g > 1, torch.inf, g),
    "once huge": lambda g, k: g * (1e37 if k == 4 else 1),
}


@BY_FORM
@pytest.mark.parametrize("shape", [(6, 4), (3, 200), (1, 5), (5, 1), (1, 1)])
@pytest.mark.parametrize("kind", ODD)
def test_odd_gradients_give_finite_steps(form, shape, kind):
    cls, options = FORMS[form]
    p = parameter(shape, dtype=torch.float32)
    optimizer = cls([p], lr=0.01, weight_decay=0.0, basis_interval=2, **options)
    grads = gradients(shape, 9, dtype=torch.float32)
    before = p.detach().clone()
    run(optimizer, [[ODD[kind](g, k)] for k, g in enumerate(grads)])
    assert p.isfinite().all()
    for value in optimizer.state[p].values():
        assert value.isfinite().all()
    # A step has at most the length that one of Adam has in every entry, or an orthogonal matrix.
    assert (p - before).abs().max() < 9 * 0.01 * 12 * max(shape) ** 0.5
    if kind == "zeros":
        assert (p == before).all()


@BY_FORM
def test_nan_stays_in_its_matrix(form):
    cls, options = FORMS[form]
    params = [parameter((4, 6), seed, torch.float32) for seed in range(3)]
    optimizer = cls(params, lr=0.01, basis_interval=2, **options)
    grads = [gradients((4, 6), 7, seed, torch.float32) for seed in range(3)]
    for first in (0, 3):
        grads[1][first][0, 0] = torch.nan
    run(optimizer, zip(*grads, strict=True))
    assert params[1].isnan().any()
    assert params[0].isfinite().all()
    assert params[2].isfinite().all()


@BY_FORM
def test_a_matrix_without_a_gradient_stays_and_joins_later(form):
    cls, options = FORMS[form]
    params = [parameter((4, 6), seed) for seed in range(2)]
    before = params[1].detach().clone()
    optimizer = cls(params, lr=0.01, **options)
    grads = [gradients((4, 6), 9, seed) for seed in range(2)]
    run(optimizer, [[g, None] for g in grads[0][:5]])
    assert params[1] not in optimizer.state
    torch.testing.assert_close(params[1].detach(), before, rtol=0, atol=0)
    run(optimizer, [[None, g] for g in grads[1]])
    late = before.clone().requires_grad_()
    single = cls([late], lr=0.01, **options)
    single._turns = {late: optimizer._turns.get(params[1], 0)}
    run(single, [[g] for g in grads[1]])
    torch.testing.assert_close(params[1], late)


@settings(max_examples=25, deadline=None)
@given(
    form=st.sampled_from(sorted(FORMS)),
    rows=st.integers(1, 9),
    columns=st.integers(1, 9),
    seed=st.integers(0, 2**31),
    power=st.integers(-6, 6),
)
def test_the_step_does_not_depend_on_the_scale_or_the_side(form, rows, columns, seed, power):
    """The step of a transposed matrix is the transposed one; times 2^k it is the same."""
    cls, options = FORMS[form]
    grads = gradients((rows, columns), 5, seed)
    changes = []
    for change in (lambda g: g, lambda g: g * 2.0**power, lambda g: g.T.contiguous()):
        p = torch.zeros_like(change(grads[0])).requires_grad_()
        # On the shorter side: for the longer one the first gradients leave the basis open.
        extra = {"max_basis_dim": min(rows, columns), "eps": 1e-30}
        if cls is FilterMuon:
            extra["adjust_lr_fn"] = "match_rms_adamw"
        options = {**options, **extra}
        optimizer = cls([p], lr=1.0, weight_decay=0.0, basis_interval=2, **options)
        run(optimizer, [[change(g)] for g in grads])
        changes.append(p.detach())
    tolerance = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(changes[1], changes[0], **tolerance)
    torch.testing.assert_close(changes[2].T, changes[0], **tolerance)


# --- state --------------------------------------------------------------------------------------


@BY_FORM
@pytest.mark.parametrize("state_dtype", [torch.bfloat16, torch.int8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_small_state_goes_the_same_way(form, state_dtype, dtype):
    cls, options = FORMS[form]
    shape = (32, 128)
    grads, way = gradients(shape, 30, dtype=torch.float32, drift=1.0), []
    for kind in (None, state_dtype):
        p = parameter(shape, dtype=dtype)
        before = p.detach().float().clone()
        optimizer = cls([p], lr=0.01, state_dtype=kind, stochastic_rounding=True, **options)
        run(optimizer, [[g.to(dtype)] for g in grads])
        way.append(p.detach().float() - before)
        for key in optimizer.moments_of(optimizer.param_groups[0]):
            wanted = kind or torch.float32
            found = optimizer.state[p][key].dtype
            assert found == wanted or (kind == torch.int8 and found == torch.uint8)
        for name, value in optimizer.state[p].items():
            if name.startswith(("factor", "basis_")):
                assert value.dtype == torch.float32
    cosine = (way[0] * way[1]).sum() / way[0].norm() / way[1].norm()
    assert cosine > 0.85


@BY_FORM
@pytest.mark.parametrize("options", [{}, {"state_dtype": torch.int8, "stochastic_rounding": True}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_run_is_the_same_to_the_byte(form, options, dtype, tmp_path):
    cls, form_options = FORMS[form]
    options = {**form_options, **options, "basis_interval": 3, "lr": 0.01}
    options.pop("max_basis_dim", None)
    shapes = [(32, 128), (16,), (32, 128), (8, 4, 3, 3)]
    params = [parameter(shape, seed, dtype) for seed, shape in enumerate(shapes)]
    grads = [gradients(shape, 11, seed, dtype) for seed, shape in enumerate(shapes)]
    optimizer = cls(params, **options)
    order = [p for group in optimizer.param_groups for p in group["params"]]
    grads = [grads[[q is p for q in params].index(True)] for p in order]
    steps = list(zip(*grads, strict=True))
    run(optimizer, steps[:5])
    torch.save((params, optimizer.state_dict()), tmp_path / "file.pt")
    saved, state = torch.load(tmp_path / "file.pt", weights_only=True)
    again = cls([p.requires_grad_() for p in saved], **options)
    again.load_state_dict(state)
    copied = deepcopy((order, optimizer))
    for one in (optimizer, again, copied[1]):
        run(one, steps[5:])
    for one in (again, copied[1]):
        others = [p for group in one.param_groups for p in group["params"]]
        for p, q in zip(order, others, strict=True):
            assert torch.equal(p, q)
            for key, value in optimizer.state[p].items():
                assert torch.equal(value, one.state[q][key])
                assert value.dtype == one.state[q][key].dtype


def model_and_steps(seed=0):
    torch.manual_seed(seed)
    model = Small().double()
    words = torch.randint(11, (16, 3))

    def step(optimizer):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten())
        loss.backward()
        optimizer.step()

    return model, step


ADAMS = {
    "AdamW": lambda params: torch.optim.AdamW(params, lr=3e-3, weight_decay=0.2),
    "FilterAdamW": lambda params: FilterAdamW(params, lr=3e-3, weight_decay=0.2, gain_power=0.5),
    "in 8 bits": lambda params: FilterAdamW(params, lr=3e-3, state_dtype=torch.int8),
}


@pytest.mark.parametrize("source", ADAMS)
@pytest.mark.parametrize("form", ["muon", "muon, eigenbasis", "soap"])
@pytest.mark.parametrize("named", [True, False])
def test_a_checkpoint_of_adam_is_continued(source, form, named):
    model, step = model_and_steps()
    adam = ADAMS[source](model.named_parameters() if named else model.parameters())
    for _ in range(6):
        step(adam)
    cls, options = FORMS[form]
    ours = cls(sgdf.param_groups(model, named=named), lr=1.0, **options)
    with pytest.warns(UserWarning, match=f"into {cls.__name__}.*lr .now 0.003"):
        ours.load_state_dict(deepcopy(adam.state_dict()))
    matrices = {p for g in ours.param_groups if g["matrices"] is not False for p in g["params"]}
    for name, p in model.named_parameters():
        before, after = adam.state[p], ours.state[p]
        m = read_moment(before, "exp_avg")
        if form == "soap" and p in matrices:  # v of few gradients needs an m of few
            assert not after
        elif "exp_avg_slow" in after:  # a matrix: the averages have the value that Adam's had
            t = 6
            torch.testing.assert_close(
                after["exp_avg"] / (1 - 0.85**t), m.double() / (1 - 0.9**t), msg=name
            )
            torch.testing.assert_close(
                after["exp_avg_slow"] / (1 - 0.98**t), m.double() / (1 - 0.9**t), msg=name
            )
        else:
            torch.testing.assert_close(after["exp_avg"], before["exp_avg"])
            assert "exp_var" in after
            assert float(after["step"]) == 6
    assert {group["lr"] for group in ours.param_groups} == {3e-3}
    for _ in range(3):
        step(ours)
    assert all(p.isfinite().all() for p in model.parameters())


def test_checkpoints_of_muon_and_of_the_adam_beside_it_are_loaded_one_after_the_other():
    model, step = model_and_steps()
    hidden = [p for group in sgdf.param_groups(model)[:1] for p in group["params"] if p.ndim == 2]
    rest = [p for p in model.parameters() if not any(p is q for q in hidden)]
    groups = [{"params": hidden, "matrices": True}, {"params": rest, "matrices": False}]
    muon, adam = torch.optim.Muon(hidden, lr=0.03), torch.optim.AdamW(rest, lr=0.004)
    for _ in range(3):
        step(muon), adam.step()
    ours = FilterMuon(groups, lr=1.0)
    for source in (muon, adam):
        with pytest.warns(UserWarning, match="loaded a state dict"):
            ours.load_state_dict(source.state_dict())
    assert [group["lr"] for group in ours.param_groups] == [0.03, 0.004]
    for p in hidden:
        torch.testing.assert_close(ours.state[p]["exp_avg"], muon.state[p]["momentum_buffer"])
    for p in rest:
        if p in adam.state:
            torch.testing.assert_close(ours.state[p]["exp_avg_sq"], adam.state[p]["exp_avg_sq"])
    step(ours)


def test_foreign_checkpoints_are_refused_and_change_nothing():
    model, step = model_and_steps()
    ours = FilterMuon(model.parameters(), eigenbasis=True)
    step(ours), step(ours)
    before = deepcopy(ours.state_dict())
    sgd = torch.optim.SGD(model.parameters(), momentum=0.9)
    wrong = deepcopy(before)
    some = next(i for i, state in wrong["state"].items() if "factor_left" in state)
    wrong["state"][some]["factor_left"] = torch.zeros(2, 2)
    few = torch.optim.AdamW(list(model.parameters())[:3])
    for state_dict, message in (
        (sgd.state_dict(), "not one that FilterMuon can continue"),
        (wrong, "factor_left of parameter"),
        (few.state_dict(), "matched by name"),
    ):
        with pytest.raises(ValueError, match=message):
            ours.load_state_dict(state_dict)
    after = ours.state_dict()
    assert before["param_groups"] == after["param_groups"]
    for i, state in before["state"].items():
        for key, value in state.items():
            assert torch.equal(value, after["state"][i][key])


def test_without_its_basis_a_checkpoint_builds_a_new_one():
    p = parameter((4, 6))
    ours = FilterMuon([p], eigenbasis=True)
    grads = gradients((4, 6), 6)
    run(ours, [[g] for g in grads[:4]])
    saved = ours.state_dict()
    del saved["state"][0]["basis_left"]
    again = FilterMuon([p], eigenbasis=True)
    again.load_state_dict(saved)
    assert not again.state[p].get("exp_avg_sq", torch.zeros(1)).any()
    before = p.detach().clone()
    run(again, [[grads[4]]])
    assert torch.equal(p, before)
    run(again, [[grads[5]]])
    assert not torch.equal(p, before)
    assert p.isfinite().all()


def test_a_matrix_that_is_too_long_is_told():
    p = parameter((4, 6))
    with pytest.warns(UserWarning, match="longer than max_basis_dim=2"):
        run(FilterSOAP([p], max_basis_dim=2), [[gradients((4, 6), 1)[0]]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(FilterSOAP([p], max_basis_dim=4), [[gradients((4, 6), 1)[0]]])
