"""The filter as optax gradient transformations: the JAX twin of `sgdf.optim`.

Needs JAX and optax (``pip install "sgdf[jax]"``). `sgdf`, `filter_adam`, `filter_adamw`,
`filter_muon` and `filter_soap` are complete optimizers, `scale_by_wiener_filter` is only the
filter, for an `optax.chain`.
"""

from sgdf.optax.matrix import MatrixFilterState, filter_muon, filter_soap
from sgdf.optax.optimizers import filter_adam, filter_adamw, scale_by_wiener_filter, sgdf
from sgdf.optax.transformation import FilterAdamState, WienerFilterState

__all__ = [
    "filter_adam",
    "filter_adamw",
    "filter_muon",
    "filter_soap",
    "scale_by_wiener_filter",
    "sgdf",
]

# Pickled states name this package, so that they load wherever in it the classes are.
WienerFilterState.__module__ = FilterAdamState.__module__ = __name__
MatrixFilterState.__module__ = __name__
