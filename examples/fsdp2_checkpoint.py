"""FSDP2 with distributed checkpoints: save with one number of processes, resume with another.

torchrun --nproc-per-node 1 examples/fsdp2_checkpoint.py shards --until 10
torchrun --nproc-per-node 2 examples/fsdp2_checkpoint.py shards --until 20
torchrun --nproc-per-node 1 examples/fsdp2_checkpoint.py shards --until 30
"""

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from sgdf import FilterAdamW


def sharded_model(device: str) -> nn.Module:
    torch.manual_seed(0)  # the same start on every process
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def my_part(step: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """This process's part of a batch of 16, which is the same for any number of processes."""
    x = torch.randn(16, 16, generator=torch.Generator().manual_seed(step))
    y = (x[:, :4].sum(1) > 0).long()
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    return x[mine].to(device), y[mine].to(device)


def main(folder: Path, until: int) -> list[float]:
    """Train to step `until`, from the last checkpoint if any; losses of this process."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    if device == "cuda":
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    model = sharded_model(device)
    # After fully_shard, so that the state is sharded as the parameters are.
    optimizer = FilterAdamW(model.parameters(), lr=1e-2, weight_decay=0.1)

    done = max((int(file.parent.name) for file in folder.glob("*/.metadata")), default=0)
    if done:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments}
        dcp.load(state, checkpoint_id=folder / str(done))  # each reads what its shards need
        set_state_dict(
            model,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
    losses = []
    for step in range(done, until):
        x, y = my_part(step, device)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder / str(until))
    if dist.get_rank() == 0:
        size = dist.get_world_size()
        print(
            f"steps {done} to {until}, {size} processes: loss {losses[0]:.3f} -> {losses[-1]:.3f}"
        )
    dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--until", type=int, default=30)
    main(**vars(parser.parse_args()))
    # On a CPU a thread of gloo may still hold a tensor and abort Python's shutdown.
    sys.stdout.flush()
    os._exit(0)
