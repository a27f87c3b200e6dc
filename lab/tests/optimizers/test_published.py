"""The update of every optimizer against what its publication says, in float64."""

import inspect
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from optimizers.steps import build, problem, step_with
from sgdf_lab import optimizers
from sgdf_lab.optimizers.variants import CautiousAdamW, EAdam, SophiaG

# Each statement is given the weights p, the gradient g, the number t of the step from 1, a memory s
# that starts empty, and the settings; it returns the new weights. `decay` is decoupled; where there
# is none, g already has the L2 penalty.


def average(s, name, x, beta):
    value = beta * getattr(s, name, torch.zeros_like(x)) + (1 - beta) * x
    setattr(s, name, value)
    return value


def both(s, g, betas):
    return average(s, "m", g, betas[0]), average(s, "v", g**2, betas[1])


def msvag(p, g, t, s, *, lr, betas):
    b = betas[0]
    m, v = (x / (1 - b**t) for x in both(s, g, (b, b)))
    if t == 1:
        return p - lr * m  # no variance from one gradient: gamma is 1
    rho = (1 - b) * (1 + b**t) / ((1 + b) * (1 - b**t))
    variance = (v - m**2) / (1 - rho)
    gamma = (m**2 / (m**2 + rho * variance)).nan_to_num(0.0)
    return p - lr * gamma * m


def adabound(p, g, t, s, *, lr, betas, final_lr, gamma, eps, first_lr=1e-3):
    m, v = both(s, g, betas)
    final = final_lr * lr / first_lr
    low, high = final * (1 - 1 / (gamma * t + 1)), final * (1 + 1 / (gamma * t))
    size = lr * math.sqrt(1 - betas[1] ** t) / (1 - betas[0] ** t)
    return p - (size / (v.sqrt() + eps)).clamp(low, high) * m


def adabelief(p, g, t, s, *, lr, betas, eps):
    m = average(s, "m", g, betas[0])
    s.s = betas[1] * getattr(s, "s", 0) + (1 - betas[1]) * (g - m) ** 2 + eps
    return p - lr * m / (1 - betas[0] ** t) / ((s.s / (1 - betas[1] ** t)).sqrt() + eps)


def yogi(p, g, t, s, *, lr, betas, eps, initial_accumulator):
    """The publication has no bias correction, and starts m from 0."""
    start = torch.full_like(g, initial_accumulator)
    s.m = betas[0] * getattr(s, "m", start) + (1 - betas[0]) * g
    v = getattr(s, "v", start)
    s.v = v - (1 - betas[1]) * (v - g**2).sign() * g**2
    m, v = s.m / (1 - betas[0] ** t), s.v / (1 - betas[1] ** t)
    return p - lr * m / (v.sqrt() + eps)


def padam(p, g, t, s, *, lr, betas, partial, eps):
    """The publication takes the running maximum of v, and corrects no bias."""
    m, v = both(s, g, betas)
    size = lr * math.sqrt(1 - betas[1] ** t) / (1 - betas[0] ** t)
    return p - size * m / (v.sqrt() + eps) ** (2 * partial)


def fromage(p, g, t, s, *, lr):
    ratio = p.norm() / g.norm() if p.norm() > 0 and g.norm() > 0 else 1.0
    return (p - lr * ratio * g) / math.sqrt(1 + lr**2)


def eadam(p, g, t, s, *, lr, betas, eps):
    m = average(s, "m", g, betas[0])
    s.v = betas[1] * getattr(s, "v", 0) + (1 - betas[1]) * g**2 + eps
    return p - lr * m / (1 - betas[0] ** t) / (s.v / (1 - betas[1] ** t)).sqrt()


def cautious(update, g):
    mask = (update * g > 0).double()
    return update * mask * mask.numel() / (mask.sum() + 1)


def cautious_adamw(p, g, t, s, *, lr, betas, eps, decay):
    m, v = both(s, g, betas)
    u = m / (1 - betas[0] ** t) / ((v / (1 - betas[1] ** t)).sqrt() + eps)
    return p * (1 - lr * decay) - lr * cautious(u, g)


