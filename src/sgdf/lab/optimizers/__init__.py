"""Optimizers by name."""

from sgdf.lab.optimizers.registry import *  # noqa: F403
