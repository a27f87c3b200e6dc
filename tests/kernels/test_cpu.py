"""The compiled CPU kernels: against the float64 statement, against the loop, and their compiler.

Called directly, because what is tested is the kernels and not who chooses them.
"""

import itertools
import multiprocessing
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import CASES, COMMON, FILTER, OPTIMIZERS, noisy_run, numpy
from sgdf import SGDF, FilterAdam, Momentum
from sgdf.kernels import build, cpu, eager
from sgdf.kernels.quantized import Quantized, blocks_per_row, dequantize, quantize_
from sgdf.kernels.rounding import FOR_PARAMETER, random_bits, round_to_bfloat16, step_key

pytestmark = pytest.mark.skipif(
    not any(Path(d, c).exists() for d in os.get_exec_path() for c in ("c++", "g++", "clang++")),
    reason="needs a C++ compiler",
)

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
PLAIN = {
    "lr": 0.05,
    "betas": (0.5, 0.999),
    "eps": 1e-8,
    "weight_decay": 0.0,
    "gain_scale": 2.0,
    "gain_power": 1.0,
    "correction": True,
    "decoupled_weight_decay": False,
    "maximize": False,
}
PLAIN_MOMENTUM = {
    "lr": 0.05,
    "beta": 0.9,
    "mu": 1.0,
    "weight_decay": 0.0,
    "decoupled_weight_decay": False,
    "maximize": False,
}


def fused(kind, parameters, state_dtype=None, **settings):
    """An optimizer whose step is one call of the kernel."""
    optimizer = kind(parameters, **{"lr": 0.05, **settings})
    group = optimizer.param_groups[0]
    columns = 1 if kind is Momentum else 2 if kind is SGDF else 3
    state = [[zeros_for(p, state_dtype) for p in parameters] for _ in range(columns)]
    steps = [torch.tensor(0.0) for _ in parameters]

    @torch.no_grad()
    def step():
        grads = [p.grad for p in parameters]
        if kind is Momentum:
            options = {key: group[key] for key in PLAIN_MOMENTUM}
            cpu.momentum_fused(parameters, grads, *state, **options)
        else:
            options = {key: group[key] for key in PLAIN}
            cpu.filter_fused(parameters, grads, steps, *state, **options)

    optimizer.step, optimizer.moments, optimizer.steps = step, state, steps
    return optimizer


def zeros_for(p, dtype=None):
    dtype = dtype or eager.compute_dtype(p)
    return torch.zeros_like(p, dtype=dtype.to_complex() if p.is_complex() else dtype)


def assert_follows(parameters, references, rtol, atol):
    for p in parameters:
        np.testing.assert_allclose(numpy(p), references[p].p, rtol=rtol, atol=atol)


# --- against the float64 statement ------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "settings"), CASES, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_float64_follows_the_statement(optimizer, settings):
    torch.manual_seed(1)
    shapes = [(4, 3), (5,), ()]
    parameters = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    references = noisy_run(parameters, fused(optimizer, parameters, **settings), steps=30)
    assert_follows(parameters, references, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.complex64])
def test_lower_precision_rounds_once_a_step(optimizer, dtype):
    torch.manual_seed(1)
    source = torch.complex128 if dtype.is_complex else torch.float64
    parameters = [torch.randn(s, dtype=source).to(dtype) for s in [(7, 3), (5,), ()]]
    parameters = [p.requires_grad_() for p in parameters]
    steps = 20
    references = noisy_run(parameters, fused(optimizer, parameters, weight_decay=0.1), steps)
    unit = torch.finfo(dtype).eps
    assert_follows(parameters, references, rtol=steps * unit, atol=4 * steps * unit)


