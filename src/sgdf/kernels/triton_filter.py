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
MOMENTS: tl.constexpr = tl.constexpr(4)  # those that are kept of exp_avg, exp_var, exp_avg_sq
SCALES: tl.constexpr = tl.constexpr(7)  # of the same, where they are 8-bit
ROW_LENGTH: tl.constexpr = tl.constexpr(10)
SEED: tl.constexpr = tl.constexpr(11)
TABLE_ROWS = 12

# What a gain and a second moment are made from: cuda.GAIN and cuda.SECOND.
K: tl.constexpr = tl.constexpr(0)
ROOT_OF_K: tl.constexpr = tl.constexpr(1)
POWER_OF_K: tl.constexpr = tl.constexpr(2)
CONSTANT: tl.constexpr = tl.constexpr(3)
SEPARATE: tl.constexpr = tl.constexpr(1)
DERIVED: tl.constexpr = tl.constexpr(2)

FOR_PARAMETER: tl.constexpr = tl.constexpr(0x85EBCA6B)  # rounding.py
FOR_ODD: tl.constexpr = tl.constexpr(0x9E3779B1)
FOR_TREND: tl.constexpr = tl.constexpr(1)
FOR_VARIANCE: tl.constexpr = tl.constexpr(0xC2B2AE35)
FOR_SECOND_MOMENT: tl.constexpr = tl.constexpr(0x27D4EB2F)
INTERPRETED: tl.constexpr = tl.constexpr(triton.knobs.runtime.interpret)
QUANTUM: tl.constexpr = tl.constexpr(256)  # elements per 8-bit block, as in quantized.py


# --- random bits: rounding.py -------------------------------------------------------------------


@triton.jit
def half_mixed(x):
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    return x ^ (x >> 15)