def lion(p, g, t, s, *, lr, betas, decay, masked=lambda update, g: update):
    m = getattr(s, "m", torch.zeros_like(g))
    update = (betas[0] * m + (1 - betas[0]) * g).sign()
    average(s, "m", g, betas[1])
    return p * (1 - lr * decay) - lr * masked(update, g)


def cautious_lion(p, g, t, s, *, lr, betas, decay):
    return lion(p, g, t, s, lr=lr, betas=betas, decay=decay, masked=cautious)


def adan(p, g, t, s, *, lr, betas, eps, decay):
    change = g - getattr(s, "last", g)
    s.last = g
    m, d = average(s, "m", g, betas[0]), average(s, "d", change, betas[1])
    n = average(s, "n", (g + betas[1] * change) ** 2, betas[2])
    corrected = m / (1 - betas[0] ** t) + betas[1] * d / (1 - betas[1] ** t)
    return (p - lr * corrected / ((n / (1 - betas[2] ** t)).sqrt() + eps)) / (1 + lr * decay)


def ademamix(p, g, t, s, *, lr, betas, eps, alpha, decay):
    (fast, v), slow = both(s, g, betas), average(s, "slow", g, betas[2])
    u = (fast / (1 - betas[0] ** t) + alpha * slow) / ((v / (1 - betas[1] ** t)).sqrt() + eps)
    return p * (1 - lr * decay) - lr * u


def adopt(p, g, t, s, *, lr, betas, eps, decay):
    p = p * (1 - lr * decay)
    if t == 1:
        s.v = g**2
        return p
    clip = (t - 1) ** 0.25
    m = average(s, "m", (g / s.v.sqrt().clamp(min=eps)).clamp(-clip, clip), betas[0])
    average(s, "v", g**2, betas[1])
    return p - lr * m


def laprop(p, g, t, s, *, lr, betas, eps, decay):
    v = average(s, "v", g**2, betas[1]) / (1 - betas[1] ** t)
    # The authors' code averages the steps with their rates, and divides by the averaged rate.
    m = average(s, "m", lr * g / (v.sqrt() + eps), betas[0])
    rate = average(s, "rate", torch.tensor(lr, dtype=torch.float64), betas[0])
    return (p - lr * m / rate) * (1 - lr * decay)


def mars(p, g, t, s, *, lr, betas, eps, gamma, decay):
    if p.ndim < 2:  # AdamW
        b1, b2, c = 0.9, 0.95, g
    else:
        b1, b2 = betas
        c = g + gamma * b1 / (1 - b1) * (g - getattr(s, "last", torch.zeros_like(g)))
        c = c / c.norm().clamp(min=1.0)
    s.last = g
    m, v = both(s, c, (b1, b2))
    return p * (1 - lr * decay) - lr * m / (1 - b1**t) / ((v / (1 - b2**t)).sqrt() + eps)


def grokfast_adamw(p, g, t, s, *, lr, betas, eps, grokfast_alpha, grokfast_lamb, decay):
    s.slow = grokfast_alpha * getattr(s, "slow", g) + (1 - grokfast_alpha) * g
    m, v = both(s, g + grokfast_lamb * s.slow, betas)
    u = m / (1 - betas[0] ** t) / (v / (1 - betas[1] ** t)).sqrt().clamp(min=eps)
    return p * (1 - lr * decay) - lr * u


