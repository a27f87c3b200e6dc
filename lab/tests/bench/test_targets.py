"""The targets are compared with what was measured."""

from dataclasses import asdict

from sgdf_lab.bench.contestants import CONTESTANTS, default_lists
from sgdf_lab.bench.measure import StepCost
from sgdf_lab.bench.run import TARGETS, select


def rows_of(name="sgdf-fused", **quantities):
    sgdf = StepCost(name, "SGDF", "fused", "fp32", **quantities)
    return [asdict(sgdf), asdict(StepCost("sgd-fused", "SGD", "fused", "fp32"))]


def test_a_target_is_met_missed_or_not_measured():
    of_sgdf = [t for t in TARGETS if t.contestant in ("sgdf-fused", None)]
    targets = {(t.device, t.parameters, t.quantity): t for t in of_sgdf}
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
    memory = targets["cuda", "gpt", "extra_memory_bytes_in_all"]
    assert memory.check(rows_of(extra_memory_bytes_in_all=0))["met"]
    for name in ("sgdf-fused", "wienerfilter-fused"):
        more = memory.check(rows_of(name, extra_memory_bytes_in_all=512))
        assert not more["met"]
        assert more["sentence"].endswith("<= 0: measured 512: missed")
    assert memory.check(rows_of("adamw-foreach", extra_memory_bytes_in_all=512))["met"] is None


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


def test_the_contestants_with_targets_and_their_rivals_can_be_selected():
    rivals = {"sgd-fused", "adamw-fused", "adamw-fused-bf16", "torchao-adamw8bit"}
    on_gpt = {c.name for c in select("gpt", ["targets"], "cuda")}
    assert rivals <= on_gpt
    for target in TARGETS:
        chosen = {c.name for c in select(target.parameters, ["targets"], target.device)}
        rival = "muon-loop" if target.parameters.endswith("-matrices") else "adamw-fused"
        assert target.contestant is None or {target.contestant, rival} <= chosen
    assert len(on_gpt) < len(select("gpt", None, "cuda"))
    assert select("resnet50", ["targets"], "cpu") == []
    both = {c.name for c in select("gpt", ["targets", "momentum-fused"], "cuda")}
    assert both == on_gpt | {"momentum-fused"}


def test_optimizers_of_other_packages_are_measured_on_a_cpu_with_one_tensor():
    theirs = {"torchao-adamw8bit", "bitsandbytes-adamw8bit"}
    assert theirs <= {c.name for c in select("one-tensor", None, "cpu")}
    assert not theirs & {c.name for c in select("resnet18", None, "cpu")}


def test_a_list_without_targets_is_skipped(run):
    record = run(only=["targets"])
    assert record["skipped"] == {"tiny": "it has no targets on cpu"}
    assert record["complete"]
