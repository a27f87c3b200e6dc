"""The device code of cuda.py: the filter over a table of tensors, in Triton.

A launch covers all tensors of one kind (dtypes, format of the state). `table` (written by plan.py)
has a row of length `n` for each of sizes, addresses and seeds, and a column per tensor.
`block_tensor` says which tensor a program works on. Each program reads its tensor's step counter
and computes the bias corrections itself, so nothing here needs the host.
"""

import triton
import triton.language as tl

# Rows of the table, for every kind of launch.
NUMEL: tl.constexpr = tl.constexpr(0)
FIRST_BLOCK: tl.constexpr = tl.constexpr(1)
PARAM: tl.constexpr = tl.constexpr(2)
STEP: tl.constexpr = tl.constexpr(3)
MOMENTS: tl.constexpr = tl.constexpr(4)  # exp_avg, exp_var, exp_avg_sq
SCALES: tl.constexpr = tl.constexpr(7)  # of the same, where they are 8-bit
ROW_LENGTH: tl.constexpr = tl.constexpr(10)
SEED: tl.constexpr = tl.constexpr(11)
TABLE_ROWS = 12

QUANTUM: tl.constexpr = tl.constexpr(256)  # elements per 8-bit block, as in quantized.py


@triton.jit
def mix(x):
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def random_bits(index, key, purpose: tl.constexpr):
    golden = tl.full((), 0x9E3779B9, tl.uint32)
    return mix((index.to(tl.uint32) * golden) ^ (key ^ purpose))


@triton.jit
def one_minus_power(log_beta, t):
    """1 - beta^t = -expm1(t log beta), by its series where the difference would lose digits."""
    x = t * log_beta
    series = 1.0 + x * (1 / 7 + x * (1 / 56))
    for k in tl.static_range(6, 1, -1):
        series = 1.0 + x * (1.0 / k) * series
    return tl.where(x > -0.4, -x * series, 1.0 - tl.exp(x))


@triton.jit
def step_of(table, n, tensor):
    return tl.load(tl.load(table + STEP * n + tensor).to(tl.pointer_type(tl.float32)))


@triton.jit
def step_key(table, n, tensor, t):
    seed = tl.load(table + SEED * n + tensor).to(tl.uint32)
    return mix(seed ^ t.to(tl.int32).to(tl.uint32, bitcast=True))


@triton.jit
def read(pointer, mask, MASKED: tl.constexpr):
    if MASKED:
        value = tl.load(pointer, mask=mask, other=0)
    else:
        value = tl.load(pointer)
    return value.to(tl.float32)


@triton.jit
def read_codes(pointer, mask, MASKED: tl.constexpr):
    if MASKED:
        codes = tl.load(pointer, mask=mask, other=0)
    else:
        codes = tl.load(pointer)
    return codes


@triton.jit
def write(pointer, value, mask, MASKED: tl.constexpr):
    if MASKED:
        tl.store(pointer, value.to(pointer.dtype.element_ty), mask=mask)
    else:
        tl.store(pointer, value.to(pointer.dtype.element_ty))


@triton.jit
def store_param(pointer, value, index, key, mask, STOCHASTIC: tl.constexpr, MASKED: tl.constexpr):
    if STOCHASTIC:
        low = random_bits(index, key, 0) & 0xFFFF
        raised = (value.to(tl.uint32, bitcast=True) + low) & 0xFFFF0000
        finite = tl.abs(value) < float("inf")
        value = tl.where(finite, raised.to(tl.float32, bitcast=True), value)
    write(pointer, value, mask, MASKED)


@triton.jit
def address(table, row, n, tensor, type: tl.constexpr, ALIGNED: tl.constexpr):
    """Where a tensor starts; ALIGNED: at a multiple of 16 bytes, for wide accesses."""
    pointer = tl.load(table + row * n + tensor).to(tl.pointer_type(type))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit
def decayed(
    p,
    g,
    lr,
    weight_decay,
    inverse_scale,
    DECAY: tl.constexpr,
    DECOUPLED: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Parameter and gradient with weight decay in one of them."""
    if SCALED:
        g = g * inverse_scale
    if MAXIMIZE:
        g = -g
    if DECAY:
        if DECOUPLED:
            p = p * (1.0 - lr * weight_decay)
        else:
            g = g + weight_decay * p
    return p, g


@triton.jit
def filtered(
    g,
    m,
    s,
    inverse_trend,
    fluctuation,
    eps,
    scale,
    power,
    POWER: tl.constexpr,
    EXACT: tl.constexpr,
):
    """g^ from moments already updated: the second half of `sgdf.filter.wiener_filter`."""
    m_hat = m * inverse_trend
    s_hat = s * fluctuation
    residual = g - m_hat
    denominator = s_hat + residual * residual + eps
    if EXACT:
        gain = s_hat / denominator
    else:  # to 22 bits, where the state has 4: a third of the division's instructions
        root = tl.rsqrt(denominator)
        gain = tl.minimum(s_hat * (root * root), 1.0)
    if POWER == 1:
        gain = tl.sqrt(gain)
    elif POWER == 2:
        gain = tl.exp2(power * tl.log2(gain))
    return m_hat + scale * gain * residual


@triton.jit
def filter_piece(
    p_at,
    g_at,
    m_at,
    s_at,
    v_at,
    index,
    mask,
    inverse_trend,
    fluctuation,
    inverse_second,
    key,
    lr,
    inverse_scale,
    weight_decay,
    beta1,
    beta2,
    rest1,
    rest2,
    eps,
    adam_eps,
    scale,
    power,
    ADAM: tl.constexpr,
    POWER: tl.constexpr,
    DECAY: tl.constexpr,
    DECOUPLED: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    SCALED: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    MASKED: tl.constexpr,
):
    p, g = read(p_at, mask, MASKED), read(g_at, mask, MASKED)
    m, s = read(m_at, mask, MASKED), read(s_at, mask, MASKED)
    p, g = decayed(p, g, lr, weight_decay, inverse_scale, DECAY, DECOUPLED, MAXIMIZE, SCALED)
    m = beta1 * m + rest1 * g
    s = beta2 * s + rest2 * (g - m) * (g - m)
    update = filtered(g, m, s, inverse_trend, fluctuation, eps, scale, power, POWER, True)
    if ADAM:
        v = read(v_at, mask, MASKED)
        v = beta2 * v + rest2 * g * g
        update = update / (tl.sqrt(v * inverse_second) + adam_eps)
        write(v_at, v, mask, MASKED)
    write(m_at, m, mask, MASKED)
    write(s_at, s, mask, MASKED)
    store_param(p_at, p - lr * update, index, key, mask, STOCHASTIC, MASKED)


@triton.jit
def filter_kernel(
    table,
    grads,
    block_tensor,
    lr_at,
    grad_scale,
    found_inf,
    n,
    lr,
    weight_decay,
    log_beta1,
    log_beta2,
    factor,
    beta1,
    beta2,
    rest1,
    rest2,
    eps,
    adam_eps,
    scale,
    power,
    P: tl.constexpr,
    G: tl.constexpr,
    S: tl.constexpr,
    ADAM: tl.constexpr,
    POWER: tl.constexpr,
    CORRECTION: tl.constexpr,
    DECAY: tl.constexpr,
    DECOUPLED: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    LR_ON_DEVICE: tl.constexpr,
    SCALED: tl.constexpr,
    SKIP_INF: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    tensor = tl.load(block_tensor + tl.program_id(0))
    numel = tl.load(table + NUMEL * n + tensor)
    if SKIP_INF:
        numel = tl.where(tl.load(found_inf) == 0.0, numel, 0)
    if LR_ON_DEVICE:
        lr = tl.load(lr_at).to(tl.float32)
    inverse_scale = 1.0
    if SCALED:
        inverse_scale = 1.0 / tl.load(grad_scale).to(tl.float32)
    start = (tl.program_id(0) - tl.load(table + FIRST_BLOCK * n + tensor)) * BLOCK
    start = tl.multiple_of(start.to(tl.int64), BLOCK)
    offsets = tl.arange(0, BLOCK)
    index = start + offsets

    p_at = address(table, PARAM, n, tensor, P, ALIGNED) + start + offsets
    g_at = address(grads, 0, n, tensor, G, ALIGNED) + start + offsets
    m_at = address(table, MOMENTS, n, tensor, S, ALIGNED) + start + offsets
    s_at = address(table, MOMENTS + 1, n, tensor, S, ALIGNED) + start + offsets
    v_at = s_at
    if ADAM:
        v_at = address(table, MOMENTS + 2, n, tensor, S, ALIGNED) + start + offsets
    t = step_of(table, n, tensor)
    inverse_trend = 1.0 / one_minus_power(log_beta1, t)
    inverse_second = 1.0 / one_minus_power(log_beta2, t)
    fluctuation = factor * one_minus_power(2.0 * log_beta1, t) if CORRECTION else 1.0
    fluctuation *= inverse_second
    key = step_key(table, n, tensor, t)

    # Without a mask the accesses are 16 bytes wide; only the last block of a tensor needs one.
    if start + BLOCK <= numel:
        filter_piece(
            p_at, g_at, m_at, s_at, v_at, index, None, inverse_trend, fluctuation, inverse_second,
            key, lr, inverse_scale, weight_decay, beta1, beta2, rest1, rest2, eps, adam_eps,
            scale, power, ADAM, POWER, DECAY, DECOUPLED, MAXIMIZE, SCALED, STOCHASTIC, False,
        )  # fmt: skip
    else:
        filter_piece(
            p_at, g_at, m_at, s_at, v_at, index, index < numel, inverse_trend, fluctuation,
            inverse_second, key, lr, inverse_scale, weight_decay, beta1, beta2, rest1, rest2,
            eps, adam_eps, scale, power, ADAM, POWER, DECAY, DECOUPLED, MAXIMIZE, SCALED,
            STOCHASTIC, True,
        )  # fmt: skip


@triton.jit
def quantized(x, largest, bits, SIGNED: tl.constexpr):
    """The 8-bit codes of a block, rounded at random by the low 20 bits, as in quantized.py."""
    floor: tl.constexpr = 2.0**-15 if SIGNED else 2.0**-31
    zero: tl.constexpr = 896 if SIGNED else 768
    inverse = 1.0 / tl.maximum(largest, 2.0**-126)
    t = tl.abs(x) * inverse + floor
    code = ((t.to(tl.int32, bitcast=True) + (bits & 0xFFFFF).to(tl.int32)) >> 20) - zero
    if SIGNED:
        code = tl.where(x < 0.0, -code, code)
    return code.to(tl.uint8)


@triton.jit
def dequantized(code, scale, SIGNED: tl.constexpr):
    floor: tl.constexpr = 2.0**-15 if SIGNED else 2.0**-31
    zero: tl.constexpr = 896 if SIGNED else 768
    code = code.to(tl.int32)
    magnitude = tl.abs(code) if SIGNED else code
    t = ((magnitude + zero) << 20).to(tl.float32, bitcast=True) - floor
    if SIGNED:
        t = tl.where(code < 0, -t, t)
    return t * scale


@triton.jit
def filter_kernel_8bit(
    table,
    grads,
    block_tensor,
    lr_at,
    grad_scale,
    found_inf,
    n,
    lr,
    weight_decay,
    log_beta1,
    log_beta2,
    factor,
    beta1,
    beta2,
    rest1,
    rest2,
    eps,
    adam_eps,
    scale,
    power,
    P: tl.constexpr,
    G: tl.constexpr,
    ADAM: tl.constexpr,
    POWER: tl.constexpr,
    CORRECTION: tl.constexpr,
    DECAY: tl.constexpr,
    DECOUPLED: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    LR_ON_DEVICE: tl.constexpr,
    SCALED: tl.constexpr,
    SKIP_INF: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    ALIGNED: tl.constexpr,
    WHOLE_ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """As filter_kernel, on BLOCKS blocks of QUANTUM elements, each with its own scale."""
    tensor = tl.load(block_tensor + tl.program_id(0))
    numel = tl.load(table + NUMEL * n + tensor)
    row_length = tl.load(table + ROW_LENGTH * n + tensor)
    per_row = (row_length + QUANTUM - 1) // QUANTUM
    count = (numel // row_length) * per_row
    if SKIP_INF:
        count = tl.where(tl.load(found_inf) == 0.0, count, 0)
    if LR_ON_DEVICE:
        lr = tl.load(lr_at).to(tl.float32)
    inverse_scale = 1.0
    if SCALED:
        inverse_scale = 1.0 / tl.load(grad_scale).to(tl.float32)
    p_at = address(table, PARAM, n, tensor, P, ALIGNED)
    g_at = address(grads, 0, n, tensor, G, ALIGNED)
    m_at = address(table, MOMENTS, n, tensor, tl.int8, ALIGNED)
    s_at = address(table, MOMENTS + 1, n, tensor, tl.uint8, ALIGNED)
    v_at = s_at
    m_scale_at = address(table, SCALES, n, tensor, tl.float32, False)
    s_scale_at = address(table, SCALES + 1, n, tensor, tl.float32, False)
    v_scale_at = s_scale_at
    if ADAM:
        v_at = address(table, MOMENTS + 2, n, tensor, tl.uint8, ALIGNED)
        v_scale_at = address(table, SCALES + 2, n, tensor, tl.float32, False)
    t = step_of(table, n, tensor)
    inverse_trend = 1.0 / one_minus_power(log_beta1, t)
    inverse_second = 1.0 / one_minus_power(log_beta2, t)
    fluctuation = factor * one_minus_power(2.0 * log_beta1, t) if CORRECTION else 1.0
    fluctuation *= inverse_second
    key = step_key(table, n, tensor, t)

    first = (tl.program_id(0) - tl.load(table + FIRST_BLOCK * n + tensor)) * BLOCKS
    last = tl.minimum(first + BLOCKS, count)
    offset = tl.arange(0, QUANTUM)
    for block in range(first, last):
        if WHOLE_ROWS:  # every row is a whole number of blocks: the blocks are consecutive
            start = tl.multiple_of(block * QUANTUM, QUANTUM)
            mask = None
        else:
            column = (block % per_row) * QUANTUM
            start = (block // per_row) * row_length + column
            mask = offset < row_length - column
        index = start.to(tl.uint32) + offset.to(tl.uint32)
        MASKED: tl.constexpr = not WHOLE_ROWS
        p, g = read(p_at + start + offset, mask, MASKED), read(g_at + start + offset, mask, MASKED)
        m_codes = read_codes(m_at + start + offset, mask, MASKED)
        s_codes = read_codes(s_at + start + offset, mask, MASKED)
        m = dequantized(m_codes, tl.load(m_scale_at + block), True)
        s = dequantized(s_codes, tl.load(s_scale_at + block), False)
        p, g = decayed(p, g, lr, weight_decay, inverse_scale, DECAY, DECOUPLED, MAXIMIZE, SCALED)
        m = beta1 * m + rest1 * g
        s = beta2 * s + rest2 * (g - m) * (g - m)
        update = filtered(
            g, m, s, inverse_trend, fluctuation, eps, scale, power, POWER, False
        )  # fmt: skip

        bits = random_bits(index, key, 0x85EBCA6B)
        largest = tl.max(tl.abs(m), axis=0)
        tl.store(m_scale_at + block, largest)
        codes = quantized(m, largest, bits, True).to(tl.int8, bitcast=True)
        write(m_at + start + offset, codes, mask, MASKED)
        largest = tl.max(s, axis=0)
        tl.store(s_scale_at + block, largest)
        write(s_at + start + offset, quantized(s, largest, bits >> 12, False), mask, MASKED)
        if ADAM:
            v_codes = read_codes(v_at + start + offset, mask, MASKED)
            v = dequantized(v_codes, tl.load(v_scale_at + block), False)
            v = beta2 * v + rest2 * g * g
            update = update / (tl.sqrt(v * inverse_second) + adam_eps)
            largest = tl.max(v, axis=0)
            tl.store(v_scale_at + block, largest)
            bits = random_bits(index, key, 0xC2B2AE35)
            write(v_at + start + offset, quantized(v, largest, bits, False), mask, MASKED)
        at = p_at + start + offset
        store_param(at, p - lr * update, index, key, mask, STOCHASTIC, MASKED)


@triton.jit
def momentum_piece(
    p_at,
    g_at,
    m_at,
    mask,
    lr,
    inverse_scale,
    weight_decay,
    beta,
    mu,
    DECAY: tl.constexpr,
    DECOUPLED: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    SCALED: tl.constexpr,
    MASKED: tl.constexpr,
):
    p, g, m = read(p_at, mask, MASKED), read(g_at, mask, MASKED), read(m_at, mask, MASKED)
    p, g = decayed(p, g, lr, weight_decay, inverse_scale, DECAY, DECOUPLED, MAXIMIZE, SCALED)
    m = beta * m + mu * g
    write(m_at, m, mask, MASKED)
    write(p_at, p - lr * m, mask, MASKED)


@triton.jit
def momentum_kernel(
    table,
    grads,
    block_tensor,
    lr_at,
    grad_scale,
    found_inf,
    n,
    lr,
    weight_decay,
    beta,
    mu,
    P: tl.constexpr,
    G: tl.constexpr,
    S: tl.constexpr,
    DECAY: tl.constexpr,
    DECOUPLED: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    LR_ON_DEVICE: tl.constexpr,
    SCALED: tl.constexpr,
    SKIP_INF: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    tensor = tl.load(block_tensor + tl.program_id(0))
    numel = tl.load(table + NUMEL * n + tensor)
    if SKIP_INF:
        numel = tl.where(tl.load(found_inf) == 0.0, numel, 0)
    if LR_ON_DEVICE:
        lr = tl.load(lr_at).to(tl.float32)
    inverse_scale = 1.0
    if SCALED:
        inverse_scale = 1.0 / tl.load(grad_scale).to(tl.float32)
    start = (tl.program_id(0) - tl.load(table + FIRST_BLOCK * n + tensor)) * BLOCK
    start = tl.multiple_of(start.to(tl.int64), BLOCK)
    offsets = tl.arange(0, BLOCK)
    p_at = address(table, PARAM, n, tensor, P, ALIGNED) + start + offsets
    g_at = address(grads, 0, n, tensor, G, ALIGNED) + start + offsets
    m_at = address(table, MOMENTS, n, tensor, S, ALIGNED) + start + offsets
    if start + BLOCK <= numel:
        momentum_piece(
            p_at, g_at, m_at, None, lr, inverse_scale, weight_decay, beta, mu,
            DECAY, DECOUPLED, MAXIMIZE, SCALED, False,
        )  # fmt: skip
    else:
        momentum_piece(
            p_at, g_at, m_at, start + offsets < numel, lr, inverse_scale, weight_decay, beta, mu,
            DECAY, DECOUPLED, MAXIMIZE, SCALED, True,
        )  # fmt: skip
