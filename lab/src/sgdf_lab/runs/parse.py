"""Settings as a user writes them: `name=value` on the command line, or a TOML file."""

import ast
import tomllib
from pathlib import Path
from typing import Any

from sgdf_lab.support.errors import UserError


def parse_setting(text: str) -> tuple[str, Any]:
    """Parse `name=value`; the value is a Python literal, a TOML boolean or a plain word.

    >>> parse_setting("betas=(0.9, 0.99)"), parse_setting("nesterov=true")
    (('betas', (0.9, 0.99)), ('nesterov', True))
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise UserError(f"--set takes name=value, not {text!r}")
    words = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return name, words[value.lower()]
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
    except (RecursionError, MemoryError):  # thousands of signs or brackets
        raise UserError(f"{name} is nested too deeply") from None


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; an error is one sentence that says where it is wrong."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not TOML: {error}") from None
    except RecursionError:
        raise UserError(f"{path} is nested too deeply") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
