"""The compiled CPU kernels, called directly, against the loop.

test_statement.py holds them to the float64 statement.
"""

import itertools
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agreement import (
    assert_agrees_with_the_loop,
    assert_bits,
    estimate_work,
    momentum_work,
    work_of,
)
from kernels.problems import (
    FLOATS,
    PLAIN,
    PLAIN_MOMENTUM,
    clone,
    eight_bit,
    problem,
)
from reference import COMMON, FILTER
from sgdf import SGDF, FilterAdam, Momentum
from sgdf.kernels import cpu, loop
from sgdf.kernels.quantized import dequantize
from sgdf.kernels.rounding import FOR_PARAMETER, random_bits, round_to_bfloat16, step_key

pytestmark = pytest.mark.skipif(
    not any(Path(d, c).exists() for d in os.get_exec_path() for c in ("c++", "g++", "clang++")),
    reason="needs a C++ compiler",
)


# --- against the loop -------------------------------------------------------------------------


def step(columns, **options):
    """A step of the kernel, in place."""
    cpu.step(work_of(columns, {**PLAIN, **options}))


def both(columns, **options):
    """The problem after a step of the kernel and after one of the loop, which have to agree."""
    options = {**PLAIN, **options}
    ours, theirs = clone(columns), clone(columns)
    cpu.step(work_of(ours, options))
    loop.step(work_of(theirs, options))
    assert_agrees_with_the_loop(columns, ours, theirs, options)
    return ours, theirs


#: Forms that do not keep all of m, s and v, and the columns that they keep.
LEAN_FORMS = [
    ({"gain_power": 0, "gain_scale": 0.1}, [0]),
    ({"gain_power": 0, "gain_scale": 0.1, "bias_correction": False, "weight_decay": 0.1}, [0]),
    ({"gain_power": 0, "gain_scale": 0.1, "second_moment": "separate"}, [0, 2]),
    ({"gain_power": 0, "gain_scale": 0.1, "second_moment": "derived"}, [0, 1]),
    ({"gain_scale": 1.0, "second_moment": "derived"}, [0, 1]),
    ({"gain_power": 0.5, "second_moment": "derived", "weight_decay": 0.1}, [0, 1]),
    ({"gain_power": 0.7, "second_moment": "fluctuation"}, [0, 1]),
    ({"second_moment": "derived", "gain_eps": 0.0, "maximize": True}, [0, 1]),
    ({"second_moment": "fluctuation", "eps": 1e-3}, [0, 1]),
]


@pytest.mark.parametrize(("options", "kept"), LEAN_FORMS, ids=str)
@pytest.mark.parametrize("make", [problem, eight_bit], ids=["float32", "int8"])
def test_lean_forms_agree_with_the_loop(options, kept, make):
    columns = make([(33, 300), (70, 128)])
    columns = [*columns[:3], *(columns[3 + k] for k in kept)]
    both(columns, **options)


def assert_same_bits(ours, theirs):
    """Equal bits of all tensors of two lists of columns."""
    for column, expected in zip(ours, theirs, strict=True):
        for a, b in zip(column, expected, strict=True):
            assert_bits(a, b)


@pytest.mark.parametrize("adam", [False, True])
@pytest.mark.parametrize(
    "options",
    [{**o, "lr": 0.03} for o in COMMON[:4] + FILTER if o.get("gain_power") != 0],
    ids=str,
)
def test_float32_agrees_with_the_loop(options, adam):
    both(problem([(3000,), (70, 33), ()], adam=adam), **options)


@pytest.mark.parametrize("adam", [False, True])
@pytest.mark.parametrize(
    ("p_dtype", "g_dtype", "state_dtype"), list(itertools.product(FLOATS, repeat=3)), ids=str
)
def test_dtypes(p_dtype, g_dtype, state_dtype, adam):
    columns = problem([(1500,), (3, 5)], p_dtype, g_dtype, state_dtype, adam=adam)
    ours, _ = both(columns, weight_decay=0.1)
    assert not torch.equal(ours[0][0], columns[0][0])