@pytest.mark.parametrize("scale", [1e-20, 1e-10, 1e-4, 1e4, 1e15])
def test_magnitudes_in_float32(scale):
    parameters = [torch.zeros(50, requires_grad=True)]
    optimizer = fused(SGDF, parameters, lr=1.0)
    references = noisy_run(parameters, optimizer, steps=20, scale=scale)
    assert_follows(parameters, references, rtol=2e-4, atol=2e-4 * scale)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_layouts(optimizer):
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
    optimizer = fused(optimizer, parameters, weight_decay=0.01)
    references = noisy_run(parameters, optimizer, steps=5)
    assert_follows(parameters, references, rtol=1e-5, atol=1e-5)
    assert torch.equal(base[[0, 1026, 4099]], edges), "written beside a view"
    assert optimizer.steps == [0 if type(optimizer) is Momentum else 5] * len(parameters)


# --- against the loop -------------------------------------------------------------------------


def problem(shapes, p_dtype=torch.float32, g_dtype=None, state_dtype=None, adam=True, seed=0):
    """Parameters, gradients, steps and moments in the middle of a run."""
    generator = torch.Generator().manual_seed(seed)

    def draw(dtype):
        source = torch.complex128 if p_dtype.is_complex else torch.float64
        return [torch.randn(s, generator=generator, dtype=source).to(dtype) for s in shapes]

    def drawn_moments():
        return [torch.view_as_real(x) if x.is_complex() else x for x in draw(state)]

    state = state_dtype or (torch.float64 if p_dtype == torch.float64 else torch.float32)
    state = state.to_complex() if p_dtype.is_complex else state
    params, grads, m = draw(p_dtype), draw(g_dtype or p_dtype), draw(state)
    squares = [[x.abs_() for x in drawn_moments()] for _ in range(1 + adam)]
    if p_dtype.is_complex:
        squares = [[torch.view_as_complex(x) for x in column] for column in squares]
    steps = [torch.tensor(float(10 + 7 * i)) for i in range(len(shapes))]
    return [params, grads, steps, m, *squares]


def clone(columns):
    return [[copied(t) for t in column] for column in columns]


def copied(t):
    return Quantized(*map(copied, t)) if isinstance(t, Quantized) else t.clone()


def both(columns, **options):
    """The problem after a step of the kernel, and after one of the loop."""
    ours, theirs = clone(columns), clone(columns)
    cpu.filter_fused(*ours, **{**PLAIN, **options})
    eager.filter_loop(*theirs, **{**PLAIN, **options}, capturable=False, differentiable=False)
    return ours, theirs


def assert_same(ours, theirs, share=0.0):
    """Equal bits but for a share of the elements, and those differ by a level or a few ulps."""
    differing = total = 0
    for a, b in zip(ours, theirs, strict=True):
        for x, y in zip(a, b, strict=True) if isinstance(a, Quantized) else [(a, b)]:
            assert x.dtype == y.dtype
            if x.dtype in (torch.int8, torch.uint8):
                torch.testing.assert_close(x.int(), y.int(), rtol=0, atol=1)
            else:
                near = 8 * torch.finfo(x.dtype).eps
                torch.testing.assert_close(x, y, rtol=near, atol=near, equal_nan=True)
            differing += int((x != y).sum() - (x.isnan() & y.isnan()).sum())
            total += x.numel()
    assert differing <= share * total, f"{differing} of {total} differ"


def assert_all_same(ours, theirs, share=0.0):
    """`assert_same`, column by column.

    With Adam's root the parameters' bits are not the loop's: one root in two hundred of
    torch.sqrt is the second nearest float.
    """
    adam = len(ours) == 6
    assert_same(ours[0], theirs[0], share=0.02 if adam else share)
    for a, b in zip(ours[1:], theirs[1:], strict=True):
        assert_same(a, b, share)


@pytest.mark.parametrize("adam", [False, True])
@pytest.mark.parametrize(
    "options",
    [{**o, "lr": 0.03} for o in COMMON[:4] + FILTER if "gain_power" not in o],
    ids=str,
)
def test_float32_has_the_bits_of_the_loop(options, adam):
    ours, theirs = both(problem([(3000,), (70, 33), ()], adam=adam), **options)
    assert_all_same(ours, theirs)


