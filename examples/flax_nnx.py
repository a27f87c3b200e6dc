"""Flax (nnx) with `sgdf.optax`: FilterAdamW with warm-up, cosine and clipping; or SGDF.

python examples/flax_nnx.py
python examples/flax_nnx.py --optimizer sgdf
"""

import argparse

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from sgdf.optax import filter_adamw, sgdf


class Classifier(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(16, 32, rngs=rngs)
        self.out = nnx.Linear(32, 2, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(nnx.relu(self.hidden(x)))


def transformation(name: str, steps: int) -> optax.GradientTransformation:
    """The line that changes: `filter_adamw` in place of optax.adamw, `sgdf` of optax.sgd."""
    if name == "sgdf":
        return sgdf(0.5)
    rate = optax.warmup_cosine_decay_schedule(0.0, 1e-2, warmup_steps=5, decay_steps=steps)
    return optax.chain(optax.clip_by_global_norm(1.0), filter_adamw(rate, weight_decay=0.1))


@nnx.jit
def train_step(model: Classifier, optimizer: nnx.Optimizer, x: jax.Array, y: jax.Array):
    def loss_of(model: Classifier) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


def main(optimizer: str = "filter_adamw", steps: int = 60) -> list[float]:
    model = Classifier(nnx.Rngs(0))
    state = nnx.Optimizer(model, transformation(optimizer, steps), wrt=nnx.Param)
    losses = []
    for key in jax.random.split(jax.random.key(1), steps):
        x = jax.random.normal(key, (16, 16))
        y = (x[:, :4].sum(1) > 0).astype(jnp.int32)
        losses.append(float(train_step(model, state, x, y)))
    print(f"{optimizer}: loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--optimizer", choices=("filter_adamw", "sgdf"), default="filter_adamw")
    main(**vars(parser.parse_args()))