@pytest.mark.parametrize("p_dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("g_dtype", [torch.complex64, torch.complex128])
def test_complex(p_dtype, g_dtype):
    columns = problem([(1500,), (3, 5), ()], p_dtype, g_dtype)
    both(columns)


def test_lazily_conjugated_and_negated_gradients():
    columns = problem([(30,)], torch.complex64)
    expected, _ = both([columns[0], [columns[1][0].conj().resolve_conj()], *columns[2:]])
    lazy = clone(columns)
    lazy[1] = [lazy[1][0].conj()]
    step(lazy)
    assert torch.equal(lazy[0][0], expected[0][0])

    columns = problem([(30,)])
    expected, _ = both(columns)
    columns[1] = [torch._neg_view(-columns[1][0])]
    step(columns)
    assert torch.equal(columns[0][0], expected[0][0])


SIZES = [0, 1, 3, 7, 255, 256, 257, 1023, 1024, 1025, 16383, 16384, 16385, 32767, 32768, 32769]


@pytest.mark.parametrize("p_dtype", [torch.float32, torch.bfloat16])
def test_sizes_around_vectors_tiles_and_pieces(p_dtype):
    columns = problem([(n,) for n in SIZES], p_dtype)
    both(columns)


GAP = 3  # between views of one stretch of memory


def views(columns, sizes, offset):
    """Cuts of these sizes out of every column."""
    starts = list(itertools.accumulate([offset, *(n + GAP for n in sizes[:-1])]))
    return [[t[i : i + n] for i, n in zip(starts, sizes, strict=False)] for (t,) in columns]


def assert_same_beside(columns, before, sizes, offset):
    """Nothing outside the views has changed; they become zeros."""
    for view in itertools.chain(*views(columns, sizes, offset), *views(before, sizes, offset)):
        view.zero_()
    assert_same_bits(columns, before)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.one_of(st.integers(0, 40), st.integers(1000, 2100)), min_size=0, max_size=8),
    offset=st.integers(0, 17),
    p_dtype=st.sampled_from([*FLOATS, torch.complex64]),
    g_dtype=st.sampled_from(FLOATS),
    form=st.sampled_from([({}, [0, 1]), ({}, [0, 1, 2]), *LEAN_FORMS]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_list_of_unaligned_views(sizes, offset, p_dtype, g_dtype, form, seed):
    """Every column is cut out of one stretch of memory: nothing outside the views changes."""
    form, kept = form
    g_dtype = p_dtype if p_dtype.is_complex else g_dtype
    columns = problem([(sum(sizes) + GAP * len(sizes) + offset,)], p_dtype, g_dtype)
    columns = [*columns[:2], *(columns[3 + k] for k in kept)]
    before, expected = clone(columns), clone(columns)

    def rows(columns):
        cut = views(columns, sizes, offset)
        return [*cut[:2], [torch.tensor(4.0) for _ in sizes], *cut[2:]]

    options = {**PLAIN, **form, "stochastic_rounding": True, "rounding_seed": seed}
    ours, theirs = rows(columns), rows(expected)
    cpu.step(work_of(ours, options))
    loop.step(work_of(theirs, options))
    assert_agrees_with_the_loop(rows(before), ours, theirs, options)
    assert_same_beside(columns, before, sizes, offset)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.one_of(st.integers(0, 40), st.integers(1000, 2100)), min_size=1, max_size=6),
    offset=st.integers(0, 17),
    dtype=st.sampled_from([*FLOATS, torch.complex64]),
    state_dtype=st.sampled_from([None, torch.bfloat16]),
    options=st.sampled_from(
        [{}, {"gain_power": 0, "gain_scale": 0.1}, {"bias_correction": False, "eps": 0.0}]
    ),
)
def test_the_filter_alone_has_the_bits_of_the_loop(sizes, offset, dtype, state_dtype, options):
    """It overwrites unaligned views of gradients, and nothing beside them."""
    state_dtype = None if dtype.is_complex else state_dtype
    total = sum(sizes) + GAP * len(sizes) + offset
    columns = problem([(total,)], dtype, dtype, state_dtype, adam=False)
    columns = [columns[1], *columns[3 : 4 + (options.get("gain_power") != 0)]]
    expected, before = clone(columns), clone(columns)

    def rows(columns):
        cut = views(columns, sizes, offset)
        return [cut[0], [torch.tensor(4.0) for _ in sizes], *cut[1:]]

    ours, theirs = rows(columns), rows(expected)
    cpu.step(estimate_work(ours, {**PLAIN, **options}))
    loop.step(estimate_work(theirs, {**PLAIN, **options}))
    assert_same_bits(ours, theirs)
    assert sum(sizes) == 0 or not torch.equal(columns[0][0], before[0][0])
    assert_same_beside(columns, before, sizes, offset)


