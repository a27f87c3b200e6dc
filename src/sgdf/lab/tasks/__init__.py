"""What can be trained: every file or folder of this package that calls `register` adds its tasks.

To add a task, add a file here. It registers a `Task` and has `check` and `build_trainer`, as
`classify.py` does. All files are imported with the package, before `sgdf.lab.runs`: a file imports
`Config` for its type hints only (``if TYPE_CHECKING:``), and what needs an extra goes into a second
module, named by `Task.trainer` and imported when a run begins, as in `detect/`.
"""

import importlib
import pkgutil

from sgdf.lab.tasks.registry import TASKS, Metric, Task, find, register

__all__ = ["TASKS", "Metric", "Task", "find", "register"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
