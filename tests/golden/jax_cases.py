"""The JAX twins of the golden checkpoints.

optax has no file format of its own. What stores its states names a leaf by its path in the tree, so
the paths, shapes and dtypes of the leaves are what must stay.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import sgdf.optax as twins
from golden.cases import SHAPES, numbers

CASES = {
    "sgdf": lambda: twins.sgdf(0.125, weight_decay=0.1),
    "sgdf-constant-gain": lambda: twins.sgdf(0.125, gain_scale=0.1, gain_power=0.0),
    "filter_adam-separate": lambda: twins.filter_adam(0.125),
    "filter_adam-derived": lambda: twins.filter_adam(0.125, second_moment="derived"),
    "filter_adam-fluctuation": lambda: twins.filter_adam(0.125, second_moment="fluctuation"),
    "filter_muon": lambda: twins.filter_muon(0.125),
    "filter_soap": lambda: twins.filter_soap(0.125),
    "scale_by_wiener_filter": lambda: twins.scale_by_wiener_filter(),
}


def tree(salt: int, offset: float = 0.0) -> dict[str, Any]:
    names = ("weight", "bias")
    values = (numbers(shape, salt).numpy() + np.float32(offset) for shape in SHAPES)
    return {name: jnp.asarray(value) for name, value in zip(names, values, strict=True)}


def start(name: str) -> tuple[Any, Any]:
    transformation = CASES[name]()
    return transformation, transformation.init(tree(salt=1))


def update(transformation: Any, state: Any, number: int) -> tuple[NDArray[Any], Any]:
    """The updates of a step in one array, and the new state."""
    grads = tree(salt=number + 2, offset=0.25)
    updates, state = transformation.update(grads, state, tree(salt=1))
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(updates)]), state


def leaves(state: Any) -> dict[str, NDArray[Any]]:
    pairs = jax.tree_util.tree_flatten_with_path(state)[0]
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in pairs}


def filled(state: Any, stored: dict[str, NDArray[Any]]) -> Any:
    """A state of this version, with the stored leaves in their places."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.asarray(stored[jax.tree_util.keystr(path)]), state
    )