@pytest.mark.parametrize("gain_power", [1, 0])
def test_8_bit_moments_of_the_filter_alone_have_the_codes_of_the_loop(gain_power):
    columns = eight_bit(SHAPES, adam=False)
    columns = [columns[1], columns[2], *columns[3 : 4 + gain_power]]
    ours, theirs = clone(columns), clone(columns)
    options = {**PLAIN, "gain_power": gain_power, "rounding_seed": 5}
    cpu.step(estimate_work(ours, options))
    loop.step(estimate_work(theirs, options))
    assert_same_bits(ours, theirs)


def test_hundreds_of_mixed_tensors():
    dtypes = [*FLOATS, torch.complex64]
    several = [problem([(i % 5, i % 3 + 1)], dtypes[i % 5], seed=i) for i in range(400)]
    columns = [[row[k][0] for row in several] for k in range(6)]
    both(columns, weight_decay=0.1)


def test_an_empty_list_and_only_empty_tensors():
    step([[], [], [], [], []])
    cpu.step(momentum_work([[], [], []], PLAIN_MOMENTUM))
    steps = [torch.tensor(0.0)]
    empty = [torch.empty(0)]
    step([empty, empty, steps, empty, empty])
    assert steps == [1]


@pytest.mark.parametrize("other", ["grads", "moments", "params"])
def test_one_array_laid_out_differently(other):
    columns = problem([(40, 50), (7,)])
    expected, _ = both(columns)
    for k in {"grads": [1], "moments": [3], "params": [0]}[other]:
        columns[k][0] = columns[k][0].t().contiguous().t()
    gradient = columns[1][0].clone()
    step(columns)
    assert torch.equal(columns[1][0], gradient)
    for a, b in zip(columns, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_arrays_with_the_same_gaps():
    columns = problem([(41,)], adam=False)
    dense = clone(columns)
    for k in (0, 1, 3, 4):
        dense[k] = [columns[k][0][::2].clone()]
    step(dense)
    between = [columns[k][0][1::2].clone() for k in (0, 3, 4)]
    views = [[t[::2]] if k != 2 else [t] for k, (t,) in enumerate(columns)]
    step(views)
    assert_same_bits(views, dense)
    assert all(map(torch.equal, between, [columns[k][0][1::2] for k in (0, 3, 4)]))


def test_steps_of_either_dtype_and_at_different_values():
    columns = problem([(30,), (30,), (30,)])
    columns[2] = [torch.tensor(3.0), torch.tensor(700.0, dtype=torch.float64), torch.tensor(0.0)]
    ours, _ = both(columns)
    assert ours[2] == [4, 701, 1]


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_with_its_element(odd):
    for column in (0, 1, 3):
        columns = problem([(2000,)])
        columns[column][0][1234] = odd
        ours, _ = both(columns)
        clipped = column == 1 and odd == odd  # an infinite gradient counts as the largest one
        assert int((~ours[0][0].isfinite()).sum()) == (not clipped)


def test_an_infinite_parameter_does_not_reach_its_moments_without_weight_decay():
    columns = problem([(20,)])
    columns[0][0][3] = float("inf")
    step(columns)
    assert all(moment[0].isfinite().all() for moment in columns[3:])


def test_without_eps_adam_divides_by_zero_as_it_does_in_the_loop():
    """Only the gain's eps is kept from 0; Adam's is the user's."""
    columns = [[torch.zeros(20)] for _ in range(6)]
    columns[2] = [torch.tensor(0.0)]
    ours, _ = both(columns, eps=0.0)
    assert ours[0][0].isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_half_is_read_and_every_float_rounded_as_torch_does(dtype):
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    p, zero = every.clone(), torch.zeros(2**16)
    cpu.step(momentum_work([[p], [zero], [zero.clone()]], PLAIN_MOMENTUM))  # p <- p - 0
    number = ~every.isnan()
    assert torch.equal(p.view(torch.int16)[number], every.view(torch.int16)[number])
    assert p[~number].isnan().all()

    generator = torch.Generator().manual_seed(0)
    raw = torch.randint(-(2**31), 2**31, (200_000,), generator=generator).int().view(torch.float32)
    near = every.float()[number] * (1 + torch.tensor([[0.0], [2**-12], [-(2**-12)]]))
    g = torch.cat([raw, near.flatten()])
    m = torch.zeros_like(g, dtype=dtype)
    options = {**PLAIN_MOMENTUM, "beta": 0.0}
    cpu.step(momentum_work([[torch.zeros_like(g)], [g], [m]], options))  # m <- g
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
    cpu.step(momentum_work(ours, options))
    loop.step(momentum_work(theirs, options))
    assert_same_bits(ours, theirs)


def test_the_number_of_threads_does_not_matter():
    columns = problem([(n,) for n in SIZES] + [(300_000,)], torch.bfloat16)
    quantized = eight_bit([(256, 700), (300, 64)], p_dtype=torch.bfloat16)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            mine = [a + b for a, b in zip(clone(columns), clone(quantized), strict=True)]
            step(mine, stochastic_rounding=True)
            results.append(mine)
    finally:
        torch.set_num_threads(before)
    for other, (mine, theirs) in itertools.product(results[1:], enumerate(results[0])):
        assert_same_bits([other[mine]], [theirs])


# --- 8 bits and stochastic rounding -----------------------------------------------------------


SHAPES = [(64, 256), (20, 1000), (33, 128), (5, 257), (3, 700), (1, 4096), (700, 3), (2, 0)]


@pytest.mark.parametrize("adam", [False, True])
@pytest.mark.parametrize("spread", [0.3, 3.0])
@pytest.mark.parametrize("p_dtype", [torch.float32, torch.bfloat16])
def test_8_bit_moments_have_the_codes_of_the_loop(p_dtype, spread, adam):
    columns = eight_bit(SHAPES, p_dtype, adam, spread)
    ours, _ = both(columns, rounding_seed=12345, weight_decay=0.1)
    codes = ours[3][0].codes
    assert int((codes != columns[3][0].codes).sum()) > 0.2 * codes.numel()


def test_8_bit_moments_beside_others_and_a_gradient_in_another_layout():
    eight, plain = eight_bit([(64, 256), (40, 300)]), problem([(30,), (64, 256)])
    columns = [a + b for a, b in zip(eight, plain, strict=True)]
    ours, _ = both(columns)
    columns[1][0] = columns[1][0].t().contiguous().t()
    step(columns)
    assert_same_bits([columns[0], *columns[3:]], [ours[0], *ours[3:]])


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((64, 256), {"p_dtype": torch.float64}),
        ((32, 16, 3, 3), {"memory_format": torch.channels_last}),
    ],
)
def test_8_bit_moments_of_a_float64_and_of_a_channels_last_parameter(shape, options):
    both(eight_bit([shape], **options))


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
    for mine, other in ((ours[3][0], theirs[3][0]), (ours[4][0], theirs[4][0])):
        torch.testing.assert_close(mine.scale, other.scale, equal_nan=True)
        assert mine.scale[2, 0].isnan()
        assert mine.scale[2, 1].isfinite()
        assert mine.scale[3].isfinite().all()
        torch.testing.assert_close(dequantize(mine), dequantize(other), equal_nan=True)