@pytest.mark.parametrize("adam", [False, True])
@pytest.mark.parametrize(
    ("p_dtype", "g_dtype", "state_dtype"), list(itertools.product(FLOATS, repeat=3)), ids=str
)
def test_dtypes(p_dtype, g_dtype, state_dtype, adam):
    columns = problem([(1500,), (3, 5)], p_dtype, g_dtype, state_dtype, adam=adam)
    ours, theirs = both(columns, weight_decay=0.1)
    assert_all_same(ours, theirs)
    assert not torch.equal(ours[0][0], columns[0][0])


@pytest.mark.parametrize("p_dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("g_dtype", [torch.complex64, torch.complex128])
def test_complex(p_dtype, g_dtype):
    columns = problem([(1500,), (3, 5), ()], p_dtype, g_dtype)
    ours, theirs = both(columns)
    assert_all_same(ours, theirs)


def test_lazily_conjugated_and_negated_gradients():
    columns = problem([(30,)], torch.complex64)
    expected, _ = both([columns[0], [columns[1][0].conj().resolve_conj()], *columns[2:]])
    lazy = clone(columns)
    lazy[1] = [lazy[1][0].conj()]
    cpu.filter_fused(*lazy, **PLAIN)
    assert torch.equal(lazy[0][0], expected[0][0])

    columns = problem([(30,)])
    expected, _ = both(columns)
    columns[1] = [torch._neg_view(-columns[1][0])]
    cpu.filter_fused(*columns, **PLAIN)
    assert torch.equal(columns[0][0], expected[0][0])


SIZES = [0, 1, 3, 7, 255, 256, 257, 1023, 1024, 1025, 16383, 16384, 16385, 32767, 32768, 32769]


@pytest.mark.parametrize("p_dtype", [torch.float32, torch.bfloat16])
def test_sizes_around_vectors_tiles_and_pieces(p_dtype):
    columns = problem([(n,) for n in SIZES], p_dtype)
    ours, theirs = both(columns)
    assert_all_same(ours, theirs)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.one_of(st.integers(0, 40), st.integers(1000, 2100)), min_size=0, max_size=8),
    offset=st.integers(0, 17),
    p_dtype=st.sampled_from([*FLOATS, torch.complex64]),
    g_dtype=st.sampled_from(FLOATS),
    adam=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_list_of_unaligned_views(sizes, offset, p_dtype, g_dtype, adam, seed):
    """Every column is cut out of one stretch of memory: nothing outside the views changes."""
    g_dtype = p_dtype if p_dtype.is_complex else g_dtype
    gap = 3
    columns = problem([(sum(sizes) + gap * len(sizes) + offset,)], p_dtype, g_dtype, adam=adam)
    del columns[2]
    before = clone(columns)

    def views(column):
        starts = itertools.accumulate([offset, *(n + gap for n in sizes[:-1])])
        return [column[0][i : i + n] for i, n in zip(starts, sizes, strict=False)]

    expected = clone(columns)
    for kernel, target in ((cpu.filter_fused, columns), (eager.filter_loop, expected)):
        parts = [views(column) for column in target]
        parts.insert(2, [torch.tensor(4.0) for _ in sizes])
        loop = {"capturable": False, "differentiable": False} if target is expected else {}
        options = {**PLAIN, "stochastic_rounding": True, "rounding_seed": seed, **loop}
        kernel(*parts, **options)
    assert_same(columns[0], expected[0], share=0.05 if adam else 0)
    for column, wanted in zip(columns[1:], expected[1:], strict=True):
        assert_same(column, wanted)
    assert torch.equal(columns[1][0], before[1][0])


def test_hundreds_of_mixed_tensors():
    dtypes = [*FLOATS, torch.complex64]
    several = [problem([(i % 5, i % 3 + 1)], dtypes[i % 5], seed=i) for i in range(400)]
    columns = [[row[k][0] for row in several] for k in range(6)]
    ours, theirs = both(columns, weight_decay=0.1)
    assert_all_same(ours, theirs)


