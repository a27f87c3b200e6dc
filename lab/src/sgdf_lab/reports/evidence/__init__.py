"""What a sceptic wants to see of a comparison at equal tuning: all of it, in one summary.

A summary is plain JSON. The tables and figures are made of it alone, so that they can be made again
from `summary.json`, and a test can compare a page with it.
"""

from typing import Any

Summary = dict[str, Any]
