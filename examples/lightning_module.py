"""Lightning: automatic and manual optimization, and resume from a checkpoint.

python examples/lightning_module.py
"""

import tempfile
from pathlib import Path

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sgdf import FilterAdamW


class Classifier(lightning.LightningModule):
    """Lightning calls the optimizer: nothing but `configure_optimizers` changes."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
        self.losses: list[float] = []

    def configure_optimizers(self):
        optimizer = FilterAdamW(self.parameters(), lr=1e-2, weight_decay=0.1)  # changes
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
        return [optimizer], [schedule]

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.losses.append(loss.item())
        return loss


class ManualClassifier(Classifier):
    """The same with manual optimization: this module calls backward and step itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, number))
        self.clip_gradients(optimizer, gradient_clip_val=1.0)
        optimizer.step()

    def on_train_epoch_end(self) -> None:
        self.lr_schedulers().step()


def fit(kind: type[Classifier], folder: Path, epochs: int, resume: Path | None = None):
    """Train to the end of epoch `epochs`, from a checkpoint if one is given; return the module."""
    lightning.seed_everything(0, verbose=False)
    inputs = torch.randn(128, 16)
    data = TensorDataset(inputs, (inputs[:, :4].sum(1) > 0).long())
    module = kind()
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="auto",
        devices=1,
        gradient_clip_val=1.0 if module.automatic_optimization else None,
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(data, batch_size=16), ckpt_path=resume, weights_only=True)
    trainer.save_checkpoint(folder / f"epoch-{epochs}.ckpt")
    return module


def main(kind: type[Classifier] = Classifier) -> list[float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = fit(kind, folder, epochs=2)
        again = fit(kind, folder, epochs=4, resume=folder / "epoch-2.ckpt")
    losses = first.losses + again.losses
    print(f"{kind.__name__}: loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main(Classifier)
    main(ManualClassifier)
