"""Hugging Face's Trainer: an optimizer with the settings of `TrainingArguments`.

The Trainer passes its learning rate, betas and epsilon to its own optimizers only. To one from
elsewhere it passes what ``optimizer_cls_and_kwargs`` has::

    Trainer(model, args, optimizer_cls_and_kwargs=optimizer(args), train_dataset=...)
"""

from typing import Any

import torch

from sgdf.optim import FilterAdamW


def optimizer(
    args: Any, kind: type[torch.optim.Optimizer] = FilterAdamW, **settings: Any
) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """What the Trainer takes as ``optimizer_cls_and_kwargs``.

    Weight decay is not among it: the Trainer sets it itself, 0 for norms and biases.

    Args:
        args: `TrainingArguments`; ``learning_rate``, ``adam_beta1``, ``adam_beta2`` and
            ``adam_epsilon`` become lr, betas and eps.
        kind: a class with these settings: FilterAdamW, FilterAdam, or SGDF, whose eps is the one in
            the gain.
        settings: further settings of the optimizer, or others instead of those of ``args``.

    Examples:
        >>> from types import SimpleNamespace
        >>> args = SimpleNamespace(
        ...     learning_rate=3e-4, adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-8
        ... )
        >>> kind, given = optimizer(args, gain_scale=1.0)
        >>> kind.__name__, given
        ('FilterAdamW', {'lr': 0.0003, 'betas': (0.9, 0.95), 'eps': 1e-08, 'gain_scale': 1.0})
    """
    of_args = {
        "lr": args.learning_rate,
        "betas": (args.adam_beta1, args.adam_beta2),
        "eps": args.adam_epsilon,
    }
    return kind, of_args | settings
