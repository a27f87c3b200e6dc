"""About how long a run takes on a CPU, before it starts."""

import contextlib
import time
from collections.abc import Sequence

import torch

from sgdf_lab.runs.config import Config
from sgdf_lab.runs.progress import duration
from sgdf_lab.runs.run_folder import RunFolder
from sgdf_lab.runs.session import RunContext

TIMED_STEPS = 20  # of a run
TIMED_SECONDS = 2.0  # that they may take
FORWARD = 1 / 3  # of the time of a step: backward takes twice as long


def seconds_of_run(config: Config, context: RunContext) -> float:
    """About how long a run takes on this CPU, by its first steps.

    They are steps of a trainer that is thrown away: the run itself begins as it always does.
    """
    with torch.random.fork_rng(devices=[]):
        trainer = config.task_definition.module.build_trainer(
            config, context.device, data_dir=context.data_dir, compile=False
        )
        with contextlib.closing(trainer), contextlib.closing(trainer.epoch()) as steps:
            times = [time.monotonic()]
            for _ in steps:
                times.append(time.monotonic())
                is_long = times[-1] - times[0] > TIMED_SECONDS and len(times) > 2
                if is_long or len(times) > TIMED_STEPS + 1:
                    break
    timed = times[1:] if len(times) > 2 else times  # the first step also warms up
    per_step = (timed[-1] - timed[0]) / (len(timed) - 1)
    evaluation = FORWARD * trainer.evaluated() / config.batch  # in steps
    return per_step * (len(trainer.sizes) + evaluation) * config.epochs


def time_in_words(configs: Sequence[Config], context: RunContext) -> str:
    """About how long runs of one kind take on this CPU; nothing where none is left or one fails.

    Training itself tells what is wrong with a run.
    """
    try:
        left = [c for c in configs if RunFolder(context.out, c).result() is None]
        if not left:
            return ""
        each = f" for each of {len(left)} runs" if len(left) > 1 else ""
        seconds = seconds_of_run(left[0], context)
    except (Exception, SystemExit):  # a user's optimizer or data
        return ""
    return f"About {duration(seconds)} on {context.device}{each}, at the pace of the first steps"
