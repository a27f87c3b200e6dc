"""The training loop of the published protocol: the same steps on a CPU and, captured, on a GPU.

On a GPU a complete step (batch, augmentation, forward, backward, the optimizer's update and the
sums for the metrics) is captured in a CUDA graph and replayed; the host only counts, and waits
for the device at an evaluation. The steps that warm a capture up are steps of the run itself.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from sgdf_lab import optimizers
from sgdf_lab.optimizers import HessianOptimizer
from sgdf_lab.support.errors import UserError
from sgdf_lab.support.numerics import joint_norm
from sgdf_lab.training import schedules
from sgdf_lab.training.batches import Batches, batch_sizes, micro_batch_sizes, seed_for
from sgdf_lab.training.checkpoints import check_state, load_optimizer, to_portable
from sgdf_lab.training.device import CudaGraphs, GroupRates, Sums
from sgdf_lab.training.distributed import SINGLE_PROCESS, Team, gathered, scattered

if TYPE_CHECKING:  # runs are made of tasks and tasks of this loop: at run time imports go one way
    from sgdf_lab.runs.config import Config


class Trainer:
    """Trains a model from evaluation to evaluation: the part that all tasks share.

    `epoch()` queues the steps up to the next evaluation: a pass over the data, or the `eval_every`
    steps of a task that counts steps. It yields after every step, so that several trainers can take
    turns on one GPU, each on a stream of its own. A task adds `_loss`, and measures its model in
    `_evaluate` or `metrics`. Two more hooks have defaults: `_trained_parameters`, one optimizer for
    each list, and `_extra_every` with `_extra_step`, a second part of every Nth step.
    """

    counts_correct = False  # whether `_loss` counts right answers
    notes: tuple[str, ...] = ()  # about the data, shown when a run starts or resumes

    def __init__(
        self,
        config: "Config",
        model: nn.Module,
        batches: Batches,
        device: torch.device,
        *,
        compile: bool = True,
        team: Team = SINGLE_PROCESS,
    ) -> None:
        check_team(team, config, len(batches))
        self.config, self.device, self.team = config, device, team
        self.model, self.batches = model, batches
        self.on_gpu = device.type == "cuda"
        self.steps_done = 0
        self.last_lr = config.lr
        team.shard(model, device)
        if self.on_gpu:
            set_precision(config.precision)
        captures = self.on_gpu and batches.resident and not team.shards
        self.graphs = CudaGraphs(device) if captures else None
        self.random: tuple[Tensor, Tensor] | None = None  # without graphs: states after a turn
        # The sum over processes stays outside of graphs.
        capturable = optimizers.find(config.optimizer).capturable
        self.captures_step = captures and capturable and team.size == 1
        self.lr: Tensor | float = config.lr
        if self.captures_step:
            self.lr = torch.tensor(config.lr, dtype=torch.float32, device=device)
        trained = self._trained_parameters()
        self.optimizers = {name: self._build_optimizer(params) for name, params in trained.items()}
        self.rates = GroupRates(self.optimizers.values(), self.lr)
        self.params, self.optimizer = trained["optimizer"], self.optimizers["optimizer"]
        self.extra_every = self._extra_every()
        self.sizes = batch_sizes(len(batches), config.batch)  # of the steps up to an evaluation
        self.total = config.epochs * len(self.sizes)  # steps
        self._learning_rates()  # an error here leaves no folder
        self.lrs = torch.zeros(len(self.sizes), device=device)
        self.sums = Sums(device)
        # Compiling the smaller last batch as well would take as long again, for one step a pass.
        self.compiled_size = micro_batch_sizes(team.share(config.batch)[1], config.accumulate)[0]
        self.compiled_loss: Callable[..., tuple[Tensor, Tensor]] = self._loss
        if self.on_gpu and compile and not team.shards:
            # One function for all models and precisions of a table, each compiled for itself.
            torch._dynamo.config.recompile_limit = 64
            self.compiled_loss = torch.compile(self._loss, dynamic=False)

    # --- what a task may define -----------------------------------------------------------------

    def _trained_parameters(self) -> dict[str, list[nn.Parameter]]:
        """One list for each optimizer, by its key in a checkpoint; "optimizer" is the main one."""
        return {"optimizer": [p for p in self.model.parameters() if p.requires_grad]}

    def _loss(self, position: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Over the `size` examples from `position` on: sum of losses, number of right answers."""
        raise NotImplementedError

    def _extra_every(self) -> int:
        """The number of steps after which an `_extra_step` follows; 0: none."""
        if self._hessian_optimizer():
            raise UserError(f"{self.config.optimizer} needs a task with classes")
        return 0

    def _hessian_optimizer(self) -> HessianOptimizer | None:
        """The optimizer, if it needs Hessian estimates."""
        needs_hessian = optimizers.find(self.config.optimizer).needs_hessian
        return cast(HessianOptimizer, self.optimizer) if needs_hessian else None

    def _extra_step(self, size: int) -> None:
        """The second part of a step whose batch had `size` examples."""
        raise NotImplementedError

    def _evaluate(self) -> dict[str, tuple[Tensor, float]]:
        """Measured at an evaluation: this process's sums, each with the divisor of the total."""
        return {}

    def evaluated(self) -> int:
        """The examples of an evaluation, for an estimate of its time."""
        return 0

    def pictures(self) -> dict[str, bytes]:
        """PNG files by name. All processes are asked; one of them writes."""
        return {}

    def close(self) -> None:
        """Stop work on steps that may not come."""

    # --- the steps up to an evaluation -----------------------------------------------------------

    def epoch(self) -> Iterator[None]:
        """Queue the steps one by one; then `self.metrics()` has the results."""
        lrs = self._learning_rates()
        if self.graphs:
            self.graphs.follow()
        with self._turn():
            optimizers.set_mode(self.optimizers.values(), training=True)
            self.batches.begin(self.evaluations)
            self.lrs.copy_(torch.tensor(lrs))
            self.last_lr = lrs[-1]
            self.sums.zero()
            self._seed()
        self.model.train()
        for i, size in enumerate(self.sizes):
            with self._turn():
                self._step(size, self._has_extra(self.steps_done + i), lrs[i])
            yield
        self.steps_done += len(self.sizes)
        self.batches.draw(self.evaluations)

    @property
    def evaluations(self) -> int:
        """How many the run has had: passes over the data, for a task that counts these."""
        return self.steps_done // len(self.sizes)

    def _has_extra(self, step: int) -> bool:
        """Whether `_extra_step` follows this step of the run, counted from 0."""
        return self.extra_every > 0 and step % self.extra_every == self.extra_every - 1

    def _learning_rates(self) -> list[float]:
        """The rates of the steps up to the next evaluation."""
        config, count = self.config, len(self.sizes)
        shape = config.schedule_shape
        shape = dataclasses.replace(shape, milestones=[m * count for m in shape.milestones])
        factors = schedules.factors(
            config.schedule, shape, first=self.steps_done, count=count, steps=self.total
        )
        return [config.lr * factor for factor in factors]

    def _seed(self) -> None:
        """Dropout, like the data, depends only on seed, place in the run and process."""
        seed = seed_for(f"dropout{self.team.rank or ''}", self.config.seed, self.evaluations)
        if self.graphs:
            self.graphs.generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Use this trainer's stream and random numbers."""
        if self.graphs is None:
            with self._random_numbers():
                yield
            return
        with torch.cuda.stream(self.graphs.stream), self.graphs.random_numbers():
            yield

    @contextlib.contextmanager
    def _random_numbers(self) -> Iterator[None]:
        """Without graphs: restore torch's generators as this trainer's last turn left them."""
        with torch.random.fork_rng([self.device] if self.on_gpu else []):
            if self.random is not None:
                torch.set_rng_state(self.random[0])
                if self.on_gpu:
                    torch.cuda.set_rng_state(self.random[1], self.device)
            yield
            on_gpu = torch.cuda.get_rng_state(self.device) if self.on_gpu else torch.empty(0)
            self.random = torch.get_rng_state(), on_gpu

    # --- a step ---------------------------------------------------------------------------------

    def _step(self, size: int, extra: bool, lr: float) -> None:
        if self.captures_step:
            assert self.graphs
            self.graphs.run((size, extra), lambda: self._captured_step(size, extra))
            return
        self.lr = lr
        self.rates.set(lr)
        if self.graphs:
            grads = self.graphs.run((size,), lambda: self._gradients(size))
            for p, grad in zip(self.params, grads, strict=True):
                p.grad = grad
        else:
            self._gradients(size)
        self._combine()
        self._update(size, extra)

    def _captured_step(self, size: int, extra: bool) -> None:
        assert isinstance(self.lr, Tensor)
        self.lr.copy_(self.lrs.index_select(0, self.sums.steps.view(1)).squeeze())
        self.rates.set(self.lr)
        self._gradients(size)
        self._combine()
        self._update(size, extra)

    def _gradients(self, size: int) -> list[Tensor]:
        """Forward and backward of this process's share of `size` examples, by micro-batch."""
        self.optimizer.zero_grad(set_to_none=True)
        start, share = self.team.share(size)
        self._skip(start)
        micro_batches = micro_batch_sizes(share, self.config.accumulate)
        for count in micro_batches:
            compute = self.compiled_loss if count == self.compiled_size else self._loss
            try:
                loss, correct = compute(self.batches.position, count)
            except ValueError as error:
                raise self._explained(error, count) from None
            self._backward(loss / size)
            self.sums.add(loss.detach(), correct)
            if self.team.shards:
                self.latest = self.batches.position.clone()
            self._skip(count)
        self._join_remaining_micro_batches(len(micro_batches), size)
        self._skip(size - start - share)
        return self._grads()

    def _explained(self, error: ValueError, count: int) -> Exception:
        """What to do about torch's refusal to normalise over a single value."""
        if count > 1 or "more than 1 value per channel" not in str(error):
            return error
        return UserError(
            f"{self.config.model} normalises over a batch, and here a batch of {self.config.batch} "
            "leaves a single example: choose another batch or accumulate"
        )

    def _backward(self, loss: Tensor) -> None:
        # FSDP averages gradients over processes; their sum is needed.
        (loss * self.team.size if self.team.shards else loss).backward()

    def _join_remaining_micro_batches(self, done: int, size: int) -> None:
        """Take part in micro-batches that other processes have and this one lacks.

        Processes that share the weights gather them in each. This one repeats an example with a
        loss of zero.
        """
        if self.team.shards:
            most = len(micro_batch_sizes(-(-size // self.team.size), self.config.accumulate))
            for _ in range(most - done):
                loss, _ = self._loss(self.latest, 1)
                (loss * 0).backward()

    def _skip(self, examples: int) -> None:
        if examples:
            self.batches.position += examples

    def _grads(self) -> list[Tensor]:
        """The gradients of all parameters: zeros for a process without examples in a last batch."""
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        return [p.grad for p in self.params if p.grad is not None]

    def _combine(self) -> None:
        """Sum the gradient over processes, measure and clip it."""
        if not self.team.shards:
            self.team.sum_(self._grads())
        if self.config.norms:
            self.sums.norms["gradient"] += joint_norm(self._grads())
        if self.config.clip is not None:
            nn.utils.clip_grad_norm_(self.params, self.config.clip)

    def _update(self, size: int, extra: bool) -> None:
        if self.config.norms:
            self._step_measured()
        else:
            self.optimizer.step()
        if extra:
            self._extra_step(size)
        self.sums.steps += 1

    @torch.no_grad()
    def _step_measured(self) -> None:
        """Step, and add the norm of the direction: the change of the weights over lr."""
        params: list[Tensor] = list(self.params)
        before = [p.clone() for p in params]
        self.optimizer.step()
        change = joint_norm(torch._foreach_sub(before, params))
        self.sums.norms["direction"] += change / self.lr

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if not self.on_gpu or self.config.precision != "bf16":
            return contextlib.nullcontext()
        return torch.autocast("cuda", torch.bfloat16, cache_enabled=False)

    # --- the results ----------------------------------------------------------------------------

    def metrics(self) -> dict[str, Any]:
        """The results of the steps that were just queued; waits for the device."""
        with self._turn():
            optimizers.set_mode(self.optimizers.values(), training=False)
            self.team.broadcast_(self.model.buffers())
            measured = self._evaluate()
            columns = [*self.sums.values(), *(value for value, _ in measured.values())]
            totals = torch.stack([c.double() for c in columns])
            self.team.sum_([totals])
            numbers = iter(totals.tolist())
        examples = sum(self.sizes)
        result: dict[str, Any] = {"epoch": self.evaluations, "lr": self.last_lr}
        result["train_loss"] = next(numbers) / examples
        correct = next(numbers)
        if self.counts_correct:
            result["train_accuracy"] = 100 * correct / examples
        steps = len(self.sizes) * self.team.size  # every process has added the same norms
        norms = {name: next(numbers) / steps for name in self.sums.norms}
        result |= {name: next(numbers) / divisor for name, (_, divisor) in measured.items()}
        if self.config.norms:
            result |= {f"{name}_norm": value for name, value in norms.items()}
        return result

    # --- optimizers and checkpoints -------------------------------------------------------------

    def _build_optimizer(self, params: list[nn.Parameter]) -> Optimizer:
        settings = {**self.config.settings, "lr": self.lr}
        return optimizers.build_optimizer(
            self.config.optimizer, params, settings, device=self.device, model=self.model
        )

    def state_dict(self) -> dict[str, Any]:
        """All that the next steps depend on; the rest follows from the seed and their number."""
        if self.graphs:
            self.graphs.stream.synchronize()
        return {
            "epoch": self.evaluations,
            "model": gathered(self.model.state_dict()),
            **{n: to_portable(gathered(o.state_dict())) for n, o in self.optimizers.items()},
        }

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise `DamagedCheckpoint` unless the state fits model and optimizers; changes nothing."""
        check_state(state, self.model, self.optimizers, self.config)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.check_state_dict(state)
        live = self.model.state_dict()
        self.model.load_state_dict(
            {k: scattered(v, live.get(k)) for k, v in state["model"].items()}
        )
        for name, optimizer in self.optimizers.items():
            load_optimizer(optimizer, state[name])
        self.steps_done = state["epoch"] * len(self.sizes)


class HessianTrainer(Trainer):
    """A trainer whose model predicts classes or tokens.

    So it can estimate the Hessian's diagonal, which Sophia asks for every few steps.
    """

    def _labels_in(self, size: int) -> int:
        """The labels of a batch of this size."""
        return size

    def _extra_every(self) -> int:
        optimizer = self._hessian_optimizer()
        return optimizer.hessian_every if optimizer else 0

    def _extra_step(self, size: int) -> None:
        """Give the optimizer the gradient for labels drawn from the model's own output."""
        self.optimizer.zero_grad(set_to_none=True)
        start, share = self.team.share(size)
        position = self.batches.position - size + start
        for count in micro_batch_sizes(share, self.config.accumulate):
            inputs, _ = self.batches.take(position, count)
            with self._autocast():
                logits = self.model(inputs)
            logits = logits.float().flatten(0, -2)
            # The largest of logits plus Gumbel noise is a sample of their softmax.
            noise = -torch.log(-torch.log(torch.rand_like(logits).clamp_(1e-20, 1 - 1e-7)))
            labels = (logits.detach() + noise).argmax(1)
            loss = F.cross_entropy(logits, labels, reduction="sum")
            (loss / self._labels_in(size)).backward()
            position = position + count
        self.team.sum_(self._grads())
        optimizer = self._hessian_optimizer()
        assert optimizer
        optimizer.update_hessian(self._labels_in(size))


def check_team(team: Team, config: "Config", examples: int) -> None:
    if team.size > config.batch:
        raise UserError(f"a batch of {config.batch} is too small for {team.size} processes")
    row = optimizers.find(config.optimizer)
    if team.shards and (row.needs_hessian or not row.shardable):
        raise UserError(f"{row.name} does not support --shard: leave it out")
    if team.shards and team.size > examples:
        raise UserError(
            f"{examples} training images are too few for {team.size} processes: leave --shard out"
        )


def set_precision(precision: str) -> None:
    """TF32 for matrix products and convolutions, or full float32."""
    fast = precision != "fp32"
    torch.set_float32_matmul_precision("high" if fast else "highest")
    torch.backends.cudnn.allow_tf32 = fast
    torch.backends.cudnn.benchmark = True


def take_turns(workers: list[Iterator[None]]) -> None:
    """One step of each, over and over, until all are done."""
    while workers:
        workers = [worker for worker in workers if next(worker, StopIteration) is None]