def test_an_empty_list_and_only_empty_tensors():
    cpu.filter_fused([], [], [], [], [], **PLAIN)
    cpu.momentum_fused([], [], [], **PLAIN_MOMENTUM)
    steps = [torch.tensor(0.0)]
    empty = [torch.empty(0)]
    cpu.filter_fused(empty, empty, steps, empty, empty, **PLAIN)
    assert steps == [1]


@pytest.mark.parametrize("other", ["grads", "moments", "params"])
def test_one_array_laid_out_differently(other):
    columns = problem([(40, 50), (7,)])
    expected, _ = both(columns)
    for k in {"grads": [1], "moments": [3], "params": [0]}[other]:
        columns[k][0] = columns[k][0].t().contiguous().t()
    gradient = columns[1][0].clone()
    cpu.filter_fused(*columns, **PLAIN)
    assert torch.equal(columns[1][0], gradient)
    for a, b in zip(columns, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_arrays_with_the_same_gaps():
    columns = problem([(41,)], adam=False)
    dense = clone(columns)
    for k in (0, 1, 3, 4):
        dense[k] = [columns[k][0][::2].clone()]
    cpu.filter_fused(*dense, **PLAIN)
    between = [columns[k][0][1::2].clone() for k in (0, 3, 4)]
    views = [[t[::2]] if k != 2 else [t] for k, (t,) in enumerate(columns)]
    cpu.filter_fused(*views, **PLAIN)
    assert_all_same(views, dense)
    assert all(map(torch.equal, between, [columns[k][0][1::2] for k in (0, 3, 4)]))


def test_steps_of_either_dtype_and_at_different_values():
    columns = problem([(30,), (30,), (30,)])
    columns[2] = [torch.tensor(3.0), torch.tensor(700.0, dtype=torch.float64), torch.tensor(0.0)]
    ours, theirs = both(columns)
    assert_all_same(ours, theirs)
    assert ours[2] == [4, 701, 1]


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_with_its_element(odd):
    for column in (0, 1, 3):
        columns = problem([(2000,)])
        columns[column][0][1234] = odd
        ours, theirs = both(columns)
        assert_all_same(ours, theirs)
        assert int((~ours[0][0].isfinite()).sum()) == 1


def test_an_infinite_parameter_does_not_reach_its_moments_without_weight_decay():
    columns = problem([(20,)])
    columns[0][0][3] = float("inf")
    cpu.filter_fused(*columns, **PLAIN)
    assert all(moment[0].isfinite().all() for moment in columns[3:])


def test_a_zero_gradient_leaves_the_parameter_alone():
    for options in ({}, {"eps": 0.0}, {"eps": 0.0, "gain_scale": 1.0, "gain_power": 0.5}):
        for dtype in FLOATS:
            p = torch.randn(50).to(dtype)
            before = p.clone()
            state = [[zeros_for(p)] for _ in range(2)]
            for t in range(3):
                step = [torch.tensor(float(t))]
                cpu.filter_fused([p], [zeros_for(p)], step, *state, **{**PLAIN, **options})
            assert torch.equal(p, before)
            assert not any(moment[0].any() for moment in state)


def test_without_eps_adam_divides_by_zero_as_it_does_in_the_loop():
    """Only the gain's eps is kept from 0; Adam's is the user's."""
    columns = [[torch.zeros(20)] for _ in range(6)]
    columns[2] = [torch.tensor(0.0)]
    ours, theirs = both(columns, eps=0.0)
    assert_all_same(ours, theirs)
    assert ours[0][0].isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_half_is_read_and_every_float_rounded_as_torch_does(dtype):
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    p, zero = every.clone(), torch.zeros(2**16)
    cpu.momentum_fused([p], [zero], [zero.clone()], **PLAIN_MOMENTUM)  # p <- p - 0
    number = ~every.isnan()
    assert torch.equal(p.view(torch.int16)[number], every.view(torch.int16)[number])
    assert p[~number].isnan().all()

    generator = torch.Generator().manual_seed(0)
    raw = torch.randint(-(2**31), 2**31, (200_000,), generator=generator).int().view(torch.float32)
    near = every.float()[number] * (1 + torch.tensor([[0.0], [2**-12], [-(2**-12)]]))
    g = torch.cat([raw, near.flatten()])
    m = torch.zeros_like(g, dtype=dtype)
    options = {**PLAIN_MOMENTUM, "beta": 0.0}
    cpu.momentum_fused([torch.zeros_like(g)], [g], [m], **options)  # m <- g
    expected = g.to(dtype)
    assert torch.equal(m.isnan(), expected.isnan())
    number = ~m.isnan()
    assert torch.equal((m + 0)[number], expected[number])


@pytest.mark.parametrize("p_dtype", FLOATS)
def test_momentum_equals_its_loop(p_dtype):
    columns = problem([(n,) for n in SIZES], p_dtype)
    columns = [columns[0], columns[1], columns[3]]
    ours, theirs = clone(columns), clone(columns)
    options = {**PLAIN_MOMENTUM, "weight_decay": 0.1, "maximize": True}
    cpu.momentum_fused(*ours, **options)
    eager.momentum_loop(*theirs, **options)
    assert_all_same(ours, theirs)


def test_the_number_of_threads_does_not_matter():
    columns = problem([(n,) for n in SIZES] + [(300_000,)], torch.bfloat16)
    quantized = eight_bit([(256, 700), (300, 64)], p_dtype=torch.bfloat16)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            mine = [a + b for a, b in zip(clone(columns), clone(quantized), strict=True)]
            cpu.filter_fused(*mine, **PLAIN, stochastic_rounding=True)
            results.append(mine)
    finally:
        torch.set_num_threads(before)
    for other, (mine, theirs) in itertools.product(results[1:], enumerate(results[0])):
        assert_same(other[mine], theirs)


# --- 8 bits and stochastic rounding -----------------------------------------------------------


def eight_bit(shapes, p_dtype=torch.float32, adam=True, spread=1.0, memory_format=None):
    """A problem whose moments are quantised; magnitudes within a block spread over e^spread."""
    columns = problem(shapes, p_dtype, adam=adam)
    generator = torch.Generator().manual_seed(1)
    for k in range(3, len(columns)):
        codes_dtype = torch.int8 if k == 3 else torch.uint8
        for i, x in enumerate(columns[k]):
            x = x.float() * (spread * torch.randn(x.shape, generator=generator)).exp()
            codes = torch.zeros(x.shape, dtype=codes_dtype)
            if memory_format:
                codes, x = (t.contiguous(memory_format=memory_format) for t in (codes, x))
            moment = Quantized(codes, torch.zeros(x.shape[0], blocks_per_row(x)))
            quantize_(moment, x)
            columns[k][i] = moment
    if memory_format:
        for k in (0, 1):
            columns[k] = [t.contiguous(memory_format=memory_format) for t in columns[k]]
    return columns


SHAPES = [(64, 256), (20, 1000), (33, 128), (5, 257), (3, 700), (1, 4096), (700, 3), (2, 0)]


@pytest.mark.parametrize("adam", [False, True])
@pytest.mark.parametrize("spread", [0.3, 3.0])
@pytest.mark.parametrize("p_dtype", [torch.float32, torch.bfloat16])
def test_8_bit_moments_have_the_codes_of_the_loop(p_dtype, spread, adam):
    columns = eight_bit(SHAPES, p_dtype, adam, spread)
    ours, theirs = both(columns, rounding_seed=12345, weight_decay=0.1)
    assert_all_same(ours, theirs)
    codes = ours[3][0].codes
    assert int((codes != columns[3][0].codes).sum()) > 0.2 * codes.numel()


def test_8_bit_moments_of_a_channels_last_weight():
    columns = eight_bit([(32, 16, 3, 3)], memory_format=torch.channels_last)
    ours, theirs = both(columns)
    assert_all_same(ours, theirs)


def test_8_bit_moments_beside_others_and_a_gradient_in_another_layout():
    eight, plain = eight_bit([(64, 256), (40, 300)]), problem([(30,), (64, 256)])
    columns = [a + b for a, b in zip(eight, plain, strict=True)]
    ours, theirs = both(columns)
    assert_all_same(ours, theirs)
    columns[1][0] = columns[1][0].t().contiguous().t()
    cpu.filter_fused(*columns, **PLAIN)
    assert_all_same([columns[0], *columns[3:]], [ours[0], *ours[3:]])


def test_8_bit_moments_of_a_float64_parameter():
    columns = eight_bit([(64, 256)], torch.float64)
    ours, theirs = both(columns)
    for moment, expected in zip(ours[3:], theirs[3:], strict=True):
        assert_same(moment, expected, share=5e-3)  # the loop decays them in float32
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-6, atol=1e-6)


