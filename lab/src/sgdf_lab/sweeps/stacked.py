"""The engine "stack": many runs of a small network side by side in the same tensors.

A sweep of runs that take a minute each is mostly launching kernels. On a GPU, a hundred of them as
one (`training.stack`) end in little more time than one. Runs are trained together that have the
same task, network, length and schedule, and optimizers of one structure. Their weights, batches and
order are those of any other engine; a run is written when its stack has ended, so that an
interruption costs at most one stack.
"""

import functools
import math
import time
from collections.abc import Hashable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from sgdf_lab.optimizers import build_optimizer
from sgdf_lab.runs.config import Config, frozen
from sgdf_lab.runs.results import summary_of
from sgdf_lab.runs.run_folder import RunFolder
from sgdf_lab.runs.session import RunContext, has_diverged, json_safe
from sgdf_lab.support.errors import UserError
from sgdf_lab.sweeps.worker import Notify, Results
from sgdf_lab.tasks.classify import Classifier
from sgdf_lab.tasks.language import LanguageModel
from sgdf_lab.training.loop import Trainer
from sgdf_lab.training.stack import ParameterRule, common_structure, rules_of, stacks_of

TOGETHER = 64
WARM_UP = 3  # steps before a capture
EVALUATED = 64  # windows or images at a time
CPU = torch.device("cpu")


def run(configs: Sequence[Config], context: RunContext, together: int, notify: Notify) -> Results:
    """Train the runs, `together` at a time, and yield each with its result."""
    trainers: dict[Hashable, Trainer] = {}
    kinds: dict[Hashable, list[tuple[Config, dict[str, ParameterRule]]]] = {}
    for config in configs:
        check(config)
        trainer = trainers.setdefault(seed_key(config), built(config, context, trainers))
        rules = named_rules(config, trainer.model)
        kind = (shared(config), common_structure(list(rules.values())))
        kinds.setdefault(kind, []).append((config, rules))
    for members in kinds.values():
        for first in range(0, len(members), together):
            chosen = members[first : first + together]
            own = [trainers[seed_key(config)] for config, _ in chosen]
            stack = RunStack([c for c, _ in chosen], [r for _, r in chosen], own, context)
            yield from stack.train(notify)


def check(config: Config) -> None:
    """Refuse what a stack cannot train."""
    if config.precision == "bf16" or config.accumulate > 1 or config.norms:
        raise UserError(
            "runs in a stack are of precision fp32 or tf32, without accumulate and norms"
        )


def shared(config: Config) -> Hashable:
    """What the runs of a stack have in common, beside the structure of their optimizers."""
    values = {**config.as_json(), "seed": None, "settings": None, "optimizer": None}
    key: Hashable = frozen(values)
    return key


def seed_key(config: Config) -> Hashable:
    return shared(config), config.seed


def built(config: Config, context: RunContext, known: dict[Hashable, Trainer]) -> Trainer:
    """The trainer of this task and seed: its weights at the start, its batches, its evaluation."""
    if seed_key(config) in known:
        return known[seed_key(config)]
    trainer: Trainer = config.task_definition.module.build_trainer(
        config, context.device, data_dir=context.data_dir, compile=False
    )
    if not isinstance(trainer, LanguageModel | Classifier):
        raise UserError(f"{config.task} cannot be trained in a stack: use another engine")
    return trainer


def named_rules(config: Config, model: nn.Module) -> dict[str, ParameterRule]:
    """What the optimizer of a run does to each parameter of its network."""
    names = {p: name for name, p in model.named_parameters()}
    optimizer = build_optimizer(
        config.optimizer, list(names), config.settings, device=CPU, model=model
    )
    found = rules_of(optimizer)
    return {name: found[p] for p, name in names.items()}


