"""What can be trained: every file or folder of this package that defines `TASKS` adds its own.

To add a task, add a file here with `TASKS`, `check` and `build_trainer`, as `classify.py` has them.
All files are imported with the package, before `sgdf_lab.runs`: a file imports `Config` for type
hints only (``if TYPE_CHECKING:``). Code that needs an extra goes into a second module, which
`Task.trainer` names and which is imported when a run begins, as in `detect/`.
"""

import importlib
import pkgutil

from sgdf_lab.support.errors import unknown
from sgdf_lab.tasks.registry import Metric, Task

__all__ = ["TASKS", "Metric", "Task", "discover", "find"]


def discover() -> dict[str, Task]:
    """The tasks that the modules of this package define, by name."""
    tasks: dict[str, Task] = {}
    for module in pkgutil.iter_modules(__path__):
        for task in vars(importlib.import_module(f"{__name__}.{module.name}")).get("TASKS", ()):
            if task.name in tasks:
                raise ValueError(f"there are two tasks with the name {task.name}")
            tasks[task.name] = task
    return tasks


TASKS = discover()


def find(name: str) -> Task:
    """The task of that name; `UserError` if there is none."""
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]
