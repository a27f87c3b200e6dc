"""Flax with `sgdf.optax`: both optimizers train, under jit and a schedule."""

import importlib

import pytest


@pytest.mark.parametrize("optimizer", ["filter_adamw", "sgdf"])
def test_the_script_trains(optimizer: str) -> None:
    pytest.importorskip("flax")
    losses = importlib.import_module("examples.flax_nnx").main(optimizer, steps=40)
    assert sum(losses[-8:]) < 0.6 * sum(losses[:8])
