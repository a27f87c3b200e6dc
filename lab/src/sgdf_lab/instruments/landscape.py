"""The loss around a model: along a line or in a plane through its parameters.

A plain random direction says little, because the function may not depend on the scale of a layer's
weights (batch norm cancels it). So every filter of a direction is scaled to the norm of the model's
own filter: a step of 1 is as large as the weights in every layer. Directions depend only on the
seed and on the names and shapes of the parameters, so that two runs of one network are
compared along the same ones.
"""

import hashlib
import json
import time
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sgdf_lab.instruments.evaluation import (
    MODE,
    MODE_BY_BATCH,
    Array,
    Batches,
    Loss,
    batch_norms,
    checked_loss,
    count_images,
    eval_mode_restored,
    mean_loss,
    progress_counter,
    read_batches,
    trainable,
)
from sgdf_lab.support.files import open_regular, replacing

Direction = dict[str, Tensor]  # by parameter name; parameters that are not in it do not move


@dataclass(frozen=True)
class Surface:
    """The mean loss over `images` images on a grid, with the model itself at 0."""

    axes: tuple[Array, ...]  # one per direction
    values: Array  # values[i] or values[i, j] at axes[0][i] and axes[1][j]; may be inf or nan
    loss: float  # of the model itself
    images: int
    seconds: float  # of this call
    mode: str = MODE

    def about(self) -> dict[str, Any]:
        """Everything but the values."""
        names = ("axes", "loss", "images", "seconds", "mode")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class TrainingPath:
    """Checkpoints in the plane through the model in which they differ most from it."""

    points: Array  # one row per checkpoint: its two coordinates, with the model at (0, 0)
    explained: tuple[float, float]  # share of all squared distances along each direction
    directions: tuple[Direction, Direction]  # of length 1


# --- surfaces ------------------------------------------------------------------------------------


def surface(
    model: nn.Module,
    loss: Loss,
    data: Iterable[Any],
    *,
    size: int = 51,
    span: float = 1.0,
    dimensions: int = 2,
    seed: int = 0,
    save: str | Path | None = None,
    progress: bool = True,
) -> Surface:
    """The loss along one or two random directions, scaled to the norms of the model's filters.

    The model is evaluated in eval mode, with its own batch norm statistics, and is left as it was.
    One-dimensional parameters (biases, norm layers) do not move.

    Args:
        model: any module; its parameters are the centre.
        loss: ``loss(outputs, targets)``, the *average* over a batch's images.
        data: yields batches ``(inputs, targets)`` of tensors; read once, kept on the device. A few
            thousand images are enough for a figure.
        size: points per axis. If it is odd, the centre is one of them.
        span: the axes range from -span to span, in units of the weights' own size.
        dimensions: 1 for a line, 2 for a plane.
        seed: of the directions.
        save: a file (.npz) for finished rows; the same call resumes from it.
        progress: show a bar that counts points.

    Examples:
        >>> model = torch.nn.Linear(4, 2)
        >>> data = [(torch.randn(8, 4), torch.randint(0, 2, (8,)))]
        >>> loss = torch.nn.functional.cross_entropy
        >>> surface(model, loss, data, size=5, progress=False).values.shape
        (5, 5)
    """
    check_grid(size, dimensions)
    if not (span >= 0 and np.isfinite(span)) or (span == 0 and size > 1):
        raise ValueError(f"span must be a positive number, not {span}")
    steps = 2 * np.arange(size) - (size - 1)  # symmetric: the middle one is exactly 0
    axis = span * steps / max(size - 1, 1)
    along = directions(model, seed=seed, dimensions=dimensions)
    return evaluate(model, loss, data, along, (axis,) * dimensions, MODE, seed, save, progress)


def path_surface(
    model: nn.Module,
    loss: Loss,
    data: Iterable[Any],
    path: TrainingPath,
    *,
    size: int = 51,
    margin: float = 0.2,
    save: str | Path | None = None,
    progress: bool = True,
) -> Surface:
    """The loss in the plane of a run's path, with a margin around the path.

    As `surface`, with two differences. All parameters that require gradients move, one-dimensional
    ones too. Batch norm uses the statistics of each batch of `data`, which should be large: the
    model's own are wrong far from it, where a path begins, and the loss there could be any number.

    Args:
        model: with the parameters at the end of the run.
        loss: as for `surface`.
        data: the same.
        path: of the function `path`.
        size: as for `surface`.
        margin: around the path, as a fraction of its extent.
        save: as for `surface`.
        progress: the same.

    Examples:
        >>> model = torch.nn.Linear(4, 2)
        >>> data = [(torch.randn(8, 4), torch.randint(0, 2, (8,)))]
        >>> loss = torch.nn.functional.cross_entropy
        >>> way = path(model, [torch.nn.Linear(4, 2).state_dict() for _ in range(5)])
        >>> path_surface(model, loss, data, way, size=5, progress=False).values.shape
        (5, 5)
    """
    check_grid(size, 2)
    if not margin >= 0:
        raise ValueError(f"margin must be 0 or more, not {margin}")
    corners = np.vstack([path.points, np.zeros(2)])
    low, high = corners.min(0), corners.max(0)
    more = margin * (high - low)
    axes = tuple(np.linspace(low[i] - more[i], high[i] + more[i], size) for i in range(2))
    mode = MODE_BY_BATCH if batch_norms(model) else MODE
    return evaluate(model, loss, data, path.directions, axes, mode, 0, save, progress)


