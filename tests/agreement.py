"""How near one step of one kernel has to be to the same step of another, on any machine.

`sgdf.kernels.work` says which operations round alike. Other results are compared in units in
the last place of the *terms* they are the sum of: terms may cancel, so no bound in units of the
result itself would hold. Rounding is monotonic, so a result that is stored in
fewer bits has to lie between the two ends of that interval, rounded in the same way and with the
same random bits. No share of elements may be further away.
"""

from typing import NamedTuple

import torch

from sgdf.filter import (
    FLOAT32,
    FLOAT64,
    LARGEST_8_BIT_UPDATE,
    Denominator,
    FilterSettings,
    Moments,
    direction,
    largest_gradient,
    moment_names,
    one_minus_power,
    second_moment,
    second_moment_weights,
)
from sgdf.kernels import loop
from sgdf.kernels.loop import RandomBits
from sgdf.kernels.quantized import BLOCK, DROPPED, FLOOR, Quantized, dequantize, flat_rows
from sgdf.kernels.rounding import (
    FOR_PARAMETER,
    FOR_SECOND_MOMENT,
    FOR_TREND,
    FOR_VARIANCE,
    round_to_bfloat16,
)
from sgdf.kernels.work import (
    ESTIMATE,
    FILTER,
    MOMENTUM,
    Rule,
    Work,
    as_real,
    compute_dtype,
)
from sgdf.optim.settings import filter_settings
from sgdf.optim.state import moment_in

#: Between cpu.cpp and the loop, for parameters that a root or a power enters. To first order: a
#: root may be 1 unit off, a power 2; the two products after a power round twice each, as do the sum
#: with m^, Adam's sum and quotient, the product with lr and the sum with p: 10 units together.
ULPS_OF_ROOTS = 10
#: Between Triton and the loop, which share no rounding: bias corrections in float32, products with
#: an inverse instead of quotients, FMA, and the GPU's approximate roots and quotients.
ULPS_OF_TRITON = 64


def rule_of(options, moments=2):
    """A rule from a flat dictionary of an optimizer's settings.

    Without a `second_moment` among them, three moments are FilterAdam's and two SGDF's.
    """
    return Rule(
        FILTER,
        settings_of(options),
        denominator_of(options, moments),
        lr=options["lr"],
        weight_decay=options["weight_decay"],
        decoupled=options["decoupled_weight_decay"],
        maximize=options["maximize"],
        stochastic_rounding=options.get("stochastic_rounding", False),
        rounding_seed=options.get("rounding_seed", 0),
    )


def settings_of(options):
    return filter_settings({"bias_correction": True, **options})


def work_of(columns, options):
    """Columns (params, grads, steps, and the moments that are kept) as the work of a kernel."""
    params, grads, steps, *kept = columns
    rule = rule_of(options, len(kept))
    moments = by_name(kept, rule.settings, rule.denominator)
    return Work(rule, "loop", params, grads, steps, *moments, **scaling_of(options))


def estimate_work(columns, options):
    """Columns (grads, steps, and the moments that are kept) as the work of the filter by itself."""
    grads, steps, *kept = columns
    settings = settings_of(options)
    rule = Rule(ESTIMATE, settings, rounding_seed=options.get("rounding_seed", 0))
    return Work(rule, "loop", grads, grads, steps, *by_name(kept, settings, None))


def momentum_work(columns, options):
    """Columns (params, grads, buffers) as the work of Momentum."""
    params, grads, buffers = columns
    rule = Rule(
        MOMENTUM,
        FilterSettings((options["beta"], 0.0), gain_scale=options["mu"]),
        lr=options["lr"],
        weight_decay=options["weight_decay"],
        decoupled=options["decoupled_weight_decay"],
        maximize=options["maximize"],
    )
    return Work(rule, "loop", params, grads, None, buffers, **scaling_of(options))


def scaling_of(options):
    return {"scale": options.get("grad_scale"), "found_inf": options.get("found_inf")}


def by_name(moments, settings, denominator):
    """m, s and v among the moments that are kept; None for one that is not."""
    kept = dict(zip(moment_names(settings, denominator), moments, strict=True))
    return [kept.get(name) for name in ("exp_avg", "exp_var", "exp_avg_sq")]


def denominator_of(options, moments):
    kind = options.get("second_moment", "separate" if moments == 3 else None)
    return kind and Denominator(kind, options["eps"])


def assert_bits(a, b):
    """Equal bits, but for the payload of NaN and the codes of a block whose scale is NaN."""
    if isinstance(a, Quantized):
        assert_bits(a.scale, b.scale)
        if a.codes.numel():
            assert_bits(*(in_blocks(x.codes)[~a.scale.isnan()] for x in (a, b)))
        return
    assert a.dtype == b.dtype
    differing = int((a != b).sum() - (a.isnan() & b.isnan()).sum())
    assert differing == 0, f"{differing} of {a.numel()} differ"


