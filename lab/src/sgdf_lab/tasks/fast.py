"""CIFAR-10 to 94 % in 9.9 epochs: the recipe of airbench94 (Jordan 2024, arXiv:2404.00498).

Its published numbers are for gradients that are summed over a batch, with the step and the decay
written apart. For the mean gradient of torch's SGD, a rate of 11.5 per 1024 images and a momentum
of 0.85 make lr = 11.5 / (1 + 1 / (1 - 0.85)) = 1.5, and a decay of 0.0153 makes
weight_decay = 0.0153 / 11.5. Norms' biases learn `bias_scale` times as fast, and decay as the rest.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from sgdf_lab import optimizers, tasks
from sgdf_lab.models.airbench import FastNet, build_fast_net, whiten_
from sgdf_lab.optimizers.build import default_of
from sgdf_lab.registry.tasks import FAST_SETTINGS
from sgdf_lab.support.errors import UserError
from sgdf_lab.support.numbers import is_number
from sgdf_lab.tasks.classify import Classifier, load_dataset, splits
from sgdf_lab.training.checkpoints import DamagedCheckpoint
from sgdf_lab.training.distributed import SINGLE_PROCESS, Team
from sgdf_lab.training.images import ResidentImages, SteppedBatches, normalised

if TYPE_CHECKING:
    from sgdf_lab.runs.config import Config

STD = (0.2470, 0.2435, 0.2616)  # of CIFAR-10's pixels; the usual protocol divides by less
WHITENING_IMAGES = 5000
BIAS_SCALE = 64
VIEWS = ("one", "mirror", "mirror+shift")


def check(config: "Config", data_dir: Path | None) -> None:
    """Raise a `UserError` if an option is wrong or the data is missing."""
    tasks.check_integers(config, eval_every=1, shift=0, bias_passes=0, lookahead=0)
    smoothing, scale = config.option("smoothing"), config.option("bias_scale")
    if not is_number(smoothing) or not 0 <= smoothing <= 1:
        raise UserError(f"smoothing is a number from 0 to 1, not {smoothing!r}")
    if not is_number(scale) or scale < 0:
        raise UserError(f"bias_scale is a positive factor, or 0, not {scale!r}")
    if config.option("views") not in VIEWS:
        raise UserError(f"views is one of {', '.join(VIEWS)}, not {config.option('views')!r}")
    load_dataset(config.task, data_dir, config.data == "synthetic")


def build_trainer(
    config: "Config",
    device: torch.device,
    *,
    data_dir: Path | None = None,
    compile: bool = True,
    team: Team = SINGLE_PROCESS,
) -> "FastClassifier":
    check(config, data_dir)
    if team.shards:
        raise UserError(f"{config.task} does not support --shard: its network is small")
    dataset = load_dataset(config.task, data_dir, config.data == "synthetic")
    if config.data != "synthetic":
        dataset = dataclasses.replace(dataset, std=STD)
    training, evaluation = splits(config, dataset)
    batches = SteppedBatches(
        training,
        dataset,
        device,
        seed=config.seed,
        steps=config.option("eval_every"),
        batch=config.batch,
        shift=config.option("shift"),
    )
    _, channels, height, width = training.images.shape
    with tasks.weights_by_seed(config):
        shape = channels, height, width
        model = build_fast_net(config.model, classes=dataset.classes, shape=shape)
    pixels = training.images[:WHITENING_IMAGES].permute(0, 2, 3, 1)
    whiten_(model, normalised(pixels, torch.tensor(dataset.mean), torch.tensor(dataset.std)))
    return FastClassifier(
        config,
        tasks.channels_last(model, device),
        batches,
        {name: ResidentImages(split, dataset, device) for name, split in evaluation.items()},
        device,
        compile=compile,
        team=team,
    )


def bias_scale(config: "Config") -> float:
    """The rate of norms' biases over that of the other parameters.

    By default 64 where a step is in proportion to the gradient, as the recipe was tuned for. Other
    optimizers, as Adam, take steps of a size that does not depend on the gradient's.
    """
    given = config.option("bias_scale")
    in_proportion = optimizers.find(config.optimizer).published_as in FAST_SETTINGS
    return float(given or (BIAS_SCALE if in_proportion else 1))


class FastClassifier(Classifier):
    """A classifier with groups of two rates, slow weights, and several views of a test image."""

    model: FastNet
    batches: SteppedBatches

    def __init__(self, config: "Config", *parts: Any, **more: Any) -> None:
        self.smoothing = float(config.option("smoothing"))
        self.every = config.option("lookahead")
        super().__init__(config, *parts, **more)
        self.lookahead = Lookahead(self.model) if self.every else None
        self.decays = torch.zeros(len(self.sizes), device=self.device)
        self.bias_is_trained = torch.zeros(len(self.sizes), dtype=torch.bool, device=self.device)

    def _build_optimizer(self, params: list[nn.Parameter]) -> Optimizer:
        """The recipe's two groups, unless they have the same rate."""
        scale = bias_scale(self.config)
        if scale == 1:
            return super()._build_optimizer(params)
        row = optimizers.find(self.config.optimizer)
        if row.groups is not None:
            raise UserError(f"{row.name} has groups of its own: leave bias_scale out")
        biases = self.model.norm_biases()
        others = [p for p in params if not any(p is bias for bias in biases)]
        group: dict[str, Any] = {"params": biases, "lr": self.config.lr * scale}
        decay = self.config.settings.get("weight_decay", default_of(row, "weight_decay"))
        if decay is not None:
            group["weight_decay"] = decay / scale
        settings = {**self.config.settings, "lr": self.lr}
        return optimizers.build_optimizer(
            row.name, [{"params": others}, group], settings, device=self.device, model=self.model
        )

    # --- steps ----------------------------------------------------------------------------------

    def epoch(self) -> Iterator[None]:
        steps = len(self.sizes)
        first, thawed = self.steps_done, self.config.option("bias_passes")
        if self.graphs:
            self.graphs.follow()
        with self._turn():
            if self.every:
                decays = lookahead_decays(first, steps, self.total, self.every)
                self.decays.copy_(torch.tensor(decays))
            trained = torch.arange(first, first + steps) < thawed * self.batches.steps_per_pass
            self.bias_is_trained.copy_(trained)
        yield from super().epoch()

    def _extra_every(self) -> int:
        if self.every and self._hessian_optimizer():
            raise UserError(f"{self.config.optimizer} needs lookahead=0 on {self.config.task}")
        return super()._extra_every()

    def _has_extra(self, step: int) -> bool:
        if not self.every:
            return super()._has_extra(step)
        return moves_slow_weights(step, self.total, self.every)

    def _update(self, size: int, extra: bool) -> None:
        """Step, but keep the first layer's bias once it is trained; then move the slow weights."""
        bias = self.model.whiten.bias
        assert bias is not None
        before, step = bias.detach().clone(), self.sums.steps.clone().view(1)
        super()._update(size, extra=False)
        with torch.no_grad():
            bias.copy_(torch.where(self.bias_is_trained.index_select(0, step), bias, before))
        if extra and self.lookahead:
            self.lookahead.update(self.decays.index_select(0, step).squeeze())
        elif extra:
            self._extra_step(size)

    # --- evaluation -----------------------------------------------------------------------------

    def _predict(self, images: Tensor) -> Tensor:
        return predict(self.model, images, self.config.option("views"))

    def metrics(self) -> dict[str, Any]:
        if self.lookahead:  # statistics of norms are those of a process's share
            with self._turn():
                self.team.broadcast_(self.lookahead.slow.values())
        return {**super().metrics(), "step": self.steps_done}

    # --- checkpoints ----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        slow = {"lookahead": dict(self.lookahead.slow)} if self.lookahead else {}
        return {**super().state_dict(), **slow}

    def check_state_dict(self, state: dict[str, Any]) -> None:
        super().check_state_dict(state)
        if self.lookahead:
            self.lookahead.check(state.get("lookahead"))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.lookahead:
            self.lookahead.load(state["lookahead"])