def check_grid(size: int, dimensions: int) -> None:
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"size must be a number of points per axis from 1 on, not {size!r}")
    if dimensions not in (1, 2):
        raise ValueError(f"a surface has 1 or 2 dimensions, not {dimensions!r}")


def evaluate(
    model: nn.Module,
    loss: Loss,
    data: Iterable[Any],
    along: Sequence[Direction],
    axes: tuple[Array, ...],
    mode: str,
    seed: int,
    save: str | Path | None,
    progress: bool,
) -> Surface:
    """The loss at every grid point; rows that `save` already has are not measured again."""
    start = time.perf_counter()
    parameters = {name: p.detach() for name, p in trainable(model).items()}
    device = next(iter(parameters.values())).device
    with eval_mode_restored(model, seed), progress_counter("points", progress) as counter:
        batches = read_batches(data, device)
        shape = tuple(map(len, axes))
        grid = SavedGrid(shape, Path(save) if save else None)
        identity = fingerprint(model, batches, along, axes, mode) if grid.file else {}
        if mode == MODE_BY_BATCH:
            for norm in batch_norms(model).values():  # `eval_mode_restored` restores the mode
                norm.train()
        centre = checked_loss(model, loss, batches)
        if grid.file:
            grid.resume(identity, centre)
        counter.begin("surface", int(np.prod(shape)))
        counter.tick(int(grid.done.sum()) * int(np.prod(shape[1:])))
        for row in np.flatnonzero(~grid.done).tolist():
            values = []  # stay on the device until the row is done, so that the host need not wait
            for rest in np.ndindex(shape[1:]):
                place = [axis[i] for axis, i in zip(axes, (row, *rest), strict=True)]
                moved = displaced(parameters, along, place)
                values.append(mean_loss(model, moved, loss, batches))
                counter.tick()
            grid.finish(row, torch.stack(values).cpu().numpy())
    seconds = time.perf_counter() - start
    return Surface(axes, grid.values, centre, count_images(batches), seconds, mode)


def fingerprint(
    model: nn.Module,
    batches: Batches,
    along: Sequence[Direction],
    axes: tuple[Array, ...],
    mode: str,
) -> dict[str, Any]:
    """What determines the values: a saved grid is resumed only if all of it agrees."""
    return {
        "version": 1,
        "axes": digest(torch.from_numpy(axis) for axis in axes),
        "directions": digest(part for direction in along for part in direction.values()),
        "model": digest([*model.parameters(), *model.buffers()]),
        "data": digest(part for batch in batches for part in batch),
        **({} if mode == MODE else {"mode": mode}),  # older files have no mode
    }


def displaced(
    parameters: Mapping[str, Tensor], along: Sequence[Direction], place: Sequence[float]
) -> dict[str, Tensor]:
    """Copies of the parameters that the directions move, at a point of the grid."""
    moved = {}
    for name in dict.fromkeys(name for direction in along for name in direction):
        value = parameters[name].clone()
        for direction, step in zip(along, place, strict=True):
            if name in direction:
                value.add_(direction[name], alpha=float(step))
        moved[name] = value
    return moved


# --- directions ----------------------------------------------------------------------------------


def directions(model: nn.Module, *, seed: int = 0, dimensions: int = 2) -> list[Direction]:
    """Random directions, with every filter as long as the model's own.

    A filter is one index of a parameter's first dimension: a filter of a convolution, a row of a
    linear layer. One-dimensional parameters have no filters and are left out.
    """
    return [
        {
            name: filter_normalised(random_like(p, name, seed, number), p.detach())
            for name, p in trainable(model).items()
            if p.ndim > 1
        }
        for number in range(dimensions)
    ]


def random_like(parameter: Tensor, name: str, seed: int, number: int) -> Tensor:
    """Depends only on the seed, the direction's number, and the parameter's name and shape."""
    key = json.dumps([seed, number, name, list(parameter.shape)])
    words = np.frombuffer(hashlib.sha256(key.encode()).digest(), dtype=np.uint32)
    drawn = np.random.default_rng(words.tolist()).standard_normal(tuple(parameter.shape))
    return torch.from_numpy(drawn)


def filter_normalised(drawn: Tensor, weight: Tensor) -> Tensor:
    rows = drawn.flatten(1)
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    norms = torch.linalg.vector_norm(weight.double().cpu().flatten(1), dim=1, keepdim=True)
    rows = rows * (norms / lengths)
    scaled: Tensor = rows.view_as(drawn).to(weight)
    return scaled