def test_8_bit_blocks_of_zeros_tiny_numbers_and_nan():
    columns = eight_bit([(4, 512)], adam=False)
    m, s = columns[3][0], columns[4][0]
    for moment in (m, s):
        moment.codes[0].zero_()
        moment.scale[0].zero_()
    columns[1][0][0] = 0
    columns[1][0][1] *= 1e-22  # squares far below the normal numbers
    s.scale[1] = 0
    columns[1][0][2, 5] = float("nan")
    ours, theirs = both(columns)
    assert torch.equal(ours[3][0].codes[0], torch.zeros(512, dtype=torch.int8))
    assert torch.equal(ours[4][0].codes[:2], theirs[4][0].codes[:2])
    for mine, loop in ((ours[3][0], theirs[3][0]), (ours[4][0], theirs[4][0])):
        torch.testing.assert_close(mine.scale, loop.scale, equal_nan=True)
        assert mine.scale[2, 0].isnan()
        assert mine.scale[2, 1].isfinite()
        assert mine.scale[3].isfinite().all()
        torch.testing.assert_close(dequantize(mine), dequantize(loop), equal_nan=True)


def test_8_bit_rounding_has_no_bias():
    """The mean of many roundings of one moment is the moment, which no single level is."""
    g = torch.zeros(16, 1024)
    g[:, ::256] = 1.0  # the largest of each block
    g[:, 1::2] = 0.3217
    total, n = torch.zeros_like(g), 20
    for seed in range(n):
        columns = eight_bit([(16, 1024)], adam=False)
        columns[1] = [g]
        cpu.filter_fused(*columns, **{**PLAIN, "betas": (0.0, 0.9)}, rounding_seed=seed)
        total += dequantize(columns[3][0])
    mean = (total / n)[:, 1::2].mean().item()
    level = 2**-5  # between 1/4 and 1/2
    assert abs(mean - 0.3217) < 0.01 * level