def assert_between(stored, exact, tolerance, rounded):
    """`rounded(exact - tolerance) <= stored <= rounded(exact + tolerance)`, or both not finite."""
    low, high = rounded(exact - tolerance), rounded(exact + tolerance)
    finite = exact.isfinite()
    torch.testing.assert_close(
        stored[~finite].double(), exact[~finite].double(), rtol=0, atol=0, equal_nan=True
    )
    outside = finite & ~((low <= stored) & (stored <= high))
    assert not outside.any(), f"{int(outside.sum())} of {stored.numel()} are further away"


class Terms(NamedTuple):
    """For each value of a step, the sum of the magnitudes of its terms, in float64."""

    p: torch.Tensor
    moments: list[torch.Tensor]


def terms_of_a_step(p, g, step, moments, options):
    """The terms of a step that takes the counter to `step`; `moments` as before it."""
    before_p, p, g = p, as_real(p).double(), as_real(g).double()
    denominator = denominator_of(options, len(moments))
    wide = [(dequantize(x) if isinstance(x, Quantized) else as_real(x)).double() for x in moments]
    m, s, v = by_name(wide, settings_of(options), denominator)
    settings, lr, decay = settings_of(options), options["lr"], options["weight_decay"]
    beta1, beta2 = settings.betas
    if decay and not options["decoupled_weight_decay"]:
        g = g + (-decay if options["maximize"] else decay) * p
    numbers = FLOAT64 if compute_dtype(before_p) == torch.float64 else FLOAT32
    g = g.clip(-largest_gradient(beta2, numbers), largest_gradient(beta2, numbers))
    g_terms = g.abs() + decay * p.abs()
    m_terms = beta1 * m.abs() + (1 - beta1) * g_terms
    terms = [m_terms]
    if s is not None:
        terms.append(beta2 * s + (1 - beta2) * (g_terms + m_terms).square())
    m_hat_terms = m_terms / settings.corrections(step).trend
    update_terms = m_hat_terms + settings.gain_scale * (g_terms + m_hat_terms)
    if v is not None:
        v = beta2 * v + (1 - beta2) * g * g
        terms.append(v)
        update_terms /= (v / one_minus_power(beta2, step)).sqrt() + denominator.eps
    elif denominator:
        weights = second_moment_weights(step, beta1, beta2, denominator.second_moment)
        new_m = beta1 * m + (1 - beta1) * g
        new_s = beta2 * s + (1 - beta2) * (g - new_m).square()
        # A relative error of v^ is one of the update: count the terms of s that cancel in it.
        v_hat = second_moment(new_m, new_s, weights)
        v_terms = second_moment(m_terms, terms[1], weights)
        root = v_hat.sqrt() + denominator.eps
        update_terms = update_terms / root * (v_terms / v_hat.clamp(min=1e-300)).clamp(min=1)
    return Terms(p.abs() + lr * update_terms, terms)


# --- cpu.cpp and the loop ---------------------------------------------------------------------


def assert_agrees_with_the_loop(before, ours, theirs, options):
    """Columns after a step of cpu.cpp and after one of the loop, both from `before`."""
    for column, expected in zip(ours[1:], theirs[1:], strict=True):
        for a, b in zip(column, expected, strict=True):
            assert_bits(a, b)
    denominator = denominator_of(options, len(before) - 3)
    roots = denominator or options["gain_power"] not in (0, 1)
    for i, (a, b) in enumerate(zip(ours[0], theirs[0], strict=True)):
        if roots:
            _assert_root_agrees(before, a, i, options)
        else:
            assert_bits(a, b)


def _assert_root_agrees(before, stored, i, options):
    p, g, step, *moments = (column[i] for column in before)
    dtype = compute_dtype(p)
    wide = as_real(p).to(dtype).clone()
    copies = [copied(x if isinstance(x, Quantized) else as_real(x)) for x in moments]
    after = step.clone()
    columns = [[wide], [as_real(g)], [after], *([x] for x in copies)]
    loop.step(work_of(columns, {**options, "stochastic_rounding": False}))
    terms = terms_of_a_step(p, g, after.item(), moments, options).p
    tolerance = ULPS_OF_ROOTS * torch.finfo(dtype).eps * terms
    stored = as_real(stored)
    bits = None
    if options.get("stochastic_rounding") and stored.dtype == torch.bfloat16:
        in_blocks = isinstance(moments[0], Quantized)
        random = RandomBits(options.get("rounding_seed", 0), i, after.item(), in_blocks)
        bits = random.bits(FOR_PARAMETER, stored)
    assert_between(stored, wide.double(), tolerance, lambda x: rounded(x, stored.dtype, bits))


def rounded(x, dtype, bits=None):
    """float64 to the dtype of a parameter, as a kernel does that computes in float32 or float64."""
    if bits is not None:
        return round_to_bfloat16(x.float(), bits)
    return (x if dtype == torch.float64 else x.float()).to(dtype)


# --- Triton and the statement -----------------------------------------------------------------


