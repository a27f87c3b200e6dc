"""Columns of tensors in the middle of a run, for kernels that are called directly."""

import torch

from sgdf.kernels.quantized import Quantized, blocks_per_row, quantize_

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


def spiky(step, shape=(16, 256)):
    """Normal gradients; at three steps, half of them are between 1e15 and 1e38."""
    generator = torch.Generator().manual_seed(step)
    g = torch.randn(shape, generator=generator)
    if step in (0, 3, 4):
        large = g[:, ::2]
        exponents = torch.randint(15, 39, large.shape, generator=generator)
        large.copy_((-1.0) ** step * large.sign() * 10.0**exponents)
    return g


def assert_finite(tensors, step):
    for name, tensor in tensors.items():
        assert tensor.float().isfinite().all(), f"{name} after step {step}"
