"""Objects by name: ``package.module:Name``, and entry points of installed packages."""

import functools
import importlib
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from sgdf_lab.support.errors import UserError, reason_of, unknown


def announced(group: str) -> Mapping[str, EntryPoint]:
    """The entry points of a group, by name. The installed packages are scanned once."""
    return _scan(group, tuple(sys.path))


@functools.cache
def _scan(group: str, places: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    return {plugin.name: plugin for plugin in entry_points(group=group)}


def load(kind: str, plugin: EntryPoint) -> Any:
    """The object of an entry point; `kind` says in an error what it should have been."""
    try:
        return plugin.load()
    except (Exception, SystemExit) as error:  # a package breaks on import in any way
        raise UserError(
            f"the {kind} {plugin.name!r} cannot be loaded from {plugin.value} ({reason_of(error)}"
            "): mend or remove the package that announces it"
        ) from error


def load_object(kind: str, path: str, hint: str) -> Any:
    """The class, function or network of ``package.module:Name`` or ``package.module.Name``.

    Args:
        kind: what it should be, for errors.
        path: the module and the name in it.
        hint: how to make a module importable, for an error.
    """
    module_name, _, attribute = path.replace(":", ".").rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a module breaks on import in any way
        raise UserError(
            f"the {kind} {path!r} cannot be loaded ({reason_of(error)}): {hint}"
        ) from error
    found = getattr(module, attribute, None)
    if not callable(found):
        known = [n for n, value in vars(module).items() if callable(value) and n[0] != "_"]
        raise unknown(f"{kind} in {module_name}", attribute, known)
    return found


def load_own(place: str) -> Any:
    """The object that a row of the lab's own tables names, as ``module:object``."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)
