"""What counts as a number in settings and records."""

import math
from typing import Any


def is_number(value: Any) -> bool:
    """Whether the value is a finite number; an integer too large for a float is not.

    >>> is_number(1), is_number(float("nan")), is_number(10**400), is_number(True)
    (True, False, False, False)
    """
    try:
        return isinstance(value, int | float) and type(value) is not bool and math.isfinite(value)
    except OverflowError:
        return False
