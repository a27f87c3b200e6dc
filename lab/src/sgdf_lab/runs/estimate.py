"""How long runs will take, from a few of their steps."""

import contextlib
import time

import torch

from sgdf_lab.runs.config import Config
from sgdf_lab.runs.session import RunContext

STEPS = 20  # that are timed, after the first
SECONDS = 2.0  # that they may take


def seconds_of_run(config: Config, context: RunContext) -> float:
    """About how long a run takes on this CPU without its evaluations, by its first steps.

    They are steps of a trainer that is thrown away: the run itself begins as it always does.
    """
    with torch.random.fork_rng(devices=[]):
        trainer = config.task_definition.module.build_trainer(
            config, context.device, data_dir=context.data_dir, compile=False
        )
        with contextlib.closing(trainer), contextlib.closing(trainer.epoch()) as steps:
            times = [time.perf_counter()]
            for _ in steps:
                times.append(time.perf_counter())
                if len(times) > STEPS + 1 or times[-1] - times[0] > SECONDS:
                    break
    timed = times[1:] if len(times) > 2 else times  # the first step also warms up
    per_step = (timed[-1] - timed[0]) / (len(timed) - 1)
    return per_step * len(trainer.sizes) * config.epochs
