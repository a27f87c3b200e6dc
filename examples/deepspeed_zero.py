"""DeepSpeed: ZeRO 1 to 3, with save_checkpoint and load_checkpoint.

deepspeed examples/deepspeed_zero.py --stage 2      # on GPUs
python examples/deepspeed_zero.py --stage 3         # one process, also on a CPU
"""

import argparse
import os
import tempfile

import deepspeed
import torch
from torch import nn

from sgdf import SGDF


def config_of(stage: int) -> dict:
    return {
        "train_batch_size": 16 * int(os.environ.get("WORLD_SIZE", "1")),
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,  # DeepSpeed has a list of the ones it tested
    }


def engine_of(stage: int) -> deepspeed.DeepSpeedEngine:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = SGDF(model.parameters(), lr=0.5, weight_decay=1e-4)  # the line that changes
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config_of(stage))[0]


def train(engine: deepspeed.DeepSpeedEngine, steps: range) -> list[float]:
    losses = []
    for step in steps:
        x = torch.randn(16, 16, generator=torch.Generator().manual_seed(step))
        y = (x[:, :4].sum(1) > 0).long()
        logits = engine(x.to(engine.device, torch.bfloat16))
        loss = nn.functional.cross_entropy(logits.float(), y.to(engine.device))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def main(stage: int = 2, steps: int = 30) -> tuple[list[float], list[float]]:
    """Losses of a whole run, and of the second half resumed from a checkpoint."""
    if not torch.cuda.is_available():  # DeepSpeed would compile it for minutes
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if "RANK" not in os.environ:  # not started by deepspeed or torchrun
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")  # any free port
    with tempfile.TemporaryDirectory() as folder:
        engine = engine_of(stage)
        losses = train(engine, range(steps // 2))
        engine.save_checkpoint(folder)
        losses += train(engine, range(steps // 2, steps))
        engine.destroy()

        engine = engine_of(stage)
        engine.load_checkpoint(folder)
        resumed = train(engine, range(steps // 2, steps))
        engine.destroy()
    print(f"ZeRO {stage}: loss {losses[0]:.3f} -> {losses[-1]:.3f}, resumed -> {resumed[-1]:.3f}")
    return losses, resumed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stage", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--local_rank", type=int, help="passed by the deepspeed launcher")
    main(parser.parse_args().stage)
