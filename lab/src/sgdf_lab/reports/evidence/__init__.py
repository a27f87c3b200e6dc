"""What a sceptic wants to see of a comparison at equal tuning: all of it, in one summary.

A summary is plain JSON. The tables and figures are made of it only, so that they can be made again
from `summary.json`, and a test can compare a page with it.
"""

import math
from typing import Any

Summary = dict[str, Any]

VERSION = 2  # 1: verdicts by the test of the seeds only
VERDICTS = ("", "ahead", "behind")
DIGITS = 12  # at most, of a metric

RUNS = {"*": {"status": str}}
#: What several summaries side by side need of each: types, or shapes of the parts.
SHAPE = {
    "name": str,
    "ahead": float,
    "metric": {"words": str, "unit": str, "digits": int, "lower_is_better": bool},
    "contestants": [
        {
            "label": str,
            "optimizer": str,
            "trials": [{"status": str}],
            "finals": [{"seeds": RUNS}],
            "seeds": RUNS,
        }
    ],
    "comparisons": [
        {
            "reference": str,
            "rows": [
                {
                    "contestant": str, "mean": None, "low": None, "high": None, "lost": [int],
                    "verdict": str,
                }
            ],
        }
    ],
}  # fmt: skip


def checked(summary: Any) -> Summary:
    """A summary from a file; ValueError with the place of what is damaged."""
    if not isinstance(summary, dict) or "version" not in summary:
        raise ValueError("it has no version")
    if summary["version"] != VERSION:
        raise ValueError(f"it is not of version {VERSION}: `sgdf evidence` makes it again")
    check(summary, SHAPE, "the summary")
    labels = [contestant["label"] for contestant in summary["contestants"]]
    if len({*labels}) < len(labels):
        raise ValueError("two contestants have one label")
    if not 0 <= summary["metric"]["digits"] <= DIGITS:
        raise ValueError("the digits of its metric are no number of digits")
    for comparison in summary["comparisons"]:
        rows = comparison["rows"]
        if not {comparison["reference"], *(row["contestant"] for row in rows)} <= {*labels}:
            raise ValueError("a comparison is of somebody who is no contestant")
        for row in rows:
            mean, low, high = (row[name] for name in ("mean", "low", "high"))
            is_alone = low is None and high is None
            is_inside = None not in (mean, low, high) and low <= mean <= high
            if row["verdict"] not in VERDICTS or not (is_alone or is_inside):
                raise ValueError("the numbers of a comparison do not fit together")
    return dict(summary)


def check(value: Any, shape: Any, place: str) -> None:
    """Whether a value has the types of the shape; None: a finite number or nothing."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            raise ValueError(f"{place} is no object")
        for name, part in shape.items():
            for key in value if name == "*" else (name,):
                if key not in value:
                    raise ValueError(f"{place} has no {key}")
                check(value[key], part, str(key))
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise ValueError(f"{place} is no list")
        for part in value:
            check(part, shape[0], f"a part of {place}")
    elif shape in (None, float):
        is_number = type(value) in (int, float) and math.isfinite(value)
        if not is_number and not (shape is None and value is None):
            raise ValueError(f"{place} is not a number")
    elif type(value) is not shape:
        raise ValueError(f"{place} is not of type {shape.__name__}")
