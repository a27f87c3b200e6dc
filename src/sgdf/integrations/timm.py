"""timm: the optimizers by name, for `create_optimizer_v2` and the ``--opt`` of its train script.

In your own code, register them once:

>>> import timm.optim, torch
>>> register()
>>> model = torch.nn.Linear(4, 2)
>>> optimizer = timm.optim.create_optimizer_v2(model, opt="sgdf", lr=0.5, weight_decay=1e-4)
>>> type(optimizer).__name__
'SGDF'

timm's train script runs unchanged behind this module::

    python -m sgdf.integrations.timm train.py data/ --opt sgdf --lr 0.5
"""

import runpy
import sys
from pathlib import Path

from sgdf.optim import SGDF, FilterAdam, FilterAdamW

#: Names and classes. timm takes what is before a "_" for a wrapper (lookahead_sgdf): none has one.
OPTIMIZERS = {"sgdf": SGDF, "filteradam": FilterAdam, "filteradamw": FilterAdamW}


def register() -> None:
    """Let timm know ``sgdf``, ``filteradam`` and ``filteradamw``; a second call does nothing."""
    from timm.optim._optim_factory import OptimInfo, default_registry, list_optimizers

    known = set(list_optimizers())
    for name, optimizer in OPTIMIZERS.items():
        if name not in known:
            # timm has a momentum of 0.9 for every optimizer, and drops it without `has_momentum`.
            info = OptimInfo(
                name=name,
                opt_class=optimizer,
                description=f"sgdf.{optimizer.__name__}, with a Wiener filter of the gradient",
                has_momentum=False,
                has_betas=True,
            )
            default_registry.register(info)


def main(arguments: list[str]) -> None:
    """Register the optimizers, then run a script with its arguments."""
    if not arguments or not Path(arguments[0]).is_file():
        sys.exit("usage: python -m sgdf.integrations.timm train.py [its arguments]")
    register()
    sys.argv = arguments
    sys.path[0] = str(Path(arguments[0]).resolve().parent)  # as Python does for a script
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