USUAL = {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8}
PUBLISHED = {
    "msvag": (msvag, {"lr": 0.1, "betas": (0.9, 0.999)}),
    "adabound": (adabound, {**USUAL, "lr": 1e-3, "final_lr": 0.1, "gamma": 0.05}),
    "adabelief": (adabelief, {**USUAL, "lr": 1e-3}),
    "yogi": (yogi, {**USUAL, "eps": 1e-3, "initial_accumulator": 1e-6}),
    "padam": (padam, {**USUAL, "lr": 0.1, "partial": 0.125}),
    "fromage": (fromage, {"lr": 1e-2}),
    "lion": (lion, {"lr": 1e-2, "betas": (0.9, 0.99)}),
    "eadam": (eadam, {**USUAL, "lr": 1e-3}),
    "cautious-adamw": (cautious_adamw, USUAL),
    "cautious-lion": (cautious_lion, {"lr": 1e-2, "betas": (0.9, 0.99)}),
    "adan": (adan, {**USUAL, "betas": (0.98, 0.92, 0.99)}),
    "ademamix": (ademamix, {**USUAL, "betas": (0.9, 0.999, 0.9999), "alpha": 5.0}),
    "adopt": (adopt, {**USUAL, "betas": (0.9, 0.9999), "eps": 1e-6}),
    "laprop": (laprop, {**USUAL, "eps": 1e-15}),
    "mars": (mars, {**USUAL, "betas": (0.95, 0.99), "gamma": 0.025}),
    "grokfast-adamw": (
        grokfast_adamw,
        {**USUAL, "betas": (0.9, 0.99), "grokfast_alpha": 0.98, "grokfast_lamb": 2.0},
    ),
}
#: These classes add 1e-15 to v, or keep their rates in float32.
LOOSE = ("mars", "laprop", "adan", "ademamix", "adopt", "grokfast-adamw", "cautious-lion")


def decouples(name):
    return "decay" in inspect.signature(PUBLISHED[name][0]).parameters


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_update_is_the_published_one(name):
    statement, settings = PUBLISHED[name]
    decay = 0.0 if name == "fromage" else 0.1
    more = {"decay": decay} if decouples(name) else {}
    weights, grads = problem(8, (4, 3), (3,))
    params = [nn.Parameter(w.clone()) for w in weights]
    optimizer = build(name, params, **settings, **({"weight_decay": decay} if decay else {}))
    memories = [SimpleNamespace() for _ in weights]
    for t, step_grads in enumerate(grads, 1):
        now = {**settings, "lr": settings["lr"] * (0.1 if t >= 4 else 1.0)}  # a schedule
        optimizer.param_groups[0]["lr"] = now["lr"]
        step_with(optimizer, params, step_grads)
        for i, g in enumerate(step_grads):
            used = g if more else g + decay * weights[i]
            weights[i] = statement(weights[i], used, t, memories[i], **now, **more)
            # AdaBound's class adds 1e-15 to v; M-SVAG's first gamma is 1 up to rounding.
            close = {"rtol": 1e-6, "atol": 1e-8} if name in LOOSE else {"rtol": 1e-9, "atol": 1e-11}
            torch.testing.assert_close(params[i].detach(), weights[i], **close)


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name != "msvag"])
def test_defaults_are_the_published_ones(name):
    """What a user gets without settings is the published algorithm, with the published numbers."""
    _, settings = PUBLISHED[name]
    (group,) = build(name, [nn.Parameter(torch.ones(2))]).param_groups
    expected = {**settings, "gamma": 1e-3} if name == "adabound" else settings
    for key in expected.keys() - {"lr"}:
        assert group[key] == expected[key]
    row = optimizers.find(name)
    assert group["lr"] == row.settings.get("lr", group["lr"])
    if name == "lion" or not decouples(name):
        assert group.get("weight_decay", 0.0) == 0.0


@pytest.mark.parametrize("name", ["schedule-free-sgd", "schedule-free-adamw"])
def test_schedule_free_steps_and_evaluates_where_the_publication_does(name):
    """y is trained, x evaluated: x averages z, which descends along gradients taken at y."""
    lr, beta, decay = 0.1, 0.9, 0.05
    (x,), grads = problem(5, (4, 3))
    z, v = x.clone(), torch.zeros_like(x)
    p = nn.Parameter(x.clone())
    optimizer = build(name, [p], lr=lr, weight_decay=decay)
    for t, (g,) in enumerate(grads, 1):
        y = (1 - beta) * z + beta * x
        optimizers.set_mode([optimizer], training=True)
        torch.testing.assert_close(p.detach(), y, rtol=1e-9, atol=1e-12)
        step_with(optimizer, [p], [g])
        if name == "schedule-free-adamw":
            v = 0.999 * v + 0.001 * g**2
            g = g / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        z = z - lr * (g + decay * y)
        x = x + (z - x) / t
        optimizers.set_mode([optimizer], training=False)
        torch.testing.assert_close(p.detach(), x, rtol=1e-6, atol=1e-9)