def test_stochastic_rounding_has_the_bits_of_rounding_py():
    columns = problem([(5,), (40_000,)], torch.bfloat16)
    ours, theirs = both(columns, stochastic_rounding=True, rounding_seed=99)
    assert_all_same(ours, theirs)
    nearest, _ = both(columns)
    assert 0.1 < (nearest[0][1] != ours[0][1]).float().mean() < 0.9

    # And once without the loop: with lr 1, beta 0 and gain 0, p - g.
    p, g = columns[0][1].clone(), torch.randn(40_000) * 1e-2
    expected = p.float() - g
    state = [[torch.zeros_like(g)] for _ in range(2)]
    options = {**PLAIN, "lr": 1.0, "betas": (0.0, 0.9), "gain_scale": 0.0}
    cpu.filter_fused([p], [g], [torch.tensor(6.0)], *state, **options, stochastic_rounding=True)
    bits = random_bits(step_key(0, 7), FOR_PARAMETER, g)  # tensor_seed(0, 0) is 0
    assert_same([p], [round_to_bfloat16(expected, bits)])


def test_a_tensor_left_to_the_loop_draws_its_own_bits():
    """Strided, so the loop's; still the bits of tensor 2, not of tensor 0."""
    columns = problem([(5,), (5,), (2000,)], torch.bfloat16)
    expected, _ = both(columns, stochastic_rounding=True, rounding_seed=7)
    strided = torch.empty(4000, dtype=torch.bfloat16)[::2].copy_(columns[0][2])
    columns[0][2] = strided
    cpu.filter_fused(*columns, **PLAIN, stochastic_rounding=True, rounding_seed=7)
    assert torch.equal(strided, expected[0][2])


