"""Write checked statements to a folder: results.json, theory.html and the figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy

from sgdf_lab.support import provenance
from sgdf_lab.support.files import write_atomically, write_json
from sgdf_lab.theory import figures
from sgdf_lab.theory.page import render_page
from sgdf_lab.theory.result import Result


def write_results(
    results: Sequence[Result], folder: Path, *, command: str = "", seconds: float = 0.0
) -> None:
    """Write the numbers, the page and the figures.

    Args:
        results: the checked statements.
        folder: created if it does not exist.
        command: recorded as the command that was typed.
        seconds: recorded as the time that the checks took.
    """
    folder.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {
        "command": command,
        "commit": provenance.commit(),
        "machine": provenance.machine("cpu") | {"numpy": numpy.__version__},
        "seconds": round(seconds, 1),
        "statements": [result.as_json() for result in results],
    }
    write_json(folder / "results.json", record, indent=2)
    for result in results:
        figures.write(result, folder / "figures")
    write_atomically(folder / "theory.html", render_page(results, record))
