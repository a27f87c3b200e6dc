"""Keras on its torch backend: a `train_step` that steps one of our torch optimizers.

python examples/keras_torch.py
"""

import os

os.environ["KERAS_BACKEND"] = "torch"  # before keras is imported

import keras
import numpy as np
import torch

from sgdf import SGDF


class TorchStepped(keras.Sequential):
    """A model whose weights a torch optimizer updates, and not Keras's own."""

    torch_optimizer: torch.optim.Optimizer

    def train_step(self, data):
        x, y = data
        predicted = self(x, training=True)
        loss = self.compute_loss(x, y, predicted)
        self.torch_optimizer.zero_grad()
        loss.backward()
        self.torch_optimizer.step()
        for metric in self.metrics:
            metric.update_state(*((loss,) if metric.name == "loss" else (y, predicted)))
        return {metric.name: metric.result() for metric in self.metrics}


def main(epochs: int = 4) -> list[float]:
    keras.utils.set_random_seed(0)
    inputs = np.random.default_rng(0).normal(size=(256, 16)).astype("float32")
    labels = (inputs[:, :4].sum(1) > 0).astype("int64")
    model = TorchStepped([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(2)])
    model.build((None, 16))
    model.torch_optimizer = SGDF(model.parameters(), lr=0.5)  # after build: now there are weights
    model.compile(optimizer=None, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = model.fit(inputs, labels, batch_size=16, epochs=epochs, verbose=0).history["loss"]
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
