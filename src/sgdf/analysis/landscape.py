"""The loss around a model: on a line or a plane through its parameters.

A random direction alone says little, since the scale of a layer's weights is no property of the
function (batch norm undoes it). So every filter of a direction gets the norm of the model's own
filter, and a step of 1 is as large as the weights in every layer. The random draws depend on the
seed and on the names and shapes of the parameters only, so that two trainings of one network are
looked at along the same directions.
"""

import contextlib
import hashlib
import json
import os
import time
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sgdf.analysis import probe
from sgdf.analysis.probe import MODE, MODE_BY_BATCH, Loss

Array = NDArray[np.float64]
Direction = dict[str, Tensor]  # by the name of the parameter; one that is left out stays put


@dataclass(frozen=True)
class Surface:
    """The mean loss over `images` images on a grid; the model itself is where all axes are 0."""

    axes: tuple[Array, ...]  # one for each direction
    values: Array  # values[i] or values[i, j] at axes[0][i] and axes[1][j]; may be inf or nan
    loss: float  # of the model itself
    images: int
    seconds: float  # of this call
    mode: str = MODE

    def about(self) -> dict[str, Any]:
        """All but the values."""
        names = ("axes", "loss", "images", "seconds", "mode")
        return {name: getattr(self, name) for name in names}

    @property
    def has_centre(self) -> bool:
        """Whether the model itself is a point of the grid (a grid of even size has none there)."""
        return all(0.0 in axis for axis in self.axes)


@dataclass(frozen=True)
class TrainingPath:
    """Checkpoints in the plane through the model in which they differ most from it."""

    points: Array  # a row a checkpoint: its two coordinates, with the model at (0, 0)
    explained: tuple[float, float]  # the part of all squared distances along each direction
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
    """The loss along one or two random directions, with the norms of the model's own filters.

    The model is looked at in eval mode, with the batch norm statistics it has, and is left as it
    was. Biases and the parameters of norm layers (all with one dimension) stay put.

    Args:
        model: any module; its own parameters are the centre.
        loss: ``loss(outputs, targets)``, the *average* over a batch's images.
        data: gives batches ``(inputs, targets)`` of tensors; read once, kept on the device. A few
            thousand images are enough for a picture.
        size: points on an axis. The centre is one of them if the number is odd.
        span: the axes go from -span to span, in units of the weights' own size.
        dimensions: 1 for a line, 2 for a plane.
        seed: of the directions.
        save: a file (.npz) that gets every finished row; the same call goes on from there.
        progress: show a bar that counts points.
    """
    check_grid(size, dimensions)
    if not (span >= 0 and np.isfinite(span)) or (span == 0 and size > 1):
        raise ValueError(f"span is a positive number, not {span}")
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
    """The loss in the plane of a training's path, as far as the path goes and `margin` beyond.

    As for `surface`, but all parameters that require gradients move, one-dimensional ones as well,
    and batch norm goes by the statistics of each batch of `data`, which should be large: those of
    the model are wrong far away from it, where a path begins, and the loss would have any size.
    """
    check_grid(size, 2)
    if not margin >= 0:
        raise ValueError(f"margin is a part of the path's extent from 0 on, not {margin}")
    reach = np.vstack([path.points, np.zeros(2)])
    low, high = reach.min(0), reach.max(0)
    more = margin * (high - low)
    axes = tuple(np.linspace(low[i] - more[i], high[i] + more[i], size) for i in range(2))
    mode = MODE_BY_BATCH if probe.batch_norms(model) else MODE
    return evaluate(model, loss, data, path.directions, axes, mode, 0, save, progress)


def check_grid(size: int, dimensions: int) -> None:
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"size is a number of points on an axis from 1 on, not {size!r}")
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
    start = time.perf_counter()
    parameters = {name: p.detach() for name, p in probe.trainable(model).items()}
    device = next(iter(parameters.values())).device
    with probe.undisturbed(model, seed), probe.counting("points", progress) as counter:
        batches = probe.read(data, device)
        shape = tuple(map(len, axes))
        grid = Grid(shape, Path(save) if save else None)
        about = fingerprint(model, batches, along, axes, mode) if grid.file else {}
        if mode == MODE_BY_BATCH:
            for norm in probe.batch_norms(model).values():  # until the model is put back
                norm.train()
        centre = probe.checked_loss(model, loss, batches)
        if grid.file:
            grid.go_on(about, centre)
        counter.begin("surface", int(np.prod(shape)))
        counter.tick(int(grid.done.sum()) * int(np.prod(shape[1:])))
        for row in np.flatnonzero(~grid.done).tolist():
            values = []  # on the device until the row is done: the host need not wait
            for rest in np.ndindex(shape[1:]):
                place = [axis[i] for axis, i in zip(axes, (row, *rest), strict=True)]
                moved = displaced(parameters, along, place)
                values.append(probe.mean_loss(model, moved, loss, batches))
                counter.tick()
            grid.finish(row, torch.stack(values).cpu().numpy())
    seconds = time.perf_counter() - start
    return Surface(axes, grid.values, centre, probe.images(batches), seconds, mode)


def displaced(
    parameters: Mapping[str, Tensor], along: Sequence[Direction], place: Sequence[float]
) -> dict[str, Tensor]:
    """The parameters that the directions move, at a place; the model's own are not touched."""
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
    """Random directions, filter by filter as long as the model's weights.

    A filter is what belongs to one index of a parameter's first dimension: a convolution's filter,
    a linear layer's row. Parameters with one dimension have none and are left out.
    """
    return [
        {
            name: filter_normalised(random_like(p, name, seed, number), p.detach())
            for name, p in probe.trainable(model).items()
            if p.ndim > 1
        }
        for number in range(dimensions)
    ]