@triton.jit
def mix(x):
    x = half_mixed(x) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def draw(first, COUNT: tl.constexpr, key):
    """For every two of COUNT elements, what `carry` makes their random bits from."""
    pair = (tl.arange(0, COUNT // 2) + first // 2).to(tl.uint32)
    golden = tl.full((), 0x9E3779B9, tl.uint32)
    return half_mixed((pair * golden) ^ key)


@triton.jit
def carry(drawn, PURPOSE: tl.constexpr, BITS: tl.constexpr):
    """BITS random bits for every element, to be added to those that do not fit."""
    even: tl.constexpr = (0x846CA68B * PURPOSE) & 0xFFFFFFFF
    odd: tl.constexpr = (even * FOR_ODD) & 0xFFFFFFFF
    return tl.interleave(
        (drawn * tl.full((), even, tl.uint32)) >> (32 - BITS),
        (drawn * tl.full((), odd, tl.uint32)) >> (32 - BITS),
    )


# --- quotients and roots: as exact as Triton's, or the GPU's own approximations to 22 bits without
# scaling for subnormal numbers, which the interpreter does not know -----------------------------


@triton.jit
def divided(x, y, EXACT: tl.constexpr):
    if EXACT or INTERPRETED:
        return x / y
    return x * tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [y], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def root(x, EXACT: tl.constexpr):
    if EXACT or INTERPRETED:
        return tl.sqrt(x)
    return tl.inline_asm_elementwise(
        "sqrt.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


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
def read_block(base, start, offset, mask, PAIRED: tl.constexpr, MASKED: tl.constexpr):
    """A block of numbers; PAIRED: bfloat16, two in a word, to convert them with less work."""
    if PAIRED:
        words = (base + start).to(tl.pointer_type(tl.uint32)) + tl.arange(0, QUANTUM // 2)
        pairs = tl.load(words)
        even, odd = pairs << 16, pairs & 0xFFFF0000
        value = tl.interleave(even.to(tl.float32, bitcast=True), odd.to(tl.float32, bitcast=True))
    else:
        value = read(base + start + offset, mask, MASKED)
    return value


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
def store_param(pointer, value, drawn, mask, STOCHASTIC: tl.constexpr, MASKED: tl.constexpr):
    if STOCHASTIC:
        # NaN is 0x7FFFFFFF here, and with more added it would become a number.
        kept = tl.minimum(value.to(tl.int32, bitcast=True), 0x7FFF0000).to(tl.uint32, bitcast=True)
        raised = (kept + carry(drawn, FOR_PARAMETER, 16)) >> 16
        value = raised.to(tl.uint16).to(tl.bfloat16, bitcast=True)
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
def corrections(
    t, log_beta1, log_beta2, factor, CORRECTION: tl.constexpr, BIAS_CORRECTION: tl.constexpr
):
    """1 / trend and fluctuation of `sgdf.filter.Corrections`, and 1 / (1 - b2^t)."""
    inverse_trend = 1.0 / one_minus_power(log_beta1, t) if BIAS_CORRECTION else 1.0
    inverse_second = 1.0 / one_minus_power(log_beta2, t)
    fluctuation = factor * one_minus_power(2.0 * log_beta1, t) if CORRECTION else 1.0
    return inverse_trend, fluctuation * inverse_second, inverse_second


@triton.jit
def second_moment_weights(
    t,
    log_beta1,
    log_beta2,
    beta1,
    rest1,
    rest2,
    log_high,
    log_ratio,
    inverse_gap,
    SECOND: tl.constexpr,
):
    """`sgdf.filter.second_moment_weights`; high and ratio are those of its geometric sum."""
    inverse_second = 1.0 / one_minus_power(log_beta2, t)
    if SECOND == DERIVED:
        first = tl.where(t == 1.0, 1.0, 0.0)
        one_minus_b1 = one_minus_power(log_beta1, t)
        p = one_minus_b1 / rest1
        q = one_minus_power(log_beta2, t) / rest2
        s = tl.exp(log_high * (t - 1.0)) * one_minus_power(log_ratio, t) * inverse_gap
        common = p * q - s + first
        of_m = (p * (q - s) / common + first) / (one_minus_b1 * one_minus_b1)
        of_s = one_minus_power(log_beta1, t - 1.0) / (rest1 * beta1 * rest2 * common)
    else:
        of_m = 0.0 * inverse_second
        of_s = inverse_second
    return of_m, of_s


@triton.jit
def updated(
    g,
    m,
    s,
    v,
    inverse_trend,
    fluctuation,
    inverse_second,
    of_m,
    of_s,
    beta1,
    beta2,
    rest1,
    rest2,
    largest,
    gain_eps,
    adam_eps,
    scale,
    power,
    GAIN: tl.constexpr,
    SECOND: tl.constexpr,
    EXACT: tl.constexpr,
):
    """What lr is multiplied with, and the new moments; s and v pass through if not kept."""
    g = tl.maximum(g, -largest, propagate_nan=tl.PropagateNan.ALL)
    g = tl.minimum(g, largest, propagate_nan=tl.PropagateNan.ALL)
    innovation = g - m  # g minus the new m is b1 times this
    m += rest1 * innovation
    if (GAIN != CONSTANT) or (SECOND > SEPARATE):
        s = s + rest2 * beta1 * beta1 * innovation * innovation
    m_hat = m * inverse_trend
    residual = g - m_hat
    if GAIN == CONSTANT:
        gain = scale
    else:
        denominator = s * fluctuation + gain_eps + residual * residual
        # 22 bits are enough for 8-bit state, which has 4, and take half the instructions.
        if GAIN == K:
            gain = divided(s * (scale * fluctuation), denominator, EXACT)
        else:
            gain = divided(s * fluctuation, denominator, EXACT)
            if GAIN == ROOT_OF_K:
                gain = scale * tl.sqrt(gain)
            else:
                gain = scale * tl.exp2(power * tl.log2(gain))
    if EXACT:
        update = m_hat + gain * residual
    else:  # the same with one instruction less, since m_hat itself is not needed
        update = g + (gain - 1.0) * residual
    if SECOND == SEPARATE:
        v = v + rest2 * g * g
        update = divided(update, root(v * inverse_second, EXACT) + adam_eps, EXACT)
    elif (
        SECOND == DERIVED and not EXACT
    ):  # of_m is a root, and of_s relative: see filter_kernel_8bit
        update = divided(update, of_m * root(m * m + of_s * s, EXACT) + adam_eps, EXACT)
    elif SECOND > SEPARATE:
        update = divided(update, root(of_m * m * m + of_s * s, EXACT) + adam_eps, EXACT)
    return update, m, s, v


@triton.jit
def filter_piece(
    p_at,
    g_at,
    m_at,
    s_at,
    v_at,
    start,
    mask,
    inverse_trend,
    fluctuation,
    inverse_second,
    of_m,
    of_s,
    key,
    lr,
    inverse_scale,
    weight_decay,
    beta1,
    beta2,
    rest1,
    rest2,
    largest,
    gain_eps,
    adam_eps,
    scale,
    power,
    ESTIMATE: tl.constexpr,
    GAIN: tl.constexpr,
    SECOND: tl.constexpr,
    DECAY: tl.constexpr,
    DECOUPLED: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    SCALED: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    KEEPS_S: tl.constexpr = (GAIN != CONSTANT) or (SECOND > SEPARATE)
    g, m = read(g_at, mask, MASKED), read(m_at, mask, MASKED)
    p, s, v = g, g, g
    if not ESTIMATE:
        p = read(p_at, mask, MASKED)
        p, g = decayed(p, g, lr, weight_decay, inverse_scale, DECAY, DECOUPLED, MAXIMIZE, SCALED)
    if KEEPS_S:
        s = beta2 * read(s_at, mask, MASKED)
    if SECOND == SEPARATE:
        v = beta2 * read(v_at, mask, MASKED)
    update, m, s, v = updated(
        g, m, s, v, inverse_trend, fluctuation, inverse_second, of_m, of_s, beta1, beta2, rest1,
        rest2, largest, gain_eps, adam_eps, scale, power, GAIN, SECOND, True,
    )  # fmt: skip
    write(m_at, m, mask, MASKED)
    if KEEPS_S:
        write(s_at, s, mask, MASKED)
    if SECOND == SEPARATE:
        write(v_at, v, mask, MASKED)
    if ESTIMATE:
        write(g_at, update, mask, MASKED)
    else:
        drawn = draw(start, BLOCK, key) if STOCHASTIC else key
        store_param(p_at, p - lr * update, drawn, mask, STOCHASTIC, MASKED)


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
    log_high,
    log_ratio,
    inverse_gap,
    factor,
    beta1,
    beta2,
    rest1,
    rest2,
    largest,
    gain_eps,
    adam_eps,
    scale,
    power,
    P: tl.constexpr,
    G: tl.constexpr,
    S: tl.constexpr,
    ESTIMATE: tl.constexpr,
    GAIN: tl.constexpr,
    SECOND: tl.constexpr,
    CORRECTION: tl.constexpr,
    BIAS_CORRECTION: tl.constexpr,
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
    """SGDF and FilterAdam; with ESTIMATE the filter alone, which overwrites the gradients."""
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

    KEEPS_S: tl.constexpr = (GAIN != CONSTANT) or (SECOND > SEPARATE)
    V_ROW: tl.constexpr = MOMENTS + (2 if KEEPS_S else 1)
    g_at = address(grads, 0, n, tensor, G, ALIGNED) + start + offsets
    m_at = address(table, MOMENTS, n, tensor, S, ALIGNED) + start + offsets
    p_at, s_at, v_at = g_at, m_at, m_at
    if not ESTIMATE:
        p_at = address(table, PARAM, n, tensor, P, ALIGNED) + start + offsets
    if KEEPS_S:
        s_at = address(table, MOMENTS + 1, n, tensor, S, ALIGNED) + start + offsets
    if SECOND == SEPARATE:
        v_at = address(table, V_ROW, n, tensor, S, ALIGNED) + start + offsets
    t = step_of(table, n, tensor)
    inverse_trend, fluctuation, inverse_second = corrections(
        t, log_beta1, log_beta2, factor, CORRECTION, BIAS_CORRECTION
    )
    of_m, of_s = 0.0, 0.0
    if SECOND > SEPARATE:
        of_m, of_s = second_moment_weights(
            t, log_beta1, log_beta2, beta1, rest1, rest2, log_high, log_ratio, inverse_gap, SECOND
        )
    key = step_key(table, n, tensor, t)

    # Without a mask the accesses are 16 bytes wide; only the last block of a tensor needs one.
    if start + BLOCK <= numel:
        filter_piece(
            p_at, g_at, m_at, s_at, v_at, start, None, inverse_trend, fluctuation, inverse_second,
            of_m, of_s, key, lr, inverse_scale, weight_decay, beta1, beta2, rest1, rest2,
            largest, gain_eps, adam_eps, scale, power, ESTIMATE, GAIN, SECOND, DECAY, DECOUPLED,
            MAXIMIZE, SCALED, STOCHASTIC, False, BLOCK,
        )  # fmt: skip
    else:
        filter_piece(
            p_at, g_at, m_at, s_at, v_at, start, index < numel, inverse_trend, fluctuation,
            inverse_second, of_m, of_s, key, lr, inverse_scale, weight_decay, beta1, beta2, rest1,
            rest2, largest, gain_eps, adam_eps, scale, power, ESTIMATE, GAIN, SECOND, DECAY,
            DECOUPLED, MAXIMIZE, SCALED, STOCHASTIC, True, BLOCK,
        )  # fmt: skip


@triton.jit
def largest_of(x):
    """The largest of numbers that are not negative: their bits are ordered as integers."""
    return tl.max(x.to(tl.int32, bitcast=True), axis=0).to(tl.float32, bitcast=True)


@triton.jit
def quantized(x, block_scale, drawn, PURPOSE: tl.constexpr, SIGNED: tl.constexpr):
    """The 8-bit codes of a block, rounded at random by 20 bits, as in quantized.py.

    The code of 0 is not subtracted: only low bits are kept, and an unsigned code's are 0.
    """
    floor: tl.constexpr = 2.0**-15 if SIGNED else 2.0**-31
    inverse = divided(1.0, tl.maximum(block_scale, 2.0**-126), False)
    t = tl.abs(x) * inverse + floor
    code = (t.to(tl.uint32, bitcast=True) + carry(drawn, PURPOSE, 20)) >> 20
    if SIGNED:
        # sign is 0 or -1, and x ^ sign - sign is x or -x. The code of 0 is 896, whose low bits are
        # 128 or -128: another 128 removes them.
        sign = x.to(tl.int32, bitcast=True) >> 31
        code = (code.to(tl.int32, bitcast=True) ^ sign) - sign + 128
    return code.to(tl.uint8)


@triton.jit
def raised(code, ZERO: tl.constexpr):
    """(code + ZERO) << 20 in one instruction; LLVM would make two of it."""
    if INTERPRETED:
        return (code + ZERO) << 20
    return tl.inline_asm_elementwise(
        "mad.lo.s32 $0, $1, 0x100000, $2;",
        "=r,r,r",
        [code, ZERO << 20],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def dequantized(code, scale, SIGNED: tl.constexpr):
    floor: tl.constexpr = 2.0**-15 if SIGNED else 2.0**-31
    zero: tl.constexpr = 896 if SIGNED else 768
    code = code.to(tl.int32)
    magnitude = tl.abs(code) if SIGNED else code
    x = raised(magnitude, zero).to(tl.float32, bitcast=True) * scale - floor * scale
    if SIGNED:
        x = (x.to(tl.int32, bitcast=True) | (code & -0x80000000)).to(tl.float32, bitcast=True)
    return x


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
    log_high,
    log_ratio,
    inverse_gap,
    factor,
    beta1,
    beta2,
    rest1,
    rest2,
    largest,
    gain_eps,
    adam_eps,
    scale,
    power,
    P: tl.constexpr,
    G: tl.constexpr,
    ESTIMATE: tl.constexpr,
    GAIN: tl.constexpr,
    SECOND: tl.constexpr,
    CORRECTION: tl.constexpr,
    BIAS_CORRECTION: tl.constexpr,
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
    STAGES: tl.constexpr,
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
    KEEPS_S: tl.constexpr = (GAIN != CONSTANT) or (SECOND > SEPARATE)
    V_SLOT: tl.constexpr = 2 if KEEPS_S else 1
    g_at = address(grads, 0, n, tensor, G, ALIGNED)
    m_at = address(table, MOMENTS, n, tensor, tl.int8, ALIGNED)
    m_scale_at = address(table, SCALES, n, tensor, tl.float32, False)
    p_at, s_at, v_at, s_scale_at, v_scale_at = g_at, m_at, m_at, m_scale_at, m_scale_at
    if not ESTIMATE:
        p_at = address(table, PARAM, n, tensor, P, ALIGNED)
    if KEEPS_S:
        s_at = address(table, MOMENTS + 1, n, tensor, tl.uint8, ALIGNED)
        s_scale_at = address(table, SCALES + 1, n, tensor, tl.float32, False)
    if SECOND == SEPARATE:
        v_at = address(table, MOMENTS + V_SLOT, n, tensor, tl.uint8, ALIGNED)
        v_scale_at = address(table, SCALES + V_SLOT, n, tensor, tl.float32, False)
    t = step_of(table, n, tensor)
    inverse_trend, fluctuation, inverse_second = corrections(
        t, log_beta1, log_beta2, factor, CORRECTION, BIAS_CORRECTION
    )
    of_m, of_s = 0.0, 0.0
    if SECOND > SEPARATE:
        of_m, of_s = second_moment_weights(
            t, log_beta1, log_beta2, beta1, rest1, rest2, log_high, log_ratio, inverse_gap, SECOND
        )
    if SECOND == DERIVED:  # sqrt(of_m) sqrt(m^2 + of_s s): an instruction less for every element
        of_m = tl.maximum(of_m, 2.0**-40)
        of_s = of_s / of_m
        of_m = tl.sqrt(of_m)
    key = step_key(table, n, tensor, t)

    first = (tl.program_id(0) - tl.load(table + FIRST_BLOCK * n + tensor)) * BLOCKS
    last = tl.minimum(first + BLOCKS, count)
    offset = tl.arange(0, QUANTUM)
    for block in tl.range(first, last, num_stages=STAGES):
        if WHOLE_ROWS:  # every row is a whole number of blocks: the blocks are consecutive
            start = tl.multiple_of(block * QUANTUM, QUANTUM)
            mask = None
        else:
            column = (block % per_row) * QUANTUM
            start = (block // per_row) * row_length + column
            mask = offset < row_length - column
        MASKED: tl.constexpr = not WHOLE_ROWS
        WORDS: tl.constexpr = WHOLE_ROWS and ALIGNED
        g = read_block(g_at, start, offset, mask, WORDS and G == tl.bfloat16, MASKED)
        m_codes = read_codes(m_at + start + offset, mask, MASKED)
        m = dequantized(m_codes, tl.load(m_scale_at + block), True)
        p, s, v = g, g, g
        if not ESTIMATE:
            p = read_block(p_at, start, offset, mask, WORDS and P == tl.bfloat16, MASKED)
            p, g = decayed(
                p, g, lr, weight_decay, inverse_scale, DECAY, DECOUPLED, MAXIMIZE, SCALED
            )
        if KEEPS_S:
            s_codes = read_codes(s_at + start + offset, mask, MASKED)
            s = dequantized(s_codes, beta2 * tl.load(s_scale_at + block), False)
        if SECOND == SEPARATE:
            v_codes = read_codes(v_at + start + offset, mask, MASKED)
            v = dequantized(v_codes, beta2 * tl.load(v_scale_at + block), False)
        update, m, s, v = updated(
            g, m, s, v, inverse_trend, fluctuation, inverse_second, of_m, of_s, beta1, beta2,
            rest1, rest2, largest, gain_eps, adam_eps, scale, power, GAIN, SECOND, False,
        )  # fmt: skip

        drawn = draw(block * QUANTUM, QUANTUM, key)
        block_scale = largest_of(tl.abs(m))
        tl.store(m_scale_at + block, block_scale)
        codes = quantized(m, block_scale, drawn, FOR_TREND, True).to(tl.int8, bitcast=True)
        write(m_at + start + offset, codes, mask, MASKED)
        if KEEPS_S:
            block_scale = largest_of(s)
            tl.store(s_scale_at + block, block_scale)
            codes = quantized(s, block_scale, drawn, FOR_VARIANCE, False)
            write(s_at + start + offset, codes, mask, MASKED)
        if SECOND == SEPARATE:
            block_scale = largest_of(v)
            tl.store(v_scale_at + block, block_scale)
            codes = quantized(v, block_scale, drawn, FOR_SECOND_MOMENT, False)
            write(v_at + start + offset, codes, mask, MASKED)
        if ESTIMATE:
            write(g_at + start + offset, update, mask, MASKED)
        else:
            at = p_at + start + offset
            store_param(at, p - lr * update, drawn, mask, STOCHASTIC, MASKED)


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
