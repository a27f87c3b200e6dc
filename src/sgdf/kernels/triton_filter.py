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
MOMENTS: tl.constexpr = tl.constexpr(4)  # m, s, v
SCALES: tl.constexpr = tl.constexpr(7)  # theirs, where they are 8-bit
ROW_LENGTH: tl.constexpr = tl.constexpr(10)
SEED: tl.constexpr = tl.constexpr(11)
TABLE_ROWS = 12

# What a step does, and what a gain and a second moment are made from: cuda.KINDS, GAIN, SECOND.
FILTER: tl.constexpr = tl.constexpr(0)
ESTIMATE: tl.constexpr = tl.constexpr(1)
MOMENTUM: tl.constexpr = tl.constexpr(2)
K: tl.constexpr = tl.constexpr(0)
ROOT_OF_K: tl.constexpr = tl.constexpr(1)
POWER_OF_K: tl.constexpr = tl.constexpr(2)
CONSTANT: tl.constexpr = tl.constexpr(3)
NONE: tl.constexpr = tl.constexpr(0)
SEPARATE: tl.constexpr = tl.constexpr(1)
DERIVED: tl.constexpr = tl.constexpr(2)

FOR_PARAMETER: tl.constexpr = tl.constexpr(0x85EBCA6B)  # rounding.py
FOR_ODD: tl.constexpr = tl.constexpr(0x9E3779B1)
FOR_TREND: tl.constexpr = tl.constexpr(1)
FOR_VARIANCE: tl.constexpr = tl.constexpr(0xC2B2AE35)
FOR_SECOND_MOMENT: tl.constexpr = tl.constexpr(0x27D4EB2F)
INTERPRETED: tl.constexpr = tl.constexpr(triton.knobs.runtime.interpret)
LARGEST_UPDATE: tl.constexpr = tl.constexpr(10.0)  # filter.LARGEST_8_BIT_UPDATE
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
def write(pointer, value, mask, MASKED: tl.constexpr):
    if MASKED:
        tl.store(pointer, value.to(pointer.dtype.element_ty), mask=mask)
    else:
        tl.store(pointer, value.to(pointer.dtype.element_ty))


@triton.jit
def rounded_at_random(value, drawn, PURPOSE: tl.constexpr):
    """float32 as bfloat16."""
    # NaN is 0x7FFFFFFF here, and with more added it would become a number.
    kept = tl.minimum(value.to(tl.int32, bitcast=True), 0x7FFF0000).to(tl.uint32, bitcast=True)
    raised = (kept + carry(drawn, PURPOSE, 16)) >> 16
    return raised.to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def address(table, row, n, tensor, type: tl.constexpr, ALIGNED: tl.constexpr):
    """Where a tensor starts; ALIGNED: at a multiple of 16 bytes, for wide accesses."""
    pointer = tl.load(table + row * n + tensor).to(tl.pointer_type(type))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


# --- moments as they are stored: CODES are 8-bit blocks with a scale each (quantized.py) ----------


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
def load_moment(
    base,
    scales,
    factor,
    block,
    start,
    offset,
    mask,
    CODES: tl.constexpr,
    SIGNED: tl.constexpr,
    MASKED: tl.constexpr,
):
    """A moment times `factor`."""
    if CODES:
        if MASKED:
            codes = tl.load(base + start + offset, mask=mask, other=0)
        else:
            codes = tl.load(base + start + offset)
        x = dequantized(codes, factor * tl.load(scales + block), SIGNED)
    else:
        x = factor * read(base + start + offset, mask, MASKED)
    return x


@triton.jit
def store_moment(
    x,
    base,
    scales,
    block,
    start,
    offset,
    mask,
    drawn,
    PURPOSE: tl.constexpr,
    CODES: tl.constexpr,
    SIGNED: tl.constexpr,
    RANDOM: tl.constexpr,
    MASKED: tl.constexpr,
):
    if base.dtype.element_ty == tl.bfloat16 and RANDOM:
        x = rounded_at_random(x, drawn, PURPOSE)
    if CODES:
        if SIGNED:
            block_scale = largest_of(tl.abs(x))
        else:
            block_scale = largest_of(x)
        tl.store(scales + block, block_scale)
        x = quantized(x, block_scale, drawn, PURPOSE, SIGNED)
        if SIGNED:
            x = x.to(tl.int8, bitcast=True)
    write(base + start + offset, x, mask, MASKED)