# --- GradScaler, autograd ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SGDF, FilterAdam, Momentum])
def test_gradients_are_unscaled_inside(kind):
    def run(scale, **scaling):
        columns = problem([(1500,), (20,)], torch.float32)
        columns[0].append(torch.randn(40, generator=torch.Generator().manual_seed(3))[::2])
        for k in (1, 3, 4, 5):
            columns[k].append(columns[k][1].clone())
        columns[2].append(torch.tensor(5.0))
        columns[1] = [g * scale for g in columns[1]]
        gradients = [g.clone() for g in columns[1]]
        if kind is Momentum:
            cpu.momentum_fused(*columns[:2], columns[3], **PLAIN_MOMENTUM, **scaling)
        else:
            used = columns if kind is FilterAdam else columns[:5]
            cpu.filter_fused(*used, **PLAIN, **scaling)
        assert all(map(torch.equal, columns[1], gradients)), "a gradient was changed in place"
        return columns

    plain = run(1.0)
    scaled = run(1024.0, grad_scale=torch.tensor(1024.0), found_inf=torch.tensor([0.0]))
    for k in (0, 2, 3, 4, 5):
        assert all(map(torch.equal, plain[k], scaled[k]))


def test_found_inf_skips_everything():
    columns = problem([(1500,), (20,)])
    before = clone(columns)
    cpu.filter_fused(*columns, **PLAIN, found_inf=torch.tensor(1.0))
    cpu.momentum_fused(*columns[:2], columns[3], **PLAIN_MOMENTUM, found_inf=torch.ones(1))
    assert_all_same(columns, before)


def test_autograd_notices_that_a_parameter_changed():
    w = torch.randn(5, requires_grad=True)
    loss = (w * w).sum()
    with torch.no_grad():
        cpu.momentum_fused([w], [torch.ones(5)], [torch.zeros(5)], **PLAIN_MOMENTUM)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# --- the compiler and the cache ---------------------------------------------------------------


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "sgdf"


@pytest.fixture
def afresh():
    """Forget that the kernels were compiled, before and after."""
    cpu._compiled.cache_clear()
    cpu._say_why_not.cache_clear()
    yield
    cpu._compiled.cache_clear()
    cpu._say_why_not.cache_clear()


def works(library):
    p = torch.ones(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "_library", lambda: library)
        cpu.momentum_fused([p], [torch.ones(3)], [torch.zeros(3)], **PLAIN_MOMENTUM)
    return torch.allclose(p, torch.tensor(0.95))


def never(*_):
    pytest.fail("compiled again")


def test_a_second_process_does_not_compile(cache, monkeypatch):
    assert works(cpu._load())
    (kept,) = cache.iterdir()
    monkeypatch.setattr(cpu, "_compile", never)
    assert works(cpu._load())
    assert list(cache.iterdir()) == [kept]


def test_nothing_of_a_step_compiles_again(monkeypatch):
    assert cpu.available()
    monkeypatch.setattr(cpu, "_compile", never)
    for n in (1, 2, 30):
        cpu.filter_fused(*problem([(n,)] * n), **{**PLAIN, "lr": 0.1 / n})


def test_what_makes_the_key(monkeypatch, tmp_path):
    compiler = build.compiler()
    keys = {cpu._key(compiler)}
    monkeypatch.setattr(cpu, "FLAGS", [*cpu.FLAGS, "-g"])
    keys.add(cpu._key(compiler))
    changed = tmp_path / "cpu.cpp"
    changed.write_text(cpu.SOURCE.read_text() + "\n")
    monkeypatch.setattr(cpu, "SOURCE", changed)
    keys.add(cpu._key(compiler))
    script = tmp_path / "other"
    script.write_text("#!/bin/sh\necho version 2\n")
    script.chmod(0o755)
    keys.add(cpu._key([str(script)]))
    script.write_text("#!/bin/sh\necho version 3\n")
    keys.add(cpu._key([str(script)]))
    assert len(keys) == 5


