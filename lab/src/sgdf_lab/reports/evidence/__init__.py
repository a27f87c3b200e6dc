"""What a sceptic wants to see of a comparison at equal tuning: all of it, in one summary.

A summary is plain JSON. The tables and figures are made of it only, so that they can be made again
from `summary.json`, and a test can compare a page with it.
"""

from typing import Any

Summary = dict[str, Any]

VERSION = 2  # 1: verdicts by the test of the seeds only
DIGITS = 12  # at most, of a metric


def checked(summary: Any) -> Summary:
    """A summary from a file; a ValueError if it is none, or asks for numbers without end."""
    if not isinstance(summary, dict) or "version" not in summary:
        raise ValueError("it has no version")
    if summary["version"] != VERSION:
        raise ValueError(f"it is not of version {VERSION}: `sgdf evidence` makes it again")
    if summary["metric"]["digits"] not in range(DIGITS + 1):
        raise ValueError("the digits of its metric are no number of digits")
    return summary
