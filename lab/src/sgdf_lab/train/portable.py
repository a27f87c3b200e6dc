"""State that `torch.load` restores with `weights_only=True`, which runs no code from the file.

It knows tensors, numbers, words and plain containers. NumPy's numbers and arrays are written as
tensors with a mark, and restored with their type. For anything else `unloadable` finds the entry.
"""

import io
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

SCALAR, ARRAY = "numpy number", "numpy array"  # the marks
CONTAINERS: tuple[type, ...] = (dict, OrderedDict, list, tuple)


def to_portable(value: Any) -> Any:
    """The same value with NumPy's numbers and arrays as marked tensors."""
    if isinstance(value, np.ndarray | np.generic):
        try:
            tensor = torch.from_numpy(np.array(value))  # a copy
        except TypeError:  # of words, objects or dates
            return value
        return {SCALAR if isinstance(value, np.generic) else ARRAY: tensor}
    return _mapped(to_portable, value)


def from_portable(value: Any) -> Any:
    """The inverse of `to_portable`."""
    if is_marked(value, ARRAY):
        return value[ARRAY].cpu().numpy()
    if is_marked(value, SCALAR):
        return value[SCALAR].cpu().numpy()[()]
    return _mapped(from_portable, value)


def is_marked(value: Any, mark: str) -> bool:
    return type(value) is dict and list(value) == [mark] and isinstance(value[mark], Tensor)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to the entries of a plain container; anything else stays as it is."""
    if type(value) in (dict, OrderedDict):
        return type(value)((key, function(entry)) for key, entry in value.items())
    if type(value) in (list, tuple):
        return type(value)(map(function, value))
    return value


def unloadable(value: Any, path: str = "") -> str:
    """A phrase that names the first entry that cannot be restored; empty if there is none."""
    if isinstance(value, Tensor | bool | int | float | str | None) or _is_loadable(value):
        return ""
    for key, entry in _entries(value):
        inside = f"{path}[{key!r}]" if path else str(key)
        if phrase := unloadable(entry, inside):
            return phrase
    kind = type(value).__name__
    return f"{path} is {'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


def _entries(value: Any) -> Iterable[tuple[Any, Any]]:
    if type(value) not in CONTAINERS:
        return ()
    return list(value.items() if isinstance(value, dict) else enumerate(value))


def _is_loadable(value: Any) -> bool:
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception:  # a class may raise anything when it is pickled
        return False
    return True
