"""The results that the paper published, read from tables.toml."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class PublishedValue:
    """A published number; `note` says when another paper is its source."""

    mean: float
    std: float | None = None
    note: str = ""


@dataclass(frozen=True)
class PublishedTable:
    """Results by optimizer and column; `label` is the paper's own name of it."""

    name: str
    label: str
    title: str
    metric: str
    rows: Mapping[str, Mapping[str, PublishedValue]]
    lower_is_better: bool = False
    notes: tuple[str, ...] = ()


ENTRY = re.compile(r"(?P<mean>[\d.]+)(?:±(?P<std>[\d.]+))?(?P<mark>[*†‡]?)")


def _table(name: str, words: dict[str, Any]) -> PublishedTable:
    columns, marks = words.pop("columns"), words.pop("marks", {})
    rows = {
        optimizer: {
            column: _value(entry, marks)
            for column, entry in zip(columns, entries.split(), strict=True)
            if entry != "-"
        }
        for optimizer, entries in words.pop("rows").items()
    }
    return PublishedTable(name, rows=rows, notes=tuple(words.pop("notes", ())), **words)


def _value(entry: str, marks: Mapping[str, str]) -> PublishedValue:
    """Parse an entry as the paper prints it: ``91.76±0.11``, or ``70.23†`` with a mark."""
    match = ENTRY.fullmatch(entry)
    if match is None:
        raise ValueError(f"{entry!r} is not an entry of a table")
    std, mark = match["std"], match["mark"]
    return PublishedValue(
        float(match["mean"]), float(std) if std else None, marks[mark] if mark else ""
    )


_PUBLISHED = tomllib.loads(files("sgdf_lab.paper").joinpath("tables.toml").read_text("utf-8"))
TABLES = {name: _table(name, words) for name, words in _PUBLISHED["tables"].items()}
TITLES: dict[str, str] = _PUBLISHED["titles"]


def published(task: str, model: str, optimizer: str, part: str = "") -> PublishedValue | None:
    """The paper's number, from the first table that has it: means over seeds come first.

    `part` is the last word of a column of another metric: "top-5".
    """
    column = "/".join(filter(None, (task, model, part)))
    for table in TABLES.values():
        if value := table.rows.get(optimizer, {}).get(column):
            return value
    return None
