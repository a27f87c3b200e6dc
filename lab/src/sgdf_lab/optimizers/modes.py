"""The two sets of weights of a schedule-free optimizer: to train with, and to evaluate."""

from collections.abc import Iterable

from torch.optim import Optimizer


def set_mode(optimizers: Iterable[Optimizer], *, training: bool) -> None:
    """Put the weights to train with, or the averaged ones, into the model.

    Of the optimizers that have `train` and `eval`, as schedule-free ones do; others have one set
    of weights. A checkpoint holds the averaged weights and the mode: the optimizer can restore
    the weights to train with from them.
    """
    for optimizer in optimizers:
        change = getattr(optimizer, "train" if training else "eval", None)
        if callable(change):
            change()