# --- the path of a run ---------------------------------------------------------------------------


def path(model: nn.Module, checkpoints: Iterable[Mapping[str, Tensor]]) -> TrainingPath:
    """The checkpoints of a run in their principal plane, with the model as the origin.

    The two directions are the first principal components of the differences between the
    checkpoints' parameters and the model's (about the model, not about their mean, so that the
    model lies in the plane). A plane shows only a part of a path: `explained` says how much.

    Args:
        model: with the parameters at the end of the run.
        checkpoints: state dicts of the same model, in the order of the run.

    Examples:
        >>> model = torch.nn.Linear(4, 2)
        >>> checkpoints = [torch.nn.Linear(4, 2).state_dict() for _ in range(5)]
        >>> path(model, checkpoints).points.shape
        (5, 2)
    """
    end = {name: p.detach() for name, p in trainable(model).items()}
    away = [difference(state, end, number) for number, state in enumerate(checkpoints)]
    if len(away) < 2:
        raise ValueError(f"a plane needs at least two checkpoints, not {len(away)}")
    components, explained = principal(torch.stack(away))
    points = torch.stack([torch.stack([row.double() @ c for c in components]) for row in away])
    first, second = (split_like(component, end) for component in components)
    return TrainingPath(points.numpy(), explained, (first, second))


def principal(rows: Tensor) -> tuple[list[Tensor], tuple[float, float]]:
    """Two directions of length 1, and the share of the rows' squared lengths along each."""
    parts = torch.split(rows, 1 << 20, dim=1)  # few rows, each as long as the model is large
    gram = torch.stack([part.double() @ part.double().T for part in parts]).sum(0)
    squares, vectors = torch.linalg.eigh(gram)  # the largest last
    if not squares[-2] > 1e-12 * squares[-1]:
        raise ValueError("the checkpoints lie on one line through the model: they span no plane")
    components = []
    for i in (-1, -2):
        weights = vectors[:, i]
        weights = weights * weights[weights.abs().argmax()].sign()  # the sign is arbitrary
        component = (weights.to(rows) @ rows).double()
        components.append(component / component.norm())
    first, second = (squares[[-1, -2]] / squares.clamp(min=0).sum()).tolist()
    return components, (first, second)


def split_like(vector: Tensor, parameters: Mapping[str, Tensor]) -> Direction:
    parts = torch.split(vector, [p.numel() for p in parameters.values()])
    return {
        name: part.view(p.shape).to(p)
        for (name, p), part in zip(parameters.items(), parts, strict=True)
    }


def difference(state: Mapping[str, Tensor], end: Mapping[str, Tensor], number: int) -> Tensor:
    """From the end to a checkpoint, as one vector."""
    parts = []
    for name, last in end.items():
        if name not in state or state[name].shape != last.shape:
            raise ValueError(f"checkpoint {number} is of another model: it has no such {name}")
        parts.append((state[name].detach().to(last) - last).flatten().cpu())
    return torch.cat(parts)


# A grid of values that is saved row by row, so that an interrupted measurement resumes.


class SavedGrid:
    """Values on a grid, and which rows are done. With a file, every finished row is saved."""

    def __init__(self, shape: tuple[int, ...], file: Path | None) -> None:
        self.values = np.full(shape, np.nan)
        self.done = np.zeros(shape[0], dtype=bool)
        self.file = file
        self.about: dict[str, Any] = {}

    def resume(self, fingerprint: dict[str, Any], centre: float) -> None:
        """Take the rows that the file has, if it is a file of the same surface."""
        assert self.file
        self.about = {**fingerprint, "centre": centre}
        if not self.file.exists():
            self.file.parent.mkdir(parents=True, exist_ok=True)
            return
        try:
            with open_regular(self.file) as file, np.load(file) as saved:
                about = json.loads(str(saved["about"]))
                values, done = saved["values"], saved["done"]
                other = [name for name in fingerprint if about[name] != fingerprint[name]]
                # Another loss function shows at the centre. Devices round differently.
                if not np.isclose(about["centre"], centre, rtol=1e-4):
                    other.append("loss")
        except (OSError, ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"{self.file} cannot be read as a surface ({error}): move it away"
            ) from None
        if other:
            raise ValueError(
                f"{self.file} is a surface of other settings ({', '.join(other)}): save this one "
                "elsewhere, or move that one away"
            )
        self.values, self.done = values, done

    def finish(self, row: int, values: Array) -> None:
        self.values[row] = values.reshape(self.values.shape[1:])
        self.done[row] = True
        if self.file:
            about = np.array(json.dumps(self.about))
            with replacing(self.file) as file:
                np.savez(file, values=self.values, done=self.done, about=about)


def digest(tensors: Iterable[Tensor]) -> str:
    """A hash of dtypes, shapes and values."""
    total = hashlib.sha256()
    for tensor in tensors:
        plain = tensor.detach().cpu().contiguous()
        total.update(f"{plain.dtype} {tuple(plain.shape)}".encode())
        total.update(plain.flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()[:16]
