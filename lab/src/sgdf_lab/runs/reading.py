"""Reading what a run wrote as JSON: settings, measurements, its end. Needs no torch."""

import json
from pathlib import Path
from typing import Any

from sgdf_lab.runs.config import Config
from sgdf_lab.runs.results import check_result
from sgdf_lab.support.errors import UserError
from sgdf_lab.support.files import read_text


def read_config(folder: Path) -> Config:
    path = folder / "config.json"
    try:
        values = json.loads(read_text(path))
    except FileNotFoundError:
        raise UserError(f"{folder} is not the folder of a run: it has no config.json") from None
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    return Config.from_json(values, str(path))


def read_result(folder: Path, config: Config | None = None) -> dict[str, Any] | None:
    """The result of a run that has ended; with `config`, it has to be complete."""
    path = folder / "result.json"
    try:
        result = json.loads(read_text(path))
        if not isinstance(result, dict) or "status" not in result:
            raise ValueError("it is not the result of a run")
        if config is not None:
            check_result(config, result)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(
            f"{path} cannot be read: {error}; remove it and run the same command again"
        ) from None
    return result


def read_end(folder: Path, config: Config | None = None) -> dict[str, Any] | None:
    """The result of a run, or its recorded failure, if any. A result overrides a failure."""
    result = read_result(folder, config)
    if result is not None:
        return result
    try:
        text = read_text(folder / "failure.json")
        return {"status": "failed", "error": str(json.loads(text)["error"])}
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines; the last one may be a killed process's unfinished write."""
    lines = read_text(path).splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def as_line(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, allow_nan=False) + "\n"