def test_nadamw_decouples_its_weight_decay():
    weights, grads = problem(3, (4, 3))
    ours, theirs = (nn.Parameter(weights[0].clone()) for _ in range(2))
    optimizer = build("nadamw", [ours], lr=0.01)
    plain = torch.optim.NAdam([theirs], lr=0.01)
    for step_grads in grads:
        theirs.data.mul_(1 - 0.01 * 0.01)
        step_with(optimizer, [ours], step_grads)
        step_with(plain, [theirs], step_grads)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_sophia_follows_the_published_update():
    lr, (b1, b2), rho, decay, eps, batch = 0.01, (0.965, 0.99), 0.04, 0.1, 1e-12, 7
    weights, grads = problem(20, (4, 3), (3,))
    params = [nn.Parameter(w.clone()) for w in weights]
    optimizer = SophiaG(params, lr)
    memories = [SimpleNamespace(h=torch.zeros_like(w)) for w in weights]
    clipped = []
    for t in range(10):
        if t in (2, 7):
            for p, s, g in zip(params, memories, grads[10 + t], strict=True):
                p.grad = g.clone()
                s.h = b2 * s.h + (1 - b2) * batch * g**2
            optimizer.update_hessian(batch)
        step_with(optimizer, params, grads[t])
        for i, (s, g) in enumerate(zip(memories, grads[t], strict=True)):
            ratio = average(s, "m", g, b1) / (rho * s.h).clamp(min=eps)
            clipped.append((ratio.abs() > 1).double().mean().item())
            weights[i] = weights[i] * (1 - lr * decay) - lr * ratio.clamp(-1, 1)
            torch.testing.assert_close(params[i].detach(), weights[i], rtol=1e-12, atol=1e-14)
    assert any(0 < share < 1 for share in clipped)  # the check saw both sides of the clip


def test_sophia_without_curvature_is_sign_descent():
    p = nn.Parameter(torch.tensor([1.0, 1.0, 1.0]))
    optimizer = SophiaG([p], lr=0.1, weight_decay=0.0)
    p.grad = torch.tensor([3.0, -1e-3, 0.0])
    optimizer.step()
    torch.testing.assert_close(p.detach(), torch.tensor([0.9, 1.1, 1.0]))
    assert optimizer.hessian_every == 10


OURS = [EAdam, SophiaG, CautiousAdamW]


@pytest.mark.parametrize("make", OURS)
def test_ours_return_the_loss_and_skip_what_has_no_gradient(make):
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    groups = [{"params": [used, unused]}, {"params": [nn.Parameter(torch.ones(1))]}]
    optimizer = make(groups, weight_decay=0.1)

    def closure():
        optimizer.zero_grad()
        loss = used.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    assert torch.equal(unused, torch.ones(2))
    assert not torch.equal(used, torch.ones(2))
    assert torch.equal(used.grad, torch.full((2,), 2.0))  # the gradient is the caller's


@pytest.mark.parametrize("make", OURS)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -1.0}, "Invalid learning rate: -1.0"),
        ({"betas": (0.9, 1.0)}, "Invalid beta parameter at index 1: 1.0"),
        ({"betas": (0.9,)}, "Invalid betas value"),
        ({"eps": -1.0}, "Invalid epsilon value: -1.0"),
        ({"weight_decay": -1.0}, "Invalid weight_decay value: -1.0"),
    ],
)
def test_ours_answer_bad_values_as_torch_does(make, settings, message):
    with pytest.raises(ValueError, match=message):
        make([nn.Parameter(torch.ones(1))], **settings)
