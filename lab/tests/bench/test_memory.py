"""What is counted as state, and which contestants fit into memory together."""

import math

import torch

import sgdf
from sgdf_lab.bench.contestants import CONTESTANTS, LISTS, tiny
from sgdf_lab.bench.measure import (
    Budget,
    FilterAlone,
    TimedSeries,
    extra_bytes,
    groups_that_fit,
    needed_bytes,
    random_parameters,
    state_bytes,
    tensor_bytes,
)
from sgdf_lab.bench.run import compared_by_targets


def test_eight_bit_state_is_counted_with_its_scales():
    params = random_parameters(tiny(), torch.float32, "cpu")
    optimizer = sgdf.SGDF(params, fused=False, foreach=False, state_dtype=torch.int8)
    optimizer.step()
    # 144 elements in a row: one scale each; the short tensors stay in float32.
    codes, scales, short = 32 * 144, 32 * 4, 4 * (5002 - 32 * 144)
    assert state_bytes(optimizer) == 2 * (codes + scales + short)


def test_the_tensors_inside_a_tensor_are_counted():
    class Coded:
        """Like torchao's 8-bit state: its dtype is float32, and what it holds is smaller."""

        codes, scale = torch.zeros(512, dtype=torch.uint8), torch.zeros(2)

        def __tensor_flatten__(self):
            return ["codes", "scale"], None

    assert tensor_bytes(Coded()) == 512 + 8
    assert tensor_bytes(torch.zeros(512)) == 2048


def test_the_filter_alone_works_on_copies_of_the_gradients():
    params = random_parameters(tiny(), torch.float32, "cpu")
    before = [(p.detach().clone(), p.grad.clone()) for p in params]
    alone = FilterAlone(params, lr=1.0, fused=False)
    addresses = [p.grad.data_ptr() for p in alone.params]
    alone.params[0].grad.zero_()
    alone.step()
    alone.params[0].grad.add_(1)
    alone.step()
    assert addresses == [p.grad.data_ptr() for p in alone.params]
    assert not torch.equal(alone.params[0].grad, torch.ones_like(params[0]))  # it was filtered
    for p, own, (value, gradient) in zip(params, alone.params, before, strict=True):
        assert torch.equal(p, value)
        assert torch.equal(p.grad, gradient)
        assert own.data_ptr() == p.data_ptr()  # no second copy of the parameters
    assert state_bytes(alone) == 8 * sum(p.numel() for p in params)
    assert alone.implementation == "foreach"


def test_little_memory_divides_the_contestants():
    shapes = LISTS["gpt"].shapes()
    entered = [c for c in CONTESTANTS if c.runs_on("gpt", "cuda")]
    for gibibytes in (12, 40, 128, 1000):
        budget = Budget("cuda", 2, 1.0, gibibytes * 2**30)
        groups = groups_that_fit(entered, shapes, budget)
        assert all(needed_bytes(group, shapes, "cuda") <= budget.memory for group in groups)
        placed = {c.name for group in groups for c in group}
        fits = {c.name for c in entered if needed_bytes([c], shapes, "cuda") <= budget.memory}
        assert placed == fits
        assert len(placed) == sum(map(len, groups))
    assert len(groups) == 1


def test_a_gpu_of_139_gib_holds_all_that_the_targets_compare():
    entered = [c for c in CONTESTANTS if c.runs_on("gpt", "cuda")]
    budget = Budget("cuda", 2, 1.0, 127 * 2**30)
    compared = compared_by_targets("cuda", "gpt")
    groups = groups_that_fit(entered, LISTS["gpt"].shapes(), budget, compared)
    assert compared <= {c.name for c in groups[0]}
    assert {c.name for c in groups[0] if c.name not in compared} <= {
        c.name for c in entered if c.fused
    }


def test_contestants_in_groups_are_all_measured_in_their_order(run, eager):
    entered = {c.name: c for c in CONTESTANTS if c.name in eager}
    enough_for_one = needed_bytes([entered["filteradam-foreach"]], tiny(), "cpu")
    record = run("--memory", str(enough_for_one / 2**30))
    rows = record["lists"]["tiny"]["rows"]
    assert [row["name"] for row in rows] == eager
    assert [row["name"] for row in rows if row["error"]] == ["sgdf-loop"]
    assert "needs about" in rows[eager.index("sgdf-loop")]["error"]
    assert len({row["together"] for row in rows if row["ms"]}) > 2
    assert len(record["lists"]["tiny"]["copy"]["timings"]["ms"]) > 4


def test_a_list_that_does_not_fit_is_skipped_and_the_next_measured(run, capsys):
    record = run("--memory", "0.01", lists=("gpt", "tiny"))
    assert list(record["lists"]) == ["tiny"]
    assert record["complete"]
    reason = record["skipped"]["gpt"]
    assert reason.startswith("needs about 14.7 GiB")
    assert f"GPT 1.3 B skipped: {reason}" in capsys.readouterr().out


def test_what_a_step_on_a_cpu_allocates_is_counted():
    x, kept = torch.randn(64, 64), []
    size = 4 * 64 * 64
    steps = (lambda: x.mul_(x), lambda: x.sqrt().mul_(x), lambda: (x.sqrt() * x.exp()).mul_(x),
             lambda: kept.append(x.exp()))  # fmt: skip
    wanted = [0, size, 3 * size, 2 * size]  # what a step keeps is held in the next
    assert [extra_bytes(step, "cpu") for step in steps] == wanted
    params = random_parameters([(64, 64)] * 4, torch.float32, "cpu")
    optimizer = sgdf.FilterMuon(params)
    optimizer.step()
    assert 4 * size < extra_bytes(optimizer.step, "cpu") < 32 * size


def test_matrix_steps_are_timed_through_two_rounds_of_refreshes():
    for contestant in CONTESTANTS:
        is_matrix_step = contestant.runs_on("tiny-matrices", "cpu")
        assert contestant.fewest_timings == (20 if is_matrix_step else 3)
    slow = TimedSeries.plan(lambda: None, Budget("cpu", 30, 1e-9, math.inf), 20)
    assert slow.rounds == 20
