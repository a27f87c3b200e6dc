"""The settings of an optimizer by the signature of its constructor, and values checked by it.

A value comes from a command line or a file as a number, a word, a list or a boolean. Of a wrong
type, it may fail in the first step only, or change nothing at all.
"""

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, Union, Unpack, get_args, get_origin

import torch

from sgdf.optim.settings import STATE_DTYPES
from sgdf_lab.support.errors import UserError
from sgdf_lab.support.numerics import is_number

UNIONS = (types.UnionType, Union)
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in STATE_DTYPES if dtype is not None}
SHORT_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}


def of(builder: Callable[..., Any]) -> dict[str, Any]:
    """Its parameters but the first; ``**settings: Unpack[Names]`` counts as its names."""
    found: dict[str, Any] = {}
    for parameter in list(inspect.signature(builder).parameters.values())[1:]:
        if get_origin(parameter.annotation) is Unpack:
            found |= get_args(parameter.annotation)[0].__annotations__
        elif parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            found[parameter.name] = parameter.annotation
    return found


def checked(name: str, value: Any, annotation: Any) -> Any:
    """The value as a run records it, a dtype by its name; a `UserError` if its type is wrong."""
    kinds = set(get_args(annotation)) if get_origin(annotation) in UNIONS else {annotation}
    if torch.dtype in kinds:
        return None if value is None else dtype_name(name, value)
    if name == "differentiable" and value is True:
        raise UserError("differentiable is for your own loop: a run takes no gradient of its steps")
    if value is None and type(None) in kinds:
        return value
    if bool in kinds and not isinstance(value, bool):
        raise UserError(f"{name} is true or false, not {value!r}")
    if annotation is int and type(value) is not int:
        raise UserError(f"{name} is an integer, not {value!r}")
    if float in kinds and not isinstance(value, torch.Tensor) and not is_number(value):
        raise UserError(f"{name} is a number, not {value!r}")
    count = len(get_args(annotation))
    if get_origin(annotation) is tuple and not is_tuple_of_numbers(value, count):
        raise UserError(f"{name} is {count} numbers, not {value!r}")
    return value


def as_arguments(settings: Mapping[str, Any], *, dtypes: bool = True) -> dict[str, Any]:
    """Recorded settings as a builder takes them: a list as a tuple, the name of a dtype as one."""
    found = {name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()}
    for name, value in found.items():
        if dtypes and name.endswith("state_dtype") and isinstance(value, str):
            found[name] = DTYPES[value]
    return found


def is_tuple_of_numbers(value: Any, length: int) -> bool:
    return isinstance(value, list | tuple) and len(value) == length and all(map(is_number, value))


def dtype_name(name: str, value: Any) -> str:
    """The name of a dtype that the state of an optimizer may have, such as "int8"."""
    word = str(value).removeprefix("torch.")
    word = SHORT_NAMES.get(word, word)
    if word not in DTYPES:
        raise UserError(f"{name} is one of {', '.join(DTYPES)}, not {value!r}")
    return word
