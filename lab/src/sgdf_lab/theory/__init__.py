"""The paper's statements, checked: each a formula as printed and a simulation that tests it.

    from sgdf_lab.theory import statements
    print(statements()["wiener-gain"]().verdict)

The statement `wiener-gain` is the function `check_wiener_gain`, in the file of its part of the
paper. Its words are in statements.toml. One statement, `damping`, is our own.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sgdf_lab.theory.result import Result

__all__ = ["statements"]


def statements() -> "dict[str, Callable[..., Result]]":
    """Every statement by name, in the paper's order; our own come last.

    Returns:
        Functions of a seed and an effort (1 for the full size, less for a quick look) that return
        a `Result`.

    Examples:
        >>> from sgdf_lab.theory import statements
        >>> statements()["correction-factor"]().verdict
        'holds'
    """
    from sgdf_lab.theory.result import WORDS

    return {
        name: getattr(
            import_module(f"sgdf_lab.theory.{words['module']}"), f"check_{name.replace('-', '_')}"
        )
        for name, words in WORDS.items()
    }
