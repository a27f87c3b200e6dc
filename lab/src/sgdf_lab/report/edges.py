"""Warnings where the best setting of an optimizer lies at the edge of its grid."""

from collections.abc import Sequence

from sgdf_lab.report.statistics import Comparison, ComparisonRow
from sgdf_lab.support.numbers import is_number

#: Without a choice by validation, two values are a comparison and three are a grid.
LEAST = 3


def edge_warnings(comparison: Comparison) -> list[str]:
    """A sentence for each setting whose best value is the smallest or the largest that was tried.

    Values whose runs diverged or are still missing count as tried.
    """
    sentences = []
    for optimizer in dict.fromkeys(row.optimizer for row in comparison.rows):
        rows = [row for row in comparison.rows if row.optimizer == optimizer]
        best = best_row(comparison, rows)
        if best is None:
            continue
        for name, value in best.cell.config.settings.items():
            if not is_number(value):
                continue
            tried = tried_values(best, rows, name)
            if len(tried) < (2 if best.is_chosen else LEAST):
                continue
            if value == tried[-1]:
                where, hint = "largest", "larger"
            elif value == tried[0] and value > 0:
                where, hint = "smallest", "smaller"
            else:
                continue
            sentences.append(
                f"The best {name} of {optimizer}, {value:g}, is the {where} of the {len(tried)} "
                f"that were tried: a {hint} one may be better."
            )
    return sentences


def best_row(comparison: Comparison, rows: Sequence[ComparisonRow]) -> ComparisonRow | None:
    """The chosen one; where nothing was chosen, the one with the best final value."""
    for row in rows:
        if row.is_chosen:
            return row
    finals = {row.final.mean: row for row in rows if row.final}
    return finals[comparison.result.best(finals)] if finals else None


def tried_values(best: ComparisonRow, rows: Sequence[ComparisonRow], name: str) -> list[float]:
    """The values of a setting in the cells that differ from the best in nothing else."""
    own = {**best.cell.config.settings, name: None}
    alike = (
        row.cell.config.settings
        for row in rows
        if row.cell.protocol == best.cell.protocol
        and {**row.cell.config.settings, name: None} == own
    )
    return sorted({settings[name] for settings in alike if is_number(settings.get(name))})