class RunStack:
    """Runs of one kind from their first step to their last."""

    def __init__(
        self,
        configs: Sequence[Config],
        rules: Sequence[dict[str, ParameterRule]],
        trainers: Sequence[Trainer],
        context: RunContext,
    ) -> None:
        self.configs, self.context, self.device = configs, context, context.device
        self.lead = trainers[0]
        self.model = self.lead.model
        with_plain_norms(self.model)
        self.trainers = list(dict.fromkeys(trainers))  # of each seed
        places = [self.trainers.index(trainer) for trainer in trainers]
        self.place = torch.tensor(places, device=self.device)
        self.batch = configs[0].batch
        self.clip = configs[0].clip

        def initial(name: str, of: str) -> Tensor:
            each = [dict(getattr(t.model, of)())[name].detach() for t in self.trainers]
            return torch.stack(each)[self.place].contiguous()

        weights = {name: initial(name, "named_parameters") for name in rules[0]}
        by_name = {name: [rule[name] for rule in rules] for name in rules[0]}
        self.stacks, self.leaves = stacks_of(weights, by_name, self.device)
        kept = set(self.model.state_dict()) - set(weights)
        self.buffers = {
            name: initial(name, "named_buffers")
            for name, _ in self.model.named_buffers()
            if name in kept
        }
        runs = len(configs)
        self.count = torch.zeros((), device=self.device)
        self.factor = torch.zeros((), device=self.device)
        self.loss = torch.zeros(runs, dtype=torch.float64, device=self.device)
        self.correct = torch.zeros(runs, dtype=torch.float64, device=self.device)
        self.inputs: tuple[Tensor, Tensor] | None = None
        self.graph: Any = None
        self.steps = 0

    # --- steps ----------------------------------------------------------------------------------

    def train(self, notify: Notify) -> Results:
        """All evaluations; then the folders of the runs."""
        lines: list[list[dict[str, Any]]] = [[] for _ in self.configs]
        times: list[float] = []
        for trainer in self.trainers:
            trainer.steps_done = 0
        for epoch in range(1, self.configs[0].epochs + 1):
            begin = time.perf_counter()
            factors = self.begin_evaluation(epoch - 1)
            for i, size in enumerate(self.lead.sizes):
                self.step(i, size, factors[i])
            for line, values in zip(lines, self.measured(epoch, factors[-1]), strict=True):
                line.append(values)
            times.append((time.perf_counter() - begin) / len(self.configs))
            shown = sum(map(math.isfinite, (line[-1]["train_loss"] for line in lines)))
            notify(
                f"stack of {len(self.configs)} runs of {self.configs[0].optimizer}: "
                f"{self.steps} of {self.lead.total} steps, {sum(times) * len(lines):.0f} s, "
                f"{shown} finite"
            )
        for config, own in zip(self.configs, lines, strict=True):
            yield config, self.write(config, own, times)

    def begin_evaluation(self, epoch: int) -> list[float]:
        """Load the batches of the next steps; their rates as parts of the run's."""
        self.model.train()
        self.loss.zero_()
        self.correct.zero_()
        for trainer in self.trainers:
            trainer.batches.begin(epoch)
        factors = [rate / self.lead.config.lr for rate in self.lead._learning_rates()]
        self.lead.steps_done += len(factors)
        return factors

    def step(self, place: int, size: int, factor: float) -> None:
        """Take a batch of every seed, and one step of all runs."""
        taken = [trainer.batches.take(trainer.batches.position, size) for trainer in self.trainers]
        for trainer in self.trainers:
            trainer.batches.position += size
        batch = tuple(torch.stack(parts)[self.place] for parts in zip(*taken, strict=True))
        self.factor.fill_(factor)
        if size != self.batch or self.device.type != "cuda" or self.steps < WARM_UP:
            self.compute(*cast(tuple[Tensor, Tensor], batch))
        else:
            self.replay(*cast(tuple[Tensor, Tensor], batch))
        for stack in self.stacks:
            stack.refresh(self.steps)
        self.steps += 1

    def replay(self, x: Tensor, y: Tensor) -> None:
        """The step as a captured graph."""
        if self.inputs is None:
            self.inputs = x.clone(), y.clone()
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                self.compute(*self.inputs)
            self.graph = graph
        for kept, new in zip(self.inputs, (x, y), strict=True):
            kept.copy_(new)
        self.graph.replay()

    def compute(self, x: Tensor, y: Tensor) -> None:
        names, leaves = list(self.leaves), list(self.leaves.values())
        with sdpa_kernel(SDPBackend.MATH):  # the others have no rule for vmap
            losses, correct = self.forward(x, y)
            grads: Sequence[Tensor] = torch.autograd.grad(losses.sum(), leaves)
        with torch.no_grad():
            self.loss += losses.detach() * y.shape[1]
            self.correct += correct
            if self.clip is not None:
                grads = clipped(grads, self.clip)
            by_name = dict(zip(names, grads, strict=True))
            self.count += 1
            for stack in self.stacks:
                own = [by_name[name] for name in self.names_of(stack)]
                if self.steps == 0:
                    stack.begin(own, self.count, self.factor, self.place)
                else:
                    stack.step(own, self.count, self.factor)

    def names_of(self, stack: Any) -> list[str]:
        ids = {id(leaf): name for name, leaf in self.leaves.items()}
        return [ids[id(leaf)] for leaf in stack.leaves]

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss of every run, and the number of its right answers."""
        return vmap(self.loss_of)(self.leaves, self.buffers, x, y)

    def loss_of(
        self, weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor]:
        logits = functional_call(self.model, (weights, buffers), (x,)).float().flatten(0, -2)
        correct = (logits.argmax(1) == y.flatten()).sum().double()
        return F.cross_entropy(logits, y.flatten()), correct

    # --- measuring ------------------------------------------------------------------------------

    @torch.no_grad()
    def measured(self, epoch: int, factor: float) -> list[dict[str, Any]]:
        """The lines of metrics, as the trainers write them."""
        examples = sum(self.lead.sizes)
        columns: dict[str, Tensor] = {"train_loss": self.loss / examples}
        trainer = self.lead
        self.model.eval()
        if isinstance(trainer, LanguageModel):
            columns["val_loss"] = self.evaluated(trainer.evaluation)[0]
            if trainer.test is not None and self.steps == trainer.total:
                columns["test_loss"] = self.evaluated(trainer.test)[0]
            columns["bits_per_byte"] = columns["val_loss"] / trainer.bytes_per_token / math.log(2)
        else:
            columns["train_accuracy"] = 100 * self.correct / examples
            for name, images in cast(Classifier, trainer).evaluation.items():
                loss, correct = self.evaluated(images)
                columns |= {f"{name}_loss": loss, f"{name}_accuracy": 100 * correct}
        self.model.train()
        numbers = {name: column.tolist() for name, column in columns.items()}
        extra: dict[str, Any] = {}
        if isinstance(trainer, LanguageModel):
            tokens = epoch * len(trainer.batches) * trainer.batches.context
            extra = {"step": self.steps, "tokens": tokens}
        return [
            {
                "epoch": epoch,
                "lr": config.lr * factor,
                **{name: column[i] for name, column in numbers.items()},
                **extra,
            }
            for i, config in enumerate(self.configs)
        ]

    def evaluated(self, evaluation: Any) -> tuple[Tensor, Tensor]:
        """The mean loss and the share of right answers of every run."""
        loss, correct = torch.zeros_like(self.loss), torch.zeros_like(self.loss)
        count = 0
        leaves = {name: leaf.detach() for name, leaf in self.leaves.items()}
        for x, y in evaluation.batches(0, len(evaluation)):
            for part, labels in zip(x.split(EVALUATED), y.split(EVALUATED), strict=True):
                with sdpa_kernel(SDPBackend.MATH):
                    means, right = vmap(self.loss_of, in_dims=(0, 0, None, None))(
                        leaves, self.buffers, part, labels
                    )
                loss += means.double() * labels.numel()
                correct += right
                count += labels.numel()
        return loss / count, correct / count

    # --- folders --------------------------------------------------------------------------------

    def write(
        self, config: Config, lines: list[dict[str, Any]], times: Sequence[float]
    ) -> dict[str, Any]:
        """The folder of a run, as other engines leave it, but without a checkpoint."""
        folder = RunFolder(self.context.out, config)
        finished = folder_lines(lines)
        status = "diverged" if finished[-1].get("diverged") else "finished"
        seconds = [{"epoch": i + 1, "seconds": s} for i, s in enumerate(times[: len(finished)])]
        with folder.open():
            if result := folder.result():  # another process was faster
                return result
            folder.data = self.lead.batches.fingerprint()
            folder.note_environment(self.context.command, self.device)
            for line, second in zip(finished, seconds, strict=True):
                folder.add(line, {**second, "stacked": len(self.configs)})
            result = summary_of(config, folder.metrics, folder.times, status)
            folder.finish(result)
        return result


def with_plain_norms(model: nn.Module) -> None:
    """Let batch norms compute in plain operations: on a GPU, torch's has no rule for vmap."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.forward = functools.partial(plain_batch_norm, module)  # type: ignore[method-assign]


