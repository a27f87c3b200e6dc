"""A step on matrices, also where its work is divided: each matrix is stepped by its owner.

Averages are kept where the parameters are. With FSDP2 every process has rows of each matrix: it
averages its rows and sends them to the owner, which steps the whole matrix and sends the rows of
the update back: two exchanges for all matrices together. With DDP every process has all gradients
and averages: the owners send their updates to all. What belongs to a basis only its owner has.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sgdf.kernels.matrix import (
    MatrixRule,
    MatrixWork,
    Row,
    apply,
    build_basis,
    builds_basis,
    chunks,
    count_for_basis,
    direction,
    filtered,
    full_float32,
    gradients,
    step_chunk,
)
from sgdf.kernels.work import compute_dtype


@dataclass(frozen=True)
class Team:
    """The processes among which the matrices are divided."""

    group: Any  #: a `torch.distributed.ProcessGroup`
    sharded: bool  #: whether each process has a part of the rows of every matrix, as with FSDP2

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group)

    @property
    def size(self) -> int:
        return dist.get_world_size(self.group)

    def rows_of(self, rank: int, rows: int) -> tuple[int, int]:
        """The first of the rows that a process has, and the one behind its last."""
        if not self.sharded:
            return 0, rows
        each = -(-rows // self.size)
        return min(rank * each, rows), min((rank + 1) * each, rows)


def step(work: MatrixWork) -> None:
    """One step of a group."""
    for chunk in chunks(row for row in work.rows if row.team is None):
        step_chunk(work.rule, chunk)
    for team in dict.fromkeys(row.team for row in work.rows if row.team is not None):
        step_together(work.rule, [row for row in work.rows if row.team is team], team)


@torch.no_grad()
def step_together(rule: MatrixRule, rows: Sequence[Row], team: Team) -> None:
    """One step of matrices of one team, in the same order in every process."""
    with full_float32(rows[0].p):
        parts = {row.place: part for row, part in local_parts(rule, rows)}
        whole = gathered(rows, parts, team) if team.sharded else parts
        own = [row for row in rows if row.owner == team.rank]
        updates: dict[int, Tensor] = {}
        for chunk in chunks(own):
            stacks = [torch.stack(x) for x in zip(*(whole[r.place] for r in chunk), strict=True)]
            if builds_basis(chunk[0]):
                build_basis(rule, chunk, *stacks)
            else:
                updates |= _by_place(chunk, direction(rule, chunk, stacks))
        moving = [row for row in rows if not builds_basis(row)]
        received = scattered(moving, updates, team)
        for chunk in chunks(moving):
            apply(rule, chunk, torch.stack([received[row.place] for row in chunk]))
        count_for_basis(rows)


def local_parts(rule: MatrixRule, rows: Sequence[Row]) -> list[tuple[Row, list[Tensor]]]:
    """What the owner needs of this process's rows of every matrix."""
    found = []
    for chunk in chunks(rows):
        first = builds_basis(chunk[0])
        parts = [gradients(rule, chunk)] if first else filtered(rule, chunk)
        found += [(row, [x[k] for x in parts]) for k, row in enumerate(chunk)]
    return found


def gathered(
    rows: Sequence[Row], parts: dict[int, list[Tensor]], team: Team
) -> dict[int, list[Tensor]]:
    """The parts of this process's matrices, whole."""
    per_rank = [[row for row in rows if row.owner == rank] for rank in range(team.size)]
    out = [x for own in per_rank for row in own for x in parts[row.place]]
    counts = [sum(x.numel() for row in own for x in parts[row.place]) for own in per_rank]
    own = per_rank[team.rank]
    shapes = [
        [
            _shape_of_rows(row, *team.rows_of(rank, row.shape[0]))
            for row in own
            for _ in parts[row.place]
        ]
        for rank in range(team.size)
    ]
    received = _exchange(out, counts, shapes, rows[0], team)
    whole = [torch.cat(pieces) for pieces in zip(*received, strict=True)]
    found, k = {}, 0
    for row in own:
        found[row.place] = whole[k : k + len(parts[row.place])]
        k += len(parts[row.place])
    return found


def scattered(rows: Sequence[Row], updates: dict[int, Tensor], team: Team) -> dict[int, Tensor]:
    """The updates of this process's rows of every matrix, from their owners."""
    if not rows:
        return {}
    own = [row for row in rows if row.owner == team.rank]
    out, counts = [], []
    for rank in range(team.size):
        pieces = []
        for row in own:
            first, end = team.rows_of(rank, row.shape[0])
            pieces.append(updates[row.place][first:end])
        out += pieces
        counts.append(sum(x.numel() for x in pieces))
    senders = [[row for row in rows if row.owner == rank] for rank in range(team.size)]
    shapes = [
        [_shape_of_rows(row, *team.rows_of(team.rank, row.shape[0])) for row in sent]
        for sent in senders
    ]
    received = _exchange(out, counts, shapes, rows[0], team)
    return {
        row.place: x
        for sent, tensors in zip(senders, received, strict=True)
        for row, x in zip(sent, tensors, strict=True)
    }


def _exchange(
    out: list[Tensor], counts: list[int], shapes: list[list[tuple[int, ...]]], like: Row, team: Team
) -> list[list[Tensor]]:
    """Send `counts` numbers to each process, receive tensors of these shapes from each."""
    dtype, device = compute_dtype(like.p), like.p.device
    sizes = [[torch.Size(shape).numel() for shape in each] for each in shapes]
    totals = [sum(each) for each in sizes]
    sent = (
        torch.cat([x.reshape(-1) for x in out])
        if out
        else torch.empty(0, dtype=dtype, device=device)
    )
    received = torch.empty(sum(totals), dtype=dtype, device=device)
    dist.all_to_all_single(received, sent.to(device), totals, counts, group=team.group)
    return [
        [x.view(shape) for x, shape in zip(part.split(size), shape_list, strict=True)]
        for part, size, shape_list in zip(received.split(totals), sizes, shapes, strict=True)
    ]


def _shape_of_rows(row: Row, first: int, end: int) -> tuple[int, ...]:
    return (end - first, *row.shape[1:])


def _by_place(rows: Sequence[Row], stack: Tensor) -> dict[int, Tensor]:
    return {row.place: x for row, x in zip(rows, stack, strict=True)}
