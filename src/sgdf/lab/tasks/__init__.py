"""What can be trained: the tasks, their metrics, and a trainer for each kind."""

from sgdf.lab.tasks.registry import *  # noqa: F403