def test_8_bit_rounding_has_no_bias():
    """The mean of many roundings of one moment is the moment, though no level equals it."""
    g = torch.zeros(16, 1024)
    g[:, ::256] = 1.0  # the largest of each block
    g[:, 1::2] = 0.3217
    total, n = torch.zeros_like(g), 20
    for seed in range(n):
        columns = eight_bit([(16, 1024)], adam=False)
        columns[1] = [g]
        step(columns, betas=(0.0, 0.9), rounding_seed=seed)
        total += dequantize(columns[3][0])
    mean = (total / n)[:, 1::2].mean().item()
    level = 2**-5  # between 1/4 and 1/2
    assert abs(mean - 0.3217) < 0.01 * level


@pytest.mark.parametrize("adam", [False, True])
def test_stochastic_rounding_has_the_bits_of_rounding_py(adam):
    columns = problem([(5,), (40_000,)], torch.bfloat16, adam=adam)
    ours, _ = both(columns, stochastic_rounding=True, rounding_seed=99)
    nearest, _ = both(columns)
    assert 0.1 < (nearest[0][1] != ours[0][1]).float().mean() < 0.9

    # And once without the loop: with lr 1, beta 0 and gain 0, p - g.
    p, g = columns[0][1].clone(), torch.randn(40_000) * 1e-2
    expected = p.float() - g
    state = [[torch.zeros_like(g)] for _ in range(2)]
    columns = [[p], [g], [torch.tensor(6.0)], *state]
    step(columns, lr=1.0, betas=(0.0, 0.9), gain_scale=0.0, stochastic_rounding=True)
    bits = random_bits(
        step_key(0, 7), FOR_PARAMETER, torch.arange(40_000)
    )  # tensor_seed(0, 0) is 0
    assert_bits(p, round_to_bfloat16(expected, bits))


