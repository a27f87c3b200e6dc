"""The length of a run whose task counts steps: how many evaluations it has.

The lab trains in epochs. Of a task that counts steps, an epoch is the `eval_every` steps before an
evaluation, and a user gives steps or tokens in its place.
"""

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

from sgdf_lab.registry.models import OWN_CONTEXT
from sgdf_lab.registry.tasks import Task
from sgdf_lab.support.errors import UserError

GIVEN = ("steps", "tokens")  # settings that say how long a run is


def evaluations(
    task: Task,
    model: str,
    epochs: int | None,
    given: MutableMapping[str, Any],
    of_run: Mapping[str, Any],
    options: Mapping[str, Any],
) -> int:
    """The number of evaluations of a run; takes steps or tokens out of the `given` settings."""
    if epochs is not None:
        raise UserError(f"{task.name} counts steps, not epochs: --set steps=N")
    every = counted("eval_every", options.get("eval_every", task.options["eval_every"]))
    known = GIVEN if task.tokens_of else GIVEN[:1]
    lengths = {name: counted(name, given.pop(name)) for name in known if name in given}
    if len(lengths) == 2:
        raise UserError("give steps or tokens, not both")
    if "tokens" in lengths:
        window = counted(
            "context", options.get("context") or task.tokens_of.get(model, OWN_CONTEXT)
        )
        return -(-lengths["tokens"] // (every * counted("batch", of_run["batch"]) * window))
    usual = task.epochs * task.options["eval_every"]  # however often it is evaluated
    return in_evaluations("steps", lengths.get("steps", usual), every)


def milestones_in_evaluations(task: Task, given: Any, options: Mapping[str, Any]) -> Any:
    """Milestones that a user gave in steps, as the loop counts them."""
    every = options.get("eval_every", task.options["eval_every"])
    values = given if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    return tuple(in_evaluations("milestones", counted("a milestone", v), every) for v in values)


def in_evaluations(name: str, steps: int, every: int) -> int:
    if steps % every:
        raise UserError(
            f"{name} are multiples of eval_every, {every}, which {steps} is not: give "
            f"{steps - steps % every or every}, or set eval_every"
        )
    return steps // every


def counted(name: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise UserError(f"{name} is an integer of at least 1, not {value!r}")
    return value