def predict(model: nn.Module, images: Tensor, views: str) -> Tensor:
    """The mean of the logits of an image and its mirror image, and of both moved by a pixel.

    The image where it is counts as much as the two moved ones, up and left, down and right.
    """
    logits: Tensor = model(images)
    if views == "one":
        return logits
    logits = (logits + model(images.flip(-1))) / 2
    if views == "mirror":
        return logits
    height, width = images.shape[-2:]
    padded = F.pad(images, (1, 1, 1, 1), mode="reflect")
    moved = [padded[..., :height, :width], padded[..., 2:, 2:]]
    return (logits + sum(predict(model, view, "mirror") for view in moved) / 2) / 2


# --- lookahead with a growing memory --------------------------------------------------------------

MEMORY = 0.95  # per step: the memory at the end of the run
POWER = 3  # of the part of the run that is done


def lookahead_decays(first: int, count: int, total: int, every: int) -> list[float]:
    """For `count` steps from `first` on, counted from 0: what the slow weights keep.

    Used after every `every`th step, and after the last step of the run, which is 1 unless it is
    one of these.

    >>> [round(decay, 4) for decay in lookahead_decays(0, 4, 4, 3)]  # after step 3: 0.95^3 (3/4)^3
    [0.0, 0.0, 0.3617, 1.0]
    """

    def after(steps: int) -> float:
        if steps % every == 0:
            return float(MEMORY**every * (steps / total) ** POWER)
        return 1.0 if steps == total else 0.0

    return [after(first + i + 1) for i in range(count)]


def moves_slow_weights(step: int, total: int, every: int) -> bool:
    """Whether the slow weights move after this step, counted from 0."""
    return (step + 1) % every == 0 or step + 1 == total


class Lookahead:
    """Slow weights that follow the fast ones and replace them; they start as a copy.

    Every few steps the slow weights move towards the fast ones, and the fast ones continue from
    there (Zhang et al. 2019, arXiv:1907.08610). Here the slow weights keep more of themselves the
    longer the run has lasted, and the run ends with them (Jordan 2024, arXiv:2404.00498). Running
    statistics of norms take part.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.slow = {name: value.detach().clone() for name, value in self._fast().items()}

    def _fast(self) -> dict[str, Tensor]:
        state = self.model.state_dict()
        return {name: value for name, value in state.items() if value.is_floating_point()}

    @torch.no_grad()
    def update(self, decay: Tensor) -> None:
        """Move the slow weights to the fast ones, and the fast ones there."""
        for name, fast in self._fast().items():
            slow = self.slow[name]
            slow.copy_(decay * slow + (1 - decay) * fast)
            fast.copy_(slow)

    def check(self, saved: Any) -> None:
        """Raise `DamagedCheckpoint` unless names and shapes are those of the model."""
        if not isinstance(saved, Mapping) or saved.keys() != self.slow.keys():
            raise DamagedCheckpoint("it does not have the slow weights of this model")
        for name, value in self.slow.items():
            if getattr(saved[name], "shape", None) != value.shape:
                raise DamagedCheckpoint(f"slow {name} does not have the shape {list(value.shape)}")

    def load(self, saved: Mapping[str, Tensor]) -> None:
        for name, value in self.slow.items():
            value.copy_(saved[name])
