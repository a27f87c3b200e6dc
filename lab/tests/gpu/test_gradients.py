"""The probe on a GPU: changes nothing, reads what it reads on a CPU, and does not synchronize."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from gpu.trainers import NEEDS_GPU
from sgdf import SGDF, FilterAdam, Momentum
from sgdf_lab.instruments.estimators import estimator_errors
from sgdf_lab.instruments.probe import Probe

pytestmark = NEEDS_GPU

OPTIMIZERS = {
    "sgdf, fused": lambda p: SGDF(p, lr=0.1, weight_decay=0.01),
    "sgdf, foreach": lambda p: SGDF(p, lr=0.1, foreach=True),
    "sgdf, capturable": lambda p: SGDF(
        p, lr=torch.tensor(0.1, device="cuda"), capturable=True, foreach=True
    ),
    "filter-adam": lambda p: FilterAdam(p, lr=0.01),
    "momentum": lambda p: Momentum(p, lr=0.1, beta=0.9, mu=0.1),
    "torch sgd, fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adam, fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
}


def train(build, steps, watch=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 3)).cuda()
    optimizer = build(model.parameters())
    probe = watch(optimizer) if watch else None
    x, y = torch.randn(32, 8, device="cuda"), torch.randint(3, (32,), device="cuda")
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()], probe


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_watched_training_is_the_same_bit_for_bit(name):
    plain, _ = train(OPTIMIZERS[name], 7)
    watched, probe = train(OPTIMIZERS[name], 7, lambda o: Probe(o, every=2, coordinates=200))
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    record = probe.record()
    assert [row.step for row in record.rows] == [0, 2, 4, 6]
    assert all(row.raw_norm > 0 and row.estimated_norm > 0 for row in record.rows)


@pytest.mark.parametrize("name", ["sgdf, fused", "sgdf, foreach", "torch sgd, fused"])
def test_the_estimate_is_the_step(name, monkeypatch):
    seen = []
    monkeypatch.setattr(Probe, "_fill", lambda self, raw, est: seen.append((raw, est)))
    torch.manual_seed(0)
    p, q = (nn.Parameter(torch.zeros(500, device="cuda")) for _ in range(2))
    optimizer = OPTIMIZERS[name]([p, q])
    lr = optimizer.param_groups[0]["lr"]
    late = 0 if name == "torch sgd, fused" else 2
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.0
    probe = Probe(optimizer, every=1, coordinates=1000)
    moved = []
    for t in range(5):
        before = p.detach().clone(), q.detach().clone()
        p.grad = torch.randn_like(p)
        # So that their steps differ; torch's fused SGD cannot add a parameter later.
        q.grad = torch.randn_like(q) if t >= late else None
        optimizer.step()
        went = [(b - a.detach()) / lr for b, a in zip(before, (p, q), strict=True)]
        moved.append(torch.cat(went if t >= late else went[:1]).cpu().numpy())
    probe.record()  # waits for the last sample
    assert len(seen) == 5
    for (_, estimate), expected in zip(seen, moved, strict=True):
        np.testing.assert_allclose(estimate, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("build", [SGDF, lambda p, lr: torch.optim.SGD(p, lr=lr, fused=True)])
def test_a_grad_scalers_fused_step(build):
    p = nn.Parameter(torch.zeros(6, device="cuda"))
    optimizer = build([p], lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    with Probe(optimizer, every=1) as probe:
        for values in (torch.arange(1.0, 7.0), torch.full((6,), math.inf)):
            optimizer.zero_grad()
            scaler.scale((p * values.cuda()).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    rows = probe.record().rows
    assert len(rows) == 1
    assert rows[0].raw_norm == pytest.approx(math.sqrt(91))
    assert rows[0].estimated_norm == pytest.approx(math.sqrt(91), rel=1e-5)


def test_a_captured_step_is_refused():
    p = nn.Parameter(torch.zeros(6, device="cuda"))
    optimizer = SGDF([p], lr=0.1, capturable=True)
    p.grad = torch.ones_like(p)
    for _ in range(3):
        optimizer.step()
    torch.cuda.synchronize()
    with (
        Probe(optimizer, every=1),
        pytest.raises(RuntimeError, match="CUDA graph"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        optimizer.step()


def test_a_sample_does_not_wait_for_the_device():
    p = nn.Parameter(torch.zeros(1000, device="cuda"))
    optimizer = SGDF([p], lr=torch.tensor(0.1, device="cuda"))
    p.grad = torch.ones_like(p)
    with Probe(optimizer, every=1):
        for _ in range(3):
            optimizer.step()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_errors_are_the_cpus():
    def found(device):
        torch.manual_seed(0)
        model = nn.Linear(6, 3).to(device)
        x, y = torch.randn(80, 6), torch.randint(3, (80,))
        return estimator_errors(
            model, nn.functional.cross_entropy, [(x, y)], steps=12, every=6, replicas=4, batch=8,
            optimizer_factory=lambda p: torch.optim.SGD(p, lr=0.1), progress=False,
        ).measurements[-1]  # fmt: skip

    here, there = found("cpu"), found("cuda")
    for name, error in here.errors.items():
        assert there.errors[name].mse.value == pytest.approx(error.mse.value, rel=1e-2), name