def random_like(parameter: Tensor, name: str, seed: int, number: int) -> Tensor:
    """Depends on the seed, the direction's number, the name and the shape alone."""
    said = json.dumps([seed, number, name, list(parameter.shape)])
    words = np.frombuffer(hashlib.sha256(said.encode()).digest(), dtype=np.uint32)
    drawn = np.random.default_rng(words.tolist()).standard_normal(tuple(parameter.shape))
    return torch.from_numpy(drawn)


def filter_normalised(drawn: Tensor, weight: Tensor) -> Tensor:
    rows = drawn.flatten(1)
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    wanted = torch.linalg.vector_norm(weight.double().cpu().flatten(1), dim=1, keepdim=True)
    rows = rows * (wanted / lengths)
    scaled: Tensor = rows.view_as(drawn).to(weight)
    return scaled


# --- the path of a training ----------------------------------------------------------------------


def path(model: nn.Module, checkpoints: Iterable[Mapping[str, Tensor]]) -> TrainingPath:
    """Where the checkpoints of a training lie, seen from its end, in their principal plane.

    The two directions are the first principal components of the differences between the
    checkpoints' parameters and the model's (about the model, not about their mean, so that the
    model lies in the plane). A plane never shows all of a path: `explained` says how much.

    Args:
        model: with the parameters at the end of the training.
        checkpoints: state dicts of the same model, in the order of the training.
    """
    end = {name: p.detach() for name, p in probe.trainable(model).items()}
    away = [difference(state, end, number) for number, state in enumerate(checkpoints)]
    if len(away) < 2:
        raise ValueError(f"a plane takes at least two checkpoints, not {len(away)}")
    components, explained = principal(torch.stack(away))
    points = torch.stack([torch.stack([row.double() @ c for c in components]) for row in away])
    first, second = (split_like(component, end) for component in components)
    return TrainingPath(points.numpy(), explained, (first, second))


def principal(rows: Tensor) -> tuple[list[Tensor], tuple[float, float]]:
    """Two directions of length 1, and the part of the rows' squared lengths along each."""
    parts = torch.split(rows, 1 << 20, dim=1)  # a few rows, as long as the model is large
    gram = torch.stack([part.double() @ part.double().T for part in parts]).sum(0)
    squares, vectors = torch.linalg.eigh(gram)  # the largest last
    if not squares[-2] > 1e-12 * squares[-1]:
        raise ValueError("the checkpoints lie on one line through the model: that is no plane")
    components = []
    for i in (-1, -2):
        weights = vectors[:, i]
        weights = weights * weights[weights.abs().argmax()].sign()  # either sign would do
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
    """From the end to a checkpoint, as one long vector."""
    parts = []
    for name, last in end.items():
        if name not in state or state[name].shape != last.shape:
            raise ValueError(f"checkpoint {number} is of another model: it has no such {name}")
        parts.append((state[name].detach().to(last) - last).flatten().cpu())
    return torch.cat(parts)


# --- rows on disk --------------------------------------------------------------------------------


class Grid:
    """Values, of which some rows are done; every finished row goes to the file, if there is one."""

    def __init__(self, shape: tuple[int, ...], file: Path | None) -> None:
        self.values = np.full(shape, np.nan)
        self.done = np.zeros(shape[0], dtype=bool)
        self.file = file
        self.about: dict[str, Any] = {}

    def go_on(self, about: dict[str, Any], centre: float) -> None:
        """Take over what the file has, if it is of the same surface."""
        assert self.file
        self.about = {**about, "centre": centre}
        if not self.file.exists():
            self.file.parent.mkdir(parents=True, exist_ok=True)
            return
        try:
            with np.load(self.file) as saved:
                there = json.loads(str(saved["about"]))
                values, done = saved["values"], saved["done"]
                other = [name for name in about if there[name] != about[name]]
                # Another loss shows in the model's own; another device may round otherwise.
                if not np.isclose(there["centre"], centre, rtol=1e-4):
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
        if not self.file:
            return
        # Beside it first, and then in its place: the file is whole at every instant.
        new = self.file.with_name(self.file.name + ".new")
        try:
            with open(new, "wb") as out:
                about = np.array(json.dumps(self.about))
                np.savez(out, values=self.values, done=self.done, about=about)
                out.flush()
                os.fsync(out.fileno())
            os.replace(new, self.file)
        except BaseException:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            raise


def fingerprint(
    model: nn.Module,
    batches: probe.Batches,
    along: Sequence[Direction],
    axes: tuple[Array, ...],
    mode: str,
) -> dict[str, Any]:
    """What decides the values, so that nobody goes on with another surface."""
    return {
        "version": 1,
        "axes": digest(torch.from_numpy(axis) for axis in axes),
        "directions": digest(part for direction in along for part in direction.values()),
        "model": digest([*model.parameters(), *model.buffers()]),
        "data": digest(part for batch in batches for part in batch),
        **({} if mode == MODE else {"mode": mode}),  # files from before there was another have none
    }


def digest(tensors: Iterable[Tensor]) -> str:
    total = hashlib.sha256()
    for tensor in tensors:
        plain = tensor.detach().cpu().contiguous()
        total.update(f"{plain.dtype} {tuple(plain.shape)}".encode())
        total.update(plain.flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()[:16]
