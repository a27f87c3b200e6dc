"""One of two processes that share the weights of a language model, trained by many optimizers.

torchrun --nproc-per-node 2 shard_driver.py FILE.json OPTIMIZER...
"""

import json
import sys
from pathlib import Path

import torch

from sgdf_lab.cli.main import leave
from sgdf_lab.runs import config as configs
from sgdf_lab.training.distributed import ALONE, Team, joined

CPU = torch.device("cpu")


def train(optimizer: str, team: Team = ALONE) -> list[float]:
    """The training loss of two steps, and the validation loss after them."""
    config = configs.make(
        "text",
        model="gpt-tiny",
        optimizer=optimizer,
        data="synthetic",
        overrides={"context": 8, "batch": 4, "steps": 2, "eval_every": 2, "eval_tokens": 64},
    )
    trainer = config.task_definition.module.build_trainer(config, CPU, team=team)
    for _ in trainer.epoch():
        pass
    metrics = trainer.metrics()
    trainer.state_dict()  # gathers the shards
    return [metrics["train_loss"], metrics["val_loss"]]


if __name__ == "__main__":
    torch.set_num_threads(1)
    with joined(CPU, shard=True) as (team, _):
        losses = {name: train(name, team) for name in sys.argv[2:]}
    if team.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(losses))
    leave(0)
