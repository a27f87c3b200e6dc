"""Checkpoints of released versions: this version loads them and computes the same numbers.

They were written by make.py and are never written again. The tolerances are far above the rounding
of any processor, and far below what a lost or misread part of the state would change.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

import sgdf
from golden import cases

HERE = Path(__file__).parent
VERSIONS = sorted(path for path in HERE.iterdir() if any(path.glob("*.pt")))
FILES = [path for version in VERSIONS for path in sorted(version.glob("*.pt"))]
ARRAYS = [path for version in VERSIONS for path in sorted(version.glob("*.npz"))]
BF16 = 2**-7  # the largest relative distance of neighbours


def label(path):
    return path.relative_to(HERE).with_suffix("").as_posix()


def read(path):
    golden = torch.load(path, weights_only=True)
    case = cases.Case(golden["optimizer"], golden["settings"], golden["dtype"])
    return case, golden["state_dicts"], golden["next_update"]


def tolerance(case):
    if case.dtype == torch.bfloat16:
        return {"rtol": 2 * BF16, "atol": 1e-4}
    return {"rtol": 1e-3, "atol": 1e-5}


def test_this_version_has_golden_checkpoints_of_every_kind():
    assert HERE / sgdf.__version__ in VERSIONS
    current = {path.stem for path in FILES if path.parent.name == sgdf.__version__}
    assert current >= set(cases.all_cases())


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("path", FILES, ids=label)
def test_an_optimizer_continues_from_its_golden_checkpoint(path, fused):
    case, state_dicts, wanted = read(path)
    pair = cases.Pair(case)
    pair.load(state_dicts)
    for group in pair.optimizer.param_groups:
        for name, value in case.settings.items():
            assert group.get(name, value) == value
        if fused is False and case.optimizer != "WienerFilter":
            group.update(fused=False, foreach=False)
    if pair.filter:
        pair.filter.fused = fused
    torch.testing.assert_close(pair.next_update(), wanted, **tolerance(case))
    steps = [state.get("step") for state in pair.optimizer.state.values()]
    done = cases.STEPS + case.steps_after
    # The first gradient of a basis is no step.
    assert {float(step) for step in steps if step is not None} <= {float(done), done - 1.0}


@pytest.mark.parametrize("path", FILES, ids=label)
def test_every_part_of_the_state_matters_to_the_recorded_numbers(path):
    case, state_dicts, wanted = read(path)
    whole = state_dicts["filter" if case.optimizer == "WienerFilter" else "optimizer"]
    for key in whole["state"][0]:
        changed = {i: {**state, key: altered(state[key])} for i, state in whole["state"].items()
                   if key in state}  # fmt: skip
        pair = cases.Pair(case)
        part = {**whole, "state": {**whole["state"], **changed}}
        pair.load({**state_dicts, "filter" if pair.filter else "optimizer": part})
        with pytest.raises(AssertionError):
            torch.testing.assert_close(pair.next_update(), wanted, **tolerance(case))


def altered(value):
    """A step later; a moment without its largest elements."""
    if value.ndim == 0:
        return value + 1
    return torch.where(value.abs() >= value.abs().float().median(), 0, value).to(value.dtype)


@pytest.mark.parametrize("path", ARRAYS, ids=label)
def test_an_optax_state_continues_from_its_golden_leaves(path):
    pytest.importorskip("optax")
    from golden import jax_cases

    with np.load(path) as file:
        stored = dict(file)
    wanted = stored.pop("update")
    transformation, state = jax_cases.start(path.stem.removeprefix("optax-"))
    fresh = jax_cases.leaves(state)
    assert {name: (leaf.shape, leaf.dtype) for name, leaf in fresh.items()} == {
        name: (leaf.shape, leaf.dtype) for name, leaf in stored.items()
    }
    change, _ = jax_cases.update(transformation, jax_cases.filled(state, stored), cases.STEPS)
    np.testing.assert_allclose(change, wanted, rtol=1e-3, atol=1e-5)
    lost, _ = jax_cases.update(transformation, state, cases.STEPS)
    assert not np.allclose(lost, wanted, rtol=1e-3, atol=1e-5)
