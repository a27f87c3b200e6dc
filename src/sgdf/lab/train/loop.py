"""Training by the published protocol: the same steps on a CPU and, as CUDA graphs, on a GPU.

On a GPU everything of a step (batch, augmentation, forward, backward, the optimizer's update and
the sums for the metrics) is captured once and replayed; the host only counts, and waits for the
device once an epoch. The steps that warm a capture up are steps of the run itself.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sgdf.lab import optimizers
from sgdf.lab.runs.config import Config
from sgdf.lab.train import schedules
from sgdf.lab.train.distributed import ALONE, Team, gathered, scattered
from sgdf.lab.train.pipelines.resident import seed_for
from sgdf.support.errors import UserError
from sgdf.support.numerics import joint_norm

WARM_UP = 3  # steps before a capture: compiling, choosing convolutions, allocating state
# How an optimizer runs is the live one's choice, not the checkpoint's.
FLAGS = ("lr", "foreach", "fused", "capturable", "differentiable")


class Batches(Protocol):
    """The training examples of a task, in an order that seed and epoch decide."""

    position: Tensor  # of the next one in the epoch's order, on the device
    resident: bool  # all on the device, so that a step can be captured with its batch

    def __len__(self) -> int: ...

    def draw(self, epoch: int) -> None:
        """Prepare an epoch while another is being worked on."""

    def begin(self, epoch: int) -> None:
        """Have `take` begin with the first example of the epoch."""

    def take(self, position: Tensor, size: int) -> tuple[Any, Any]:
        """Inputs and targets of the `size` examples from `position` on."""


class Trainer:
    """A model on its way from epoch to epoch: what the trainers of all kinds of tasks share.

    `epoch()` gives control back after every step that it has queued, so that several trainers
    can take turns on one GPU, each on a stream of its own. A kind of task adds `_loss`, and what
    is measured after an epoch: `_judge`, or more in `metrics`.
    """

    counts_answers = False  # that are right or wrong
    notes: tuple[str, ...] = ()  # about the data, said when a run starts or goes on

    def __init__(
        self,
        config: Config,
        model: nn.Module,
        batches: Batches,
        device: torch.device,
        *,
        compile: bool = True,
        team: Team = ALONE,
    ) -> None:
        self.config, self.device, self.team = config, device, team
        if team.size > config.batch:
            raise UserError(f"a batch of {config.batch} is too small for {team.size} processes")
        if team.shards and team.size > len(batches):
            raise UserError(
                f"{len(batches)} training images are too few for {team.size} processes: leave "
                "--shard out"
            )
        self.on_gpu = device.type == "cuda"
        self.done = 0  # epochs
        self.model, self.batches = model, batches
        team.spread(model, device)
        self.params = [p for p in model.parameters() if p.requires_grad]
        if self.on_gpu:
            set_precision(config.precision)
        captures = self.on_gpu and batches.resident and not team.shards
        self.graphs = Graphs(device) if captures else None
        self.random: tuple[Tensor, Tensor] | None = None  # where a turn without graphs ended
        # The sum over processes stays outside of graphs.
        capturable = optimizers.find(config.optimizer).capturable
        self.captures_step = captures and capturable and team.size == 1
        self.lr: Tensor | float = config.lr
        if self.captures_step:
            self.lr = torch.tensor(config.lr, dtype=torch.float32, device=device)
        self.optimizer = self._optimizer_of(self.params)
        self.sizes = batch_sizes(len(batches), config.batch)
        self.lrs = torch.zeros(len(self.sizes), device=device)
        self.sums = Sums(device)
        # Compiling the smaller last batch as well would take as long again, for one step an epoch.
        self.whole_piece = piece_sizes(team.share(config.batch)[1], config.accumulate)[0]
        self.compiled_loss: Callable[..., tuple[Tensor, Tensor]] = self._loss
        if self.on_gpu and compile and not team.shards:
            # One function for all models and precisions of a table, each compiled for itself.
            torch._dynamo.config.recompile_limit = 64
            self.compiled_loss = torch.compile(self._loss, dynamic=False)

    def _optimizer_of(self, params: list[nn.Parameter]) -> torch.optim.Optimizer:
        settings = {**self.config.settings, "lr": self.lr}
        return optimizers.build_optimizer(
            self.config.optimizer, params, settings, device=self.device
        )

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """All of them, by their names in a checkpoint."""
        return {"optimizer": self.optimizer}

    def _loss(self, position: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Over the next `size` examples: the sum of losses, and how many answers were right."""
        raise NotImplementedError

    def _judge(self) -> dict[str, tuple[Tensor, float]]:
        """What is measured after an epoch: this process's sums, and what theirs is divided by."""
        return {}

    def close(self) -> None:
        """End what works ahead on an epoch that may not come."""

    # --- an epoch -----------------------------------------------------------------------------

    def epoch(self) -> Iterator[None]:
        """Queue the steps of the next epoch, one by one; then `self.metrics()` has the results."""
        lrs = self._learning_rates(self.done)
        if self.graphs:
            self.graphs.follow()
        with self._turn():
            self.batches.begin(self.done)
            self.lrs.copy_(torch.tensor(lrs))
            self.sums.zero()
            self._seed()
        self.model.train()
        first = self.done * len(self.sizes)
        for i, size in enumerate(self.sizes):
            with self._turn():
                self._run(size, self._wants_more(first + i), lrs[i])
            yield
        self.done += 1
        self.batches.draw(self.done)

    def _wants_more(self, step: int) -> bool:
        """Whether this step of the run has a second part, `_do_more`."""
        every = getattr(self.optimizer, "hessian_every", 0)
        return bool(every) and step % every == every - 1

    def _learning_rates(self, epoch: int) -> list[float]:
        config = self.config
        factors = schedules.factors(
            config.schedule,
            epoch=epoch,
            epochs=config.epochs,
            steps_per_epoch=len(self.sizes),
            milestones=config.milestones,
            drop=config.drop,
        )
        return [config.lr * factor for factor in factors]

    def _seed(self) -> None:
        """Dropout's numbers, like the data's, depend on seed and epoch (and process) alone."""
        seed = seed_for(f"dropout{self.team.rank or ''}", self.config.seed, self.done)
        if self.graphs:
            self.graphs.generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """This trainer's stream and random numbers."""
        if self.graphs is None:
            with self._random_numbers():
                yield
            return
        with torch.cuda.stream(self.graphs.stream), self.graphs.random_numbers():
            yield

    @contextlib.contextmanager
    def _random_numbers(self) -> Iterator[None]:
        """Without graphs: torch's generators as this trainer left them at the end of its turn."""
        with torch.random.fork_rng([self.device] if self.on_gpu else []):
            if self.random is not None:
                torch.set_rng_state(self.random[0])
                if self.on_gpu:
                    torch.cuda.set_rng_state(self.random[1], self.device)
            yield
            on_gpu = torch.cuda.get_rng_state(self.device) if self.on_gpu else torch.empty(0)
            self.random = torch.get_rng_state(), on_gpu

    # --- a step -------------------------------------------------------------------------------

    def _run(self, size: int, more: bool, lr: float) -> None:
        if not self.captures_step:
            for optimizer in self._optimizers().values():
                for group in optimizer.param_groups:
                    group["lr"] = lr
        if self.graphs is None:
            self._gradients(size)
            self._combine()
            self._update(size, more)
        elif self.captures_step:
            self.graphs.run((size, more), lambda: self._whole_step(size, more))
        else:
            grads = self.graphs.run((size,), lambda: self._gradients(size))
            for p, grad in zip(self.params, grads, strict=True):
                p.grad = grad
            self._combine()
            self._update(size, more)

    def _whole_step(self, size: int, more: bool) -> None:
        assert isinstance(self.lr, Tensor)
        self.lr.copy_(self.lrs.index_select(0, self.sums.steps.view(1)).squeeze())
        self._gradients(size)
        self._combine()
        self._update(size, more)

    def _gradients(self, size: int) -> list[Tensor]:
        """Forward and backward of this process's share of the next `size` examples, in pieces."""
        self.optimizer.zero_grad(set_to_none=True)
        start, mine = self.team.share(size)
        self._skip(start)
        pieces = piece_sizes(mine, self.config.accumulate)
        for piece in pieces:
            compute = self.compiled_loss if piece == self.whole_piece else self._loss
            loss, correct = compute(self.batches.position, piece)
            self._backward(loss / size)
            self.sums.add(loss.detach(), correct)
            if self.team.shards:
                self.latest = self.batches.position.clone()
            self._skip(piece)
        self._keep_step(len(pieces), size)
        self._skip(size - start - mine)
        return self._grads()

    def _backward(self, loss: Tensor) -> None:
        # Shards of the gradient are averaged on their way, and it is their sum that is wanted.
        (loss * self.team.size if self.team.shards else loss).backward()

    def _keep_step(self, pieces: int, size: int) -> None:
        """Processes that share the weights meet in every piece, also those that have none left.

        Those look at an example of theirs once more, which then counts for nothing.
        """
        if self.team.shards:
            most = len(piece_sizes(-(-size // self.team.size), self.config.accumulate))
            for _ in range(most - pieces):
                loss, _ = self._loss(self.latest, 1)
                (loss * 0).backward()

    def _skip(self, images: int) -> None:
        if images:
            self.batches.position += images

    def _grads(self) -> list[Tensor]:
        """Of all parameters; a process without images in a last batch has zeros."""
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        return [p.grad for p in self.params if p.grad is not None]

    def _combine(self) -> None:
        """The gradient of the whole batch, measured and clipped."""
        if not self.team.shards:
            self.team.sum_(self._grads())
        if self.config.norms:
            self.sums.norms["gradient"] += joint_norm(self._grads())
        if self.config.clip is not None:
            nn.utils.clip_grad_norm_(self.params, self.config.clip)

    def _update(self, size: int, more: bool) -> None:
        if self.config.norms:
            self._step_measured()
        else:
            self.optimizer.step()
        if more:
            self._do_more(size)
        self.sums.steps += 1

    @torch.no_grad()
    def _step_measured(self) -> None:
        """A step, and the norm of the direction it went: what it moved, over the learning rate."""
        params: list[Tensor] = list(self.params)
        before = [p.clone() for p in params]
        self.optimizer.step()
        moved = joint_norm(torch._foreach_sub(before, params))
        self.sums.norms["direction"] += moved / self.optimizer.param_groups[0]["lr"]

    def _do_more(self, size: int) -> None:
        """What Sophia asks for now and then; only a classifier has answers to draw from."""
        raise UserError(f"{self.config.optimizer} needs a task with classes")

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if not self.on_gpu or self.config.precision != "bf16":
            return contextlib.nullcontext()
        return torch.autocast("cuda", torch.bfloat16, cache_enabled=False)

    # --- the results of an epoch ----------------------------------------------------------------

    def metrics(self) -> dict[str, Any]:
        """What the epoch that was just queued came to; waits for the device."""
        with self._turn():
            self.team.follow_(self.model.buffers())
            judged = self._judge()
            columns = [*self.sums.values(), *(value for value, _ in judged.values())]
            totals = torch.stack([c.double() for c in columns])
            self.team.sum_([totals])
            numbers = iter(totals.tolist())
        examples = sum(self.sizes)
        result: dict[str, Any] = {"epoch": self.done}
        result["lr"] = self._learning_rates(self.done - 1)[-1]
        result["train_loss"] = next(numbers) / examples
        right = next(numbers)
        if self.counts_answers:
            result["train_accuracy"] = 100 * right / examples
        steps = len(self.sizes) * self.team.size  # every process has the norms of all
        norms = {name: next(numbers) / steps for name in self.sums.norms}
        result |= {name: next(numbers) / whole for name, (_, whole) in judged.items()}
        if self.config.norms:
            result |= {f"{name}_norm": value for name, value in norms.items()}
        return result

    def pictures(self) -> dict[str, bytes]:
        """What the epoch looks like: PNG files by name. All processes are asked, one writes."""
        return {}

    # --- checkpoints ----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that the next epoch depends on; the rest follows from seed and epoch."""
        if self.graphs:
            self.graphs.stream.synchronize()
        return {
            "epoch": self.done,
            "model": gathered(self.model.state_dict()),
            **{name: gathered(o.state_dict()) for name, o in self._optimizers().items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        live = self.model.state_dict()
        self.model.load_state_dict(
            {k: scattered(v, live.get(k)) for k, v in state["model"].items()}
        )
        for name, optimizer in self._optimizers().items():
            self._load_optimizer(optimizer, dict(state[name]))
        self.done = state["epoch"]

    def _load_optimizer(self, optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
        params = [p for group in optimizer.param_groups for p in group["params"]]
        saved["state"] = {
            i: {key: scattered(value, params[i]) for key, value in moments.items()}
            for i, moments in saved["state"].items()
        }
        groups = zip(saved["param_groups"], optimizer.param_groups, strict=True)
        saved["param_groups"] = [
            {**old, **{flag: live[flag] for flag in FLAGS if flag in live}} for old, live in groups
        ]
        optimizer.load_state_dict(saved)
        for group in optimizer.param_groups:
            group["lr"] = self.lr  # the tensor that captured steps read


class Sums:
    """What an epoch adds up on the device."""

    def __init__(self, device: torch.device) -> None:
        self.loss = torch.zeros((), device=device, dtype=torch.float64)
        self.correct = torch.zeros((), device=device, dtype=torch.int64)
        self.steps = torch.zeros((), device=device, dtype=torch.int64)
        self.norms = {name: torch.zeros((), device=device) for name in ("gradient", "direction")}

    def zero(self) -> None:
        for value in (self.loss, self.correct, self.steps, *self.norms.values()):
            value.zero_()

    def add(self, loss: Tensor, correct: Tensor) -> None:
        self.loss += loss
        self.correct += correct

    def values(self) -> tuple[Tensor, ...]:
        return (self.loss, self.correct, *self.norms.values())


class Graphs:
    """Work on a stream of its own, captured after it ran a few times and replayed from then on."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.generator = torch.Generator(device)
        self.default = torch.cuda.default_generators[self.stream.device.index]
        self.pool = torch.cuda.graph_pool_handle()
        self.ran: dict[Any, int] = {}
        self.captured: dict[Any, tuple[torch.cuda.CUDAGraph, Any]] = {}

    def follow(self) -> None:
        """Go on after what was prepared elsewhere: weights, data, a checkpoint."""
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))

    def run(self, key: Any, work: Callable[[], Any]) -> Any:
        """Do the work and return what it returns; captured, always the same tensors."""
        if key in self.captured:
            graph, result = self.captured[key]
            graph.replay()
            return result
        self.ran[key] = self.ran.get(key, 0) + 1
        result = work()
        if self.ran[key] == WARM_UP:
            self.captured[key] = self._capture(work)
        return result

    def _capture(self, work: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            result = work()
        return graph, result

    @contextlib.contextmanager
    def random_numbers(self) -> Iterator[None]:
        """Let this stream's generator stand in for the default one, which dropout draws from.

        Graphs of one generator share the memory that their seed is read from, so that trainers
        side by side need one each.
        """
        before = self.default.graphsafe_get_state()
        self.default.graphsafe_set_state(self.generator.graphsafe_get_state())
        try:
            yield
        finally:
            self.default.graphsafe_set_state(before)


def take_turns(workers: list[Iterator[None]]) -> None:
    """One step of each, over and over, until all are done."""
    while workers:
        workers = [worker for worker in workers if next(worker, StopIteration) is None]


def batch_sizes(images: int, batch: int) -> list[int]:
    """Whole batches, and the rest as a last one: the published protocol drops nothing."""
    rest = images % batch
    return [batch] * (images // batch) + ([rest] if rest else [])


def piece_sizes(size: int, pieces: int) -> list[int]:
    """A batch in pieces that differ by one image at most."""
    whole, rest = divmod(size, pieces)
    return [part for part in (whole + (i < rest) for i in range(pieces)) if part]


def set_precision(precision: str) -> None:
    """TF32 for products and convolutions, or full float32."""
    fast = precision != "fp32"
    torch.set_float32_matmul_precision("high" if fast else "highest")
    torch.backends.cudnn.allow_tf32 = fast
    torch.backends.cudnn.benchmark = True
