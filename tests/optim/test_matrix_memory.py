"""What a step on matrices allocates beside parameters, gradients and state."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from sgdf import FilterMuon, FilterSOAP
from sgdf.kernels import matrix as kernel

FORMS = {
    "muon": (FilterMuon, {}),
    "muon, K": (FilterMuon, {"gain_scale": 2.0, "gain_power": 1.0}),
    "muon, 8 bits": (FilterMuon, {"state_dtype": torch.int8}),
    "muon, eigenbasis": (FilterMuon, {"eigenbasis": True}),
    "soap": (FilterSOAP, {}),
    "soap, K": (FilterSOAP, {"gain_scale": 2.0, "gain_power": 1.0}),
}


def largest_allocation(step):
    """The most bytes that a call holds at a time, and what is left of them: as torch counts."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most, held


def test_the_measure_sees_temporaries_inside_operations():
    x = torch.randn(64, 64)
    size, kept = 4 * 64 * 64, []
    measured = [
        largest_allocation(lambda: x.sqrt().mul_(x)),
        largest_allocation(lambda: (x.sqrt() * x.exp()).mul_(x)),
        largest_allocation(lambda: kept.append(x.exp())),
    ]
    assert measured == [(size, 0), (3 * size, 0), (size, size)]
    assert largest_allocation(lambda: torch.linalg.qr(x)[0])[0] > 2 * size  # R, and LAPACK's own


def copies(form, shape, count, steps=3):
    """The most that a step allocates, in matrices of this shape; every step refreshes a basis."""
    cls, options = FORMS[form]
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(shape, generator=generator).requires_grad_() for _ in range(count)]
    for p in params:
        p.grad = torch.randn(shape, generator=generator)
    optimizer = cls(params, lr=1e-3, basis_interval=2, **options)
    for _ in range(2):  # the state exists
        optimizer.step()
    found = [largest_allocation(optimizer.step) for _ in range(steps)]
    assert max(held for _, held in found) < 1000  # only the counters' new values
    return max(most for most, _ in found) / (4 * shape[0] * shape[1])


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch):
    """The profiler does not see memory that was there before the step."""
    monkeypatch.setattr(kernel.Scratch, "MOST", 0)
    monkeypatch.setattr(kernel.scratch, "memory", torch.empty(0, dtype=torch.uint8))


@pytest.fixture
def small_chunks(monkeypatch):
    """As for matrices of 2^17 entries and more."""
    monkeypatch.setitem(kernel.CHUNK, "cpu", 3 * 2**14)
    monkeypatch.setattr(kernel, "SMALL_CHUNK", 2**12)
    monkeypatch.setattr(kernel, "BLOCK", 32)


@pytest.mark.parametrize("rough", [True, False])
@pytest.mark.parametrize("shape", [(64, 64), (48, 144), (128, 32)])
@pytest.mark.parametrize("form", FORMS)
def test_twelve_matrices_of_one_shape_need_less_than_two_copies_of_them(
    form, shape, rough, small_chunks, monkeypatch
):
    """Whether or not Newton-Schulz is in bfloat16."""
    monkeypatch.setattr(kernel, "fast_dtype", lambda _: torch.bfloat16 if rough else torch.float32)
    assert copies(form, shape, 12) < 2 * 12


@pytest.mark.parametrize("rough", [True, False])
@pytest.mark.parametrize("shape", [(64, 64), (48, 144), (128, 32)])
def test_for_filter_muon_four_are_enough(shape, rough, small_chunks, monkeypatch):
    monkeypatch.setattr(kernel, "fast_dtype", lambda _: torch.bfloat16 if rough else torch.float32)
    assert copies("muon", shape, 4) < 2 * 4


@pytest.mark.parametrize("form", FORMS)
def test_the_chunks_are_small_enough(form):
    """Sizes as they are, of matrices of 2^17 entries."""
    assert copies(form, (256, 512), 12, steps=2) < 2 * 12


@pytest.mark.parametrize("form", ["muon", "muon, eigenbasis"])
def test_many_matrices_need_much_less(form, small_chunks):
    """Twelve of 2^12 entries are a chunk."""
    most = [copies(form, (64, 64), count, steps=1) for count in (60, 72)]
    assert most[1] == pytest.approx(most[0], rel=0.05)


def test_what_is_kept_for_the_next_step_is_what_a_chunk_needs(monkeypatch):
    monkeypatch.undo()
    kernel.scratch.__dict__.clear()
    kernel.scratch.__init__()
    copies("muon, eigenbasis", (256, 512), 6, steps=1)
    kept = len(kernel.scratch.memory)
    assert 0 < kept < 12 * 4 * 256 * 512
    copies("muon", (20, 30), 2)
    assert len(kernel.scratch.memory) == kept
    monkeypatch.setattr(kernel.Scratch, "MOST", kept + 64)
    copies("muon, eigenbasis", (512, 384), 2, steps=1)
    assert len(kernel.scratch.memory) == kept + 64


@pytest.mark.parametrize(("form", "limit"), [("muon", 5.5), ("muon, K", 9.5), ("soap", 9.5)])
def test_a_matrix_by_itself(form, limit, monkeypatch):
    """What docs/matrices.md says; Newton-Schulz in float32."""
    monkeypatch.setattr(kernel, "fast_dtype", lambda x: x.dtype)
    assert copies(form, (384, 384), 1) < limit
