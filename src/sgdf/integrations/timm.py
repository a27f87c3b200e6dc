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

from timm.optim import OptimInfo, list_optimizers
from timm.optim._optim_factory import default_registry

from sgdf.optim import SGDF, FilterAdam, FilterAdamW
from sgdf.support.errors import UserError

# timm takes what stands before "_" for a wrapper (lookahead_sgdf), so no name has one.
# Without `has_momentum` timm drops the momentum=0.9 that its train script always has.
OPTIMIZERS = (
    OptimInfo(
        name="sgdf",
        opt_class=SGDF,
        description="SGD along the Wiener-filtered gradient",
        has_betas=True,
    ),
    OptimInfo(
        name="filteradam",
        opt_class=FilterAdam,
        description="Adam with the Wiener-filtered gradient as its first moment",
        has_betas=True,
    ),
    OptimInfo(
        name="filteradamw",
        opt_class=FilterAdamW,
        description="FilterAdam with decoupled weight decay",
        has_betas=True,
    ),
)


def register() -> None:
    """Let timm know ``sgdf``, ``filteradam`` and ``filteradamw``; a second call does nothing."""
    known = set(list_optimizers())
    for info in OPTIMIZERS:
        if info.name not in known:
            default_registry.register(info)


def main(arguments: list[str]) -> None:
    """Register the optimizers, then run a script with its arguments."""
    if not arguments or not Path(arguments[0]).is_file():
        raise UserError("usage: python -m sgdf.integrations.timm train.py [its arguments]")
    register()
    sys.argv = arguments
    sys.path[0] = str(Path(arguments[0]).resolve().parent)  # as Python does for a script
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(str(error))
