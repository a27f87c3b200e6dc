"""Where the runs of a summary come from: commits, machines, data."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sgdf_lab.report import labels
from sgdf_lab.runs.records import RunRecord

Json = dict[str, Any]


def provenance(records: Sequence[RunRecord]) -> Json:
    """The commits, machines and data of all starts of these runs."""
    starts = [
        start
        for record in records
        for start in (record.environment, *earlier_starts(record))
        if isinstance(start, dict) and start
    ]
    machines = [start["machine"] for start in starts if isinstance(start.get("machine"), dict)]
    hours = math.fsum(s for record in records for s in record.seconds.values()) / 3600
    return {
        "runs": len(records),
        "run_hours": round(hours, 3),
        "commits": different(start.get("commit") for start in starts),
        "machines": different(labels.visible(machine_words(machine)) for machine in machines),
        "data": different(start.get("data") for start in starts),
    }


def earlier_starts(record: RunRecord) -> list[Any]:
    found = record.environment.get("earlier")
    return found if isinstance(found, list) else []


def different(values: Iterable[Any]) -> list[str]:
    return sorted({str(value) for value in values if value})


def machine_words(machine: Mapping[str, Any]) -> str:
    cuda = f", CUDA {machine['cuda']}" if machine.get("cuda") else ""
    return f"{machine.get('device', 'unknown')}, torch {machine.get('torch', 'unknown')}{cuda}"
