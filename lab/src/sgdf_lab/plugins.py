"""What installed packages add to the lab by entry points."""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from sgdf_lab.support.errors import UserError, reason_of


def announced(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group, by name."""
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
