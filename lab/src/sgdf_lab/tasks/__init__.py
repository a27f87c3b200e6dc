"""What can be trained. The table is `sgdf_lab.registry.tasks`; here are the trainers."""

from sgdf_lab.registry.tasks import TASKS, Metric, Task, find

__all__ = ["TASKS", "Metric", "Task", "find"]