def plain_batch_norm(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    mean, var = cast(tuple[Tensor, Tensor], (norm.running_mean, norm.running_var))
    momentum = cast(float, norm.momentum)
    if norm.training:
        var_now, mean_now = torch.var_mean(x, (0, 2, 3), correction=0)
        count = x.numel() // x.shape[1]
        with torch.no_grad():
            mean.mul_(1 - momentum).add_(momentum * mean_now.detach())
            unbiased = var_now.detach() * (count / (count - 1))
            var.mul_(1 - momentum).add_(momentum * unbiased)
            cast(Tensor, norm.num_batches_tracked).add_(1)
        mean, var = mean_now, var_now
    scale = norm.weight * torch.rsqrt(var + norm.eps)
    return x * scale[:, None, None] + (norm.bias - mean * scale)[:, None, None]


def folder_lines(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines up to the first loss that is not finite."""
    kept: list[dict[str, Any]] = []
    for line in lines:
        if has_diverged(line):
            return [*kept, {**json_safe(line), "diverged": True}]
        kept.append(json_safe(line))
    return kept


def clipped(grads: Sequence[Tensor], most: float) -> list[Tensor]:
    """The gradients of every run, clipped to a norm as by `torch.nn.utils.clip_grad_norm_`."""
    squares = torch.stack([g.flatten(1).square().sum(1) for g in grads]).sum(0)
    scale = (most / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    return [g * scale.view(-1, *[1] * (g.dim() - 1)) for g in grads]
