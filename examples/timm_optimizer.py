"""timm: our optimizers by name, with timm's own groups and schedules.

python examples/timm_optimizer.py --opt sgdf --lr 0.5
python examples/timm_optimizer.py --opt filteradamw --lr 3e-3
"""

import argparse

import timm
import torch
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from torch.nn import functional as F

from sgdf.integrations.timm import register

register()  # the line that changes; then any timm call knows sgdf, filteradam and filteradamw


def stripes(count: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy images with horizontal or vertical stripes, and which of the two it is."""
    labels = torch.arange(count) % 2
    vertical = torch.sin(torch.arange(32.0)).expand(32, 32)
    images = torch.where(labels[:, None, None] == 1, vertical, vertical.T)
    return images[:, None].repeat(1, 3, 1, 1) + torch.randn(count, 3, 32, 32), labels


def main(opt: str = "sgdf", lr: float = 0.5, epochs: int = 8) -> list[float]:
    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=32,
        patch_size=8,
        embed_dim=32,
        depth=2,
        num_heads=2,
        num_classes=2,
    )
    optimizer = create_optimizer_v2(model, opt=opt, lr=lr, weight_decay=1e-4, momentum=0.9)
    schedule, _ = create_scheduler_v2(
        optimizer, sched="cosine", num_epochs=epochs, warmup_epochs=2, warmup_lr=lr / 100
    )
    images, labels = stripes()
    losses = []
    for epoch in range(epochs):
        schedule.step(epoch)
        for x, y in zip(images.split(16), labels.split(16), strict=True):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    print(f"{opt}: loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--opt", default="sgdf")
    parser.add_argument("--lr", type=float, default=0.5)
    main(**vars(parser.parse_args()))
