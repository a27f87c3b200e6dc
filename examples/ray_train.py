"""Ray Train: a training loop on Ray workers, with checkpoints that Ray keeps.

python examples/ray_train.py
python examples/ray_train.py --fail-after 2     # a failure: Ray restarts the worker
python examples/ray_train.py --workers 0        # in this process, for debugging
"""

import argparse
import tempfile
from pathlib import Path

import ray.train
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device, prepare_model
from torch import nn

from sgdf import SGDF


def train_loop(config: dict) -> None:
    """Runs on every worker; from the checkpoint that Ray passes after a failure, if any."""
    torch.manual_seed(0)
    model = prepare_model(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2)))
    optimizer = SGDF(model.parameters(), lr=config["lr"])  # the line that changes
    done = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"), weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["done"]

    for epoch in range(done, config["epochs"]):
        draw = torch.Generator().manual_seed(epoch)
        for _ in range(10):
            x = torch.randn(16, 16, generator=draw)
            y = (x[:, :4].sum(1) > 0).long()
            loss = nn.functional.cross_entropy(model(x.to(get_device())), y.to(get_device()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        with tempfile.TemporaryDirectory() as folder:
            torch.save(state | {"done": epoch + 1}, Path(folder, "state.pt"))
            metrics = {"loss": loss.item(), "epoch": epoch}
            ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder))
        if epoch + 1 == config["fail_after"] and not checkpoint:
            raise RuntimeError("a failure, to show that the run resumes")


def main(workers: int = 1, epochs: int = 3, fail_after: int | None = None) -> dict:
    """Train on Ray; return the last metrics."""
    with tempfile.TemporaryDirectory() as folder:  # on a cluster: storage that all nodes share
        result = TorchTrainer(
            train_loop,
            train_loop_config={"lr": 0.5, "epochs": epochs, "fail_after": fail_after},
            scaling_config=ScalingConfig(num_workers=workers, use_gpu=torch.cuda.is_available()),
            run_config=RunConfig(
                name="sgdf", storage_path=folder, failure_config=FailureConfig(max_failures=1)
            ),
        ).fit()
    print(f"epoch {result.metrics['epoch']}: loss {result.metrics['loss']!r}")
    return result.metrics


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--fail-after", type=int, help="raise an error after this epoch, once")
    main(**vars(parser.parse_args()))