def assert_steps_round_the_statement(optimizer, set_gradients, steps=4):
    """Every step but the first, each from the state that the one before it left."""
    group = optimizer.param_groups[0]
    params = group["params"]
    for seed in range(steps):
        set_gradients(params, seed)
        before = [row_of(optimizer, p) for p in params] if seed else []
        optimizer.step()
        for i, row in enumerate(before):
            after = row_of(optimizer, params[i])
            assert_rounds_the_statement(row, after, i, group["rounding_seed"], group)


def row_of(optimizer, p):
    """A parameter, its gradient, its step and its moments, copied."""
    state = optimizer.state[p]
    moments = [moment_in(state, key) for key in optimizer.moments_of(optimizer.param_groups[0])]
    return [copied(t) for t in (p.detach(), p.grad, state["step"], *moments)]


def copied(t):
    return Quantized(*map(copied, t)) if isinstance(t, Quantized) else t.clone()


def assert_rounds_the_statement(before, after, index, seed, options):
    """A row of columns after a step of Triton, against float64, before it is rounded at random."""
    p, g, step, *moments = before
    assert options["gain_power"] in (0, 0.5, 1), "other powers need more units"
    assert (options["weight_decay"], options["maximize"]) == (0, False), "exact_step ignores them"
    step = step.item() + 1
    wide = [dequantize(x) if isinstance(x, Quantized) else x.float() for x in moments]
    in_8_bits = isinstance(moments[0], Quantized)
    wide = [x.double() for x in wide]
    values = exact_step(p.double(), g.double(), step, wide, options, in_8_bits)
    terms = terms_of_a_step(p, g, step, moments, options)
    unit = ULPS_OF_TRITON * torch.finfo(torch.float32).eps
    random = RandomBits(seed, index, step, isinstance(moments[0], Quantized))
    drawn = by_name(
        range(len(moments)), settings_of(options), denominator_of(options, len(moments))
    )
    all_purposes = [FOR_TREND, FOR_VARIANCE, FOR_SECOND_MOMENT]
    purposes = [use for use, kept in zip(all_purposes, drawn, strict=True) if kept is not None]
    for moment, value, size, purpose in zip(
        after[3:], values[1:], terms.moments, purposes, strict=True
    ):
        if isinstance(moment, Quantized):
            bits = random.bits(purpose, moment.codes)
            assert_codes_between(moment, value, unit * size, bits)
        else:
            bits = random.bits(purpose, moment) if moment.dtype == torch.bfloat16 else None
            dtype = moment.dtype
            assert_between(moment, value, unit * size, lambda x, d=dtype, b=bits: rounded(x, d, b))
    bits = None
    if options["stochastic_rounding"] and p.dtype == torch.bfloat16:
        bits = random.bits(FOR_PARAMETER, p)
    tolerance = unit * terms.p
    assert_between(after[0], values[0], tolerance, lambda x: rounded(x, p.dtype, bits))


def exact_step(p, g, step, moments, options, in_8_bits=False):
    """Parameter and moments after a step, in float64 and without rounding to a stored dtype."""
    settings = settings_of(options)
    settings = settings._replace(eps=max(settings.eps, FLOAT32.smallest))
    denominator = denominator_of(options, len(moments))
    before = Moments(*by_name(moments, settings, denominator))
    largest = LARGEST_8_BIT_UPDATE if in_8_bits else None
    update, after = direction(
        g, before, step, settings, denominator, largest_update=largest, xp=torch
    )
    return [p - options["lr"] * update, *(x for x in after if x is not None)]


def assert_codes_between(moment, exact, tolerance, bits):
    """As `assert_between`, for 8-bit codes, by the scales that were stored beside them."""
    x, slack, bits = (in_blocks(t) for t in (exact, tolerance, bits))
    apart = (moment.scale - x.abs().amax(-1)).abs()
    assert (apart <= slack.amax(-1)).all(), "scales"
    low, high = (code(x + side * slack, side, moment, bits) for side in (-1, 1))
    codes = in_blocks(moment.codes.int())
    outside = ~((low <= codes) & (codes <= high))
    assert not outside.any(), f"{int(outside.sum())} of {codes.numel()} are further away"


def code(x, side, moment, bits):
    """The code of x; `side` moves what is rounded on the way by 4 units, down (-1) or up (1)."""
    floor = FLOOR[moment.codes.dtype]
    t = (x.abs() / moment.scale.double()[..., None] + floor).float().view(torch.int32)
    t = torch.where(x < 0, t - 4 * side, t + 4 * side)
    carry = (bits >> (32 - DROPPED)).int()
    zero = torch.tensor(floor).view(torch.int32) >> DROPPED
    code = ((t + carry) >> DROPPED) - zero.to(t.device)
    return torch.where(x < 0, -code, code)


def in_blocks(t):
    """(rows, blocks, BLOCK) in memory order, padded with zeros."""
    rows = flat_rows(t)
    return torch.nn.functional.pad(rows, (0, -rows.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
