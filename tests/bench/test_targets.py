"""The targets are compared with what was measured."""

from dataclasses import asdict

from sgdf.bench.contestants import CONTESTANTS
from sgdf.bench.costs import StepCost
from sgdf.bench.shapes import default_lists
from sgdf.bench.targets import TARGETS


def rows_of(**quantities):
    sgdf = StepCost("sgdf-fused", "SGDF", "fused", "fp32", **quantities)
    return [asdict(sgdf), asdict(StepCost("sgd-fused", "SGD", "fused", "fp32"))]


def test_a_target_is_met_missed_or_not_measured():
    targets = {(t.device, t.parameters, t.quantity): t for t in TARGETS}
    time = targets["cuda", "resnet50", "times_sgd_fused"]
    assert time.check(rows_of(times_sgd_fused=0.5))["met"]
    missed = time.check(rows_of(times_sgd_fused=0.6))
    assert not missed["met"]
    expected = "target: ResNet-50: SGDF fused <= 0.5 x SGD fused: measured 0.6: missed by 20.0%"
    assert missed["sentence"] == expected
    nothing = time.check(rows_of())
    assert nothing["met"] is None
    assert nothing["sentence"].endswith("not measured")
    copy = targets["cuda", "gpt", "of_copy"]
    assert copy.check(rows_of(of_copy=0.96))["met"]
    assert not copy.check(rows_of(of_copy=0.94))["met"]
    memory = targets["cuda", "gpt", "extra_memory_percent"]
    assert memory.check(rows_of(extra_memory_percent=0.0))["met"]
    assert not memory.check(rows_of(extra_memory_percent=1.1))["met"]


def test_a_busy_machine_is_inconclusive():
    target = next(t for t in TARGETS if t.device == "cpu")
    quiet = target.check(rows_of(times_adamw_fused=1.0, others_cpus=0.1))
    assert quiet["sentence"].endswith("measured 1: met")
    busy = target.check(rows_of(times_adamw_fused=1.0, others_cpus=0.9))
    assert busy["met"] is None
    assert busy["sentence"].endswith("measured 1 on a busy machine: inconclusive")


def test_targets_name_lists_and_contestants_that_exist():
    names = {c.name for c in CONTESTANTS}
    for target in TARGETS:
        assert target.parameters in default_lists(target.device)
        assert target.contestant is None or target.contestant in names
        assert hasattr(StepCost("", "", "", ""), target.quantity)
