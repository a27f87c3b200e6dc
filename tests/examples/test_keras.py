"""Keras on torch: a train step that steps a torch optimizer."""

import importlib

import pytest


@pytest.mark.usefixtures("one_thread")
def test_the_script_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    pytest.importorskip("keras")
    losses = importlib.import_module("examples.keras_torch").main()
    assert losses[-1] < 0.5 * losses[0]