def test_a_tensor_left_to_the_loop_draws_its_own_bits():
    """It has gaps, so the loop updates it: with the bits of tensor 2, not of tensor 0."""
    columns = problem([(5,), (5,), (2000,)], torch.bfloat16, adam=False)
    expected, _ = both(columns, stochastic_rounding=True, rounding_seed=7)
    strided = torch.empty(4000, dtype=torch.bfloat16)[::2].copy_(columns[0][2])
    columns[0][2] = strided
    step(columns, stochastic_rounding=True, rounding_seed=7)
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
            cpu.step(momentum_work([*columns[:2], columns[3]], PLAIN_MOMENTUM | scaling))
        else:
            used = columns if kind is FilterAdam else columns[:5]
            step(used, **scaling)
        assert all(map(torch.equal, columns[1], gradients)), "a gradient was changed in place"
        return columns

    plain = run(1.0)
    scaled = run(1024.0, grad_scale=torch.tensor(1024.0), found_inf=torch.tensor([0.0]))
    for k in (0, 2, 3, 4, 5):
        assert all(map(torch.equal, plain[k], scaled[k]))


def test_found_inf_skips_everything():
    columns = problem([(1500,), (20,)])
    before = clone(columns)
    step(columns, found_inf=torch.tensor(1.0))
    skipped = PLAIN_MOMENTUM | {"found_inf": torch.ones(1)}
    cpu.step(momentum_work([*columns[:2], columns[3]], skipped))
    assert_same_bits(columns, before)