# --- the rule: filter.py ------------------------------------------------------------------------


@triton.jit
def decayed(
    p,
    g,
    of_weights,
    DECAY: tl.constexpr,
    DECOUPLED: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Parameter and gradient with weight decay in one of them."""
    lr, inverse_scale, weight_decay = of_weights
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
def second_moment_weights(t, logs, numbers, SECOND: tl.constexpr):
    """`sgdf.filter.second_moment_weights`; high and ratio are those of its geometric sum."""
    log_beta1, log_beta2, log_high, log_ratio, inverse_gap = logs
    beta1, rest1, _, rest2, _, _, _, _, _ = numbers
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
    g, m, s, v, of_step, numbers, GAIN: tl.constexpr, SECOND: tl.constexpr, EXACT: tl.constexpr
):
    """What lr is multiplied with, and the new moments; s and v pass through if not kept."""
    inverse_trend, fluctuation, inverse_second, of_m, of_s = of_step
    beta1, rest1, _, rest2, largest, gain_eps, adam_eps, gain_scale, gain_power = numbers
    if SECOND == NONE:  # filter.without_overflow
        g = tl.where(tl.abs(g) > largest, m, g)
    else:
        g = tl.maximum(g, -largest, propagate_nan=tl.PropagateNan.ALL)
        g = tl.minimum(g, largest, propagate_nan=tl.PropagateNan.ALL)
    innovation = g - m  # g minus the new m is b1 times this
    m += rest1 * innovation
    if (GAIN != CONSTANT) or (SECOND > SEPARATE):
        s = s + rest2 * beta1 * beta1 * innovation * innovation
    m_hat = m * inverse_trend
    residual = g - m_hat
    if GAIN == CONSTANT:
        gain = gain_scale
    else:
        denominator = s * fluctuation + gain_eps + residual * residual
        # 22 bits are enough for 8-bit state, which has 4, and take half the instructions.
        if GAIN == K:
            gain = divided(s * (gain_scale * fluctuation), denominator, EXACT)
        else:
            gain = divided(s * fluctuation, denominator, EXACT)
            if GAIN == ROOT_OF_K:
                gain = gain_scale * tl.sqrt(gain)
            else:
                gain = gain_scale * tl.exp2(gain_power * tl.log2(gain))
    if EXACT:
        update = m_hat + gain * residual
    else:  # the same with one instruction less, since m_hat itself is not needed
        update = g + (gain - 1.0) * residual
    if SECOND == SEPARATE:
        v = v + rest2 * g * g
        update = divided(update, root(v * inverse_second, EXACT) + adam_eps, EXACT)
    elif SECOND == DERIVED and not EXACT:  # of_m is a root, and of_s relative: see update_kernel
        update = divided(update, of_m * root(m * m + of_s * s, EXACT) + adam_eps, EXACT)
    elif SECOND > SEPARATE:
        update = divided(update, root(of_m * m * m + of_s * s, EXACT) + adam_eps, EXACT)
    if not EXACT and (SECOND > 0 and SECOND != DERIVED):  # derived never comes to it
        update = tl.maximum(update, -LARGEST_UPDATE, propagate_nan=tl.PropagateNan.ALL)
        update = tl.minimum(update, LARGEST_UPDATE, propagate_nan=tl.PropagateNan.ALL)
    return update, m, s, v


@triton.jit
def update_piece(
    at,
    scales,
    block,
    start,
    offset,
    mask,
    key,
    of_step,
    of_weights,
    numbers,
    KIND: tl.constexpr,
    GAIN: tl.constexpr,
    SECOND: tl.constexpr,
    DECAY: tl.constexpr,
    DECOUPLED: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    SCALED: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    P_PAIRED: tl.constexpr,
    G_PAIRED: tl.constexpr,
    CODES: tl.constexpr,
    MASKED: tl.constexpr,
    SIZE: tl.constexpr,
):
    """SIZE consecutive elements, from memory to memory."""
    p_at, g_at, m_at, s_at, v_at = at
    m_scales, s_scales, v_scales = scales
    beta1, _, beta2, _, _, _, _, gain_scale, _ = numbers
    lr, _, _ = of_weights
    KEEPS_S: tl.constexpr = (KIND != MOMENTUM) and ((GAIN != CONSTANT) or (SECOND > SEPARATE))
    g = read_block(g_at, start, offset, mask, G_PAIRED, MASKED)
    m = load_moment(m_at, m_scales, 1.0, block, start, offset, mask, CODES, True, MASKED)
    p, s, v = g, g, g
    if KIND != ESTIMATE:
        p = read_block(p_at, start, offset, mask, P_PAIRED, MASKED)
        p, g = decayed(p, g, of_weights, DECAY, DECOUPLED, MAXIMIZE, SCALED)
    if KEEPS_S:
        s = load_moment(s_at, s_scales, beta2, block, start, offset, mask, CODES, False, MASKED)
    if SECOND == SEPARATE:
        v = load_moment(v_at, v_scales, beta2, block, start, offset, mask, CODES, False, MASKED)
    if KIND == MOMENTUM:  # its beta and mu
        m = beta1 * m + gain_scale * g
        update = m
    else:
        update, m, s, v = updated(g, m, s, v, of_step, numbers, GAIN, SECOND, not CODES)

    drawn = key
    RANDOM: tl.constexpr = KIND != MOMENTUM  # which counts no steps, so it has no key
    if CODES:
        drawn = draw(block * QUANTUM, QUANTUM, key)
    elif STOCHASTIC or (RANDOM and m_at.dtype.element_ty == tl.bfloat16):
        drawn = draw(start, SIZE, key)
    store_moment(
        m, m_at, m_scales, block, start, offset, mask, drawn, FOR_TREND, CODES, True, RANDOM, MASKED
    )
    if KEEPS_S:
        store_moment(
            s, s_at, s_scales, block, start, offset, mask, drawn, FOR_VARIANCE, CODES, False,
            RANDOM, MASKED,
        )  # fmt: skip
    if SECOND == SEPARATE:
        store_moment(
            v, v_at, v_scales, block, start, offset, mask, drawn, FOR_SECOND_MOMENT, CODES, False,
            RANDOM, MASKED,
        )  # fmt: skip
    if KIND == ESTIMATE:
        write(g_at + start + offset, update, mask, MASKED)
    else:
        p -= lr * update
        if STOCHASTIC:
            p = rounded_at_random(p, drawn, FOR_PARAMETER)
        write(p_at + start + offset, p, mask, MASKED)


@triton.jit
def update_kernel(
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
    gain_scale,
    gain_power,
    P: tl.constexpr,
    G: tl.constexpr,
    M: tl.constexpr,
    S: tl.constexpr,
    KIND: tl.constexpr,
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
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """SGDF, FilterAdam, Momentum, and the filter by itself, which overwrites the gradients.

    M and S are the formats of m and of s and v: a float, or 8-bit codes (int8 and uint8). A program
    updates BLOCK elements or, with 8-bit codes, BLOCKS blocks of QUANTUM elements.
    """
    CODES: tl.constexpr = M == tl.int8
    KEEPS_S: tl.constexpr = (KIND != MOMENTUM) and ((GAIN != CONSTANT) or (SECOND > SEPARATE))
    tensor = tl.load(block_tensor + tl.program_id(0))
    numel = tl.load(table + NUMEL * n + tensor)
    if SKIP_INF:
        numel = tl.where(tl.load(found_inf) == 0.0, numel, 0)
    if LR_ON_DEVICE:
        lr = tl.load(lr_at).to(tl.float32)
    inverse_scale = 1.0
    if SCALED:
        inverse_scale = 1.0 / tl.load(grad_scale).to(tl.float32)

    g_at = address(grads, 0, n, tensor, G, ALIGNED)
    m_at = address(table, MOMENTS, n, tensor, M, ALIGNED)
    p_at, s_at, v_at = g_at, m_at, m_at
    if KIND != ESTIMATE:
        p_at = address(table, PARAM, n, tensor, P, ALIGNED)
    if KEEPS_S:
        s_at = address(table, MOMENTS + 1, n, tensor, S, ALIGNED)
    if SECOND == SEPARATE:
        v_at = address(table, MOMENTS + 2, n, tensor, S, ALIGNED)
    m_scales, s_scales, v_scales = m_at, m_at, m_at
    if CODES:
        m_scales = address(table, SCALES, n, tensor, tl.float32, False)
        s_scales = address(table, SCALES + 1, n, tensor, tl.float32, False)
        v_scales = address(table, SCALES + 2, n, tensor, tl.float32, False)

    numbers = (beta1, rest1, beta2, rest2, largest, gain_eps, adam_eps, gain_scale, gain_power)
    inverse_trend, fluctuation, inverse_second, of_m, of_s = 1.0, 1.0, 1.0, 0.0, 0.0
    key = n
    if KIND != MOMENTUM:
        t = step_of(table, n, tensor)
        inverse_trend, fluctuation, inverse_second = corrections(
            t, log_beta1, log_beta2, factor, CORRECTION, BIAS_CORRECTION
        )
        if SECOND > SEPARATE:
            logs = (log_beta1, log_beta2, log_high, log_ratio, inverse_gap)
            of_m, of_s = second_moment_weights(t, logs, numbers, SECOND)
        if SECOND == DERIVED and CODES:
            # sqrt(of_m) sqrt(m^2 + of_s s): an instruction less for every element
            of_m = tl.maximum(of_m, 2.0**-40)
            of_s = of_s / of_m
            of_m = tl.sqrt(of_m)
        key = step_key(table, n, tensor, t)

    at = (p_at, g_at, m_at, s_at, v_at)
    scales = (m_scales, s_scales, v_scales)
    of_step = (inverse_trend, fluctuation, inverse_second, of_m, of_s)
    of_weights = (lr, inverse_scale, weight_decay)
    program = tl.program_id(0) - tl.load(table + FIRST_BLOCK * n + tensor)
    if CODES:
        row_length = tl.load(table + ROW_LENGTH * n + tensor)
        per_row = (row_length + QUANTUM - 1) // QUANTUM
        count = (numel // row_length) * per_row
        first = program * BLOCKS
        last = tl.minimum(first + BLOCKS, count)
        offset = tl.arange(0, QUANTUM)
        WORDS: tl.constexpr = WHOLE_ROWS and ALIGNED
        for block in tl.range(first, last, num_stages=STAGES):
            if WHOLE_ROWS:  # every row is a whole number of blocks: the blocks are consecutive
                start = tl.multiple_of(block * QUANTUM, QUANTUM)
                mask = None
            else:
                column = (block % per_row) * QUANTUM
                start = (block // per_row) * row_length + column
                mask = offset < row_length - column
            update_piece(
                at, scales, block, start, offset, mask, key, of_step, of_weights, numbers, KIND,
                GAIN, SECOND, DECAY, DECOUPLED, MAXIMIZE, SCALED, STOCHASTIC,
                WORDS and P == tl.bfloat16, WORDS and G == tl.bfloat16, True, not WHOLE_ROWS,
                QUANTUM,
            )  # fmt: skip
    else:
        start = tl.multiple_of((program * BLOCK).to(tl.int64), BLOCK)
        offset = tl.arange(0, BLOCK)
        # Without a mask the accesses are 16 bytes wide; only the last block of a tensor needs one.
        if start + BLOCK <= numel:
            update_piece(
                at, scales, 0, start, offset, None, key, of_step, of_weights, numbers, KIND, GAIN,
                SECOND, DECAY, DECOUPLED, MAXIMIZE, SCALED, STOCHASTIC, False, False, False, False,
                BLOCK,
            )  # fmt: skip
        else:
            mask = start + offset < numel
            update_piece(
                at, scales, 0, start, offset, mask, key, of_step, of_weights, numbers, KIND, GAIN,
                SECOND, DECAY, DECOUPLED, MAXIMIZE, SCALED, STOCHASTIC, False, False, False, True,
                BLOCK,
            )  # fmt: skip
