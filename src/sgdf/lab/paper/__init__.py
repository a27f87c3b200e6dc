"""What the paper published."""

from sgdf.lab.paper.presets import *  # noqa: F403
