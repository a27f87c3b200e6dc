"""The public names: what the reference has to show."""

import importlib
from collections.abc import Iterator
from typing import Any

#: A module and its public names; None: its `__all__`.
PUBLIC: dict[str, tuple[str, ...] | None] = {
    "sgdf": None,
    "sgdf.optax": None,
    "sgdf.filter": ("wiener_filter", "bias_corrections"),
    "sgdf_lab": None,
    "sgdf_lab.theory": None,
    "sgdf_lab.instruments.hessian": ("spectrum",),
    "sgdf_lab.instruments.landscape": ("surface", "path", "path_surface"),
    "sgdf_lab.instruments.probe": ("Probe",),
    "sgdf_lab.instruments.estimators": ("estimator_errors",),
}
FIGURES = "sgdf_lab.instruments.figures"  #: their example is that of docs/instruments.md


def public_names() -> Iterator[tuple[str, Any]]:
    """The full name and the object of each."""
    for module, names in PUBLIC.items():
        imported = importlib.import_module(module)
        for name in imported.__all__ if names is None else names:
            yield f"{module}.{name}", getattr(imported, name)


def figure_names() -> Iterator[tuple[str, Any]]:
    imported = importlib.import_module(FIGURES)
    for name in imported.__all__:
        yield f"{FIGURES}.{name}", getattr(imported, name)
