"""What can be learnt in the lab: a data set, and how the published protocol treats it."""

from dataclasses import dataclass

from sgdf.lab.errors import unknown


@dataclass(frozen=True)
class Task:
    """A data set with the protocol that `sgdf train` follows unless told otherwise."""

    name: str
    model: str
    epochs: int
    batch: int
    augmented: bool  # zero-pad by 4, crop, flip


TASKS = {
    task.name: task
    for task in (
        Task("digits", "mlp", epochs=20, batch=32, augmented=False),
        Task("fashion-mnist", "cnn", epochs=20, batch=128, augmented=False),
        Task("cifar10", "vgg11", epochs=200, batch=128, augmented=True),
        Task("cifar100", "vgg11", epochs=200, batch=128, augmented=True),
    )
}


def find(name: str) -> Task:
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]