@pytest.mark.parametrize("damage", ["cut short", "not a library", "empty"])
def test_a_broken_cached_file_is_rebuilt(cache, damage):
    cpu._load()
    (kept,) = cache.iterdir()
    content = kept.read_bytes()
    kept.unlink()  # this process has it mapped
    if damage == "not a library":  # though whole
        key = kept.stem.split("-")[1]
        kept = cache / f"filter-{key}-{build.digest(b'hello')}.so"
        kept.write_bytes(b"hello")
    else:
        kept.write_bytes(content[: len(content) // 2] if damage == "cut short" else b"")
    assert works(cpu._load())
    (kept,) = cache.iterdir()
    assert kept.stem.endswith(build.digest(kept.read_bytes()))
    assert len(kept.read_bytes()) == len(content)


def test_an_unwritable_cache(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(cpu.tempfile, "tempdir", str(tmp_path))
    assert works(cpu._load())
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "left in the temporary directory"


def test_a_cache_that_cannot_be_written_to_the_end(cache, monkeypatch):
    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert works(cpu._load())
    assert list(cache.iterdir()) == []


def test_a_plain_compiler_gives_the_same_bits(cache, monkeypatch, tmp_path):
    """One that knows neither OpenMP nor this processor."""
    script = tmp_path / "plain"
    refuse = 'for a in "$@"; do case $a in -march=*|-fopenmp) exit 1;; esac; done'
    script.write_text(f'#!/bin/sh\n{refuse}\nexec {build.compiler()[0]} "$@"\n')
    script.chmod(0o755)
    columns = [a + b for a, b in zip(problem([(2000,)]), eight_bit([(64, 256)]), strict=True)]
    expected, _ = both(columns)
    monkeypatch.setenv("CXX", str(script))
    plain = cpu._load()
    monkeypatch.setattr(cpu, "_library", lambda: plain)
    cpu.filter_fused(*columns, **PLAIN)
    assert_all_same(columns, expected)


@pytest.mark.parametrize("missing", ["CXX", "PATH", "fails"])
@pytest.mark.usefixtures("afresh")
def test_without_a_working_compiler_says_so_once(missing, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    script = tmp_path / "broken"
    script.write_text("#!/bin/sh\necho 'error: no such luck' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.delenv("CXX", raising=False)
    if missing == "PATH":
        monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    else:
        monkeypatch.setenv("CXX", "/nonexistent/c++" if missing == "CXX" else str(script))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [cpu.available() for _ in range(3)] == [False] * 3
    (warning,) = caught
    said = {"CXX": "/nonexistent/c++", "PATH": "no C++ compiler", "fails": "no such luck"}
    assert said[missing] in str(warning.message)
    assert "foreach" in str(warning.message)
    assert warning.filename == __file__
    with pytest.raises(RuntimeError, match="not available"):
        cpu.filter_fused(*problem([(3,)]), **PLAIN)


def test_a_process_without_a_compiler(tmp_path):
    code = "from sgdf.kernels import compiled; print([compiled.available() for _ in range(3)])"
    missing = {"CXX": "/nonexistent", "PATH": "", "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-W", "always", "-c", code]
    done = subprocess.run(command, env=os.environ | missing, capture_output=True, text=True)
    assert done.stdout.strip() == "[False, False, False]", done.stderr
    assert done.stderr.count("foreach takes their place") == 1


def test_four_processes_compile_at_once(cache):
    context = multiprocessing.get_context("fork")  # imports nothing again
    processes = [context.Process(target=load_and_exit) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        process.kill()
    assert [process.exitcode for process in processes] == [0] * 4
    assert {path.suffix for path in cache.iterdir()} == {".so"}


def load_and_exit():
    os._exit(0 if works(cpu._load()) else 1)
